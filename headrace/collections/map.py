"""Computed columns (the SELECT list)."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.steps import Chain, make_step
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import Schema


class Map(Chain):
    """One output column per expression.

    Meaning: Map(A) = sum over (row, w) of A of (f(row), w); linear, so a negative weight passes
        as it is.  Equal output rows are not consolidated.
    Shape: input -> one column per expression.
    State: none (within a txid, its input if an expression may fail).
    Time: emits on apply; on TimeEnd if an expression may fail on a row (see ``steps``).
    Errors: RowError of an expression.
    """

    def __init__(
        self, node: plan.Map, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, [make_step(node, remote)])

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Map ({', '.join(field.name for field in self.schema)})"
