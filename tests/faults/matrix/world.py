"""A database with views and a load, an engine behind a proxy, and the conditions after a fault."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.process import faults
from headrace.runtime import positions
from headrace.sql.nodes import MAIN
from headrace.state.rocks import RocksDatabase
from tests.compared import differs
from tests.engines import Engine
from tests.faults.helpers import WORKER, slot, wal_end
from tests.faults.matrix import load
from tests.proxy import Proxy
from tests.waiting import time_passes, wait_until

BUILDER = "headrace.views.builder"
PATIENCE_S = float(os.environ.get("HEADRACE_TEST_PATIENCE_S", "90"))
"""Limit of every wait; only a failing test reaches it."""
DISK_MB = 96
_STACKS_S = 0.5
"""Time for a process that gets SIGABRT to write the stacks of its threads."""
_WAITING = """
SELECT pid, application_name, state, wait_event_type, wait_event, pg_blocking_pids(pid),
       round(extract(epoch FROM clock_timestamp() - state_change)) AS s, left(query, 200)
  FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type <> 'checkpointer'
"""
OTHER = "w1"
"""The other worker."""


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, connect_timeout=10)


class World:
    """Everything that one seed uses; ``close`` ends it."""

    def __init__(
        self, server: EmbeddedPostgres, seed: int, folder: Path, *, small_disk: bool
    ) -> None:
        self.rng = random.Random(seed)
        self.local = seed % 2 == 0
        """Whether the engine itself retains unread changes (wal_retention)."""
        self.ahead = seed % 4 == 0
        """Whether hardly any transaction may wait anywhere but in that queue."""
        self.beside = seed % 3 != 0
        """Whether one of the commit groups is processed in a separate lane."""
        self.placed = seed % 3 == 1
        """Whether some views are on another worker."""
        self.streamed = seed % 5 in (1, 3)
        """Whether the server sends each change at once, before its transaction ends."""
        self.patience_s = PATIENCE_S
        """Seconds in which all views must agree with their queries once nothing is written."""
        self.server = server
        self.folder = folder
        self.name = f"m_{seed}_{os.getpid()}"
        self.disk: Path | None = None
        with connect(server.dsn()) as conn:
            name = sql.Identifier(self.name)
            conn.execute(sql.SQL("CREATE DATABASE {}").format(name))
            if self.streamed:
                conn.execute(
                    sql.SQL(
                        "ALTER DATABASE {} SET debug_logical_replication_streaming = immediate"
                    ).format(name)
                )
        self.dsn = server.dsn(self.name)
        self.traps = folder / "traps"
        self.traps.mkdir()
        self.proxy = Proxy("127.0.0.1", server.port)
        self._began = time.monotonic()
        if small_disk:
            self._mount()
        self.engine = self._engine()
        self.views: dict[str, str] = {}
        """The expected views: name -> query."""
        core, self.spare = load.queries(self.rng)
        self._first = load.CORE | load.SHARED | core
        self.witness = load.Witness()
        self.load: load.Load | None = None

    # --- life

    def open(self) -> None:
        """Create the tables, start the engine, create the views, start the load."""
        with connect(self.dsn) as conn:
            for statement in load.schema(self.rng):
                conn.execute(statement)
        self.engine.start()
        self.begin()
        if self.placed:
            error = self.call("CALL headrace.add_worker('w1')")
            assert error is None, error
        for name, query in self._first.items():
            self.create(name, query, grouped=self.rng.random() < 0.3)
        self.say(f"views: {', '.join(self.views)}")
        self.load = load.Load(self.dsn, self.rng, self.witness)

    def begin(self) -> None:
        """Prepare more before the views are created."""

    def place(self, name: str) -> str:
        """Return the worker of a new view."""
        # Views that are read together must not stop, as a view does whose worker is gone.
        away = self.placed and name not in load.CORE and self.rng.random() < 0.6
        return OTHER if away else MAIN

    def close(self) -> None:
        """End everything, without checks."""
        if self.load is not None:
            with contextlib.suppress(RuntimeError):
                self.load.resume()  # it may be paused
            self.load.stop()
        self.engine.kill9()
        self.proxy.close()
        if self.disk is not None:
            subprocess.run(["umount", "--lazy", str(self.disk)], check=False)

    def say(self, text: str) -> None:
        """Print a line of the event log that is shown if the seed fails."""
        print(f"{time.monotonic() - self._began:6.2f} {text}")

    def _engine(self) -> EmbeddedEngine:
        rng = self.rng
        source = make_conninfo(self.dsn, port=self.proxy.port)
        env = {
            "HEADRACE_SLOT_NAME": f"headrace_{self.name}",
            "HEADRACE_SPARK_WARM": "false",
            "HEADRACE_VIEW_TIME_MS_MAX": "5000",
            "HEADRACE_FEEDBACK_INTERVAL_MS": "50",
            "HEADRACE_CATALOG_POLL_MS": "200",
            "HEADRACE_LOCK_TIMEOUT_MS": "300",
            "HEADRACE_SINK_RETRY_MS": "200",
            "HEADRACE_BATCH_INTERVAL_MS": str(rng.choice((2, 10, 50))),
            "HEADRACE_BATCH_ROWS_MAX": str(rng.choice((30, 100_000))),
            "HEADRACE_SPOOL_BYTES_MIN": str(rng.choice((4_000, 33_554_432))),
            "HEADRACE_MAX_INFLIGHT_BATCHES": str(rng.choice((1, 4, 4))),
            "HEADRACE_CHECKPOINT_TXIDS": str(rng.choice((1, 5, 20))),
            "HEADRACE_CHECKPOINT_INTERVAL_MS": str(rng.choice((30, 1000))),
            "HEADRACE_STATE_MEMORY_BYTES": str(rng.choice((100_000, 268_435_456))),
            "HEADRACE_SLOW_BATCH_MS": "1" if self.beside else "50",
            "HEADRACE_WAL_RETENTION": "local" if self.local else "source",
            faults.ENV_DIR: str(self.traps),
        }
        if self.ahead:
            env["HEADRACE_BUFFER_BYTES_MAX"] = "400"
        return Engine(source, self.folder / "engine", env=env)

    def _mount(self) -> None:
        disk = self.folder / "engine"
        disk.mkdir(mode=0o700)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)], check=True
        )
        self.disk = disk

    # --- facts

    @property
    def slot_name(self) -> str:
        return self.engine.env["HEADRACE_SLOT_NAME"]

    def statuses(self, conn: psycopg.Connection) -> dict[str, tuple[str, str | None]]:
        """Return (status, message) of the views in the catalog."""
        rows = conn.execute(
            "SELECT view_name, status, headrace.view_message(id) FROM headrace.views"
        ).fetchall()
        return {name: (status, message) for name, status, message in rows}

    def ids(self, worker: str) -> set[int]:
        """Return the ids of a worker's views; a view that is populated again gets a new id."""
        with connect(self.dsn) as conn:
            rows = conn.execute(
                "SELECT id FROM headrace.views WHERE options ->> 'placement' = %s", (worker,)
            ).fetchall()
        return {number for (number,) in rows}

    def child(self, module: str) -> int | None:
        return self.engine.child(module) if self.engine.running else None

    # --- calls of a user

    def call(self, statement: str) -> Exception | None:
        """Run a CALL through the commander; return its error, if any."""
        try:
            with connect(self.engine.dsn) as conn:
                conn.execute(statement)
        except psycopg.Error as error:
            return error
        return None

    def create(self, name: str, query: str, *, grouped: bool = False) -> None:
        """Create a view; it must succeed. ``grouped``: in another commit group."""
        options = {"commit_group": "apart"} if grouped and name not in load.CORE else {}
        error = self.attempt_create(name, query, **options)
        if error is not None:
            raise error
        self.views[name] = query

    def attempt_create(self, name: str, query: str, **options: str | bool) -> Exception | None:
        """Call create_view; repeat it if it failed only because of a TRUNCATE of the load."""
        options.setdefault("placement", self.place(name))
        given = json.dumps(options)
        error = None
        for _ in range(5):
            error = self.call(f"CALL headrace.create_view('{name}', $q${query}$q$, '{given}')")
            if not isinstance(error, psycopg.errors.SerializationFailure):
                return error
        return error

    def drop(self, name: str) -> None:
        """Drop a view; it must succeed."""
        error = self.call(f"CALL headrace.drop_view('{name}')")
        if error is not None:
            raise error
        self.views.pop(name, None)

    # --- traps

    def trap(self, point: str, how: str) -> None:
        """Arm a fault point of the running processes with ``action:count``."""
        (self.traps / f"{point}{faults.SPRUNG}").unlink(missing_ok=True)
        draft = self.traps / f"{point}.draft"
        draft.write_text(how)
        draft.rename(self.traps / point)

    def sprung(self, point: str) -> bool:
        return (self.traps / f"{point}{faults.SPRUNG}").exists()

    def untrap(self, point: str) -> bool:
        """Remove a trap; return whether it had sprung."""
        (self.traps / point).unlink(missing_ok=True)
        return self.sprung(point)

    # --- what must hold

    def settle(self) -> None:
        """Pause the load until every view equals its query and no temporary object is left."""
        assert self.load is not None, "opened"
        self.load.pause()
        began = time.monotonic()
        try:
            self.load.last()
            self._equal()
            equal = time.monotonic()
            with connect(self.dsn) as conn:
                self._nothing_left(conn)
        finally:
            self.load.resume()
        done = time.monotonic()
        self.say(
            f"settled: equal after {equal - began:.2f} s, tidy after {done - equal:.2f} s;"
            f" {self.load.written} transactions, {self.witness.reads} reads"
        )
        assert not self.load.errors, self.load.errors
        assert not self.witness.torn, self.witness.torn

    def _equal(self) -> None:
        def wrong() -> dict[str, Any]:
            with connect(self.dsn) as conn:
                return self._wrong(conn)

        wait_until(lambda: not wrong(), wrong, self.patience_s)

    def _wrong(self, conn: psycopg.Connection) -> dict[str, Any]:
        """Return the views that are not equal or not running, with their differences.

        A stopped view is no failure yet: the server populates it again, repeatedly if interrupted.
        """
        statuses = self.statuses(conn)
        assert statuses.keys() == self.views.keys(), (statuses, list(self.views))
        wrong: dict[str, Any] = {name: s for name, s in statuses.items() if s[0] != "running"}
        for name, query in self.views.items():
            if different := differs(conn, name, query):
                wrong[name] = (statuses[name], len(different), different[:5])
        return wrong

    def _nothing_left(self, conn: psycopg.Connection) -> None:
        end = wal_end(conn)
        wait_until(lambda: not self._left(conn), lambda: self._left(conn))
        wait_until(
            lambda: slot(conn, self.slot_name)[0] >= end,
            f"the slot is confirmed up to {end:X}: nothing holds it",
            PATIENCE_S,
        )

    def _left(self, conn: psycopg.Connection) -> list[str]:
        """Return the objects in the database and on the disk that should be gone."""
        left = [f"slot {s}" for s in self._slots(conn) if s != self.slot_name]
        published, read = (
            {row[0] for row in conn.execute(query).fetchall()}
            for query in (
                "SELECT format('%I.%I', schemaname, tablename) FROM pg_publication_tables",
                "SELECT format('%I.%I', t.schema_name, t.table_name) FROM headrace.view_tables t",
            )
        )
        left += [f"publication of {t}" for t in published ^ read]
        tables = {
            row[0]
            for row in conn.execute(
                "SELECT relname FROM pg_class WHERE relkind IN ('r', 'v', 'm') AND"
                " (relnamespace = 'public'::regnamespace OR relpersistence = 't')"
            ).fetchall()
        }
        base = {"accounts", "branches", "ledger", "notes", "bag"}
        left += [f"table {t}" for t in tables - base - self.views.keys()]
        left += [
            f"command {row}"
            for row in conn.execute(
                "SELECT * FROM headrace.commands WHERE status = 'running'"
            ).fetchall()
        ]
        data = self.engine.data_dir
        for folder in ("staging", "spool", "tmp"):
            if (data / folder).is_dir():
                left += [f"file {p}" for p in (data / folder).iterdir()]
        return left + [f"directory {p}" for p in data.glob("state.damaged*")]

    def _slots(self, conn: psycopg.Connection) -> list[str]:
        rows = conn.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        ).fetchall()
        return [name for (name,) in rows]

    def finish(self) -> None:
        """Stop the engine; check exit status, sessions and the state database."""
        assert self.load is not None, "opened"
        self.load.pause()
        assert self.engine.stop() == 0, "SIGTERM ends it cleanly"
        with connect(self.dsn) as conn:
            wait_until(
                lambda: (
                    conn.execute(
                        "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
                        " AND application_name LIKE 'headrace%%'",
                        (self.name,),
                    ).fetchone()
                    == (0,)
                ),
                "no session is left",
            )
            ids = {row[0] for row in conn.execute("SELECT id FROM headrace.views").fetchall()}
            assert self._slots(conn) == [self.slot_name]
        self.load.resume()
        path = Settings(source="", data_dir=self.engine.data_dir).state_dir
        database = RocksDatabase(path)
        try:
            stored = database.views()
            assert stored & ids, "views have state, under the names looked for here"
            assert positions.pins(database) == {}
            marks = positions.views(database).keys()
            assert {i for i in marks if i > 0} == ids
            feeds = [json.loads(v) for _, v in database.scan_meta(b"feeds/")]
            read = {shared for feed in feeds for shared in feed.values()}
            assert {i for i in marks if i < 0} == read, "shared subplans are read"
            assert stored <= ids | read, "state of views that are gone"
        finally:
            database.close()
        assert self.witness.reads, "the witness must have looked"
        assert self.witness.agreed, "and seen two views at one batch"

    # --- for messages

    def logs(self) -> str:
        """Return the errors of the load, the lock waits, and the ends of the logs.

        The worker and the builder write the stacks of their threads, and end by that.
        """
        waiting = ["it cannot be asked"]
        with contextlib.suppress(psycopg.Error), connect(self.dsn) as conn:
            waiting = [str(row) for row in conn.execute(_WAITING).fetchall()]
        for module in (WORKER, BUILDER):
            pid = self.child(module)
            if pid is not None:
                os.kill(pid, signal.SIGABRT)
                time_passes(_STACKS_S)
        if self.load is not None:
            self.say(f"load: {self.load.written} transactions, {self.load.errors}")
        self.say(f"witness: {self.witness.reads} reads, {self.witness.torn}")
        ours = self.engine.log.splitlines()[-300:]
        theirs = [
            line
            for line in self.server.log.read_text(errors="replace").splitlines()
            if not any(word in line for word in ("decoding", "DETAIL", "STATEMENT"))
        ][-60:]
        return "\n".join(["--- sessions", *waiting, "--- engine", *ours, "--- server", *theirs])
