"""What a scenario is, and the servers it measures on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg

from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.process.java import java_home

Figures = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; 0 is the scenario's own default."""

    rows: int = 0
    seconds: float = 0.0
    rate: float = 200.0
    version: int = 16
    only: tuple[str, ...] = ()
    """Views, where a scenario has many; empty: all."""


class Scenario:
    """One measurement; ``run`` gives the lines of its table."""

    name: ClassVar[str]
    about: ClassVar[str]

    def run(self, options: Options) -> list[Figures]:
        """Measure; servers are its own and gone afterwards."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Bed:
    """A server with an empty database and an engine that is not started yet."""

    server: EmbeddedPostgres
    engine: EmbeddedEngine

    @property
    def source(self) -> str:
        """DSN of the database itself, past the engine."""
        return self.engine.source

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


@contextlib.contextmanager
def bed(options: Options, **env: str) -> Iterator[Bed]:
    """Servers for one scenario; ``env`` are settings of the engine (``HEADRACE_*``)."""
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


def scalar(dsn: str, query: LiteralString, *values: Any) -> Any:
    """The one value that ``query`` gives."""
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
