"""The transaction in which a query is bound: role, settings, the temporary view.

To analyse a query can run code of a user: a literal of a composite type is read at once, and with it
the check of a domain inside.  ``SET ROLE`` alone does not keep that code from our rights, since it
may reset the role; inside of a SECURITY DEFINER function nobody may.  So the caller's query is only
ever analysed in a temporary function that belongs to the caller.

Postgres' own errors come back with SQLSTATE, message, detail and hint as they are, and
with the position moved to the user's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import pq, sql

from headrace import pinned
from headrace.errors import (
    HeadraceError,
    PrerequisiteError,
    PrivilegeError,
    SyntaxUserError,
    UserError,
)
from headrace.expressions.session import FUNCTION_PATH
from headrace.planner.catalog import Connection
from headrace.planner.nodetree import Node, read_nodes
from headrace.types import PINNED_SETTINGS

_VIEW: Final = "headrace_bind"
_LITERAL: Final = r"((?:E)?'(?:[^']|'')*')::([a-z][\w .]*)"
_MARKS: Final = re.compile(f"( SET \\S+ TO ){_LITERAL}( DEFAULT ){_LITERAL}( USING )")
_PREFIX: Final = f"CREATE TEMPORARY VIEW pg_temp.{_VIEW} AS "
_PARSE: Final = f"PREPARE {_VIEW} AS "
_ANALYSE: Final = """
CREATE FUNCTION pg_temp.headrace_analyse(pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN EXECUTE $1; END'"""

CAPTURED: Final = (
    *("TimeZone", "DateStyle", "IntervalStyle", "extra_float_digits", "bytea_output"),
    *("lc_monetary", "lc_numeric", "lc_time", "xmloption", "xmlbinary"),
    *("default_text_search_config", "timezone_abbreviations"),
)
"""Settings on which stable functions depend: kept with the view."""

_PARSING: Final = (
    *("standard_conforming_strings", "backslash_quote", "array_nulls"),
    *("transform_null_equals", "search_path"),
)
"""Settings that change what the text of the query means, and nothing after that.

The search path comes last: from then on a name may mean what a user has created.
"""


def to_error(
    error: psycopg.Error, *, shift: int = 0, inner: str | None = None
) -> HeadraceError:
    """Postgres' error as ours; ``shift`` characters of the statement are not the user's.

    ``inner`` as for ``pinned.translate``.
    """
    denied = error.sqlstate == PrivilegeError.sqlstate
    kind = PrivilegeError if denied else UserError
    return pinned.translate(error, kind, shift=shift, inner=inner)


@dataclass(frozen=True, slots=True)
class Bound:
    """The temporary view: its tree, its text, its columns."""

    oid: int
    """OID of the view: up to Postgres 15 its own tree names it (as ``old`` and ``new``)."""
    tree: Node
    canonical_sql: str
    columns: list[tuple[str, int, int, int]]
    """(name, type, typmod, collation)"""
    query: str

    def position(self, location: int) -> int | None:
        """1-based character position in the query of a tree location, if it has one.

        Postgres 17 and newer do not keep locations.
        """
        octets = (_PREFIX + self.query).encode()
        if not len(_PREFIX) <= location < len(octets):
            return None
        return len(octets[:location].decode(errors="replace")) - len(_PREFIX) + 1


@contextmanager
def binding(
    conn: Connection, caller: str | None, settings: dict[str, str]
) -> Iterator[None]:
    """A transaction as ``caller`` with its settings; always rolled back."""
    try:
        with conn.transaction(force_rollback=True):
            if caller is not None:
                pinned.become(conn, caller)
            given = {name.lower(): value for name, value in settings.items()}
            for name in (*CAPTURED, *_PARSING):
                if (value := given.get(name.lower())) is not None:
                    _set(conn, name, value)
            yield
    except psycopg.Error as error:
        raise to_error(error) from error


def _set(conn: Connection, name: str, value: str) -> None:
    conn.execute("SELECT pg_catalog.set_config(%s, %s, true)", (name, value))


def captured_settings(conn: Connection, given: dict[str, str]) -> dict[str, str]:
    """The settings that influence evaluation, as they are now, ``FUNCTION_PATH`` among them.

    A view that is planned again keeps the path it was created with, which is among the ``given``.
    """
    row = conn.execute(
        # Under the caller's search path.
        "SELECT pg_catalog.array_agg(pg_catalog.current_setting(s, true)),"
        "  (SELECT pg_catalog.string_agg(pg_catalog.quote_ident(n), ', ' ORDER BY place)"
        "     FROM pg_catalog.unnest(pg_catalog.current_schemas(false)::pg_catalog.text[])"
        "       WITH ORDINALITY p (n, place)"
        "    WHERE NOT pg_catalog.starts_with(n, 'pg_'))"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) s",
        (list(CAPTURED),),
    ).fetchone()
    assert row is not None, "an aggregate gives one row"
    found = {k: v for k, v in zip(CAPTURED, row[0], strict=True) if v is not None}
    path = ", ".join(filter(None, [row[1], "pg_temp"]))
    return found | {FUNCTION_PATH: given.get(FUNCTION_PATH, path)}


def bind_query(conn: Connection, query: str, caller: str | None) -> None:
    """Let Postgres analyse ``query`` and make the temporary view of it.

    First its syntax, without analysis: the extended protocol takes exactly one statement, and
    a text that can be prepared cannot smuggle a clause of CREATE VIEW in.
    """
    if "\0" in query:
        raise SyntaxUserError("the query contains a zero byte")
    text = (_PARSE + query).encode(conn.info.encoding)
    _check(conn, conn.pgconn.prepare(b"", text), shift=len(_PARSE))
    try:
        _check(conn, conn.pgconn.exec_params(_ANALYSE.encode(), None))
    except PrivilegeError as error:
        if "temporary" not in error.message:
            raise
        raise PrerequisiteError(
            "checking the query needs the right to create temporary tables",
            hint="Run: " + _grant_temporary(conn, caller or conn.info.user),
        ) from error
    made = _PREFIX + query
    call = b"SELECT pg_temp.headrace_analyse($1)"
    result = conn.pgconn.exec_params(call, [made.encode(conn.info.encoding)])
    _check(conn, result, shift=len(_PREFIX), inner=made)


def _check(
    conn: Connection,
    result: pq.abc.PGresult,
    *,
    shift: int = 0,
    inner: str | None = None,
) -> None:
    if result.status in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
        return
    error = psycopg.errors.error_from_result(result, conn.info.encoding)
    raise to_error(error, shift=shift, inner=inner) from error


def _grant_temporary(conn: Connection, role: str) -> str:
    grant = sql.SQL("GRANT TEMPORARY ON DATABASE {} TO {};")
    names = sql.Identifier(conn.info.dbname), sql.Identifier(role)
    return grant.format(*names).as_string(conn)


def pin_settings(conn: Connection) -> None:
    """From here on texts of values and names are canonical."""
    for name, value in PINNED_SETTINGS.items():
        if name != "client_encoding":
            _set(conn, name, value)


def read_view(conn: Connection, query: str, view: str = _VIEW) -> Bound:
    """What Postgres made of the query."""
    name = f"pg_temp.{view}"
    row: tuple[Any, ...] | None = conn.execute(
        "SELECT ev_action, pg_get_viewdef(ev_class, false), ev_class FROM pg_rewrite"
        " WHERE ev_class = %s::regclass",
        (name,),
    ).fetchone()
    assert row is not None, "the view has been made in this transaction"
    columns = conn.execute(
        "SELECT attname, atttypid, atttypmod, attcollation FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        (name,),
    ).fetchall()
    [tree] = read_nodes(row[0])
    return Bound(int(row[2]), tree, _readable(row[1].strip()), columns, query)


def _readable(printed: str) -> str:
    """A printed query that Postgres can read again.

    It prints the marks of a CYCLE clause with casts, which its grammar does not take there.
    """
    return _MARKS.sub(r"\1\3 \2\4\6 \5\7", printed)


def view_tree(conn: Connection, query: str, view: str) -> Node:
    """The tree of a query of our own making."""
    conn.execute(f"CREATE TEMPORARY VIEW pg_temp.{view} AS {query}".encode())
    return read_view(conn, query, view).tree
