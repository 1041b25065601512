"""Row security of result tables: the policies of the tables that a view reads.

A view's plan has conditions (``SinkSpec.conditions``).  They become one permissive policy for all
roles, named after its text.  So a role sees the rows for which all conditions are true.  DROP …
CASCADE of a function or table that a condition uses also drops the policy.  As no other lets rows
through, no role to which row security applies then sees any.  Headrace owns the table, and writes
all its rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from headrace.sink import table

Connection = psycopg.Connection[Any]

_FOUND: Final = """
SELECT c.relrowsecurity, ARRAY(SELECT p.polname::text FROM pg_catalog.pg_policy p
                                WHERE p.polrelid = c.oid ORDER BY 1)
  FROM pg_catalog.pg_class c WHERE c.oid = %s"""

_EARLIER: Final = """
SELECT polrelid::pg_catalog.int8 FROM pg_catalog.pg_policy
 WHERE polrelid = ANY (%s::pg_catalog.oid[]) AND polname = %s"""
_LOCK: Final = sql.SQL("LOCK TABLE ONLY {} IN ACCESS EXCLUSIVE MODE NOWAIT")


def put(conn: Connection, name: sql.Identifier, oid: int, conditions: Sequence[str]) -> None:
    """Give a table (its name and OID) the row security of its view, in the caller's transaction.

    Readers wait for that transaction if anything must change.
    REQUIRES: ``search_path = pg_catalog``, and all policies of the table are Headrace's.

    Raises:
        LockNotAvailable: readers hold the table.
    """
    wanted = table.policy_names(conditions)
    row = conn.execute(_FOUND, (oid,)).fetchone()
    assert row is not None, "the table is locked or new"
    enabled, found = bool(row[0]), set(row[1])
    for policy in sorted(found - wanted.keys()):
        _drop(conn, name, policy)
    for policy, condition in wanted.items():
        if policy in found:
            continue
        conn.execute(
            sql.SQL("CREATE POLICY {} ON {} FOR SELECT USING ({})").format(
                sql.Identifier(policy), name, sql.SQL(condition)
            )
        )
    if enabled != bool(wanted):
        how = sql.SQL("ENABLE" if wanted else "DISABLE")
        conn.execute(sql.SQL("ALTER TABLE {} {} ROW LEVEL SECURITY").format(name, how))


def renew(conn: Connection, targets: Iterable[table.ResultTable]) -> None:
    """Replace policies of an earlier version, but for tables that readers hold now.

    One statement finds them.  REQUIRES: ``table.check`` accepts the tables.
    """
    secured = {target.oid: target for target in targets if target.conditions}
    if not secured:
        return
    for (oid,) in conn.execute(_EARLIER, (list(secured), table.EVERY_ROW)).fetchall():
        target = secured[oid]
        with contextlib.suppress(psycopg.errors.LockNotAvailable), conn.transaction():
            conn.execute(_LOCK.format(target.identifier))
            put(conn, target.identifier, oid, target.conditions)


def release_columns(conn: Connection, name: sql.Identifier, oid: int) -> None:
    """Remove the row security of a table, whose columns may then be changed.

    Until ``put``, in the same transaction, every reader waits.
    """
    row = conn.execute(_FOUND, (oid,)).fetchone()
    if row is not None and row[1]:
        put(conn, name, oid, ())


def _drop(conn: Connection, name: sql.Identifier, policy: str) -> None:
    conn.execute(sql.SQL("DROP POLICY {} ON {}").format(sql.Identifier(policy), name))
