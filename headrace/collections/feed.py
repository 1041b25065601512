"""Rows of a subplan that another dataflow maintains."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, columns_of
from headrace.types import diff_batch


class Feed(Collection):
    """The rows of a shared subplan.

    Meaning: the identity over what the other dataflow sends; only the columns' names are this
        plan's own.  Negative diffs pass.
    Shape: columns of the same types -> ``schema``.
    State: none: the rows are kept where they come from.
    Time: emits on apply.
    Errors: none.
    """

    def __init__(self, node: plan.Feed) -> None:
        super().__init__(node.id, node.schema)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        return [diff_batch(self.schema, columns_of(batch), batch.columns[-1])]

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Feed ({', '.join(field.name for field in self.schema)})"
