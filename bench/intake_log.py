"""log: the cost of the intake log for one view and transactions of one row."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from bench import cpu
from bench.recording import Recorder, batches
from bench.scenario import Bed, Figures, Options, Scenario, bed
from headrace.config import Settings
from headrace.forwarder.batcher import Batch
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.positions import BatchRecord
from headrace.state.rocks import RocksDatabase
from headrace.storage.manager import Storage

_TABLE: Final = "CREATE TABLE events (id bigint PRIMARY KEY, k int NOT NULL, n int NOT NULL)"
_QUERY: Final = "SELECT k, count(*) AS c, sum(n) AS s FROM events GROUP BY k"
_INSERT: Final = "INSERT INTO events VALUES (%s, 7, %s)"
_SHOWN: Final = "SELECT FROM v WHERE c >= %s"
_PLACES: Final = ("local", "source")
_TURNS: Final = 4
_SECONDS: Final = 16.0
_RECORDED: Final = 500
_BATCHES: Final = 20_000
_DURABLE: Final = 20
"""Batches between two checkpoints, after which the log drops what came before."""
_TRIES: Final = 3


class Log(Scenario):
    """Batches of one row: the log alone, and the whole engine with either retention."""

    name: ClassVar[str] = "log"
    about: ClassVar[str] = (
        "one view, one row a batch: µs to append a batch to the intake log, the best of three; ms"
        " until it is visible and µs of the worker's CPU, with wal_retention local and source in turns"
    )

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure; ``--rows`` is the number of batches that are appended."""
        with contextlib.ExitStack() as stack:
            beds = {
                place: stack.enter_context(
                    bed(options, HEADRACE_SPARK_WARM="false", HEADRACE_WAL_RETENTION=place)
                )
                for place in _PLACES
            }
            recorded = _recorded(beds["local"])
            for place in _PLACES:
                yield _line(f"append, {place}", _append(recorded, place, options.rows or _BATCHES))
            for on in beds.values():
                with psycopg.connect(on.source, autocommit=True) as conn:
                    conn.execute("DROP TABLE IF EXISTS events")
                    conn.execute(_TABLE)
                on.engine.start()
                on.create_view("v", _QUERY)
            seconds = options.seconds or _SECONDS
            shown: dict[str, list[float]] = {place: [] for place in _PLACES}
            spent = dict.fromkeys(_PLACES, 0.0)
            for _ in range(_TURNS):
                for place, on in beds.items():
                    took, cpu_s = _turn(on, seconds / _TURNS)
                    shown[place] += took
                    spent[place] += cpu_s
            for place, on in beds.items():
                took = shown[place]
                yield _line(f"engine, {place}", spent[place] / len(took) * 1e6, took)
                on.check("v", _QUERY)


def _line(what: str, us: float, took: list[float] | None = None) -> Figures:
    return {
        "what": what,
        "batches": len(took) if took else "-",
        "us_a_batch": round(us, 1),
        "p50_ms": round(statistics.median(took), 2) if took else "-",
    }


def _recorded(on: Bed) -> list[list[bytes]]:
    """Return the messages of transactions of one row each."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        conn.execute(_TABLE)
        recorder = Recorder(conn)
        for key in range(_RECORDED):
            conn.execute(_INSERT, (key, key))
        taken = recorder.take()
        conn.execute("SELECT pg_drop_replication_slot('bench_recording')")
        conn.execute("DROP PUBLICATION bench")
    return list(batches(taken, 1))


def _append(recorded: list[list[bytes]], place: str, count: int) -> float:
    """Return the µs to append a batch."""
    took = []
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as home:
            folder = Path(home)
            log = IntakeLog(
                Settings(
                    source="",
                    data_dir=folder,
                    slot_name="bench",
                    publication_name="bench",
                    wal_retention=place,
                )
            )
            storage, db = Storage(folder / "queues", 1 << 30), RocksDatabase(folder / "state")
            log.open(db, storage)
            if log.local:
                log.begin(db, 0, 0)
            begin = time.perf_counter()
            for txid in range(1, count + 1):
                messages = recorded[txid % len(recorded)]
                batch = Batch(
                    txid, txid, 1, len(messages), sum(map(len, messages)), parts=[messages]
                )
                log.put(BatchRecord(txid, txid - 1, txid, txid), batch)
                if not txid % _DURABLE:
                    log.keep_after(db, txid - _DURABLE)
            took.append(time.perf_counter() - begin)
            storage.close()
            db.close()
    return min(took) / count * 1e6


def _turn(on: Bed, seconds: float) -> tuple[list[float], float]:
    """Commit rows one by one, each when the last is visible; return all ms, and CPU seconds."""
    took: list[float] = []
    with psycopg.connect(on.source, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM events").fetchone()
        assert row is not None, "a count is a row"
        key, begun, cpu_s = int(row[0]), time.perf_counter(), cpu.of_process(on.worker)
        while time.perf_counter() - begun < seconds:
            key += 1
            conn.execute(_INSERT, (key, key))
            since = time.perf_counter()
            while not conn.execute(_SHOWN, (key,)).rowcount:
                pass
            took.append((time.perf_counter() - since) * 1e3)
        return took, cpu.of_process(on.worker) - cpu_s
