"""What a view can keep when its query becomes another: the states of what both queries compute.

    old   source ─ reduce ─ map ─ sink        kept: source and reduce, with their states
    new   source ─ reduce ─ map' ─ sink       made of the rows that reduce gives: map'

The rows that the largest common part gives need not be computed again: where the old query only
chooses among its columns, they are the rows of the result table, as they are.

* Invariant: what is found is exact, or nothing is found.  Nodes are common if they and all below
  them mean the same (``subplans.meanings``), under the same settings of the session, and those that
  keep states are called the same, for a state is found by the name of its node.
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
"""Nodes that keep nothing: what they give for a row depends on that alone."""


class NotKept(Exception):
    """Nothing can be kept, and why, in words that follow "filled anew, for"."""


@dataclass(frozen=True, slots=True)
class Common:
    """What another query of a view has in common with the old one, and how the rest follows."""

    nodes: frozenset[str]
    """The nodes that are kept, with their states, and are called what they were."""
    top: str
    """Of which of them the rows are those of the result table."""
    places: tuple[int | None, ...]
    """For each of its columns: the column of the table; None: none, and nobody reads it."""
    upper: p.PhysicalPlan
    """The new plan over the rows of ``top``, which are its only feed."""
    unchanged: frozenset[str]
    """Columns that have in each row of the table the value that they had; of all rows, if any."""


def find(
    old: tuple[p.PhysicalPlan, Mapping[str, str]], new: tuple[p.PhysicalPlan, Mapping[str, str]]
) -> Common:
    """What is kept of a plan and its settings in another one.

    Raises:
        NotKept: nothing is, or not so that the rest follows from the result table.
    """
    before, after = _apart(old[0]), _apart(new[0])
    if before.temporal or after.temporal:
        raise NotKept("its rows depend on the clock")
    if before.feeds or after.feeds:
        raise NotKept("it is made of the rows of another view")
    if old[0].outdated:
        raise NotKept("it was planned by an earlier version of headrace")
    if dict(old[1]) != dict(new[1]):
        raise NotKept("the session has other settings than the one that made it")
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
            raise NotKept("what the queries have in common stands elsewhere in the new one")
    for node in upper.nodes[:-1]:
        if not isinstance(node, (*_STATELESS, p.FeedSpec)):
            raise NotKept("its new part keeps rows of its own")
    ways = _chosen(before, of[has[top]])
    if ways is None:
        raise NotKept("the rows that it was made of are not those of its table")
    schema = after.node(top).schema
    found = _places(ways, before.sink.schema, schema)
    used = _used(upper, top, len(schema))
    if any(found[column] is None for column in used):
        raise NotKept("the table lacks a column that the new query needs")
    # A step of a chain may be a chain of its own, or of another number, in the other plan.
    same = [n for n in new[0].nodes if n.id in nodes and had.get(n.id) == has[n.id]]
    # Those within a recursion are called in its meaning what they are called.
    kept = frozenset(subplans.owners(replace(new[0], nodes=tuple(same))))
    return Common(kept, top, found, upper, _unchanged(before.sink.schema, found, upper, top))


def _apart(whole: p.PhysicalPlan) -> p.PhysicalPlan:
    """The same with each step of a chain as a node."""
    nodes: list[p.Node] = []
    for node in whole.nodes:
        if isinstance(node, p.FusedSpec):
            *others, last = node.steps
            nodes += [*others, replace(last, id=node.id)]
        else:
            nodes.append(node)
    return replace(whole, nodes=tuple(nodes))


def _divided(whole: p.PhysicalPlan, common: set[str]) -> tuple[str, p.PhysicalPlan]:
    """The common node that all of ``whole`` is made of, and how: the plan over its rows.

    Raises:
        NotKept: there is none, or there are several.
    """
    tops = subplans.largest(whole, common)
    upper = subplans.over_feeds(whole, tops)
    if any(not p.inputs(n) and not isinstance(n, p.FeedSpec) for n in upper.nodes):
        raise NotKept("it needs columns or rows that were not kept")
    if len(tops) != 1:
        raise NotKept("it is made of several parts of the old query")
    return tops[0], upper


def _chosen(whole: p.PhysicalPlan, top: str) -> list[int | None] | None:
    """Per column of the result: the column of node ``top`` that it is; None: another value.

    Nothing at all, if more is done than to choose and compute columns.
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
    """Where the columns of ``schema`` are in the result, which has them in these ``ways``."""
    places: list[int | None] = [None] * len(schema)
    for place, column in enumerate(ways):
        # A value of another type, or of a domain's, may have another text.
        if column is not None and result[place].oid == schema[column].oid:
            places[column] = place
    return tuple(places)


def _used(upper: p.PhysicalPlan, top: str, count: int) -> set[int]:
    """The columns of ``top``, of which there are ``count``, that anybody reads."""
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
    """Columns of the new result that are what those of their name were, where all rows stay."""
    ways = _chosen(upper, top)
    if ways is None:
        return frozenset()
    same = set()
    for column, field in zip(ways, upper.sink.schema, strict=True):
        place = places[column] if column is not None else None
        if place is not None and result[place] == field:
            same.add(field.name)
    return frozenset(same)
