"""State reuse when a view's query changes: the states of nodes that both queries compute.

    old   source ─ reduce ─ map ─ sink        reused: source and reduce, with their states
    new   source ─ reduce ─ map' ─ sink       computed from the rows of reduce: map'

The rows of the largest common part need not be computed again: where the old query only selects
columns above it, they are the rows of the result table.

* Invariant: the common part is exact, or ``find`` raises.  Nodes are common if they and all nodes
  below have the same meaning (``subplans.meanings``) under the same session settings.  Nodes with
  state must also have the same name, because the name identifies the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from headrace.collections import plan as p
from headrace.collections import subplans
from headrace.expressions.ir import Column, columns_of
from headrace.types import Schema

_STATELESS: Final = (
    p.FilterSpec,
    p.MapSpec,
    p.FusedSpec,
    p.UnionSpec,
    p.ExpandSpec,
    p.FlatMapSpec,
)
"""Nodes without state: their output for a row depends on that row alone."""


class NotReusable(Exception):
    """No state can be reused; the message is the reason, as it follows "rebuilt because"."""


@dataclass(frozen=True, slots=True)
class Common:
    """The common part of a view's old and new query, and the plan of the rest."""

    nodes: frozenset[str]
    """Nodes that keep their states and names."""
    top: str
    """The common node whose rows are those of the result table."""
    places: tuple[int | None, ...]
    """Column of the table for each column of ``top``; None: not in the table, and never read."""
    upper: p.PhysicalPlan
    """The new plan above ``top``, whose rows are its only feed."""
    unchanged: frozenset[str]
    """Columns whose values stay the same in every row; empty unless all rows stay."""


def find(
    old: tuple[p.PhysicalPlan, Mapping[str, str]], new: tuple[p.PhysicalPlan, Mapping[str, str]]
) -> Common:
    """Return the common part of two plans, each with its session settings.

    Raises:
        NotReusable: there is none, or the rest cannot be computed from the result table.
    """
    before, after = _apart(old[0]), _apart(new[0])
    if before.temporal or after.temporal:
        raise NotReusable("its rows depend on the clock")
    if before.feeds or after.feeds:
        raise NotReusable("it is computed from the rows of another view")
    if old[0].outdated:
        raise NotReusable("it was planned by an earlier version of headrace")
    if dict(old[1]) != dict(new[1]):
        raise NotReusable(
            "the settings of the session differ from those under which it was created"
        )
    had, has = subplans.meanings(before, old[1]), subplans.meanings(after, new[1])
    of = {meaning: node for node, meaning in reversed(had.items())}
    common = {node for node, meaning in has.items() if meaning in of}
    top, upper = _divided(after, common)
    nodes = subplans.needed(after, top)
    for node in after.nodes:
        if (
            node.id in nodes
            and not isinstance(node, _STATELESS)
            and had.get(node.id) != has[node.id]
        ):
            raise NotReusable(
                "the common part of the queries is at a different place in the new one"
            )
    for node in upper.nodes[:-1]:
        if not isinstance(node, (*_STATELESS, p.FeedSpec)):
            raise NotReusable("its new part has state of its own")
    ways = _chosen(before, of[has[top]])
    if ways is None:
        raise NotReusable("the rows that it was computed from are not those of its table")
    schema = after.node(top).schema
    found = _places(ways, before.sink.schema, schema)
    used = _used(upper, top, len(schema))
    if any(found[column] is None for column in used):
        raise NotReusable("the table lacks a column that the new query needs")
    # A step of a chain may be its own chain, or have another number, in the other plan.
    same = [n for n in new[0].nodes if n.id in nodes and had.get(n.id) == has[n.id]]
    # The meaning of a recursion contains the names of the nodes within it.
    kept = frozenset(subplans.owners(replace(new[0], nodes=tuple(same))))
    return Common(kept, top, found, upper, _unchanged(before.sink.schema, found, upper, top))


def _apart(whole: p.PhysicalPlan) -> p.PhysicalPlan:
    """Return the plan with each step of a chain as a node."""
    nodes: list[p.Node] = []
    for node in whole.nodes:
        if isinstance(node, p.FusedSpec):
            *others, last = node.steps
            nodes += [*others, replace(last, id=node.id)]
        else:
            nodes.append(node)
    return replace(whole, nodes=tuple(nodes))


def _divided(whole: p.PhysicalPlan, common: set[str]) -> tuple[str, p.PhysicalPlan]:
    """Return the one common node that ``whole`` is computed from, and the plan above it.

    Raises:
        NotReusable: there is none, or there are several.
    """
    tops = subplans.largest(whole, common)
    upper = subplans.over_feeds(whole, tops)
    if any(not p.inputs(n) and not isinstance(n, p.FeedSpec) for n in upper.nodes):
        raise NotReusable("it needs columns or rows that were not stored")
    if len(tops) != 1:
        raise NotReusable("it consists of several parts of the old query")
    return tops[0], upper


def _chosen(whole: p.PhysicalPlan, top: str) -> list[int | None] | None:
    """Return per result column the column of node ``top`` that it copies; None: another value.

    Return None instead of a list if any node above ``top`` is not a map.
    """
    chain: list[p.MapSpec] = []
    name = whole.sink.input
    while name != top:
        node = whole.node(name)
        if not isinstance(node, p.MapSpec):
            return None
        chain.append(node)
        name = node.input
    ways: list[int | None] = list(range(len(whole.node(top).schema)))
    for node in reversed(chain):
        ways = [ways[e.index] if isinstance(e, Column) else None for e in node.expressions]
    return ways


def _places(ways: Sequence[int | None], result: Schema, schema: Schema) -> tuple[int | None, ...]:
    """Return the position in the result of each column of ``schema``: the inverse of ``ways``."""
    places: list[int | None] = [None] * len(schema)
    for place, column in enumerate(ways):
        # A value of another type or of a domain may have another text.
        if column is not None and result[place].oid == schema[column].oid:
            places[column] = place
    return tuple(places)


def _used(upper: p.PhysicalPlan, top: str, count: int) -> set[int]:
    """Return which of the ``count`` columns of ``top`` are read."""
    used: set[int] = set()
    for node in upper.nodes:
        if top not in p.inputs(node):
            continue
        if not isinstance(node, p.MapSpec):
            return set(range(count))
        used = used.union(*map(columns_of, node.expressions))
    return used


def _unchanged(
    result: Schema, places: Sequence[int | None], upper: p.PhysicalPlan, top: str
) -> frozenset[str]:
    """Return the result columns that keep name, type and values; none unless all rows stay."""
    ways = _chosen(upper, top)
    if ways is None:
        return frozenset()
    same = set()
    for column, field in zip(ways, upper.sink.schema, strict=True):
        place = places[column] if column is not None else None
        if place is not None and result[place] == field:
            same.add(field.name)
    return frozenset(same)
