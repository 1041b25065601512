"""Common subplans: what two parts of a plan would compute alike is computed once.

    x_1(a) … x_2(a)   =   x_1(a) … x_1(a)        where x_1 and x_2 differ in their names only

A WITH query that is used twice, a view inside a view, the copy of a query's rows that a decorrelated
subquery asks for: one node with several users, so its state is kept once.

Counter-example: ``sum(x)`` and ``sum(DISTINCT x)`` of one input share the input, not the groups.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.collections import plan as p
from headrace.errors import BugError


def shared(nodes: Iterable[p.Node]) -> tuple[p.Node, ...]:
    """``nodes``, in topological order, without those that repeat an earlier one."""
    kept: list[p.Node] = []
    first: dict[str, str] = {}
    names: dict[str, str] = {}
    for old in nodes:
        node = _over(old, names)
        if isinstance(node, p.Sink):
            kept.append(node)
            continue
        key = json.dumps(_meaning(p.to_json(node)), sort_keys=True)
        names[node.id] = first.setdefault(key, node.id)
        if names[node.id] == node.id:
            kept.append(node)
    return tuple(kept)


def _over(node: p.Node, names: Mapping[str, str]) -> p.Node:
    """``node`` with the inputs that stand in for its own."""
    wanted = tuple(names.get(name, name) for name in p.inputs(node))
    if isinstance(node, p.Recursive):
        # Its step may read one node under two names, which now are one.
        wanted = (wanted[0], *dict.fromkeys(wanted[1:]))
    if wanted == p.inputs(node):
        return node
    new: Any = node
    match node:
        case p.Union():
            new = dataclasses.replace(node, inputs=wanted)
        case p.Fused():
            steps = (dataclasses.replace(node.steps[0], input=wanted[0]),)
            new = dataclasses.replace(
                node, input=wanted[0], steps=steps + node.steps[1:]
            )
        case _ if len(wanted) == 1 and hasattr(node, "input"):
            new = dataclasses.replace(new, input=wanted[0])
        case p.Recursive():
            step = tuple(_over(n, names) for n in node.step)
            new = dataclasses.replace(node, base=wanted[0], outer=wanted[1:], step=step)
        case p.Join() | p.SetOp():
            new = dataclasses.replace(node, left=wanted[0], right=wanted[1])
    if p.inputs(new) != wanted:
        raise BugError(f"inputs of {type(node).__name__} cannot be exchanged")
    made: p.Node = new
    return made


def _meaning(data: Any, *, top: bool = True) -> Any:
    """JSON of a node without what names it and its columns."""
    if isinstance(data, list):
        return [_meaning(item, top=False) for item in data]
    if not isinstance(data, dict):
        return data
    kind = data["kind"]
    dropped = {"id"} if top else set()
    if kind == "Field":
        dropped = {"name"}
    if not top and kind in ("Filter", "Map"):  # steps of a Fused
        dropped = {"id", "input"}
    return {k: _meaning(v, top=False) for k, v in data.items() if k not in dropped}
