"""A chain of filters and maps on one synchronous edge."""

from __future__ import annotations

from headrace.collections import plan
from headrace.collections.steps import Chain, make_step
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import Schema


class Fused(Chain):
    """Several Filter and Map steps run as one collection.

    Meaning: the composition of its steps; linear, as each of them.
    Shape: input -> columns of the last step.
    State: none (within a txid, its input if a step may fail).
    Time: emits on apply; on TimeEnd if a step may fail on a row (see ``steps``).
    Errors: RowError of an expression.
    """

    def __init__(
        self, node: plan.Fused, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        steps = [make_step(step, remote) for step in node.steps]
        super().__init__(node.id, node.schema, in_schema, steps)
        self._kinds = [type(step).__name__ for step in node.steps]

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Fused ({' -> '.join(self._kinds)})"
