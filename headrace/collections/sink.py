"""The end of a view's dataflow: the changes of a txid to the result table."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, Diffed, under, weights_of
from headrace.kernels import buffers


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
        if self._once or (inserts and (weights_of(batch) > 0).all()):
            self._first.append(under(self.schema, batch))
        else:
            self._diffs.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        first, self._first = self._first, []
        taken = self._diffs.take()
        if not first:
            return taken
        if self._once or not any(buffers.negative(weights_of(batch)) for batch in taken):
            return first + taken
        for batch in first + taken:
            self._diffs.add(batch)
        return self._diffs.take()

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Sink ({', '.join(field.name for field in self.schema)})"
