"""Settings of the server that take effect after a restart: which have a new value by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

_MAY_READ_FILES: Final = """
SELECT pg_catalog.has_table_privilege('pg_catalog.pg_file_settings', 'SELECT')
   AND pg_catalog.has_function_privilege('pg_catalog.pg_show_all_file_settings()', 'EXECUTE')
"""
_IN_FILES: Final = """
SELECT setting FROM pg_catalog.pg_file_settings WHERE name = %s ORDER BY seqno DESC LIMIT 1
"""
_SEEN: Final = "SELECT pending_restart FROM pg_catalog.pg_settings WHERE name = %s"


def is_pending(conn: Connection, name: str, suffices: Callable[[str], bool]) -> bool:
    """Return whether ``name`` gets a value that ``suffices`` by a restart alone.

    Only a superuser may read the files.  For other roles the server must have read them: the value
    is then not known, but that it was changed.
    """
    if conn.execute(_MAY_READ_FILES).fetchone() == (True,):
        row = conn.execute(_IN_FILES, (name,)).fetchone()
        return row is not None and row[0] is not None and suffices(row[0])
    return conn.execute(_SEEN, (name,)).fetchone() == (True,)


def forbids_alter_system(conn: Connection) -> bool:
    """Return whether the server refuses ALTER SYSTEM: its settings are managed elsewhere."""
    row = conn.execute("SELECT pg_catalog.current_setting('allow_alter_system', true)").fetchone()
    return row == ("off",)  # before Postgres 17 there is no such setting


def remedy(conn: Connection, name: str, value: object, suffices: Callable[[str], bool]) -> str:
    """Return the hint for setting ``name``, which needs ``value``."""
    if is_pending(conn, name, suffices):
        return f"Restart Postgres: the new value of {name} takes effect then."
    if forbids_alter_system(conn):
        return (
            f"Set {name} = {value} where the server's settings are managed (it refuses ALTER"
            " SYSTEM), and restart Postgres."
        )
    return (
        f"Run ALTER SYSTEM SET {name} = {value}; and restart Postgres. If it was run already, only"
        " the restart is missing."
    )


def at_least(wanted: int) -> Callable[[str], bool]:
    """Return a test of a number in a file of settings."""
    return lambda found: found.isdecimal() and int(found) >= wanted


def is_logical(found: str) -> bool:
    """Return whether the value of ``wal_level`` is the one that Headrace needs."""
    return found == "logical"
