"""An engine for all tests of a module, with settings that let a view be tried again soon."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import Engine
from tests.databases import Databases


@contextmanager
def running(
    databases: Databases, folders: pytest.TempPathFactory, schema: str, **settings: str
) -> Iterator[Engine]:
    """An engine on a database of its own, in which ``schema`` was carried out."""
    name = databases.take()
    dsn = make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(schema)
    env = {
        "HEADRACE_SLOT_NAME": f"headrace_{name}",
        "HEADRACE_SPARK_WARM": "false",
        "HEADRACE_SINK_RETRY_MS": "50",
        **settings,
    }
    engine = Engine(dsn, folders.mktemp("engine") / "data", env=env)
    try:
        engine.start()
        yield engine
    finally:
        engine.kill9()
    databases.give_back(name)


def drop_views(conn: psycopg.Connection) -> None:
    for (name,) in conn.execute("SELECT view_name FROM headrace.views").fetchall():
        conn.execute(f"CALL headrace.drop_view('{name}')")
