"""creations: seconds until many concurrently created views are ready, under other writers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

import psycopg

from bench.scenario import Bed, Figures, Options, Scenario, bed

_WRITERS = 8
_CREATIONS = 11
_OPEN_S = (0.5, 2.0)
"""Range of the seconds that a transaction stays open after its first row, spread over writers."""


class Creations(Scenario):
    """Small views over one table; each waits for a moment without open transactions."""

    name: ClassVar[str] = "creations"
    about: ClassVar[str] = f"seconds of {_CREATIONS} create_views under {_WRITERS} writers"

    def run(self, options: Options) -> list[Figures]:
        """Create one view, then all at once, in a quiet database and under the writers."""
        rows = options.rows or 10_000
        with bed(options, HEADRACE_SPARK_WARM="false") as on:
            _fill(on, rows)
            on.engine.start()
            out = [_measure(on, "none", 1), _measure(on, "none", _CREATIONS)]
            with _writing(on):
                out += [_measure(on, "eight", 1), _measure(on, "eight", _CREATIONS)]
        return out


def _fill(on: Bed, rows: int) -> None:
    with psycopg.connect(on.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE items (id serial PRIMARY KEY, kind int, n int)")
        conn.execute(
            "INSERT INTO items (kind, n) SELECT i %% 100, i FROM generate_series(1, %s) i", (rows,)
        )


def _measure(on: Bed, writers: str, count: int) -> Figures:
    """Create ``count`` views at once, then drop them."""
    names = [f"v{number}" for number in range(count)]
    begin = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        each = list(
            pool.map(
                lambda name: on.create_view(
                    name, "SELECT kind, count(*) AS items, sum(n) AS n FROM items GROUP BY kind"
                ),
                names,
            )
        )
    took_s = time.monotonic() - begin
    for name in names:
        on.drop_view(name)
    return {
        "writers": writers,
        "views": count,
        "seconds": round(took_s, 2),
        "slowest_s": round(max(each), 2),
        "fastest_s": round(min(each), 2),
    }


@contextmanager
def _writing(on: Bed) -> Iterator[None]:
    """Run writers inside the block, each with one transaction after the other."""
    over = threading.Event()
    least, most = _OPEN_S

    def write(number: int) -> None:
        open_s = least + (most - least) * number / (_WRITERS - 1)
        with psycopg.connect(on.source) as conn:
            while not over.is_set():
                conn.execute("INSERT INTO items (kind, n) VALUES (%s, 1)", (number,))
                over.wait(open_s)
                conn.commit()

    with ThreadPoolExecutor(_WRITERS) as pool:
        writers = [pool.submit(write, number) for number in range(_WRITERS)]
        try:
            yield
        finally:
            over.set()
            for writer in writers:
                writer.result()
