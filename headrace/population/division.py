"""Which collections that need no key have their rows divided among tasks, and by which port.

Equal rows stay together; of the other port each task has all rows.  That is right

* for a join where all rows meet: what a row is paired with, and whether with any, follows from the
  rows of the other side alone; but of a full join both sides ask that;
* for what reads the clock, which looks at each row by itself;
* for the first rows of all: they are among the first ones of each part (``share``), and what comes
  together is only those (``front``).  A part has the rows in its state that nobody else has.

It is worth it where the larger side is the one to be divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from headrace.collections import plan
from headrace.collections.plan import PhysicalPlan
from headrace.collections.topk import HEAD

_FRONTS_PER_PART: Final = 10
"""There must be so many times the rows that a part sends on, for parts to be worth it."""


def share(node: plan.TopKSpec) -> plan.TopKSpec:
    """What looks for those of a part that may be the first ones of all."""
    assert node.limit is not None, "without a limit nothing is divided"
    return msgspec.structs.replace(node, limit=node.limit + node.offset, offset=0)


def kept(node: plan.TopKSpec, state: str, *, front: bool) -> bool:
    """Whether ``state`` is that of the view: all rows of a part; or the first of all, together."""
    return (state == f"{node.id}.{HEAD}") == front


def divided(physical: PhysicalPlan, tables: Mapping[str, int]) -> dict[str, int]:
    """Node -> the port by which it is divided; ``tables``: how many rows each source has."""
    rows: dict[str, int] = {}
    out: dict[str, int] = {}
    for node in physical.nodes:
        inputs = [rows[name] for name in plan.inputs(node)]
        rows[node.id] = _rows(node, inputs, tables)
        if isinstance(node, plan.TemporalSpec):
            out[node.id] = 0
        if isinstance(node, plan.TopKSpec) and _in_two_steps(node, inputs[0]):
            out[node.id] = 0
        if isinstance(node, plan.JoinSpec) and not node.left_keys:
            left, right = inputs
            if node.op != "full" and left >= right:
                out[node.id] = 0
            elif node.op == "inner":
                out[node.id] = 1
    return out


def _in_two_steps(node: plan.TopKSpec, rows: int) -> bool:
    if node.keys or node.limit is None:
        return False
    return rows > _FRONTS_PER_PART * (node.limit + node.offset)


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
            return min(node.limit, *inputs)
        case plan.JoinSpec() if node.left_only:
            return inputs[0]
        case plan.UnionSpec():
            return sum(inputs)
        case _:
            return max(inputs, default=0)
