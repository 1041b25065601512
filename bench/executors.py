"""executors: the drain of a backlog by one process, and by those that the server adds by itself.

Each line is one server.  It is under load until its views have moved (with one process, as long as
the move took the other one at least), then drains a backlog several times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import ClassVar, Final

import psycopg

from bench import shapes
from bench.drain import held, us
from bench.scenario import Bed, Figures, Options, Scenario, caught_up, scalar
from bench.workers import heavy

_LIGHT: Final = ("filter", "date_trunc", "like_count", "group_sum", "stddev", "distinct")
_SETS: Final[dict[str, dict[str, str]]] = {
    "two heavy": heavy("row_number", "running_sum"),
    "six light": dict(shapes.queries(_LIGHT)),
}
_DRAINS: Final = 4
"""Drains of each server; the first is not counted."""
_TRANSACTION_ROWS: Final = 100
_PART: Final = 8
"""A drain changes one order in so many."""
_LOAD_S: Final = 60.0
"""Seconds of overload: views move after half of it."""
_MOVES_S: Final = 240.0
"""Seconds after which the views are not expected to move any more."""
_MOVED: Final = "SELECT coalesce(sum(views), 0)::int FROM headrace.workers() WHERE worker <> 'main'"


class Executors(Scenario):
    """Views that move to executors under load, compared with one process."""

    name: ClassVar[str] = "executors"
    about: ClassVar[str] = (
        "µs per changed row of a backlog, with executors = 1 and auto, in commit groups of their"
        " own; ratio: how many times as fast auto is"
    )
    rows_default: ClassVar[int] = 200_000

    def run(self, options: Options) -> Iterator[Figures]:
        """Measure one set of views after the other."""
        rows = options.rows or self.rows_default
        for kind, views in _SETS.items():
            if options.only and kind.split()[1] not in options.only:
                continue
            took = {each: _measure(options, rows, views, each) for each in ("1", "auto")}
            one, auto = (min(seconds) for seconds, _ in took.values())
            yield {
                "views": kind,
                "moved": took["auto"][1],
                "one_us": us(one, 1),
                "auto_us": us(auto, 1),
                "ratio": round(one / auto, 2),
            }


def _measure(
    options: Options, rows: int, views: dict[str, str], executors: str
) -> tuple[list[float], int]:
    """Return the seconds per row of each drain, and how many views have moved."""
    with (
        shapes.streaming(options, rows, HEADRACE_EXECUTORS=executors) as (on, stream),
        psycopg.connect(on.engine.dsn, autocommit=True) as conn,
    ):
        # Otherwise the comparison with the query takes minutes.
        stream.conn.execute("CREATE INDEX ON orders (customer)")
        for name, query in views.items():
            on.create_view(
                name,
                query,
                f'{{"population": "local", "sharing": false, "commit_group": "{name}"}}',
            )
        _load(on, stream, _MOVES_S if executors == "auto" else _LOAD_S)
        caught_up(conn, *views)
        seconds = [_drain(on, conn, stream, views) for _ in range(_DRAINS)]
        for name, query in views.items():
            on.check(name, query)
        moved: int = scalar(on.engine.dsn, _MOVED)
        return [each / (rows // _PART) for each in seconds[1:]], moved


def _load(on: Bed, stream: shapes.Stream, longest_s: float) -> None:
    """Change rows faster than the engine follows, until views have moved, or ``longest_s``."""
    begun = time.monotonic()
    for round_number in itertools.count():
        passed_s = time.monotonic() - begun
        if passed_s > longest_s or (round_number % 8 == 7 and scalar(on.engine.dsn, _MOVED)):
            return
        stream.change(2_000, _TRANSACTION_ROWS)


def _drain(
    on: Bed,
    conn: psycopg.Connection[tuple[object, ...]],
    stream: shapes.Stream,
    views: dict[str, str],
) -> float:
    with held(on.worker):
        stream.change(stream.rows // _PART, _TRANSACTION_ROWS)
        begin = time.monotonic()
    caught_up(conn, *views)
    return time.monotonic() - begin
