"""Rows of ``headrace.meta``: facts about the installation."""

from __future__ import annotations

from typing import Any, Final

import psycopg

ANNOUNCE: Final = """
INSERT INTO headrace.meta (key, value)
SELECT %s::text, a.pid || ' ' || extract(epoch FROM a.backend_start)
  FROM pg_catalog.pg_stat_activity a WHERE a.pid = coalesce(%s::int, pg_backend_pid())
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"""
"""Records the backend of a process (``commander``, ``worker``), by default this session's."""


def epoch(conn: psycopg.Connection[Any]) -> int:
    """Return the last epoch of the database; 0: none has begun."""
    row = conn.execute("SELECT value::bigint FROM headrace.meta WHERE key = 'epoch'").fetchone()
    return int(row[0]) if row else 0


def begin(conn: psycopg.Connection[Any], known: int = 0) -> int:
    """Begin an epoch, greater than all before it and than ``known``, and return it.

    After the promotion of a standby, the table may lack the last epochs.
    """
    [(epoch,)] = conn.execute(
        "INSERT INTO headrace.meta AS m (key, value) VALUES ('epoch', (%(known)s::bigint + 1)::text)"
        " ON CONFLICT (key) DO UPDATE SET value = (greatest(m.value::bigint, %(known)s) + 1)::text"
        " RETURNING m.value::bigint",
        {"known": known},
    ).fetchall()
    return int(epoch)


def put(conn: psycopg.Connection[Any], key: str, value: str) -> None:
    """Set ``key``; write nothing when it already has that value."""
    conn.execute(
        "INSERT INTO headrace.meta AS m (key, value) VALUES (%s, %s)"
        " ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"
        " WHERE m.value IS DISTINCT FROM EXCLUDED.value",
        (key, value),
    )
