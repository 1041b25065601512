"""engine: recorded changes through decoder, dataflow and a real store, without Postgres.

    messages ── Batcher.add ── Frames (decoder) ── Dataflow ── RocksStore ── checkpoint
                 stream          decode             flow         flow       checkpoint

All parts run on one thread in turn, so that the CPU time of each is measured separately. A part is
named after its thread in the engine. Expressions that the planner leaves to Postgres still go
there; only Headrace's side of them is counted.

A drain is a number of batches of one size. Before the first drain of a size the store is closed and
opened again: this drain is *cold*, as after a start. *Warm* is the best of three more.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import psycopg
import pyarrow as pa

from bench import shapes
from bench.recording import Recorder, batches, rows_in
from bench.scenario import Bed, Figures, Options, Scenario, bed
from bench.tpch_data import Tpch
from bench.tpch_data import queries as tpch_queries
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan
from headrace.errors import BugError, HeadraceError
from headrace.expressions.remote import RemoteEvaluator
from headrace.forwarder.batcher import Batcher
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.planner.plan import plan
from headrace.planner.request import PlanRequest
from headrace.postgres import connect
from headrace.postgres.numbering import Observation, StreamAttribute, VisibleXids
from headrace.runtime.columns import Columns, Description, types_of
from headrace.runtime.incoming import StreamFrames
from headrace.state.rocks import RocksDatabase, RocksStore

_DRAINS: Final = 4
"""Drains of each size; the first one is the cold one."""
_BATCHES: Final = {30_000: 1, 100: 50, 1: 200}
"""Batches of a drain, by rows of a batch."""
_TRANSACTION_ROWS: Final = 100
_MEMORY_BYTES: Final = 1024**3
_TPCH_PART: Final = 0.01
_PARTS: Final = ("stream", "decode", "flow", "regulate", "checkpoint")


@dataclass(frozen=True, slots=True)
class Drain:
    """Recorded messages, and the rows per batch."""

    size: int
    messages: list[bytes]


@dataclass(frozen=True, slots=True)
class Tape:
    """All changes of some tables: the fill, and drains."""

    fill: list[bytes]
    drains: list[Drain]


@dataclass(slots=True)
class Spent:
    """CPU seconds by part, and the rows that they were spent for."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_PARTS, 0.0))
    rows: int = 0
    batches: int = 0
    diffs: int = 0
    bytes: int = 0
    """Bytes of the diffs."""

    def timed(self, part: str, begin: float) -> float:
        """Add this thread's CPU time since ``begin`` to ``part``, and return the current time."""
        now = time.thread_time()
        self.seconds[part] += now - begin
        return now

    @property
    def total(self) -> float:
        """CPU seconds of all parts."""
        return sum(self.seconds.values())


class Described:
    """Describes the tables for ``StreamFrames``; no table is altered here."""

    def __init__(self, conn: connect.Connection) -> None:
        """Read the tables' attributes after all recorded changes."""
        row = conn.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None, "it has a snapshot"
        self._snapshot = VisibleXids.of(row[0])
        self._attributes: dict[int, list[StreamAttribute]] = {}
        for oid, number, name in conn.execute(
            "SELECT attrelid::oid::int8, attnum, attname FROM pg_catalog.pg_attribute"
            " WHERE attnum > 0 AND attrelid >= 16384 ORDER BY attnum"
        ):
            attribute = StreamAttribute(number, name, True, "")
            self._attributes.setdefault(oid, []).append(attribute)
        self._columns = Columns(self._observe)

    def _observe(self, oid: int, xid: int) -> list[Observation]:
        del xid
        return [Observation(self._snapshot, tuple(self._attributes[oid]))]

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        """Describe the tables; report no errors."""
        self._columns.describe(found)
        return {}

    def numbered(
        self, changes: Changes, xid: int, read: Mapping[int, int] | None
    ) -> pa.RecordBatch:
        """Assign column numbers as ``runtime.columns.Columns`` does."""
        return self._columns.numbered(changes, xid, read)


class Unit:
    """One view: its store, and the code that plays changes to it."""

    def __init__(
        self, path: Path, physical: PhysicalPlan, described: Described, remote: RemoteEvaluator
    ) -> None:
        self._path = path
        self._plan = physical
        self._types = types_of([physical])
        self._described = described
        self._remote = remote
        self._txid = 0
        self.weight = 0
        """Rows of the view."""
        self._open()

    def _open(self) -> None:
        self._database = RocksDatabase(self._path, memory_bytes=_MEMORY_BYTES)
        self._store: RocksStore = self._database.view(1, self._txid)
        self._flow = Dataflow(self._plan, self._store, self._remote, 0)

    @property
    def plan(self) -> PhysicalPlan:
        """The view's plan."""
        return self._plan

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics by node since the store was opened."""
        return self._flow.metrics()

    @property
    def memory_bytes(self) -> int:
        """Bytes of the view's states in memory."""
        return self._store.memory_bytes

    def reopen(self) -> None:
        """Close and open the store, so that nothing is in memory."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close the store."""
        del self._flow
        self._database.close()

    def play(self, messages: Sequence[bytes], size: int) -> Spent:
        """Process ``messages`` in batches of ``size`` rows, and write one checkpoint."""
        spent = self.process(messages, size)
        begin = time.thread_time()
        self.checkpoint(sync=False)
        spent.timed("checkpoint", begin)
        return spent

    def process(self, messages: Sequence[bytes], size: int) -> Spent:
        """Process ``messages`` in batches of ``size`` rows."""
        spent = Spent()
        batcher = Batcher(start_lsn=0, interval_s=0.0, rows_max=1 << 60, bytes_max=1 << 60)
        decoder = Decoder()
        for batch in batches(messages, size):
            begin = time.thread_time()
            batcher.add(batch)
            taken = batcher.take(0.0)
            assert taken is not None, "it holds whole transactions"
            self._txid += 1
            begin = spent.timed("stream", begin)
            frames = StreamFrames(taken, decoder, self._txid, 0, self._described, types=self._types)
            found = [frame for chunk in frames for frame in chunk]
            begin = spent.timed("decode", begin)
            self._store.begin(self._txid)
            self._flow.begin(self._txid)
            for frame in found:
                self._flow.ingest(frame.table_oid, frame.diffs.batch)
            out = self._flow.end(self._txid)
            self._store.prepare()
            self._store.commit(self._txid)
            flowed = spent.timed("flow", begin)
            spent.rows += rows_in(batch)
            spent.batches += 1
            spent.diffs += out.num_rows
            spent.bytes += out.nbytes
            self.weight += int(out.column(out.num_columns - 1).to_numpy().sum())
            worked_s = flowed - begin
            begin = time.thread_time()
            self._database.regulate(worked_s)
            spent.timed("regulate", begin)
        return spent

    def checkpoint(self, *, sync: bool) -> None:
        """Write what has changed since the last one."""
        made = self._database.begin_checkpoint([(self._store, self._txid)], {})
        made.write(sync=sync)
        self._database.end_checkpoint(made)


class Engine(Scenario):
    """The gate for the engine's speed: CPU time of its parts for each shape."""

    name: ClassVar[str] = "engine"
    about: ClassVar[str] = (
        "CPU µs per changed row and per batch of recorded changes through decoder, dataflow and"
        " store, cold and warm; calibration: ms of one fixed piece of work on this machine"
    )
    rows_default: ClassVar[int] = 100_000

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure the shapes and TPC-H, or those that ``options.only`` names."""
        rows = options.rows or self.rows_default
        with bed(options) as on:
            yield from self._shapes(on, rows, options.only)
        with bed(options) as on:
            yield from self._tpch(on, rows, options.only)

    def _shapes(self, on: Bed, rows: int, only: tuple[str, ...]) -> Iterator[Figures]:
        asked = list(shapes.queries(only))
        if not asked:
            return
        with psycopg.connect(on.source, autocommit=True) as conn:
            recorder = Recorder(conn)
            stream = shapes.Stream(conn, rows)
            stream.fill()
            fill, drains = recorder.take(), []
            for size, count in _BATCHES.items():
                changed = min(size * count, rows // 4)
                for _ in range(_DRAINS):
                    stream.change(changed, min(size, _TRANSACTION_ROWS))
                    drains.append(Drain(size, recorder.take()))
        yield from self._all(on, Tape(fill, drains), asked)

    def _tpch(self, on: Bed, rows: int, only: tuple[str, ...]) -> Iterator[Figures]:
        asked = [(n, q) for n, q in tpch_queries().items() if not only or n in only]
        if not asked:
            return
        with psycopg.connect(on.source, autocommit=True) as conn:
            recorder = Recorder(conn)
            # There are four times as many lines as orders; they are most of the rows.
            data = Tpch(conn, rows / 4 / 1_500_000)
            data.load()
            fill, drains = recorder.take(), []
            for number in range(_DRAINS):
                assert sum(data.refresh(number, _TPCH_PART))
                drains.append(Drain(30_000, recorder.take()))
            for number in range(_DRAINS):
                for order in range(50):
                    data.amend(number * 50 + order)
                drains.append(Drain(1, recorder.take()))
        yield from self._all(on, Tape(fill, drains), asked)

    def _all(self, on: Bed, tape: Tape, asked: list[tuple[str, str]]) -> Iterator[Figures]:
        for name, query in asked:
            with unit_of(on, query) as unit:
                lines = list(_measure(name, unit, tape))
                check_weight(on, name, query, unit.weight)
            yield from lines


@contextmanager
def unit_of(on: Bed, query: str) -> Iterator[Unit]:
    """Yield a view without the engine's processes."""
    with closing(connect.session(on.source, name="bench")) as conn:
        physical = plan(conn, PlanRequest(query, settings={"search_path": "public"})).physical
        described = Described(conn)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
        closing(RemoteEvaluator(on.source, {})) as remote,
        closing(Unit(Path(home) / "state", physical, described, remote)) as unit,
    ):
        yield unit


def _measure(name: str, unit: Unit, tape: Tape) -> Iterator[Figures]:
    """Yield the lines of one view, one for each size of batches."""
    unit.play(tape.fill, 30_000)
    for size in dict.fromkeys(drain.size for drain in tape.drains):
        unit.reopen()
        calibration = calibrated()
        cold, *warm = [
            unit.play(drain.messages, size) for drain in tape.drains if drain.size == size
        ]
        best = min(warm, key=lambda spent: spent.total / spent.rows)
        yield {
            "view": name,
            "batch_rows": size,
            "rows": best.rows,
            "cold_us_per_row": _us(cold.total, cold.rows),
            "us_per_row": _us(best.total, best.rows),
            "us_per_batch": _us(best.total - best.seconds["checkpoint"], best.batches),
            **{f"{part}_us": _us(s, best.rows) for part, s in best.seconds.items()},
            "rows_per_s": round(best.rows / best.total),
            "diffs_per_s": round(best.diffs / best.total),
            "calibration_ms": round(calibration * 1e3, 1),
        }


def _us(seconds: float, count: int) -> float:
    return round(seconds / max(count, 1) * 1e6, 2)


def check_weight(on: Bed, name: str, query: str, weight: int) -> None:
    """Check that the view has as many rows as the query has in Postgres."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        found = conn.execute(f"SELECT count(*) FROM ({query.rstrip(';')}) q".encode())
        row = found.fetchone()
    if row is None or row[0] != weight:
        raise BugError(f"{name}: {weight} rows, and Postgres has {row}")


def calibrated() -> float:
    """Return the CPU seconds of a fixed piece of work, to compare runs on different machines."""

    def fixed() -> object:
        values = np.arange(200_000, dtype=np.int64) * 2_654_435_761 % 1_000_003
        known: dict[bytes, int] = {}
        for value in np.sort(values)[:50_000].tolist():
            known[value.to_bytes(8)] = value
        return known

    def once() -> float:
        begin = time.thread_time()
        fixed()
        return time.thread_time() - begin

    return min(once() for _ in range(3))
