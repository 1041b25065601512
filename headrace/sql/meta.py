"""Rows of ``headrace.meta``: facts about the installation."""

from __future__ import annotations

from typing import Any, Final

import psycopg

ANNOUNCE: Final = """
INSERT INTO headrace.meta (key, value)
SELECT %s::text, a.pid || ' ' || extract(epoch FROM a.backend_start)
  FROM pg_catalog.pg_stat_activity a WHERE a.pid = coalesce(%s::int, pg_backend_pid())
    ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"""
"""A process (``commander``, ``worker``) is there: its backend, by default this one."""


def begin(conn: psycopg.Connection[Any]) -> int:
    """An epoch, which is more than all before it, of whoever decides from now on."""
    [(epoch,)] = conn.execute(
        "INSERT INTO headrace.meta AS m (key, value) VALUES ('epoch', '1') ON CONFLICT (key)"
        " DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING m.value::bigint"
    ).fetchall()
    return int(epoch)


def put(conn: psycopg.Connection[Any], key: str, value: str) -> None:
    """Set ``key``; writes nothing when it has that value already."""
    conn.execute(
        "INSERT INTO headrace.meta AS m (key, value) VALUES (%s, %s)"
        " ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"
        " WHERE m.value IS DISTINCT FROM EXCLUDED.value",
        (key, value),
    )
