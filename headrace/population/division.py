"""Which collections that need no key have their rows divided among tasks, and by which port.

Equal rows stay together; of the other port each task has all rows.  That is right

* for a join where all rows meet: what a row is paired with, and whether with any, follows from the
  rows of the other side alone; but of a full join both sides ask that;
* for what reads the clock, which looks at each row by itself;
* for the first rows of all, and aggregates without keys, in two steps: a *share* of the rows says
  what its first ones are, or its sums, and only what shares say comes together (``front``).  A
  share keeps the rows or values in its state that no other has.

It is worth it where the larger side is the one to be divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.collections import halves, plan
from headrace.collections.base import Collection
from headrace.collections.halves import ReduceFront, ReduceShare
from headrace.collections.plan import Node, PhysicalPlan
from headrace.collections.topk import HEAD, TopK
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.types import Schema

_ROWS_PER_SENT: Final = 10
"""There must be so many times the rows that a share sends on, for shares to be worth it."""


def in_two_steps(node: Node) -> bool:
    """Whether shares of the rows of ``node``, and then what they say, can be looked at."""
    match node:
        case plan.TopKSpec():
            return not node.keys and node.limit is not None
        case plan.ReduceSpec():
            return halves.divided_by(node) is not None
        case _:
            return False


def kept(node: Node, state: str, *, front: bool) -> bool:
    """Whether ``state`` of ``node`` is that of a share, or of what comes together."""
    together = f"{node.id}.{HEAD}" if isinstance(node, plan.TopKSpec) else node.id
    return (state == together) == front


def share(node: Node, in_schema: Schema, remote: RemoteEvaluator | None) -> Collection:
    """What is done with the rows of a share."""
    if isinstance(node, plan.ReduceSpec):
        return ReduceShare(node, in_schema, remote)
    if isinstance(node, plan.TopKSpec) and node.limit is not None:
        more = msgspec.structs.replace(node, limit=node.limit + node.offset, offset=0)
        return TopK(more, in_schema, remote)
    raise BugError(f'node "{node.id}" has no shares')


def shared_schema(node: Node, in_schema: Schema) -> Schema:
    """What shares of ``node`` say."""
    return halves.schema(node, in_schema) if isinstance(node, plan.ReduceSpec) else node.schema


def front(node: Node, in_schema: Schema, remote: RemoteEvaluator | None) -> Collection:
    """What is done with what all shares say."""
    if isinstance(node, plan.ReduceSpec):
        return ReduceFront(node, in_schema, remote)
    if isinstance(node, plan.TopKSpec):
        return TopK(node, in_schema, remote)
    raise BugError(f'node "{node.id}" has no shares')


def columns(node: Node) -> tuple[int, ...]:
    """By which columns rows of ``node`` are divided; none: by all, the very same together."""
    return (halves.divided_by(node) or ()) if isinstance(node, plan.ReduceSpec) else ()


def divided(physical: PhysicalPlan, tables: Mapping[str, int]) -> dict[str, int]:
    """Node -> the port by which it is divided; ``tables``: how many rows each source has."""
    rows: dict[str, int] = {}
    out: dict[str, int] = {}
    for node in physical.nodes:
        inputs = [rows[name] for name in plan.inputs(node)]
        rows[node.id] = _rows(node, inputs, tables)
        if isinstance(node, plan.TemporalSpec):
            out[node.id] = 0
        if in_two_steps(node) and inputs[0] > _ROWS_PER_SENT * rows[node.id]:
            out[node.id] = 0
        if isinstance(node, plan.JoinSpec) and not node.left_keys:
            left, right = inputs
            if node.op != "full" and left >= right:
                out[node.id] = 0
            elif node.op == "inner":
                out[node.id] = 1
    return out


def _rows(node: plan.Node, inputs: list[int], tables: Mapping[str, int]) -> int:
    """So many rows come out of ``node`` at most, roughly: nobody counts groups and partners."""
    match node:
        case plan.SourceSpec():
            return tables[node.id]
        case plan.ValuesSpec():
            return len(node.rows)
        case plan.ReduceSpec() if not node.keys:
            return 1
        case plan.TopKSpec() if not node.keys and node.limit is not None:
            return min(node.limit + node.offset, *inputs)
        case plan.JoinSpec() if node.left_only:
            return inputs[0]
        case plan.UnionSpec():
            return sum(inputs)
        case _:
            return max(inputs, default=0)
