"""Values of the clock that change only at whole seconds, computed ahead for all views.

``current_date`` has one value for a day, but the next change depends on the time zone, whose rules
only Postgres knows.  So a value is computed for each second of a *block* of ten minutes, in one
statement, and stored as *runs* of equal values.  Views with equal settings share the blocks, so one
statement serves all of them.  Blocks of different expressions begin at different seconds, so that
many expressions do not all ask at once, and few at midnight.

The planner proves that a value is constant within each second (``planner/passes/calendar.py``).
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Expr
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import rows

SECOND: Final = 1_000_000
_SECONDS: Final = 600
BLOCK: Final = _SECONDS * SECOND
_BLOCKS_MAX: Final = 4_096

Block = tuple[list[int], list[bytes]]
"""Starts of the runs, in order, and the encoded value of each."""


@dataclass(frozen=True, slots=True)
class CalendarRun:
    """Values that do not change between two timestamps."""

    since: int
    """First timestamp, in microseconds since 2000-01-01 UTC; they may be older."""
    until: int
    """End, exclusive; they may last longer."""
    values: tuple[bytes, ...]
    """Encoded as rows of one column each (``kernels.rows``)."""


class CalendarValues:
    """The values of expressions over the clock, their only column, at any timestamp."""

    def __init__(self, exprs: Sequence[Expr], remote: RemoteEvaluator | None) -> None:
        """Take ``remote``, whose process shares the blocks; None: all are native."""
        self._programs: Final = [Program([expr], remote) for expr in exprs]
        context: Hashable = None if remote is None else remote.context
        self._names: Final = [(context, expr) for expr in exprs]
        self._offsets: Final = [hash(name) % _SECONDS * SECOND for name in self._names]
        self._blocks: dict[Hashable, Block] = {} if remote is None else remote.blocks

    def at(self, instant: int) -> CalendarRun:
        """Return the values at ``instant``.

        Raises:
            FailingRow: a value cannot be computed.
            Interrupted: Postgres is not reachable.
        """
        sinces, untils, values = [], [], []
        for number, offset in enumerate(self._offsets):
            first = (instant - offset) // BLOCK * BLOCK + offset
            starts, found = self._block(number, first)
            place = bisect.bisect_right(starts, instant) - 1
            sinces.append(starts[place])
            untils.append(starts[place + 1] if place + 1 < len(starts) else first + BLOCK)
            values.append(found[place])
        return CalendarRun(max(sinces), min(untils), tuple(values))

    def _block(self, number: int, first: int) -> Block:
        name = (self._names[number], first)
        block = self._blocks.get(name)
        if block is None:
            block = _runs(self._programs[number], first)
            # Threads share the dict; two may compute the same block, or remove the same one.
            for old in list(self._blocks)[: len(self._blocks) - _BLOCKS_MAX]:
                self._blocks.pop(old, None)
            self._blocks[name] = block
        return block


def _runs(program: Program, first: int) -> Block:
    """Return the runs of a block from the values at all of its seconds."""
    seconds = list(range(first, first + BLOCK, SECOND))
    [column] = program.run([pa.array(seconds, pa.int64())], _SECONDS)
    starts: list[int] = []
    values: list[bytes] = []
    for second, value in zip(seconds, rows.pack_rows([column]).strings(), strict=True):
        if not values or value != values[-1]:
            starts.append(second)
            values.append(value)
    return starts, values
