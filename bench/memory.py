"""memory: the cost of idle views in memory, CPU, and WAL."""

from __future__ import annotations

import time
from typing import ClassVar, Final

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up, scalar

_VIEWS: Final = (0, 10, 50, 200)
_ROWS: Final = 2_000
_TABLE: Final = """
CREATE TABLE events (id bigint PRIMARY KEY, k int NOT NULL, n int NOT NULL);
INSERT INTO events SELECT i, i % 200, i FROM generate_series(1, {rows}) i"""
_QUERY: Final = "SELECT k, sum(n + {0}) AS s FROM events GROUP BY k"
_SETTLE_S: Final = 3.0
_LSN: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8"


class Memory(Scenario):
    """Idle views on one small table."""

    name: ClassVar[str] = "memory"
    about: ClassVar[str] = (
        "MB of server and worker with idle views, CPU % of one core of both and of Postgres,"
        " and bytes of WAL a second, while nothing is written"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure up to ``options.views`` views (200 by default), idle for ``options.seconds``."""
        most = options.views or _VIEWS[-1]
        seconds = options.seconds or 10.0
        lines: list[Figures] = []
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                conn.execute(_TABLE.format(rows=options.rows or _ROWS).encode())
            on.engine.start()
            made = 0
            for count in (n for n in _VIEWS if n <= most):
                for view in range(made, count):
                    on.create_view(f"v{view}", _QUERY.format(view), '{"population": "local"}')
                made = count
                _settle(on, made, min(seconds, _SETTLE_S))
                lines.append({"views": count, **_measure(on, seconds)})
            for view in {0, made - 1} if made else ():
                on.check(f"v{view}", _QUERY.format(view))
        return lines


def _settle(on: Bed, views: int, seconds: float) -> None:
    """Wait until the work that follows the creation of views is done."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        caught_up(conn, *(f"v{view}" for view in range(views)))
    time.sleep(seconds)


def _measure(on: Bed, seconds: float) -> Figures:
    server, worker, postmaster = on.engine.pid, on.worker, on.server.pid
    lsn = int(scalar(on.source, _LSN))
    before = [cpu.of_process(server), cpu.of_process(worker), cpu.of_children(postmaster)]
    begin = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    after = [cpu.of_process(server), cpu.of_process(worker), cpu.of_children(postmaster)]
    wal = int(scalar(on.source, _LSN)) - lsn
    ours, work, postgres = ((a - b) / took * 100 for a, b in zip(after, before, strict=True))
    return {
        "server_mb": round(cpu.status(server, "VmRSS") / 1024, 1),
        "worker_mb": round(cpu.status(worker, "VmRSS") / 1024, 1),
        "seconds": round(took, 1),
        "server_cpu_percent": round(ours, 2),
        "worker_cpu_percent": round(work, 2),
        "postgres_cpu_percent": round(postgres, 2),
        "wal_bytes_per_s": round(wal / took),
    }
