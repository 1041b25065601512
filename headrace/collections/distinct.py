"""SELECT DISTINCT, and UNION without ALL."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import split
from headrace.collections.by_key import ByKey, Found, demand_none_negative, least
from headrace.kernels.packed import Packed
from headrace.state.contract import IndexState, StateStore


class Distinct(ByKey):
    """Each distinct row once, by Postgres' equality, in its least representation.

    Meaning: Distinct(A) = {(row, 1) : the weights of the rows equal to it sum to more than 0}.
        Equal rows can differ in representation (1.0 and 1.00); the first by length, then bytes,
        is shown.  Negative diffs retract; a negative sum is a bug.
    Shape: input -> the same columns; key: all columns.
    State: ``id``: canonical key -> row -> weight, one entry per different row.
    Time: emits on TimeEnd the difference over the whole txid.
    Errors: BugError on a negative weight at a TimeEnd.
    """

    words = "DISTINCT"

    def __init__(self, node: plan.DistinctSpec) -> None:
        super().__init__(node.id, node.schema, node.schema, range(len(node.schema)))
        self._state: IndexState

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.index(self.id)

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Distinct ({', '.join(field.name for field in self.schema)})"

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        self._state.add_many(keys, *split(self.schema, batch))

    def shown(self, keys: Packed) -> Found:
        """See ``ByKey``."""
        found = self._state.scan_many(keys)
        demand_none_negative(found[2], self.id)
        return least(found, np.ones(len(keys), np.int64))
