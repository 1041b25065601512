"""pairs: two heavy views on two threads, compared with one after the other.

Work that holds the interpreter lock gains nothing from a second processor. Each view has a store of
its own and plays the same recorded changes. ``ratio`` is the speed-up of two threads. Both ways run
some drains in turns; the best drain of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

import psycopg

from bench import shapes
from bench.engine import Unit, check_weight, unit_of
from bench.recording import Recorder
from bench.scenario import Bed, Figures, Options, Scenario, bed

_PAIRS: Final = (
    ("group_sum", "join"),
    ("join", "join_group"),
    ("string_agg", "row_number"),
    ("stddev", "distinct"),
    ("min_max", "top_3_lateral"),
)
_ROWS: Final = 30_000
_DRAINS: Final = 6
"""Half of them run on two threads."""


class Pairs(Scenario):
    """Two views at once: the part of two processors that the interpreter lock leaves usable."""

    name: ClassVar[str] = "pairs"
    about: ClassVar[str] = (
        "ms that two heavy views take for 30 000 changed rows, one after the other and side by side"
        " on two threads; ratio: how many times as fast that is"
    )
    rows_default: ClassVar[int] = 200_000

    def run(self, options: Options) -> list[Figures]:
        """Measure all pairs, or those with a view that ``options.only`` names."""
        with bed(options) as on:
            with psycopg.connect(on.source, autocommit=True) as conn:
                recorder = Recorder(conn)
                stream = shapes.Stream(conn, options.rows or self.rows_default)
                stream.fill()
                fill, drains = recorder.take(), []
                for _ in range(_DRAINS):
                    stream.change(_ROWS, 100)
                    drains.append(recorder.take())
            asked = [p for p in _PAIRS if not options.only or set(p) & set(options.only)]
            return [_measure(on, pair, fill, drains) for pair in asked]


def _measure(
    on: Bed, pair: tuple[str, str], fill: list[bytes], drains: Sequence[list[bytes]]
) -> Figures:
    found = [next(shapes.queries((name,))) for name in pair]
    with (
        unit_of(on, found[0][1]) as one,
        unit_of(on, found[1][1]) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        units = (one, other)
        for unit in units:
            unit.play(fill, _ROWS)

        def in_turn(messages: list[bytes]) -> None:
            for unit in units:
                unit.process(messages, _ROWS)

        def beside(messages: list[bytes]) -> None:
            for done in [pool.submit(unit.process, messages, _ROWS) for unit in units]:
                done.result()

        ways: tuple[Callable[[list[bytes]], None], ...] = (in_turn, beside)
        took: tuple[list[float], list[float]] = ([], [])
        for number, messages in enumerate(drains):
            begin = time.perf_counter()
            ways[number % 2](messages)
            took[number % 2].append(time.perf_counter() - begin)
            _settle(units)
        for (name, query), unit in zip(found, units, strict=True):
            check_weight(on, name, query, unit.weight)
    turn, side = (min(each) * 1e3 for each in took)
    return {
        "views": " + ".join(pair),
        "in_turn_ms": round(turn, 1),
        "beside_ms": round(side, 1),
        "ratio": round(turn / side, 2),
    }


def _settle(units: Sequence[Unit]) -> None:
    """Write a checkpoint, which is not measured, so that all drains begin in the same state."""
    for unit in units:
        unit.checkpoint(sync=False)
