"""A commander in front of a real server, and a role without rights that may log in."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql

from headrace.embedded.engine import EmbeddedEngine
from tests.databases import Databases
from tests.security.wire import Wire
from tests.server.conftest import Running
from tests.server.conftest import start as start


@dataclass
class Nobody:
    """A role without rights, and the commander through which it connects."""

    commander: Running
    name: str
    database: str

    def wire(self, **parameters: str) -> Wire:
        """Open a new session of the role."""
        given = {"user": self.name, "database": self.database} | parameters
        return Wire(self.commander.port, **given)

    def callers(self) -> set[str]:
        """Return the roles that the commander took as its callers."""
        return {params["caller"] for _, params in self.commander.builder.calls}


@pytest.fixture
def server(shared_engine: EmbeddedEngine) -> Iterator[psycopg.Connection]:
    """A direct connection of a superuser."""
    with psycopg.connect(shared_engine.source, autocommit=True) as conn:
        yield conn


@pytest.fixture
def commander(start: Callable[..., Running]) -> Running:
    return start()


@pytest.fixture
def nobody(commander: Running, database: str) -> Iterator[Nobody]:
    """A role that owns only its own schema."""
    with _nobody(commander, database) as one:
        yield one


@pytest.fixture(scope="module")
def running_nobody(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nobody]:
    """One such role for a whole module; tests use it through ``shared_nobody``."""
    name = databases.take(installed=True)
    database = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    commander = Running(database, tmp_path_factory.mktemp("commander"))
    try:
        with _nobody(commander, database) as one:
            yield one
    finally:
        commander.stop()
        databases.give_back(name)


@pytest.fixture
def shared_nobody(running_nobody: Nobody) -> Nobody:
    """The module's role, with its recorded calls cleared."""
    running_nobody.commander.builder.calls.clear()
    return running_nobody


@contextlib.contextmanager
def _nobody(commander: Running, database: str) -> Iterator[Nobody]:
    dbname = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    name = f"nobody_{dbname}"
    role = sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
        conn.execute(sql.SQL("CREATE SCHEMA play AUTHORIZATION {}").format(role))
    yield Nobody(commander, name, str(dbname))
    with psycopg.connect(database, autocommit=True) as conn:
        # A session that a failed test left open would keep its locks for ever.
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (name,)
        )
        conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
        conn.execute(sql.SQL("DROP ROLE {}").format(role))
