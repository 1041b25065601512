"""``headrace start --setup``: prepares the source with the rights of a superuser.

It runs the statements that ``headrace start`` only names otherwise: the engine's role, its rights,
and the settings of the server.  The user restarts Postgres when asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError, TransientError, UserError
from headrace.postgres import connect

Connection = psycopg.Connection[Any]
Say = Callable[[str], None]
Confirm = Callable[[str], bool]
"""Asks the user to do something; returns whether that was confirmed."""

_SLOTS_FREE: Final = 4
_RESTART_S: Final = 120.0
_POLL_S: Final = 0.2
_ROLE: Final = """
SELECT rolcanlogin, rolreplication, rolsuper FROM pg_catalog.pg_roles WHERE rolname = %s
"""
_OWNERS: Final = """
SELECT o.rolname, o.rolsuper, count(*)
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_catalog.pg_roles o ON o.oid = c.relowner
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'headrace')
   AND n.nspname !~ '^pg_' AND NOT pg_catalog.pg_has_role(%s, o.oid, 'USAGE')
 GROUP BY o.rolname, o.rolsuper ORDER BY o.rolname
"""
_LIMITS: Final = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots),
       (SELECT count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'walsender')
"""
_PENDING: Final = """
SELECT count(*) FROM pg_catalog.pg_settings
 WHERE pending_restart AND name IN ('wal_level', 'max_replication_slots', 'max_wal_senders')
"""


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A statement to run; ``shown`` is its text without a password."""

    statement: sql.Composed
    shown: str
    restart: bool = False
    """Whether it takes effect after a restart only."""


def provision(settings: Settings, admin: str, say: Say, confirm: Confirm) -> None:
    """Run what is missing on the source over the connection string ``admin`` of a superuser.

    ``say`` gets each statement.  ``confirm`` asks for a restart of Postgres.

    Raises:
        UserError: 42501, ``admin`` is no superuser; 22023, it leads to another database.
        PrerequisiteError: Postgres has not been restarted.
        TransientError: the server cannot be reached.
    """
    with connect.connect(admin, name="headrace setup", otherwise=UserError) as conn:
        _check(conn, settings)
        steps = [*_role(conn, settings), *_limits(conn)]
        for step in steps:
            conn.execute(step.statement)
            say(f"  {step.shown};")
        for granted in _grants(conn, settings, say):
            conn.execute(granted.statement)
            say(f"  {granted.shown};")
    if any(step.restart for step in steps):
        _await_restart(admin, confirm)


def _check(conn: Connection, settings: Settings) -> None:
    row = conn.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
    if row != (True,):
        raise UserError(
            f'role "{conn.info.user}" is not a superuser',
            hint="Give --setup the connection string of a superuser.",
            sqlstate="42501",
        )
    wanted = str(conninfo_to_dict(settings.source).get("dbname") or "")
    if wanted and wanted != conn.info.dbname:
        raise UserError(
            f'--setup leads to database "{conn.info.dbname}", --source to "{wanted}"',
            hint="Name the same database in both.",
            sqlstate="22023",
        )


def _role(conn: Connection, settings: Settings) -> Iterator[SetupStep]:
    """Yield statements that create the engine's role, or add what it lacks."""
    source = conninfo_to_dict(settings.source)
    name, password = str(source.get("user") or conn.info.user), source.get("password")
    role = sql.Identifier(name)
    found = conn.execute(_ROLE, (name,)).fetchone()
    if found is None:
        made = sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(role)
        shown = made.as_string(conn)
        if password:
            made += sql.SQL(" PASSWORD {}").format(sql.Literal(str(password)))
            shown += " PASSWORD '…'"
        yield SetupStep(made, shown)
    elif not found[2] and not (found[0] and found[1]):
        yield _step(conn, sql.SQL("ALTER ROLE {} LOGIN REPLICATION").format(role))
    database = sql.Identifier(conn.info.dbname)
    may = "SELECT pg_catalog.has_database_privilege(%s, current_database(), 'CREATE')"
    if found is None or conn.execute(may, (name,)).fetchone() != (True,):
        grant = sql.SQL("GRANT CONNECT, CREATE ON DATABASE {} TO {}")
        yield _step(conn, grant.format(database, role))


def _grants(conn: Connection, settings: Settings, say: Say) -> Iterator[SetupStep]:
    """Yield grants of the roles that own tables: only a table's owner may publish it."""
    name = str(conninfo_to_dict(settings.source).get("user") or conn.info.user)
    for owner, powerful, tables in conn.execute(_OWNERS, (name,)).fetchall():
        if powerful:
            # A member could become superuser.
            say(f'  -- {tables} tables of superuser "{owner}" cannot be read by views')
            continue
        grant = sql.SQL("GRANT {} TO {}").format(sql.Identifier(owner), sql.Identifier(name))
        yield _step(conn, grant)


def _limits(conn: Connection) -> Iterator[SetupStep]:
    """Yield statements for settings of the server that are too low."""
    row = conn.execute(_LIMITS).fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    level, slots_max, senders_max, slots, senders = row
    wanted = {
        "wal_level": "logical" if level != "logical" else None,
        "max_replication_slots": slots + _SLOTS_FREE if slots_max < slots + 2 else None,
        "max_wal_senders": senders + _SLOTS_FREE if senders_max < senders + 2 else None,
    }
    for name, value in wanted.items():
        if value is not None:
            text = sql.SQL("ALTER SYSTEM SET {} = {}")
            yield _step(conn, text.format(sql.SQL(name), sql.Literal(value)), restart=True)


def _step(conn: Connection, statement: sql.Composed, *, restart: bool = False) -> SetupStep:
    return SetupStep(statement, statement.as_string(conn), restart)


def _await_restart(admin: str, confirm: Confirm) -> None:
    """Wait until Postgres was restarted, once the user says so.

    Raises:
        PrerequisiteError: it was not.
    """
    lacking = PrerequisiteError(
        "Postgres must be restarted: its new settings take effect then",
        hint="Restart it, and run headrace start again.",
        sqlstate="55000",
    )
    if not confirm("Restart Postgres now, for its new settings. Then press Enter: "):
        raise lacking
    until = clock.monotonic() + _RESTART_S
    while clock.monotonic() < until:
        try:
            with connect.connect(admin, name="headrace setup") as conn:
                if conn.execute(_PENDING).fetchone() == (0,):
                    return
        except (TransientError, psycopg.Error):
            pass
        clock.sleep(_POLL_S)
    raise lacking
