"""Rows that satisfy predicates (WHERE, HAVING, extra join conditions)."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.steps import Chain, make_step
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import Schema


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
        self, node: plan.Filter, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, [make_step(node, remote)])
        self._count = len(node.predicates)

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Filter ({self._count} predicates)"
