"""growth: the cost of a changed row while the table grows; it should stay the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar, Final

from bench import cpu, shapes
from bench.drain import held, us
from bench.scenario import Bed, Figures, Options, Scenario, caught_up

_VIEW: Final = ("join_group",)
_PARTS: Final = (100, 10, 1)
_CHANGED: Final = 5_000
_DRAINS: Final = 6
"""Drains of each size; the first one warms up."""
_TRANSACTION_ROWS: Final = 100


class Growth(Scenario):
    """The same number of changes to tables of three sizes, each ten times the previous one."""

    name: ClassVar[str] = "growth"
    about: ClassVar[str] = (
        "µs and worker's CPU µs per changed row behind a stopped worker, bytes of state on disk"
        " and the worker's memory, by rows of the table; of_smallest: as many times its CPU"
    )
    rows_default: ClassVar[int] = 1_000_000

    def run(self, options: Options) -> list[Figures]:
        """Measure a hundredth of ``options.rows``, a tenth, and all; the named views, or one."""
        most = options.rows or self.rows_default
        lines: list[Figures] = []
        for name, query in shapes.queries(options.only or _VIEW):
            # The number of changes is the same for all sizes; at most a quarter of a table.
            changed = min(_CHANGED, most // max(_PARTS) // 4)
            found = [_measure(options, (name, query), most // part, changed) for part in _PARTS]
            least = float(found[0]["worker_us"]) or 1.0
            lines += [
                {**line, "of_smallest": round(float(line["worker_us"]) / least, 2)}
                for line in found
            ]
        return lines


def _measure(options: Options, view: tuple[str, str], rows: int, changed: int) -> Figures:
    name, query = view
    with shapes.streaming(options, rows) as (on, stream):
        created_s = on.create_view(name, query, '{"population": "local"}')
        drains = [_drain(on, name, stream, changed) for _ in range(_DRAINS)][1:]
        on.check(name, query)
        return {
            "view": name,
            "rows": rows,
            "create_s": round(created_s, 2),
            "changed_rows": changed,
            "us_per_row": us(min(wall for wall, _ in drains), changed),
            # /proc counts in hundredths of a second, so all drains are taken together.
            "worker_us": us(sum(spent for _, spent in drains), changed * len(drains)),
            "state_mb": round(_size(on.engine.data_dir) / 1e6, 1),
            "worker_mb": round(cpu.status(on.worker, "VmRSS") / 1024, 1),
        }


def _drain(on: Bed, name: str, stream: shapes.Stream, changed: int) -> tuple[float, float]:
    """Return the seconds and the worker's CPU seconds."""
    with held(on.worker):
        stream.change(changed, _TRANSACTION_ROWS)
        spent = cpu.of_process(on.worker)
        begin = time.monotonic()
    caught_up(stream.conn, name)
    return time.monotonic() - begin, cpu.of_process(on.worker) - spent


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
