"""A user without rights, whose ``spy()`` stands wherever code of users might be run.

Where it finds itself as somebody else it moves his sequence ``caught``, which no rollback takes back;
each module has its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from tests.security.roles import connect, role


@contextlib.contextmanager
def spying(server: psycopg.Connection, schema: str) -> Iterator[psycopg.Connection]:
    """A session of role ``low``, who has carried out ``schema``; views are gone afterwards."""
    with role(server, "low") as name, connect(server.info.dsn, name) as conn:
        conn.execute(schema.format(low=name))
        yield conn
        for view in conn.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views"
        ).fetchall():
            server.execute("CALL headrace.drop_view(%s)", view)


def caught(server: psycopg.Connection, low: psycopg.Connection) -> bool:
    """Whether the spy was somebody else."""
    called = f"SELECT is_called FROM {low.info.user}.caught"
    row = server.execute(called).fetchone()
    assert row is not None
    return bool(row[0])


def ask(conn: psycopg.Connection, call: str, *values: str) -> str:
    """SQLSTATE of a call; "" where it was carried out; or what a spy has said."""
    try:
        conn.execute(call, values)
    except psycopg.Error as error:
        text = str(error)
        return text if "caught" in text else error.sqlstate or "?"
    return ""
