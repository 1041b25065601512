"""SELECT DISTINCT, and UNION without ALL."""

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
from headrace.kernels import distinct
from headrace.state.contract import IndexState, StateStore


class Distinct(Collection):
    """Each distinct row once; equal as Postgres says, shown as the least representation.

    Meaning: Distinct(A) = {(row, 1) : the weights of the rows equal to it sum to more than 0}.
        Rows can be equal and look different (1.0 and 1.00); shown is the one that comes first by
        length, then bytes.  Negative diffs retract; a negative sum is a bug.
    Shape: input -> the same columns; key: all columns.
    State: ``id``: canonical key -> row -> weight, one entry per different row.
    Time: emits on TimeEnd only what became different over the whole txid.
    Errors: BugError on a negative weight at a TimeEnd.
    """

    words = "DISTINCT"

    def __init__(self, node: plan.Distinct) -> None:
        super().__init__(node.id, node.schema)
        self._oids = [field.oid for field in node.schema]
        self._before: dict[bytes, bytes | None] = {}
        self._state: IndexState

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.index(self.id)

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Distinct ({', '.join(field.name for field in self.schema)})"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        columns = columns_of(batch)
        keys = keys_of(columns, self._oids, batch.num_rows)
        new = [key for key in dict.fromkeys(keys) if key not in self._before]
        if new:
            self._before.update(zip(new, self._shown(new), strict=True))
        self._state.add_many(keys, encode(columns, batch.num_rows), weights_of(batch))
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if not self._before:
            return []
        touched = list(self._before)
        after = self._shown(touched, final=True)
        out: list[bytes] = []
        weights: list[int] = []
        for old, new in zip(self._before.values(), after, strict=True):
            if old == new:
                continue
            if old is not None:
                out.append(old)
                weights.append(-1)
            if new is not None:
                out.append(new)
                weights.append(1)
        self._before = {}
        return cut(decode(out, self.schema, weights))

    def _shown(self, keys: list[bytes], *, final: bool = False) -> list[bytes | None]:
        at, found, weights = self._state.scan_many(keys)
        out, negative = distinct.shown(at, found, weights, len(keys))
        if final and negative:
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        return out
