"""checkpoint: the time to make changes durable, by their number."""

from __future__ import annotations

import os
import time
from typing import ClassVar, Final

import psycopg

from bench import cpu, shapes
from bench.engine import Unit, check_weight, unit_of
from bench.recording import Recorder, rows_in
from bench.scenario import Figures, Options, Scenario, bed

_VIEWS: Final = ("group_sum", "join")
_SIZES: Final = (1, 1_000, 100_000)
_ROUNDS: Final = 3
_BATCH_ROWS: Final = 1_000
_TRANSACTION_ROWS: Final = 100


class Checkpoint(Scenario):
    """Synced checkpoints of one view's state, without other work of the engine."""

    name: ClassVar[str] = "checkpoint"
    about: ClassVar[str] = (
        "ms and CPU ms of this process for a synced checkpoint after so many changed rows, and"
        " bytes given to the disk; the best of three"
    )
    rows_default: ClassVar[int] = 400_000

    def run(self, options: Options) -> list[Figures]:
        """Measure over ``options.rows`` orders, of which at most a quarter is changed at once."""
        rows = options.rows or self.rows_default
        lines: list[Figures] = []
        with bed(options) as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                recorder = Recorder(conn)
                stream = shapes.Stream(conn, rows)
                stream.fill()
                fill = recorder.take()
                drains: dict[int, list[list[bytes]]] = {}
                for size in sorted({min(size, rows // 4) for size in _SIZES}):
                    for _ in range(_ROUNDS):
                        stream.change(size, min(size, _TRANSACTION_ROWS))
                        drains.setdefault(size, []).append(recorder.take())
            for name, query in shapes.queries(options.only or _VIEWS):
                with unit_of(on, query) as unit:
                    unit.play(fill, _BATCH_ROWS)
                    for drained in drains.values():
                        found = [_measure(unit, messages) for messages in drained]
                        best = min(found, key=lambda line: line["ms"])
                        lines.append({"view": name, **best})
                    check_weight(on, name, query, unit.weight)
        return lines


def _measure(unit: Unit, messages: list[bytes]) -> dict[str, float]:
    unit.process(messages, _BATCH_ROWS)
    written = cpu.written_bytes(os.getpid())
    spent, begin = time.process_time(), time.perf_counter()
    unit.checkpoint(sync=True)
    took, spent = time.perf_counter() - begin, time.process_time() - spent
    written = cpu.written_bytes(os.getpid()) - written
    rows = rows_in(messages)
    assert written > rows, "what has changed is written here, and not before"
    return {
        "changed_rows": rows,
        "ms": round(took * 1e3, 3),
        "cpu_ms": round(spent * 1e3, 3),
        "written_bytes": written,
        "bytes_per_row": round(written / max(rows, 1)),
    }
