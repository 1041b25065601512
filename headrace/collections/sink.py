"""The end of a view's dataflow: what a txid changes in the result table."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, Diffed


class Sink(Collection):
    """Consolidated diffs of the view's rows.

    Meaning: the identity; weights of rows equal in every value as shown are summed, zeros dropped.
    Shape: input -> the same columns.
    State: none (within a txid, its diffs).
    Time: emits on TimeEnd only, so nothing intermediate is ever written (E-18).
    Errors: none.
    """

    def __init__(self, node: plan.SinkSpec) -> None:
        super().__init__(node.id, node.schema)
        self._diffs = Diffed(node.schema)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        self._diffs.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        return self._diffs.take()

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Sink ({', '.join(field.name for field in self.schema)})"
