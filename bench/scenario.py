"""Scenarios, and the servers on which they measure."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg

from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.shop import ShopView, differing_rows
from headrace.errors import BugError
from headrace.process.java import java_home

Figures = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line; 0 is the scenario's own default."""

    rows: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    version: int = 16
    only: tuple[str, ...] = ()
    """Views to measure, in scenarios with many; empty: all."""
    views: int = 0
    """Maximum number of views, in scenarios that vary it."""


class Scenario:
    """One measurement; ``run`` gives the lines of its table, one by one or at its end."""

    name: ClassVar[str]
    about: ClassVar[str]

    def run(self, options: Options) -> Iterable[Figures]:
        """Measure; the servers are started for it and removed afterwards."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Bed:
    """A server with an empty database and an engine that is not started yet."""

    server: EmbeddedPostgres
    engine: EmbeddedEngine

    @property
    def source(self) -> str:
        """DSN of the database itself, without the engine's port."""
        return self.engine.source

    @property
    def worker(self) -> int:
        """Process id of the engine's worker."""
        found = self.engine.child("headrace.runtime.worker")
        assert found is not None, "the engine runs"
        return found

    def create_view(self, name: str, query: str, options: str = "{}") -> float:
        """Create a view through the engine; returns the seconds it took."""
        begin = time.monotonic()
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, options))
        return time.monotonic() - begin

    def drop_view(self, name: str) -> None:
        """Drop a view through the engine."""
        with psycopg.connect(self.engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.drop_view(%s)", (name,))

    def check(self, name: str, query: str) -> None:
        """Check that the view has the right rows.

        Raises:
            BugError: the view has other rows than Postgres answers.
        """
        with psycopg.connect(self.source, autocommit=True) as conn:
            caught_up(conn, name)
        _, differing = differing_rows(self.source, ShopView(name, query, ""))
        if differing:
            raise BugError(f"{name}: the view differs by {differing} rows")


@contextlib.contextmanager
def bed(options: Options, **env: str) -> Iterator[Bed]:
    """Start servers for one scenario; ``env`` are settings of the engine (``HEADRACE_*``)."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
        EmbeddedPostgres(None, options.version) as server,
    ):
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("CREATE DATABASE bench")
        engine = EmbeddedEngine(
            server.dsn("bench"), Path(home) / "engine", env={"JAVA_HOME": java_home()} | env
        )
        try:
            yield Bed(server, engine)
        finally:
            engine.stop()


def caught_up(conn: psycopg.Connection[Any], *views: str) -> float:
    """Wait until ``views`` cover all that is committed; returns the seconds it took."""
    begin = time.monotonic()
    for view in views:
        conn.execute("CALL headrace.wait_for(%s, pg_current_wal_lsn(), '600 s')", (view,))
    return time.monotonic() - begin


def scalar(dsn: str, query: LiteralString, *values: Any) -> Any:
    """Return the one value of the result of ``query``."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(query, values or None).fetchone()
    assert row is not None, "the query gives one row"
    return row[0]


def wait_for(what: str, condition: Callable[[], bool], timeout_s: float = 600.0) -> None:
    """Wait until ``condition`` holds, looking every 5 ms."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.005)
