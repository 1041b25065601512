"""INTERSECT and EXCEPT, each also ALL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import split, weights_of
from headrace.collections.by_key import ByKey, Found, demand_none_negative, least
from headrace.kernels import packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import add_up
from headrace.kernels.packed import Packed
from headrace.state.contract import IndexState, StateStore


class SetOp(ByKey):
    """Rows of the left side that the right side also contains (intersect), or lacks (except).

    Meaning: with l and r the weights of the rows equal to a row on either side, the output has it
        min(l, r) times (intersect all), max(l - r, 0) times (except all), else once if l > 0
        and r > 0 (intersect) or r = 0 (except).  NULLs are equal.  Equal rows can differ in
        representation (1.0 and 1.00): the output has the first ones of the left side by length,
        then bytes.  Negative diffs retract; a negative weight is a bug.
    Shape: left, right of equal column types -> the columns of the left; key: all columns.
    State: ``id.left``: canonical key -> row -> weight; ``id.right``: canonical key -> number of
        rows.  One entry per different row, also if it is not in the output.
    Time: emits on TimeEnd the difference over the whole txid.
    Errors: BugError on a negative weight at a TimeEnd.
    """

    def __init__(self, node: plan.SetOpSpec) -> None:
        places = range(len(node.schema))
        super().__init__(node.id, node.schema, node.schema, places, ports=2)
        self._kind = node.op
        self._all = node.all
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

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        if port == 0:
            self._left.add_many(keys, *split(self.schema, batch))
        else:
            # Only the number of its rows matters, which are all counted as the empty row.
            self._right.add_many(keys, packed.empty(len(keys)), weights_of(batch))

    def shown(self, keys: Packed) -> Found:
        """See ``ByKey``."""
        found = self._left.scan_many(keys)
        others = self._right.weight_many(keys, packed.empty(len(keys)))
        demand_none_negative(found[2], self.id)
        demand_none_negative(others, self.id)
        mine = np.zeros(len(keys), np.int64)
        add_up(found[0], found[2], mine)
        return least(found, self._wanted(mine, others))

    def _wanted(self, mine: Int64s, others: Int64s) -> Int64s:
        """Return the rows' multiplicities in the result, from those on either side."""
        if not self._all:
            mine, others = np.minimum(mine, 1), np.minimum(others, 1)
        out: Int64s
        if self._kind == "intersect":
            out = np.minimum(mine, others)
        else:
            out = np.maximum(mine - others, 0)
        return out
