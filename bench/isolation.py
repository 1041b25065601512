"""isolation: the delay of an unrelated view while another view is in trouble.

A probe view follows its own table.  Another view, over a large table, is paused and resumed many
changes behind, its result table is locked and released, and a third one is created over that table.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed, caught_up
from headrace.embedded.shop import percentile

_TABLES: Final = """
CREATE TABLE events (id int PRIMARY KEY, x int NOT NULL);
CREATE TABLE probes (id int PRIMARY KEY);
"""
_PROBE: Final = "SELECT id FROM probes"
_OTHER: Final = "SELECT x % 1000 AS k, count(*) AS c, sum(x) AS s FROM events GROUP BY x % 1000"
_ROWS: Final = 300_000
_STEP: Final = 1_000
_PAUSE_S: Final = 0.05
_POLL_S: Final = 0.001
_LEAST_S: Final = 10.0
_BEHIND: Final = "SELECT %s <= coalesce(max(c), 0) FROM (SELECT sum(c) AS c FROM other) o"


class Isolation(Scenario):
    """The delay of an unrelated view while another one catches up."""

    name: ClassVar[str] = "isolation"
    about: ClassVar[str] = (
        "ms from commit to visible of an unrelated view, alone, and while another view resumes"
        " many rows behind, is locked and released, or is created; took_s: until that has caught up"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure the unrelated view alone, then beside each trouble."""
        rows = options.rows or _ROWS
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                conn.execute(_TABLES)
            on.engine.start()
            on.create_view("probe", _PROBE)
            on.create_view("other", _OTHER)
            lines = [_measure(on, "nothing", lambda: time.sleep(_LEAST_S))]
            for trouble, work in _TROUBLES.items():
                after = work(on, rows)
                lines.append(_measure(on, trouble, after))
                on.check("probe", _PROBE)
                on.check("other", _OTHER)
        return lines


def _change(on: Bed, rows: int) -> None:
    """Insert rows, many of them in a transaction of their own."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        for _ in range(rows // _STEP):
            conn.execute(
                "INSERT INTO events SELECT m + i, i FROM (SELECT coalesce(max(id), 0) AS m"
                " FROM events) o, generate_series(1, %s) i",
                (_STEP,),
            )


def _resumed(on: Bed, rows: int) -> Callable[[], None]:
    with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.pause_view('other')")
    _change(on, rows)

    def resume() -> None:
        with psycopg.connect(on.engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.resume_view('other')")
        _wait(on)

    return resume


def _released(on: Bed, rows: int) -> Callable[[], None]:
    locked = psycopg.connect(on.source)
    locked.execute("LOCK TABLE other IN ACCESS EXCLUSIVE MODE")
    _change(on, rows)

    def release() -> None:
        locked.close()
        _wait(on)

    return release


def _created(on: Bed, rows: int) -> Callable[[], None]:
    del rows

    def create() -> None:
        on.create_view("third", _OTHER.replace("sum(x)", "max(x)"))
        on.drop_view("third")

    return create


_TROUBLES: Final = {"resumes": _resumed, "released": _released, "created": _created}


def _wait(on: Bed) -> None:
    """Wait until the other view has all changes."""
    with psycopg.connect(on.source, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM events").fetchone()
        assert row is not None, "a count is a row"
        while conn.execute(_BEHIND, row).fetchone() != (True,):
            time.sleep(_PAUSE_S)


def _measure(on: Bed, trouble: str, work: Callable[[], None]) -> Figures:
    took: list[float] = []
    thread = threading.Thread(target=work)
    with psycopg.connect(on.source, autocommit=True) as conn:
        caught_up(conn, "probe")
        row = conn.execute("SELECT coalesce(max(id), 0) FROM probes").fetchone()
        assert row is not None, "the query gives one row"
        following, begun = int(row[0]) + 1, time.perf_counter()
        thread.start()
        while thread.is_alive() or time.perf_counter() - begun < _LEAST_S:
            conn.execute("INSERT INTO probes VALUES (%s)", (following,))
            since = time.perf_counter()
            while not conn.execute("SELECT FROM probe WHERE id = %s", (following,)).rowcount:
                time.sleep(_POLL_S)
            took.append((time.perf_counter() - since) * 1000)
            following += 1
            time.sleep(_PAUSE_S)
        thread.join()
    return {
        "trouble": trouble,
        "took_s": round(time.perf_counter() - begun, 1),
        "probes": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(percentile(took, 99), 1),
        "max_ms": round(max(took), 1),
    }
