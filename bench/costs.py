"""costs: CPU time of each kind of collection, per row and per call; bytes of its state per row.

``headrace.advise`` estimates with these figures (``planner/physical/costs.py``). CPU time is that
of the thread, and of the best of three drains: of 20 000 rows in one batch, and of 200 batches of
one row.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import psycopg

from bench import engine, shapes
from bench.recording import Recorder
from bench.scenario import Figures, Options, Scenario, bed
from headrace.collections import base, plan

_ROWS = 20_000


class Costs(Scenario):
    """The cost figures of advise."""

    name: ClassVar[str] = "costs"
    about: ClassVar[str] = (
        "CPU µs per row that comes in, in a large batch, and per call, in batches of one row, of"
        " each kind of collection; calibration as for engine"
    )
    rows_default: ClassVar[int] = 100_000

    def run(self, options: Options) -> list[Figures]:
        """Measure each collection of the shapes."""
        rows = options.rows or self.rows_default
        lines: list[Figures] = []
        with bed(options) as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                recorder = Recorder(conn)
                stream = shapes.Stream(conn, rows)
                stream.fill()
                fill, large, small = recorder.take(), [], []
                for _ in range(3):
                    stream.change(min(_ROWS, rows // 4), 100)
                    large.append(recorder.take())
                for _ in range(3):
                    stream.change(200, 1)
                    small.append(recorder.take())
                conn.execute("ANALYZE")
            for name, query in shapes.queries(options.only):
                with engine.unit_of(on, query) as unit, _thread_time():
                    unit.play(fill, 30_000)
                    calibration = engine.calibrated()
                    in_bulk = [_played(unit, messages, 30_000) for messages in large]
                    one_by_one = [_played(unit, messages, 1) for messages in small]
                    lines += _lines(name, unit, in_bulk, one_by_one, calibration)
        return lines


Spent = dict[str, tuple[int, int, int]]
"""Rows in, ns and calls by node."""


def _played(unit: engine.Unit, messages: list[bytes], size: int) -> Spent:
    before = unit.metrics
    unit.process(messages, size)
    after = unit.metrics
    out: Spent = {}
    for node, numbers in after.items():
        known = before[node]
        rows = sum(numbers["rows_in"]) - sum(known["rows_in"])
        calls = sum(numbers["batches_in"]) - sum(known["batches_in"])
        out[node] = rows, numbers["busy_ns"] - known["busy_ns"], calls
    return out


def _lines(
    name: str, unit: engine.Unit, bulk: list[Spent], small: list[Spent], calibration: float
) -> Iterator[Figures]:
    kinds: dict[str, str] = {n.id: plan.kind(type(n)) for n in unit.plan.nodes}
    best: dict[str, dict[str, float]] = defaultdict(dict)
    for node in kinds:
        best[node]["us_per_row"] = min(s[node][1] / max(s[node][0], 1) for s in bulk) / 1e3
        best[node]["us_per_call"] = min(s[node][1] / max(s[node][2], 1) for s in small) / 1e3
    for node, kind in kinds.items():
        yield {
            "view": name,
            "node": node,
            "collection": kind,
            "rows": bulk[-1][node][0],
            **{key: round(value, 2) for key, value in best[node].items()},
            "view_state_bytes": unit.memory_bytes,
            "calibration_ms": round(calibration * 1e3, 1),
        }


@contextmanager
def _thread_time() -> Iterator[None]:
    """Time collections by the CPU time of their thread instead of wall-clock time."""
    known = base.time
    base.time = SimpleNamespace(perf_counter_ns=time.thread_time_ns)  # type: ignore[assignment]
    try:
        yield
    finally:
        base.time = known
