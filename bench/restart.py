"""restart: seconds until a view follows again after a stop, and the cost of its first changes.

A *drain* is the backlog of a worker that was stopped (SIGSTOP) and goes on. The third drain after
create_view or a start finds the state in memory; the first one may not.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import ClassVar, Final

import psycopg

from bench import cpu, shapes
from bench.scenario import Bed, Figures, Options, Scenario

_VIEWS: Final = ("group_sum", "join")
_DRAINS: Final = 3
_PART: Final = 20
"""A drain changes one row in so many."""


class Restart(Scenario):
    """Each view alone: created, drained, stopped with the engine, and drained again."""

    name: ClassVar[str] = "restart"
    about: ClassVar[str] = (
        "seconds from the engine's start until a view follows again; seconds and CPU of the worker"
        " for drains after create_view and after that start, and the first beside the third"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure over ``options.rows`` orders, or 200 000."""
        rows = options.rows or 200_000
        lines: list[Figures] = []
        for name, query in shapes.queries(options.only or _VIEWS):
            with shapes.streaming(options, rows) as (on, stream):
                took_s = on.create_view("v", query, '{"population": "local"}')
                lines += _drains(on, stream, {"view": name, "after": "create", "ready_s": took_s})
                on.engine.stop()
                begin = time.monotonic()
                on.engine.start()
                stream.change(1, 1)
                _wait(stream.conn)
                took_s = time.monotonic() - begin
                lines += _drains(on, stream, {"view": name, "after": "start", "ready_s": took_s})
        return lines


def _drains(on: Bed, stream: shapes.Stream, about: Figures) -> Iterator[Figures]:
    about["ready_s"] = round(float(about["ready_s"]), 2)
    worker = on.engine.child("headrace.runtime.worker")
    assert worker is not None, "the engine runs"
    first: tuple[float, float] | None = None
    made = [_drain(worker, stream) for _ in range(_DRAINS)]
    third = made[-1]
    for number, (seconds, spent) in enumerate(made, 1):
        first = first or (seconds, spent)
        yield {
            **about,
            "drain": number,
            "rows": stream.rows // _PART,
            "seconds": round(seconds, 2),
            "cpu_s": round(spent, 2),
            "to_third": round(seconds / third[0], 2),
            "cpu_to_third": round(spent / max(third[1], 0.01), 2),
        }


def _drain(worker: int, stream: shapes.Stream) -> tuple[float, float]:
    """Return the seconds and the worker's CPU seconds to process a backlog."""
    os.kill(worker, signal.SIGSTOP)
    try:
        stream.change(stream.rows // _PART, 100)
    finally:
        begin, spent = time.monotonic(), cpu.of_process(worker)
        os.kill(worker, signal.SIGCONT)
    _wait(stream.conn)
    return time.monotonic() - begin, cpu.of_process(worker) - spent


def _wait(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    conn.execute("CALL headrace.wait_for('v')")
