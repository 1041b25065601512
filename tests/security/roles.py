"""Roles for tests of security: without any right that was not granted, and dropped at the end.

Roles belong to the whole server, so they are named after the test's database.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

PASSWORD = "known to the test"


@contextlib.contextmanager
def role(server: psycopg.Connection, name: str, options: str = "") -> Iterator[str]:
    """Create a login role with a schema of its own name; yield the name, which needs no quotes."""
    full = f"{server.info.dbname}_{name}"
    identifier = sql.Identifier(full)
    server.execute(
        sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} {}").format(
            identifier, sql.Literal(PASSWORD), sql.SQL(options)
        )
    )
    try:
        server.execute(sql.SQL("CREATE SCHEMA {} AUTHORIZATION {}").format(identifier, identifier))
        server.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO PUBLIC").format(identifier))
        yield full
    finally:
        server.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(identifier))
        server.execute(sql.SQL("DROP ROLE {}").format(identifier))


def connect(dsn: str, name: str) -> psycopg.Connection:
    """Open a session of role ``name``, whose schema is first in the search path."""
    return psycopg.connect(
        make_conninfo(dsn, user=name, password=PASSWORD, options=f"-csearch_path={name},public"),
        autocommit=True,
    )
