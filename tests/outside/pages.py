"""Pages of the manual, as the tests of this folder read and run them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "manual"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STATEMENT = re.compile(r"((?:\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|[^;'$-]|[-$])+);", re.DOTALL)


def text(page: str) -> str:
    """What stands in a page."""
    return (MANUAL / f"{page}.md").read_text()


def fences(page: str, language: str) -> list[str]:
    """The examples of a page in one language, in order."""
    return [body for kind, body in FENCE.findall(text(page)) if kind == language]


def run_sql(conn: psycopg.Connection, page: str) -> int:
    """Send each statement of a page; how many there were."""
    sent = 0
    for body in fences(page, "sql"):
        for found in STATEMENT.finditer(body):
            conn.execute(found[1].encode())
            sent += 1
    return sent


@contextlib.contextmanager
def emptied(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to the engine's port; what a page has made goes with it."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn
        for (name,) in conn.execute("SELECT name FROM headrace.connection_points()").fetchall():
            conn.execute("CALL headrace.drop_connection_point(%s)", (name,))
        names = [n for (n,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall()]
        while names:
            left = []
            for name in names:
                try:
                    conn.execute("CALL headrace.drop_view(%s)", (name,))
                except psycopg.errors.DependentObjectsStillExist:
                    left.append(name)
            assert len(left) < len(names)
            names = left
        conn.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
