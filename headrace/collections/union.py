"""UNION ALL."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, cut
from headrace.types import arrow_schema


class Union(Collection):
    """The multiset sum of all inputs.

    Meaning: Union(A, B, …) = A + B + …; linear, so a negative weight passes as it is.
    Shape: inputs of equal column types -> the same columns, named as the first input's.
    State: none.
    Time: emits on apply; ends a txid when all inputs have.
    Errors: none.
    """

    def __init__(self, node: plan.UnionSpec) -> None:
        super().__init__(node.id, node.schema, len(node.inputs))
        self._schema = arrow_schema(node.schema)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        return cut(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Union ({self.ports} inputs)"
