"""Constant rows, and rows of a shared subplan, which another dataflow computes."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, columns_of, cut
from headrace.errors import BugError
from headrace.kernels import text
from headrace.types import diff_batch


class Values(Collection):
    """Constant rows (VALUES, and SELECT without FROM).

    Meaning: the rows of the plan, each with weight 1, from txid 0 on.
    Shape: no input -> the columns of the rows.
    State: none: a view restored at a later txid already contains the rows.
    Time: emits at the TimeEnd of txid 0 only.
    Errors: none.
    """

    def __init__(self, node: plan.ValuesSpec) -> None:
        super().__init__(node.id, node.schema)
        self._rows = node.rows

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Raise BugError: there is no input."""
        raise BugError(f'diffs for the constant rows "{self.id}"')

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if txid != 0:
            return []
        columns = [
            text.parse(pa.array([row[i] for row in self._rows], pa.string()), field.oid)
            for i, field in enumerate(self.schema)
        ]
        ones = pa.array([1] * len(self._rows), pa.int64())
        return cut(diff_batch(self.schema, columns, ones))

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Values ({len(self._rows)} rows)"


class Feed(Collection):
    """The rows of a shared subplan.

    Meaning: the identity over the diffs of the other dataflow; only the column names are this
        plan's own.  Negative diffs pass.
    Shape: columns of the same types -> ``schema``.
    State: none: the other dataflow keeps the rows.
    Time: emits on apply.
    Errors: none.
    """

    def __init__(self, node: plan.FeedSpec) -> None:
        super().__init__(node.id, node.schema)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        return [diff_batch(self.schema, columns_of(batch), batch.columns[-1])]

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Feed ({', '.join(field.name for field in self.schema)})"
