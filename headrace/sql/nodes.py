"""Rows of ``headrace.nodes``: the workers that views may be placed on, besides ``main``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

Connection = psycopg.Connection[Any]

MAIN: Final = "main"
"""The worker that takes what comes and writes what goes, which no row is of."""
_LISTED: Final = """
SELECT n.name, n.added_at::text, count(v.id)
  FROM headrace.nodes n LEFT JOIN headrace.views v ON v.options ->> 'placement' = n.name
 GROUP BY n.name ORDER BY n.name"""
_PLACED: Final = """
SELECT quote_ident(schema_name) || '.' || quote_ident(view_name) FROM headrace.views
 WHERE options ->> 'placement' = %s ORDER BY 1"""


@dataclass(frozen=True, slots=True)
class WorkerNode:
    """A worker."""

    name: str
    since: str
    views: int
    """How many views are placed on it."""


def listed(conn: Connection) -> list[WorkerNode]:
    """All of them, by name."""
    return [WorkerNode(*row) for row in conn.execute(_LISTED).fetchall()]


def known(conn: Connection, name: str) -> bool:
    """Whether there is one of that name; inside of a transaction it stays until that ends."""
    found = conn.execute("SELECT FROM headrace.nodes WHERE name = %s FOR KEY SHARE", (name,))
    return found.fetchone() is not None


def insert(conn: Connection, name: str) -> bool:
    """Enter one; False: there is one of that name."""
    made = conn.execute(
        "INSERT INTO headrace.nodes (name) VALUES (%s) ON CONFLICT (name) DO NOTHING", (name,)
    )
    return made.rowcount > 0


def delete(conn: Connection, name: str) -> bool:
    """Forget one; False: there is none of that name."""
    return conn.execute("DELETE FROM headrace.nodes WHERE name = %s", (name,)).rowcount > 0


def placed(conn: Connection, name: str) -> list[str]:
    """The views that are placed on it."""
    return [str(row[0]) for row in conn.execute(_PLACED, (name,))]
