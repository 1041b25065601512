"""INTERSECT and EXCEPT, each also ALL."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import (
    Collection,
    columns_of,
    cut,
    decode,
    encode,
    keys_of,
    weights_of,
)
from headrace.errors import BugError
from headrace.state.contract import IndexState, StateStore

_COUNTED = b""
"""The row under which the right side counts: of its rows only their number matters."""


class SetOp(Collection):
    """Rows of the left side that the right side also has (intersect), or has not (except).

    Meaning: with l and r the weights of the rows equal to a row on either side, that row comes
        min(l, r) times (intersect all), max(l - r, 0) times (except all), else once if l > 0
        and r > 0 (intersect) or r = 0 (except).  NULLs are equal.  Rows can be equal and look
        different (1.0 and 1.00): shown are those of the left side that come first by length,
        then bytes.  Negative diffs retract; a negative weight is a bug.
    Shape: left, right of equal column types -> the columns of the left; key: all columns.
    State: ``id.left``: canonical key -> row -> weight; ``id.right``: canonical key -> number of
        rows.  One entry per different row, whether it is shown or not.
    Time: emits on TimeEnd only what became different over the whole txid.
    Errors: BugError on a negative weight at a TimeEnd.
    """

    def __init__(self, node: plan.SetOp) -> None:
        super().__init__(node.id, node.schema, 2)
        self._kind = node.op
        self._all = node.all
        self._oids = [field.oid for field in node.schema]
        self._before: dict[bytes, dict[bytes, int]] = {}
        self._left: IndexState
        self._right: IndexState

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._left = store.index(f"{self.id}.left")
        self._right = store.index(f"{self.id}.right")

    def describe(self) -> str:
        """See ``Collection``."""
        more = " all" if self._all else ""
        return f"SetOp ({self._kind}{more})"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        columns = columns_of(batch)
        keys = keys_of(columns, self._oids, batch.num_rows)
        new = [key for key in dict.fromkeys(keys) if key not in self._before]
        if new:
            self._before.update(zip(new, self._shown(new), strict=True))
        if port == 0:
            encoded = encode(columns, batch.num_rows)
            self._left.add_many(keys, encoded, weights_of(batch))
        else:
            counted = [_COUNTED] * len(keys)
            self._right.add_many(keys, counted, weights_of(batch))
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if not self._before:
            return []
        touched = list(self._before)
        out: list[bytes] = []
        weights: list[int] = []
        for old, new in zip(
            self._before.values(), self._shown(touched, final=True), strict=True
        ):
            for row in old.keys() | new.keys():
                if change := new.get(row, 0) - old.get(row, 0):
                    out.append(row)
                    weights.append(change)
        self._before = {}
        return cut(decode(out, self.schema, weights))

    def _shown(
        self, keys: list[bytes], *, final: bool = False
    ) -> list[dict[bytes, int]]:
        """Per key the rows that are shown, with their weights."""
        at, found, weights = self._left.scan_many(keys)
        others = self._right.weight_many(keys, [_COUNTED] * len(keys))
        if final and (min(weights, default=0) < 0 or min(others, default=0) < 0):
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        sides: list[list[tuple[bytes, int]]] = [[] for _ in keys]
        for place, row, weight in zip(at, found, weights, strict=True):
            if weight > 0:
                sides[place].append((row, weight))
        return [self._choose(s, o) for s, o in zip(sides, others, strict=True)]

    def _choose(self, side: list[tuple[bytes, int]], others: int) -> dict[bytes, int]:
        """The rows shown of ``side``, equal to each other and to ``others`` of the right."""
        wanted = self._number(sum(weight for _, weight in side), max(others, 0))
        out: dict[bytes, int] = {}
        for row, weight in sorted(side, key=lambda item: (len(item[0]), item[0])):
            if wanted <= 0:
                break
            out[row] = min(weight, wanted)
            wanted -= weight
        return out

    def _number(self, mine: int, others: int) -> int:
        """How often a row is in the result, from how often it is on either side."""
        if self._kind == "intersect":
            both = min(mine, others)
            return both if self._all else min(both, 1)
        if self._all:
            return mine - others
        return int(mine > 0 and others == 0)
