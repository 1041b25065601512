"""GROUPING SETS: each row once per set."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, columns_of
from headrace.types import diff_batch


class Expand(Collection):
    """Each row once per grouping set; keys that the set lacks are NULL.

    Meaning: Expand(A) = {row + (row's keys where the set has them) + set number: sets, rows of A}.
    Shape: input -> its columns, the keys, the number; keys: none.
    State: none.
    Time: emits on apply; no column is copied.
    Errors: none.
    """

    def __init__(self, node: plan.ExpandSpec) -> None:
        super().__init__(node.id, node.schema)
        self._node = node

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Expand to {len(self._node.sets)} grouping sets"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        columns = columns_of(batch)
        count = batch.num_rows
        if count == 0:
            return []
        keys = [columns[i] for i in self._node.keys]
        nothing = [pa.nulls(count, key.type) for key in keys]
        out = []
        for number, chosen in enumerate(self._node.sets):
            shown = [
                key if place in chosen else null
                for place, (key, null) in enumerate(zip(keys, nothing, strict=True))
            ]
            numbers = pa.repeat(pa.scalar(number, pa.int32()), count)
            out.append(diff_batch(self.schema, [*columns, *shown, numbers], batch.columns[-1]))
        return out
