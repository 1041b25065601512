"""drain: three backlogs through views end to end, compared with pg_recvlogical on the same WAL."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import psycopg

from bench import cpu, shapes
from bench.recvlogical import backlog
from bench.scenario import Bed, Figures, Options, Scenario, caught_up, scalar

_VIEWS: Final = ("filter", "group_sum", "join")
_DRAINS: Final = 3
_TRANSACTION_ROWS: Final = 100
_WALSENDER: Final = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'headrace'"


class Drain(Scenario):
    """A backlog is written while the worker is stopped; the time counts from its release."""

    name: ClassVar[str] = "drain"
    about: ClassVar[str] = (
        "µs and CPU µs per changed row of three drains of a new view, of_third: how much dearer"
        " than the last one; beside pg_recvlogical reading the same changes to a file"
    )
    rows_default: ClassVar[int] = 200_000

    def run(self, options: Options) -> list[Figures]:
        """Measure view by view; a drain changes a quarter of the orders."""
        rows = options.rows or self.rows_default
        lines: list[Figures] = []
        with shapes.streaming(options, rows) as (on, stream):
            for name, query in shapes.queries(options.only or _VIEWS):
                on.create_view(name, query, '{"population": "local"}')
                drains = [_measure(on, name, stream) for _ in range(_DRAINS)]
                on.check(name, query)
                on.drop_view(name)
                last = float(drains[-1]["us_per_row"])
                for number, line in enumerate(drains):
                    ratio = round(float(line["us_per_row"]) / last, 2)
                    lines.append({"view": name, "drain": number + 1, **line, "of_third": ratio})
        return lines


@contextmanager
def held(worker: int) -> Iterator[None]:
    """Stop the worker's process inside the block."""
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


def _measure(on: Bed, view: str, stream: shapes.Stream) -> Figures:
    worker, postmaster = on.worker, on.server.pid
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as home,
        backlog(on) as written,
        psycopg.connect(on.source, autocommit=True) as conn,
    ):
        with held(worker):
            stream.change(stream.rows // 4, _TRANSACTION_ROWS)
            written.end()
            rows = written.rows()
            received = written.receive(Path(home) / "changes")
            walsender = int(scalar(on.source, _WALSENDER))
            before = [
                cpu.of_process(worker),
                cpu.of_process(walsender),
                cpu.of_children(postmaster),
            ]
            begin = time.monotonic()
        caught_up(conn, view)
        seconds = time.monotonic() - begin
        after = [cpu.of_process(worker), cpu.of_process(walsender), cpu.of_children(postmaster)]
    ours, sender, children = (a - b for a, b in zip(after, before, strict=True))
    return {
        "rows": rows,
        "rows_per_s": round(rows / seconds),
        "us_per_row": us(seconds, rows),
        "worker_us": us(ours, rows),
        "walsender_us": us(sender, rows),
        "backends_us": us(children - sender, rows),
        "recv_rows_per_s": round(rows / received.seconds),
        "recv_us": us(received.cpu_s, rows),
        "recv_walsender_us": us(received.walsender_s, rows),
    }


def us(seconds: float, rows: int) -> float:
    """Return the µs per row."""
    return round(seconds / max(rows, 1) * 1e6, 2)
