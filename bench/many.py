"""many: the cost of thousands of views: creation, idle time and restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import ClassVar, Final

import psycopg

from bench import cpu
from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up

_VIEWS: Final = 400
"""Enough for a quick run; ``--views 2000`` shows the cost of thousands."""
_EACH: Final = 100
"""Views per line."""
_TABLES: Final = 4
_SETTLE_S: Final = 5.0
"""Seconds between the last creation and the idle time."""


class Many(Scenario):
    """Small views over four tables; a third of them share a subplan, a third are joins."""

    name: ClassVar[str] = "many"
    about: ClassVar[str] = (
        f"seconds and CPU of {_EACH} create_views after so many; then CPU % of one core while"
        " nothing happens, and seconds from a start until all views run"
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
            on.engine.stop()
            begin, before = time.monotonic(), {"postgres": _of_server(on)}
            on.engine.start()
            _all_run(on, views)
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
