"""Tables of the publication: added before a population's snapshot, dropped when unused.

An advisory lock serialises Headrace's changes: two at once would deadlock or fail with "tuple
concurrently updated".  No statement waits for a lock longer than ``lock_timeout``, since
the application's statements would queue behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError, TransientError
from headrace.postgres import identity, statements
from headrace.postgres import slot as setup

Connection = psycopg.Connection[Any]

_log = structlog.get_logger(__name__)
_LOCK: Final = 0x4844_5202
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.3
_LOOK_BYTES_MAX: Final = 1 << 20
"""Size up to which a table is read to find out whether it has rows."""


def tables(conn: Connection, name: str) -> frozenset[int]:
    """Return the OIDs of the published tables."""
    rows = conn.execute(
        "SELECT r.prrelid FROM pg_catalog.pg_publication_rel r"
        " JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s",
        (name,),
    ).fetchall()
    return frozenset(int(row[0]) for row in rows)


def add_tables(
    conn: Connection, settings: Settings, oids: Sequence[int], fed: setup.Fed
) -> list[int]:
    """Publish the tables ``oids``; return those that were not published before.

    Committed when it returns.  REQUIRES: ``conn`` in autocommit, outside a transaction.

    Raises:
        PrerequisiteError: the role may not publish a table, or the publication is a foreign one.
        TransientError: the locks were not free within the attempts.
    """
    setup.ensure_publication(conn, settings, fed)
    return _change(conn, settings, oids, add=True)


def try_tables(conn: Connection, settings: Settings, oids: Sequence[int], fed: setup.Fed) -> None:
    """Run ``add_tables`` and roll it back; raise what it would raise."""
    setup.ensure_publication(conn, settings, fed)
    _change(conn, settings, oids, add=True, undo=True)


def add_empty(
    conn: Connection, settings: Settings, oids: Sequence[int], lock_timeout_ms: int
) -> bool:
    """Publish the tables ``oids`` in the caller's transaction; False: one of them has rows.

    No other session can write them until that transaction ends.

    Raises:
        LockNotAvailable, DeadlockDetected: another session is writing one of them.
        PrerequisiteError: one has no replica identity.
    """
    _wait_at_most(conn, lock_timeout_ms)
    statements.alone(conn, _LOCK)
    # A policy could hide rows; with row_security off, reading fails instead.
    conn.execute("SET LOCAL row_security = off")
    wanted = sorted(set(oids))
    names = _names(conn, wanted)
    for name in names:
        table = sql.Identifier(*name)
        conn.execute(sql.SQL("LOCK TABLE ONLY {} IN SHARE MODE").format(table))
    # A locked table keeps its name.
    if len(names) < len(wanted) or _names(conn, wanted) != names:
        return False
    if not all(map(partial(_is_empty, conn), wanted, names)):
        return False
    _alter(conn, settings, oids, add=True)
    return True


def drop_unused(
    conn: Connection, settings: Settings, oids: Sequence[int], lock_timeout_ms: int
) -> None:
    """Stop publishing the tables ``oids`` in the caller's transaction."""
    _wait_at_most(conn, lock_timeout_ms)
    _alter(conn, settings, oids, add=False)


def drop_tables(conn: Connection, settings: Settings, oids: Sequence[int]) -> list[int]:
    """Stop publishing the tables ``oids``; return those that were published."""
    return _change(conn, settings, oids, add=False)


def _change(
    conn: Connection, settings: Settings, oids: Sequence[int], *, add: bool, undo: bool = False
) -> list[int]:
    assert conn.autocommit, "the change must be committed before a snapshot is taken"
    for attempt in range(_ATTEMPTS):
        try:
            with conn.transaction(force_rollback=undo):
                _wait_at_most(conn, settings.lock_timeout_ms)
                changed = _alter(conn, settings, oids, add=add)
        except (
            psycopg.errors.LockNotAvailable,
            psycopg.errors.DeadlockDetected,
            psycopg.errors.ReadOnlySqlTransaction,
        ):
            _log.info("publication change waits for a lock", attempt=attempt)
            clock.sleep(_PAUSE_S)
        except psycopg.errors.InsufficientPrivilege as error:
            raise PrerequisiteError(
                f'could not change publication "{settings.publication_name}":'
                f" {error.diag.message_primary}",
                hint="Headrace's role must own the table, or be a member of an ordinary role that"
                " owns it (headrace init prints the GRANT); or a superuser must add the table to"
                " the publication.",
                sqlstate="42501",
            ) from error
        else:
            if changed and not undo:
                _log.info("publication changed", added=add, tables=changed)
            return changed
    raise TransientError(
        f'publication "{settings.publication_name}" could not be changed: the tables stay locked',
        sqlstate="55P03",
    )


def _alter(conn: Connection, settings: Settings, oids: Sequence[int], *, add: bool) -> list[int]:
    statements.alone(conn, _LOCK)
    published = tables(conn, settings.publication_name)
    changed = [oid for oid in dict.fromkeys(oids) if (oid in published) != add]
    if not changed:
        return []
    rows = _names(conn, changed)
    if not rows:
        return []  # Postgres has removed dropped tables from the publication
    # ONLY: a child table is another table, published when a view reads it.
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*row)) for row in rows)
    if add:
        # Lock tables before the publication: DDL on a table may wait for the publication.
        conn.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(names))
    conn.execute(
        sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
            sql.Identifier(settings.publication_name), sql.SQL("ADD" if add else "DROP"), names
        )
    )
    if add:
        _check_identified(conn, settings.publication_name, rows)
    return changed


def _is_empty(conn: Connection, oid: int, name: tuple[str, str]) -> bool:
    """Return whether a locked table has no rows; a large one is assumed to have some.

    No query is planned on it: planning would run functions in its index expressions.
    """
    table = sql.Identifier(*name)
    row = conn.execute("SELECT pg_catalog.pg_relation_size(%s::bigint::oid)", (oid,)).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    if row[0] == 0 or row[0] > _LOOK_BYTES_MAX:
        return bool(row[0] == 0)
    with conn.cursor() as cursor, cursor.copy(sql.SQL("COPY {} TO STDOUT").format(table)) as copy:
        return sum(map(len, copy)) == 0  # read to its end, or the session stays busy


def _wait_at_most(conn: Connection, lock_timeout_ms: int) -> None:
    """Set the longest wait for a lock within a transaction."""
    conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(lock_timeout_ms)))


def _names(conn: Connection, oids: Sequence[int]) -> list[tuple[str, str]]:
    """Return schema and name of the existing tables among ``oids``, ordered by OID."""
    return conn.execute(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c"
        " JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[]) ORDER BY c.oid",
        (list(oids),),
    ).fetchall()


def _check_identified(conn: Connection, name: str, added: Sequence[tuple[str, str]]) -> None:
    """Raise if a table in ``added`` lost its replica identity before this transaction locked it.

    Raises:
        PrerequisiteError: Postgres would refuse the owner's UPDATE and DELETE of that table.
    """
    for _, schema, table in identity.find_unidentified(conn, name):
        if (schema, table) in added:
            raise PrerequisiteError(
                f'table "{schema}"."{table}" has neither a primary key nor REPLICA IDENTITY FULL',
                detail="Postgres refuses updates and deletes of a published table without one.",
                hint="Add a primary key, or set REPLICA IDENTITY FULL.",
            )
