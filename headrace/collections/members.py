"""Plans of tables with partitions or children: add or remove a member without a new plan.

A table that is read with its members is a union with an arm per member.  An arm is a source and
nodes that process one row at a time.  So the arm of a new member is a copy of the arm of a similar
member, and no node above the union changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from headrace.collections import plan as p
from headrace.collections.subplans import over

_ROWWISE: Final = (p.FilterSpec, p.MapSpec, p.FusedSpec)


@dataclass(frozen=True, slots=True)
class Member:
    """A new member; ``numbers``: its column number for each of the similar member."""

    oid: int
    schema: str
    name: str
    numbers: Mapping[int, int]
    start_lsn: int
    """LSN at which it was empty; earlier changes are ignored."""


@dataclass(frozen=True, slots=True)
class Model:
    """A member that the plan reads already, and a new member similar to it."""

    like: int
    member: Member


def tables(whole: p.PhysicalPlan) -> dict[str, frozenset[int]]:
    """Return, per node of a plan, the OIDs of the tables that it is computed from."""
    found: dict[str, frozenset[int]] = {}
    for node in whole.nodes:
        own = {node.table_oid} if isinstance(node, p.SourceSpec) else set[int]()
        found[node.id] = frozenset(own).union(*(found[name] for name in p.inputs(node)))
    return found


def follow(
    whole: p.PhysicalPlan, wanted: frozenset[int], models: Mapping[int, Model]
) -> p.PhysicalPlan | None:
    """Return ``whole`` with arms for exactly the tables ``wanted``; None if impossible.

    ``models``: the tables that it may add.
    """
    had = {source.table_oid for source in whole.sources}
    made: p.PhysicalPlan | None = whole
    for oid in sorted(wanted - had):
        model = models.get(oid)
        made = grow(made, model.like, model.member) if made and model else None
    for oid in sorted(had - wanted):
        made = shrink(made, oid) if made else None
    return made


def grow(whole: p.PhysicalPlan, like: int, member: Member) -> p.PhysicalPlan | None:
    """Return ``whole`` with ``member`` wherever the table ``like`` is read.

    None: ``like`` is not read, or is read outside arms of unions, or ``member`` is already read.
    """
    if any(source.table_oid == member.oid for source in whole.sources):
        return None
    made: dict[str, str] = {}
    nodes: list[p.Node] = []
    grown = False
    for node in whole.nodes:
        fresh: p.Node | None = None
        if isinstance(node, p.SourceSpec) and node.table_oid == like:
            fresh = _source(node, member)
        elif isinstance(node, p.UnionSpec):
            arms = tuple(made[name] for name in node.inputs if name in made)
            grown = grown or bool(arms)
            nodes.append(replace(node, inputs=node.inputs + arms))
            continue
        elif isinstance(node, _ROWWISE) and node.input in made:
            fresh = _named(over(node, made), member)
        elif not made.keys().isdisjoint(p.inputs(node)):
            return None
        nodes.append(node)
        if fresh is not None:
            made[node.id] = fresh.id
            nodes.append(fresh)
    if not grown or not _all_read(nodes):
        return None
    return replace(whole, nodes=tuple(nodes))


def shrink(whole: p.PhysicalPlan, oid: int) -> p.PhysicalPlan | None:
    """Return ``whole`` without the member ``oid``, of which it has no rows.

    None: the table is read outside arms of unions, or no other member is left.
    """
    gone: set[str] = set()
    nodes: list[p.Node] = []
    for node in whole.nodes:
        below = p.inputs(node)
        if isinstance(node, p.SourceSpec) and node.table_oid == oid:
            gone.add(node.id)
        elif gone.isdisjoint(below):
            nodes.append(node)
        elif isinstance(node, p.UnionSpec) and (left := _without(below, gone)):
            nodes.append(replace(node, inputs=left))
        elif isinstance(node, _ROWWISE):
            gone.add(node.id)
        else:
            return None
    return replace(whole, nodes=tuple(nodes))


def _without(names: tuple[str, ...], gone: set[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in gone)


def _all_read(nodes: list[p.Node]) -> bool:
    """Return whether every node but the last one feeds another one."""
    users = Counter(name for node in nodes for name in p.inputs(node))
    return all(users[node.id] for node in nodes[:-1])


def _source(node: p.SourceSpec, member: Member) -> p.SourceSpec:
    def own(columns: tuple[p.SourceColumn, ...]) -> tuple[p.SourceColumn, ...]:
        return tuple(replace(c, attnum=member.numbers[c.attnum]) for c in columns)

    return replace(
        node,
        id=_id(node.id, member),
        table_oid=member.oid,
        schema_name=member.schema,
        table_name=member.name,
        columns=own(node.columns),
        key=own(node.key),
        start_lsn=member.start_lsn,
    )


def _named(node: p.Node, member: Member) -> p.Node:
    """Return ``node`` with its name in the arm of ``member``."""
    name = _id(node.id, member)
    if not isinstance(node, p.FusedSpec):
        return replace(node, id=name)
    steps = []
    below = node.input
    for number, step in enumerate(node.steps, 1):
        steps.append(replace(step, id=f"{name}.{number}", input=below))
        below = steps[-1].id
    return replace(node, id=name, steps=tuple(steps))


def _id(name: str, member: Member) -> str:
    return f"{name.partition('_m')[0]}_m{member.oid}"
