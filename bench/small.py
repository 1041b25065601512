"""small: CPU time and latency of small transactions, by the number of views of their table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import ClassVar, Final

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed

_VIEWS: Final = (1, 10, 50, 200)
_TABLE: Final = "CREATE TABLE events (id bigint PRIMARY KEY, k int NOT NULL, n int NOT NULL)"
_FILL: Final = "INSERT INTO events SELECT i, i % 200, i FROM generate_series(1, 2000) i"
_TRANSACTION: Final = """INSERT INTO events SELECT i, 7, i
    FROM generate_series({first}, {last}) i"""


class Small(Scenario):
    """Transactions one after the other; each is visible before the next one."""

    name: ClassVar[str] = "small"
    about: ClassVar[str] = (
        "CPU ms per transaction of 1 and 5 rows of worker and Postgres, with many"
        " views on their table: all of which show the rows, or one alone; ms until all show them"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure up to ``options.views`` views, or 200."""
        most = options.views or _VIEWS[-1]
        seconds = options.seconds or 4.0
        lines: list[Figures] = []
        for what, query in _QUERIES.items():
            with bed(options, HEADRACE_SPARK_WARM="false") as on:
                with psycopg.connect(on.source, autocommit=True) as conn:
                    conn.execute(_TABLE)
                    conn.execute(_FILL)
                on.engine.start()
                made = 0
                for count in (n for n in _VIEWS if n <= most):
                    for view in range(made, count):
                        on.create_view(f"v{view}", query.format(view), '{"population": "local"}')
                    made = count
                    lines += [
                        {"views": count, "reached": what, **measured}
                        for measured in _measure(on, count, seconds)
                    ]
                    for view in {0, count - 1}:
                        on.check(f"v{view}", query.format(view))
        return lines


_QUERIES: Final = {
    "all": "SELECT k, sum(n + {0}) AS s FROM events GROUP BY k",
    "one": "SELECT k, sum(n) AS s FROM events WHERE k = 7 + {0} GROUP BY k",
}
"""Views that a transaction concerns by their filters: all, or only the first one."""


def _measure(on: Bed, views: int, seconds: float) -> Iterator[Figures]:
    worker, postmaster = on.worker, on.server.pid
    with psycopg.connect(on.source, autocommit=True) as conn:
        found = conn.execute("SELECT max(id) FROM events").fetchone()
        assert found is not None
        last = int(found[0])
        for rows in (1, 5):
            begin = time.monotonic()
            before = _spent(worker, postmaster)
            shown: list[float] = []
            while time.monotonic() < begin + seconds or len(shown) < 3:
                conn.execute(_TRANSACTION.format(first=last + 1, last=last + rows).encode())
                last += rows
                at = time.monotonic()
                conn.execute("CALL headrace.wait_for('v0')")
                shown.append((time.monotonic() - at) * 1e3)
            after = _spent(worker, postmaster)
            spent = {k: (after[k] - before[k]) * 1e3 / len(shown) for k in after}
            yield {
                "rows": rows,
                "transactions": len(shown),
                "worker_ms": round(spent["worker"], 2),
                "postgres_ms": round(spent["postgres"], 2),
                "p50_ms": round(statistics.median(shown), 1),
            }


def _spent(worker: int, postmaster: int) -> dict[str, float]:
    return {"worker": cpu.of_process(worker), "postgres": cpu.of_children(postmaster)}
