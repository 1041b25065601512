"""Frequent keys of a join: their rows are divided among all tasks, not sent to one.

Of one port, the rows of such a key are divided by their content; of the other port, they are sent
to every task.  So each pair of rows meets in exactly one task, and a row of the divided port meets
all rows that it may match.  That is correct for inner joins with either port divided, and for left,
semi and anti joins with the left one divided.  A full join may not divide any, because unmatched
rows of both ports matter.

Which keys are divided is a matter of speed alone, as long as all tasks agree.  So a sample decides
(``join_sample``), before any task runs.

Invariant 1: a row of the port that all tasks have is in the state of the first task only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections.plan import JoinSpec
from headrace.kernels import packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Nullable
from headrace.population import edges
from headrace.state.loaded import Pieces


def dividable(node: JoinSpec) -> tuple[int, ...]:
    """Return the ports of ``node`` whose rows of a key may be divided."""
    if not node.left_keys or node.op == "full":
        return ()
    return (0, 1) if node.op == "inner" else (0,)


@dataclass(frozen=True, slots=True)
class FrequentKeys:
    """The frequent keys of a join, in the form of ``join.keys_of``."""

    divided: tuple[tuple[bytes, ...], tuple[bytes, ...]] = ((), ())
    """By port: the keys whose rows of that port are divided; of the other port, all tasks get them.

    No key is in both.
    """

    def __bool__(self) -> bool:
        return any(self.divided)

    def spread(
        self, batch: pa.RecordBatch, port: int, keys: Nullable, parts: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of ``batch``, whose rows have ``keys``; omit rows whose key is None."""
        places = edges.parts_of(keys, parts)
        if not self:
            yield edges.placed(batch, port, places, parts)
            return
        numbers = self._numbered(port, keys)
        own = len(self.divided[port])
        here = numbers < own
        if here.any():
            rows = batch.filter(pa.array(here))
            places[here] = edges.parts_of(edges.identities(rows), parts)
        everywhere = (numbers >= own) & (numbers < own + len(self.divided[1 - port]))
        if everywhere.any():
            yield edges.to_all(batch.filter(pa.array(everywhere)), port, parts)
            places[everywhere] = -1
        yield edges.placed(batch, port, places, parts)

    def _numbered(self, port: int, keys: Nullable) -> Int64s:
        """Return the number of each key: of ``port`` first, then of the other; else a higher one.

        A row without a key, which matches nothing, has a higher number.
        """
        known = Numbering()
        known.add(packed.pack([*self.divided[port], *self.divided[1 - port]]))
        numbers, _ = known.add(keys.packed)
        return np.where(keys.valid != 0, numbers, len(known))

    def without_shared(self, port: int, state: Pieces) -> Pieces:
        """Yield the pairs of the state of ``port``, except those that all tasks have."""
        shared = self.divided[1 - port]
        if not shared:
            yield from state
            return
        for keys, values in state:
            # A key group comes first.  No key is a prefix of another one.
            own = [i for i, key in enumerate(keys) if not key.startswith(shared, 1)]
            if own:
                yield [keys[i] for i in own], [values[i] for i in own]


NONE: Final = FrequentKeys()
