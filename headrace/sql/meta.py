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


def begin(conn: psycopg.Connection[Any]) -> int:
    """Begin an epoch, greater than all before it, and return it."""
    [(epoch,)] = conn.execute(
        "INSERT INTO headrace.meta AS m (key, value) VALUES ('epoch', '1') ON CONFLICT (key)"
        " DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING m.value::bigint"
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
