"""Rights of a caller to read a view's table, and the tables that the view reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from headrace.errors import DefiniteFailure, PrivilegeError, UndefinedError, UnsupportedError
from headrace.postgres.connect import Connection
from headrace.sql import states
from headrace.sql.status import Status
from headrace.sql.views import ViewRow

# A partition or child may also be read through a parent, under the parent's rights and policies.
_READABLE: Final = """
WITH RECURSIVE above (oid) AS (
  SELECT %(oid)s::bigint::oid
  UNION SELECT i.inhparent FROM above a JOIN pg_inherits i ON i.inhrelid = a.oid)
SELECT EXISTS (
  SELECT FROM above a JOIN pg_class c ON c.oid = a.oid, pg_roles r
   WHERE r.rolname = coalesce(%(caller)s::name, current_user)
     AND has_schema_privilege(r.oid, c.relnamespace, 'USAGE')
     AND (SELECT bool_and(has_column_privilege(r.oid, c.oid, a.attnum, 'SELECT'))
            FROM unnest(%(columns)s::name[]) n (name)
            LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = n.name)
     AND NOT (c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls
              OR (pg_has_role(r.oid, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity))))"""


def result_table(conn: Connection, view: ViewRow, caller: str | None, doing: str) -> sql.Identifier:
    """Return the name of the view's table, all of whose rows the caller may read.

    Raises:
        UndefinedError: 42P01, the table is gone.
        PrivilegeError: the caller may not read it.
        UnsupportedError: row security hides rows of it; ``doing`` names what is refused.
    """
    row = conn.execute(
        "SELECT n.nspname, c.relname, has_table_privilege(r.oid, c.oid, 'SELECT'),"
        " c.relrowsecurity AND NOT (r.rolsuper OR r.rolbypassrls"
        "   OR pg_has_role(r.oid, c.relowner, 'USAGE'))"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, pg_roles r"
        " WHERE c.oid = %s AND r.rolname = coalesce(%s::name, current_user)",
        (view.result_oid, caller),
    ).fetchone()
    if row is None:
        raise gone(view)
    schema, table, may_read, hidden = row
    if not may_read:
        raise PrivilegeError(f"permission denied for table {table}")
    if hidden:
        raise UnsupportedError(
            f"{doing} view {view.shown} is not supported for a role from which row security hides"
            " rows",
            hint="Ask a superuser or a role with BYPASSRLS to call it.",
        )
    return sql.Identifier(schema, table)


def check_running(conn: Connection, view: ViewRow, *, owns: bool) -> None:
    """Raise DefiniteFailure (55000) unless the view runs."""
    if view.status != Status.RUNNING:
        raise DefiniteFailure(
            f"view {view.shown} does not run: its status is {view.status}",
            # The message may contain a value of a row.
            detail=states.message(conn, view.id) if owns else None,
        )


def may_read(conn: Connection, caller: str | None, oid: int, columns: Sequence[str]) -> bool:
    """Return whether the caller may read these columns of every row of a table.

    If row security applies to the caller, the answer is no: its policies are not evaluated.
    """
    values = {"oid": oid, "caller": caller, "columns": list(columns)}
    row = conn.execute(_READABLE, values).fetchone()
    return bool(row and row[0])


def gone(view: ViewRow) -> UndefinedError:
    """Return the error for a view without its table."""
    return UndefinedError(f"result table {view.shown} does not exist", sqlstate="42P01")
