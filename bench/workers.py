"""workers: a backlog through views that are all on one worker, or spread over two.

The backlog is made as in ``drain``, but the views here need much computation. With two workers
every other view is on the second one.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final

import psycopg

from bench import shapes
from bench.drain import held, us
from bench.scenario import Bed, Figures, Options, Scenario, caught_up

_OVER: Final = {
    "row_number": "SELECT n, count(*) AS rows FROM ({}) x GROUP BY n",
    "running_sum": "SELECT count(*) AS rows, max(s) AS most FROM ({}) x",
    "top_3_lateral": "SELECT count(*) AS rows, sum(amount) AS total FROM ({}) x",
    "min_max": "SELECT sum(a) AS least, max(b) AS last FROM ({}) x",
    "count_distinct_join": "SELECT region, n FROM ({}) x",
    "left_join": "SELECT region, count(amount) AS n FROM ({}) x GROUP BY region",
}
"""Query over a shape: it writes few rows, so that Postgres is not the bottleneck."""


def heavy(*names: str) -> dict[str, str]:
    """Return queries over shapes that compute much and write few rows; all without ``names``."""
    found = shapes.queries(names or tuple(_OVER))
    return {name: _OVER[name].format(query) for name, query in found}


_VIEWS: Final = heavy()
_DRAINS: Final = 4
"""Drains of each kind, in turns; the first is not counted."""
_TRANSACTION_ROWS: Final = 100
_PART: Final = 8
"""A drain changes one order in so many."""


class Workers(Scenario):
    """Views on two workers, compared with all of them on one."""

    name: ClassVar[str] = "workers"
    about: ClassVar[str] = (
        "µs per changed row of a backlog through six views, on one worker and spread over two;"
        " ratio: how many times as fast two are"
    )
    rows_default: ClassVar[int] = 200_000

    def run(self, options: Options) -> list[Figures]:
        """Measure both ways in one run: the views exist once each way, and are paused in turns."""
        rows = options.rows or self.rows_default
        took: dict[int, list[float]] = {1: [], 2: []}
        with (
            shapes.streaming(options, rows) as (on, stream),
            psycopg.connect(on.engine.dsn, autocommit=True) as conn,
        ):
            # Otherwise the comparison with the query takes minutes.
            stream.conn.execute("CREATE INDEX ON orders (customer)")
            conn.execute("CALL headrace.add_worker('w1')")
            for drain in range(_DRAINS):
                for workers in took:
                    _place(on, workers)
                    seconds = _drain(on, conn, stream)
                    if drain:
                        took[workers].append(seconds / (stream.rows // _PART))
                    for name, query in _VIEWS.items():
                        on.check(name, query)
                        on.drop_view(name)
        one, two = (min(each) for each in took.values())
        return [
            {
                "views": len(_VIEWS),
                "one_us": us(one, 1),
                "two_us": us(two, 1),
                "ratio": round(one / two, 2),
            }
        ]


def _place(on: Bed, workers: int) -> None:
    for number, (name, query) in enumerate(_VIEWS.items()):
        place = "w1" if workers > 1 and number % 2 else "main"
        on.create_view(
            name, query, f'{{"population": "local", "sharing": false, "placement": "{place}"}}'
        )


def _drain(on: Bed, conn: psycopg.Connection[tuple[object, ...]], stream: shapes.Stream) -> float:
    with held(on.worker):
        stream.change(stream.rows // _PART, _TRANSACTION_ROWS)
        begin = time.monotonic()
    caught_up(conn, *_VIEWS)
    return time.monotonic() - begin
