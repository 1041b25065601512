"""Stacked plans: a plan over the rows of other views, with the plans of these views below it.

    lower   source ─ reduce ─ sink            stacked   source ─ reduce ─ topk ─ sink
    upper   feed ─ topk ─ sink                          (v1…)    (feed)

A lower plan is the stored plan of a running view, unchanged: nothing above is merged with it.  So a
stacked plan is complete, and its lower nodes mean the same as the nodes of the view below, whose
shared subplan computes them.  The upper plan alone computes the first rows, from the result table
of the view below.

* Invariant: the node that has the rows of a view below has the name of the upper plan's feed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from headrace.collections import plan as p


def fits(feed: p.FeedSpec, lower: p.PhysicalPlan) -> bool:
    """Return whether a view with the plan ``lower`` has the rows that ``feed`` stands for."""
    has = [(f.name, f.oid) for f in lower.sink.schema]
    return has == [(f.name, f.oid) for f in feed.schema]


def stacked(upper: p.PhysicalPlan, lower: Mapping[int, p.PhysicalPlan]) -> p.PhysicalPlan:
    """Return ``upper`` with the plans ``lower``, by result table, in place of its feeds.

    REQUIRES: each feed fits its plan.
    """
    nodes: list[p.Node] = []
    for number, feed in enumerate(upper.feeds, 1):
        below = lower[feed.table_oid]
        name = partial(_named, f"v{number}", {below.sink.input: feed.id})
        nodes += [_renamed(node, name) for node in below.nodes[:-1]]
    nodes += [node for node in upper.nodes if not isinstance(node, p.FeedSpec)]
    tables = tuple((feed.id, feed.table_oid) for feed in upper.feeds)
    return replace(upper, nodes=tuple(nodes), filled=tables)


def _named(prefix: str, known: Mapping[str, str], name: str) -> str:
    return known.get(name) or prefix + name


def _renamed(node: p.Node, name: Callable[[str], str]) -> p.Node:
    """Return ``node`` with all names in it replaced: its own, and those of other nodes."""
    made: Any = node
    match node:
        case p.RecursiveSpec():
            outer, step = tuple(map(name, node.outer)), tuple(_renamed(n, name) for n in node.step)
            made = replace(node, base=name(node.base), outer=outer, step=step)
        case p.FusedSpec():
            made = replace(node, input=name(node.input), steps=_chain(node, name))
        case p.UnionSpec():
            made = replace(node, inputs=tuple(map(name, node.inputs)))
        case p.JoinSpec() | p.SetOpSpec():
            made = replace(node, left=name(node.left), right=name(node.right))
        case _ if p.inputs(node):
            made = replace(made, input=name(made.input))
    renamed: p.Node = replace(made, id=name(node.id))
    return renamed


def _chain(node: p.FusedSpec, name: Callable[[str], str]) -> tuple[p.FilterSpec | p.MapSpec, ...]:
    return tuple(replace(s, id=name(s.id), input=name(s.input)) for s in node.steps)
