"""A user without rights, whose function ``spy()`` is placed wherever user code might be run.

If it runs as another role, it advances the owner's sequence ``caught``, which no rollback undoes.
Each module has its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from tests.security.roles import connect, role


@contextlib.contextmanager
def spying(server: psycopg.Connection, schema: str) -> Iterator[psycopg.Connection]:
    """Yield a session of role ``low``, which has executed ``schema``; drop all views afterwards."""
    with role(server, "low") as name, connect(server.info.dsn, name) as conn:
        conn.execute(schema.format(low=name))
        yield conn
        for view in conn.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views"
        ).fetchall():
            server.execute("CALL headrace.drop_view(%s)", view)


def caught(server: psycopg.Connection, low: psycopg.Connection) -> bool:
    """Return whether the spy ran as another role."""
    called = f"SELECT is_called FROM {low.info.user}.caught"
    row = server.execute(called).fetchone()
    assert row is not None
    return bool(row[0])


def ask(conn: psycopg.Connection, call: str, *values: str) -> str:
    """Return the SQLSTATE of a call, "" on success, or the error message of the spy."""
    try:
        conn.execute(call, values)
    except psycopg.Error as error:
        text = str(error)
        return text if "caught" in text else error.sqlstate or "?"
    return ""
