"""The end of a view's dataflow: the changes of a txid to the result table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections import plan
from headrace.collections.base import Collection, Diffed, columns_of
from headrace.types import diff_batch


class Sink(Collection):
    """Consolidated diffs of the view's rows.

    Meaning: the identity; weights of rows with the same representation are summed, zeros dropped.
        A population with ``repeats`` is consolidated only if a row is retracted, and input in
        which each row comes ``once`` not again.
    Shape: input -> the same columns.
    State: none (within a txid, its diffs).
    Time: emits on TimeEnd only, so nothing intermediate is ever written (E-18).
    Errors: none.
    """

    def __init__(self, node: plan.SinkSpec, *, once: bool = False) -> None:
        """``once``: as ``plan.emits_once`` says of its input."""
        super().__init__(node.id, node.schema)
        self._once = once
        self._diffs = Diffed(node.schema)
        self.repeats = False
        """Whether a population may emit a row several times; the writer accepts that."""
        self._first: list[pa.RecordBatch] = []

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        inserts = self.insert_only and self.repeats
        if self._once or (inserts and pc.min(batch.columns[-1]).as_py() > 0):
            self._first.append(diff_batch(self.schema, columns_of(batch), batch.columns[-1]))
        else:
            self._diffs.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        first, self._first = self._first, []
        taken = self._diffs.take()
        if self._once or all(pc.min(batch.columns[-1]).as_py() > 0 for batch in taken):
            return first + taken
        for batch in first + taken:
            self._diffs.add(batch)
        return self._diffs.take()

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Sink ({', '.join(field.name for field in self.schema)})"
