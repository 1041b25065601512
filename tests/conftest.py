"""Fixtures every test may use: a Postgres server, a fresh database, a running engine.

``HEADRACE_TEST_DSN`` names a server to use (superuser, ``wal_level=logical``); otherwise one
is started from the wheel, of the version in ``HEADRACE_TEST_PG`` (16, the default, or 18).
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import Engine
from headrace.embedded.postgres import EmbeddedPostgres

hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True
)
hypothesis.settings.register_profile("dev", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """DSN of a server's ``postgres`` database, as superuser."""
    given = os.environ.get("HEADRACE_TEST_DSN")
    if given:
        yield given
        return
    version = int(os.environ.get("HEADRACE_TEST_PG", "16"))
    with EmbeddedPostgres(None, version, durable=False) as server:
        yield server.dsn()


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """DSN of a fresh database, dropped afterwards together with its slots."""
    name = f"h_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield make_conninfo(postgres, dbname=name)
    finally:
        drop_database(postgres, name)


@pytest.fixture
def start_engine(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Function ``(source_dsn, **env) -> Engine``; what it started is stopped at the end."""
    engines: list[Engine] = []

    def start(source: str, *args: str, **env: str) -> Engine:
        dbname = psycopg.conninfo.conninfo_to_dict(source)["dbname"]
        defaults = {
            # Slots belong to the whole server: one name per database.
            "HEADRACE_SLOT_NAME": f"headrace_{dbname}",
            "HEADRACE_SPARK_WARM": "false",
        }
        engine = Engine(
            source,
            tmp_path / f"engine{len(engines)}",
            env=defaults | env,
            args=args,
        )
        engines.append(engine)
        engine.start()
        return engine

    yield start
    for engine in engines:
        engine.kill9()


@pytest.fixture
def engine(database: str, start_engine: Callable[..., Engine]) -> Engine:
    """A running ``headrace start`` on a fresh database."""
    return start_engine(database)


@pytest.fixture(scope="module")
def running_engine(
    postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """One engine for a whole module; tests use it through ``shared_engine``."""
    name = f"h_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    engine = Engine(
        make_conninfo(postgres, dbname=name),
        tmp_path_factory.mktemp("engine") / "data",
        env={
            "HEADRACE_SLOT_NAME": f"headrace_{name}",
            "HEADRACE_SPARK_WARM": "false",
        },
    )
    try:
        engine.start()
        yield engine
    finally:
        engine.kill9()
        drop_database(postgres, name)


@pytest.fixture
def shared_engine(running_engine: Engine) -> Iterator[Engine]:
    """The module's engine, left without views and its database without tables.

    For tests that harm neither: a module makes it its ``engine`` by a fixture of that name.
    """
    yield running_engine
    with psycopg.connect(running_engine.dsn, autocommit=True) as conn:
        names = conn.execute(
            "SELECT format('%I.%I', schema_name, view_name) FROM headrace.views"
        ).fetchall()
        for (name,) in names:
            conn.execute("CALL headrace.drop_view(%s)", (name,))
        conn.execute("DROP SCHEMA public CASCADE")
        conn.execute("CREATE SCHEMA public AUTHORIZATION pg_database_owner")
        conn.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


def drop_database(server: str, name: str) -> None:
    """Drop the database ``name`` and the replication slots in it."""
    with psycopg.connect(server, autocommit=True) as conn:
        deadline = time.monotonic() + 20
        while True:
            slots = conn.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots"
                " WHERE database = %s",
                (name,),
            ).fetchall()
            if not slots:
                break
            for slot, pid in slots:
                if pid is not None:
                    conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
                    continue
                try:
                    conn.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
                except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                    continue  # somebody was faster; look again
            assert time.monotonic() < deadline, f"slots of {name} stay in use"
            time.sleep(0.02)
        conn.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                sql.Identifier(name)
            )
        )
