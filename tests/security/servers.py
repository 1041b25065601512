"""An engine for all tests of a module, with short retry intervals for views.

Trouble of one view must not affect another: a healthy view runs beside those under test.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import EmbeddedEngine
from tests.compared import differs, status_of
from tests.conftest import ENGINES
from tests.databases import Databases
from tests.engines import Engine
from tests.waiting import wait_until

TABLE = """
CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL);
INSERT INTO t VALUES (1, 'one');
"""
ALIVE = "SELECT id, v FROM t"


@contextmanager
def running(
    databases: Databases, folders: pytest.TempPathFactory, schema: str, **settings: str
) -> Iterator[EmbeddedEngine]:
    """Start an engine on a new database in which ``schema`` was executed."""
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


@contextmanager
def innocent(
    engine: EmbeddedEngine, request: pytest.FixtureRequest
) -> Iterator[psycopg.Connection]:
    """Yield a connection to an engine on ``TABLE``, with one healthy view of it, ``alive``."""
    request.node.stash.setdefault(ENGINES, []).append(engine)
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        create(conn, "alive", ALIVE)
        yield conn
        drop_views(conn)
        conn.execute("DELETE FROM t WHERE id > 1")


def create(conn: psycopg.Connection, name: str, query: str, **options: int | str) -> None:
    conn.execute(
        "CALL headrace.create_view(%s, %s, options => %s)", (name, query, json.dumps(options))
    )


def poison(conn: psycopg.Connection) -> None:
    """Insert the row at which hostile views misbehave."""
    conn.execute("INSERT INTO t VALUES (2, 'poison')")


def follows(conn: psycopg.Connection) -> None:
    """Wait until the healthy view is up to date."""
    wait_until(lambda: not differs(conn, "alive", ALIVE), "the other view follows")
    assert status_of(conn, "alive")[0] == "running"


def drop_views(conn: psycopg.Connection) -> None:
    for (name,) in conn.execute("SELECT view_name FROM headrace.views").fetchall():
        conn.execute(f"CALL headrace.drop_view('{name}')")
