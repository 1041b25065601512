"""many: the cost of thousands of views: creation, idle time, other views' batches, and restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar, Final

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up, scalar
from headrace.embedded.shop import percentile

_VIEWS: Final = 400
"""Enough for a quick run; ``--views 2000`` shows the cost of thousands."""
_EACH: Final = 100
"""Views per line."""
_TABLES: Final = 4
_SETTLE_S: Final = 5.0
"""Seconds between the last creation and the idle time."""
_PER_S: Final = 20.0
"""Transactions per second on a table that one other view reads."""
_POLL_S: Final = 0.001


class Many(Scenario):
    """Small views over four tables; a third of them share a subplan, a third are joins."""

    name: ClassVar[str] = "many"
    about: ClassVar[str] = (
        f"seconds and CPU of {_EACH} create_views after so many; then CPU % of one core while"
        f" nothing happens, and at {_PER_S:.0f} transactions/s that concern one other view, with its"
        " freshness and the WAL of a transaction; and seconds from a start until all views run"
    )

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure ``options.views`` views (400 by default), idle for ``options.seconds`` (20)."""
        views = options.views or _VIEWS
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            _fill(on, options.rows or 200)
            on.engine.start()
            for first in range(0, views, _EACH):
                yield _create(on, range(first, min(first + _EACH, views)))
            time.sleep(_SETTLE_S)
            begin, before = time.monotonic(), _spent(on)
            time.sleep(options.seconds or 20.0)
            yield _line("idle", views, time.monotonic() - begin, before, _spent(on))
            yield _beside(on, views, options.seconds or 20.0)
            on.engine.stop()
            begin, before = time.monotonic(), {"postgres": _of_server(on)}
            on.engine.start()
            _all_run(on, views + 1)
            yield _line("restart", views, time.monotonic() - begin, before, _spent(on))
            for number in (0, views - 1):
                on.check(f"v{number}", _query(number))


def _fill(on: Bed, rows: int) -> None:
    with psycopg.connect(on.source, autocommit=True) as conn:
        for number in range(_TABLES):
            conn.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, k int, n int)".encode())
            conn.execute(
                f"INSERT INTO t{number} SELECT i, i % 20, i FROM generate_series(1, {rows}) i".encode()
            )


def _query(number: int) -> str:
    table, other = f"t{number % _TABLES}", f"t{(number + 1) % _TABLES}"
    if number % 3 == 0:
        return f"SELECT k, sum(n) AS s FROM {table} GROUP BY k HAVING sum(n) > {number}"
    if number % 3 == 1:
        return f"SELECT k, sum(n + {number}) AS s FROM {table} GROUP BY k"
    return (
        f"SELECT a.k, count(*) AS c FROM {table} a JOIN {other} b ON a.id = b.id"
        f" WHERE a.n > {number} GROUP BY a.k"
    )


def _create(on: Bed, numbers: range) -> Figures:
    begin, before = time.monotonic(), _spent(on)
    for number in numbers:
        on.create_view(f"v{number}", _query(number))
    return _line("create", numbers.stop, time.monotonic() - begin, before, _spent(on))


def _beside(on: Bed, views: int, seconds: float) -> Figures:
    """Measure one more view, whose table no other view reads, while that table changes."""
    shown = "SELECT EXISTS (SELECT FROM own_view WHERE id = %s)"
    position = "SELECT pg_current_wal_lsn() - '0/0'"
    late_ms: list[float] = []
    with psycopg.connect(on.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE own (id int PRIMARY KEY)")
        on.create_view("own_view", "SELECT id FROM own")
        wal = scalar(on.source, position)
        begin, before = time.monotonic(), _spent(on)
        while (due := begin + len(late_ms) / _PER_S) < begin + seconds:
            time.sleep(max(due - time.monotonic(), 0.0))
            number = len(late_ms)
            conn.execute("INSERT INTO own VALUES (%s)", (number,))
            committed = time.monotonic()
            while conn.execute(shown, (number,)).fetchone() != (True,):
                time.sleep(_POLL_S)
            late_ms.append((time.monotonic() - committed) * 1e3)
        took_s, after = time.monotonic() - begin, _spent(on)
        wal_kb = (float(scalar(on.source, position)) - float(wal)) / 1024
    return _line("beside", views, took_s, before, after) | {
        "p50_ms": round(percentile(late_ms, 50), 1),
        "p99_ms": round(percentile(late_ms, 99), 1),
        "wal_kb_per_transaction": round(wal_kb / len(late_ms), 1),
    }


def _line(
    step: str, views: int, seconds: float, before: dict[str, float], after: dict[str, float]
) -> Figures:
    spent = {name: used - before.get(name, 0.0) for name, used in after.items()}
    whole = sum(spent.values())
    return {
        "step": step,
        "views": views,
        "seconds": round(seconds, 2),
        **{f"{name}_cpu_s": round(used, 2) for name, used in spent.items()},
        "percent_of_a_core": round(whole / seconds * 100, 2),
    }


def _spent(on: Bed) -> dict[str, float]:
    """Return the CPU seconds so far by process."""
    builder = on.engine.child("headrace.views.builder")
    return {
        "server": cpu.of_process(on.engine.pid),
        "builder": cpu.of_process(builder) if builder is not None else 0.0,
        "worker": cpu.of_process(on.worker),
        "postgres": _of_server(on),
    }


def _of_server(on: Bed) -> float:
    """Return the CPU seconds of all sessions, also of those that have ended."""
    return cpu.of_children(on.server.pid) + cpu.of_ended_children(on.server.pid)


def _all_run(on: Bed, views: int) -> None:
    with psycopg.connect(on.source, autocommit=True) as conn:
        count = "SELECT count(*) FROM headrace.list_views() WHERE status = 'running'"
        while conn.execute(count).fetchone() != (views,):
            time.sleep(0.2)
        caught_up(conn, f"v{views - 1}")
