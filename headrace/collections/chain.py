"""Filter, map, and chains of them on one synchronous edge."""

from __future__ import annotations

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Collection, Diffed, cut, under
from headrace.collections.steps import Step, make_step
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import Schema


class Chain(Collection):
    """A chain of steps: base of ``Filter``, ``Map`` and ``Fused``."""

    def __init__(self, node_id: str, schema: Schema, in_schema: Schema, steps: list[Step]) -> None:
        super().__init__(node_id, schema)
        self._steps = steps
        self._held = Diffed(in_schema) if any(s.may_raise for s in steps) else None

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self._held is not None and not self.insert_only:
            self._held.add(batch)
            return []
        return self._run(batch)

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self._held is None:
            return []
        return [out for batch in self._held.take() for out in self._run(batch)]

    def _run(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        for step in self._steps:
            batch = step.run(batch)
        return cut(under(self.schema, batch))


class Filter(Chain):
    """Rows for which every predicate is true.

    Meaning: Filter(A) = {(row, w) of A : every predicate(row) is true}; linear, so a negative
        weight passes as it is.  NULL is not true.
    Shape: input -> the same columns.
    State: none (within a txid, its input if a predicate may fail).
    Time: emits on apply; on TimeEnd if a predicate may fail on a row (see ``steps``).
    Errors: RowError of a predicate.
    """

    def __init__(
        self, node: plan.FilterSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, [make_step(node, remote)])
        self._count = len(node.predicates)

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Filter ({self._count} predicates)"


class Map(Chain):
    """A projection with one output column per expression.

    Meaning: Map(A) = sum over (row, w) of A of (f(row), w); linear, so a negative weight passes
        as it is.  Equal output rows are not consolidated.
    Shape: input -> one column per expression.
    State: none (within a txid, its input if an expression may fail).
    Time: emits on apply; on TimeEnd if an expression may fail on a row (see ``steps``).
    Errors: RowError of an expression.
    """

    def __init__(
        self, node: plan.MapSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, [make_step(node, remote)])

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Map ({', '.join(field.name for field in self.schema)})"


class Fused(Chain):
    """Several Filter and Map steps run as one collection.

    Meaning: the composition of its steps; linear, as each of them.
    Shape: input -> columns of the last step.
    State: none (within a txid, its input if a step may fail).
    Time: emits on apply; on TimeEnd if a step may fail on a row (see ``steps``).
    Errors: RowError of an expression.
    """

    def __init__(
        self, node: plan.FusedSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        steps = [make_step(step, remote) for step in node.steps]
        super().__init__(node.id, node.schema, in_schema, steps)
        self._kinds = [plan.kind(type(step)) for step in node.steps]

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Fused ({' -> '.join(self._kinds)})"
