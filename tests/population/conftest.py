"""A source database with a small shop, and a worker that only records its calls."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import TransientError
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.spark import Spark
from headrace.postgres import slot as setup
from headrace.sql import watched
from headrace.sql.verbs import CreateView
from headrace.sql.view_spec import ViewSpec
from headrace.types import parse_lsn
from headrace.views.create import create_view
from tests.population import plans
from tests.waiting import PATIENCE_S, wait_until


class Worker:
    """A worker as the builder sees it: positions from the server, calls in order."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.down = 0
        self.on_call: Callable[[str], None] = lambda method: None

    def call(self, method: str, params: dict[str, Any], job: Job | None = None, **_: bool) -> Any:
        self.on_call(method)
        if self.down:
            self.down -= 1
            raise TransientError("the worker process is not running")
        self.calls.append((method, params))
        if method == "hold":
            with psycopg.connect(self.dsn) as conn:
                row = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            return {"txid": 7, "lsn": parse_lsn(row[0])}
        return {}

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.calls]


@dataclasses.dataclass
class Bench:
    dsn: str
    settings: Settings
    worker: Worker
    context: JobContext
    conn: psycopg.Connection
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def job(self) -> Job:
        return Job(self.messages.append)

    def change(self, **changes: Any) -> None:
        self.settings = self.settings.replace(**changes)
        self.context.settings = self.settings

    def create(self, name: str, query: str, job: Job | None = None, **given: Any) -> Any:
        request = CreateView(
            name, query, ViewSpec.from_request(given.get("options", {}), self.settings),
            caller=given.get("caller"), settings=given.get("settings", {"search_path": "public"}),
        )  # fmt: skip
        return create_view(self.context, job or self.job(), request)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        # Compared as text: NaN does not equal itself, and 1.0 is not 1.00.
        cursor = self.conn.execute(f"SELECT whole::text FROM ({query}) whole")
        return sorted(cursor.fetchall())

    def nothing_left(self) -> None:
        """Check the guarantees of every failure and cancel: nothing is left."""
        assert self.conn.execute("SELECT id FROM headrace.views").fetchall() == []
        assert self.conn.execute("SELECT * FROM headrace.view_tables").fetchall() == []
        assert self.published() == set()
        slots = "SELECT slot_name FROM pg_replication_slots WHERE temporary AND database = current_database()"
        assert self.conn.execute(slots).fetchall() == []
        staging = self.settings.staging_dir
        assert not staging.exists() or list(staging.iterdir()) == []
        methods = self.worker.methods
        assert ("hold" in methods) <= (methods[-1:] == ["release"])

    def waits_for_writer(self) -> bool:
        """Return whether the creation of a slot waits for the end of a transaction."""
        return self.conn.execute(
            "SELECT count(*) > 0 FROM pg_replication_slots s JOIN pg_locks l"
            " ON l.pid = s.active_pid WHERE s.database = current_database()"
            " AND l.locktype = 'transactionid' AND NOT l.granted"
        ).fetchone()[0]

    def published(self) -> set[str]:
        rows = self.conn.execute(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = 'headrace'"
        ).fetchall()
        return {row[0] for row in rows}


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as conn:
        conn.execute(plans.SCHEMA)
        plans.fill(conn)
        yield conn


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Spark]:
    """Yield one Spark session for all tests; each test sets its own database."""
    folder = tmp_path_factory.mktemp("spark")
    settings = Settings(source=postgres, data_dir=folder, spark_idle_ms=0)
    session = Spark(settings)
    session.begin()
    # On a machine with other work, the JVM and the first task take minutes.
    wait_until(lambda: session.status != "warming", "Spark does not start", 400)
    assert session.status == "warm"
    yield session
    session.stop()


def make_bench(database: str, conn: psycopg.Connection, path: Path, spark: Spark | None) -> Bench:
    name = conn.info.dbname
    settings = Settings(
        source=database,
        data_dir=path / "data",
        slot_name=f"s_{name}",
        spark_idle_ms=0,
        # The worker of these tests has no intake log.
        wal_retention="source",
    )
    setup.ensure_publication(conn, settings, watched.fed)
    worker = Worker(database)
    chosen = Spark(settings)
    if spark is not None:
        chosen._starting = spark._starting
    context = JobContext(settings, worker, chosen)
    return Bench(database, settings, worker, context, conn)


@pytest.fixture
def bench(catalog: None, database: str, shop: psycopg.Connection, tmp_path: Path) -> Bench:
    return make_bench(database, shop, tmp_path, None)


@pytest.fixture
def spark_bench(
    catalog: None, database: str, shop: psycopg.Connection, tmp_path: Path, spark: Spark
) -> Bench:
    return make_bench(database, shop, tmp_path, spark)


@pytest.fixture
def in_thread() -> Iterator[Callable[[Callable[[], Any]], threading.Thread]]:
    """Yield a function that runs functions in threads; re-raise their exceptions at the end."""
    threads: list[tuple[threading.Thread, list[BaseException]]] = []

    def start(function: Callable[[], Any]) -> threading.Thread:
        errors: list[BaseException] = []

        def guard() -> None:
            try:
                function()
            except BaseException as error:  # noqa: BLE001  raised below
                errors.append(error)

        thread = threading.Thread(target=guard)
        threads.append((thread, errors))
        thread.start()
        return thread

    yield start
    for thread, errors in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        if errors:
            raise errors[0]
