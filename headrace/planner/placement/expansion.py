"""Expansion of a plan: a chain per physical source (N-11), constants at their readers.

    source ─► filter ─► join       becomes       source#1 ─► filter#1 ─┐
    (in two databases)                           source#2 ─► filter#2 ─┴► filter#all ─► join

A chain is copied up to the first node that has several inputs, keeps state or is pinned.  There the
copies meet in a union, which takes no slot, like network sinks and sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from headrace.collections import plan as p
from headrace.collections.subplans import over
from headrace.errors import UndefinedError, UnsupportedError, UserError

_PER_ROW: Final = (p.FilterSpec, p.MapSpec, p.FusedSpec, p.ExpandSpec, p.FlatMapSpec)
"""Nodes that give the same rows before and after the union of several sources."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Where the physical sources of a logical one are, in the order of their registration (N-6)."""

    nodes: tuple[str, ...]
    unique_keys: bool
    """Whether no key is in two of them.  A plan relies on that of any table with a key: it may
    have left out a DISTINCT, or given the result table a primary key, so without it is refused."""


Pins = Mapping[str, str | Shards]
"""Where operators must be (N-13): of each source and the sink, and of whatever else is to stay."""


@dataclass(frozen=True, slots=True)
class ExpandedPlan:
    """A plan whose every operator is to be on one node."""

    plan: p.PhysicalPlan
    pins: Mapping[str, str]
    """Nodes of those that are pinned."""
    origins: Mapping[str, str]
    """The original of each copy."""
    physical: Mapping[str, tuple[str, ...]]
    """Of each logical source its physical ones, in the order of their registration."""
    unions: frozenset[str]
    """Where copies meet."""
    constants: Mapping[str, str]
    """Operators that depend on no source, with their readers; each is on its reader's node."""


def expand(plan: p.PhysicalPlan, pins: Pins) -> ExpandedPlan:
    """Return the plan with a chain per physical source.

    Raises:
        UserError: a pin is invalid, or a source or the sink has none.
        UnsupportedError: the physical sources may have a key twice.
    """
    _check_pins(plan, pins)
    pins = {
        name: at.nodes[0] if isinstance(at, Shards) and len(at.nodes) == 1 else at
        for name, at in pins.items()
    }
    apart, constants = _constants_apart(plan, pins)
    nodes: list[p.Node] = []
    placed = {name: at for name, at in pins.items() if isinstance(at, str)}
    copies: dict[str, tuple[str, ...]] = {}
    unions: dict[str, str] = {}
    for node in apart.nodes:
        below = p.inputs(node)
        shards = pins.get(node.id)
        if isinstance(shards, Shards):
            made = [replace(node, id=f"{node.id}#{n}") for n in range(1, len(shards.nodes) + 1)]
            placed |= {copy.id: at for copy, at in zip(made, shards.nodes, strict=True)}
        elif isinstance(node, _PER_ROW) and node.id not in pins and below[0] in copies:
            made = [
                replace(over(node, {below[0]: copy}), id=f"{node.id}#{number}")
                for number, copy in enumerate(copies[below[0]], 1)
            ]
        else:
            for name in dict.fromkeys(below):
                if name in copies and name not in unions:
                    unions[name] = f"{name}#all"
                    schema = apart.node(name).schema
                    nodes.append(p.UnionSpec(unions[name], copies[name], schema))
            nodes.append(over(node, unions))
            continue
        copies[node.id] = tuple(copy.id for copy in made)
        nodes += made
    physical = {
        node.id: copies.get(node.id, (node.id,))
        for node in apart.nodes
        if node.id in pins and node.id != plan.sink.id and not _reads(node, constants)
    }
    return ExpandedPlan(
        p.PhysicalPlan(tuple(nodes), plan.version),
        placed,
        {copy: name for name, made in copies.items() for copy in made},
        physical,
        frozenset(unions.values()),
        constants,
    )


def _reads(node: p.Node, constants: Mapping[str, str]) -> tuple[str, ...]:
    """Return the inputs of a node that come from a source."""
    return tuple(name for name in p.inputs(node) if name not in constants)


def _check_pins(plan: p.PhysicalPlan, pins: Pins) -> None:
    known = {node.id: node for node in plan.nodes}
    for name, at in pins.items():
        if name not in known:
            raise UndefinedError(f'operator "{name}" does not exist in the plan')
        if not isinstance(at, Shards):
            continue
        if not isinstance(known[name], p.SourceSpec) or not at.nodes:
            raise UserError(f'operator "{name}" cannot be in several databases, it is no table')
        if len(at.nodes) > 1 and not at.unique_keys:
            raise UnsupportedError(
                f'source "{name}" cannot be expanded: a key may be in several of its databases',
                detail="The plan was made for a table in which keys are unique.",
            )
    for node in plan.nodes:
        if isinstance(node, p.SourceSpec | p.FeedSpec | p.SinkSpec) and node.id not in pins:
            raise UserError(f'operator "{node.id}" must be pinned: a source or sink has its place')


def _constants_apart(plan: p.PhysicalPlan, pins: Pins) -> tuple[p.PhysicalPlan, dict[str, str]]:
    """Return the plan with a copy of its constant nodes for each reader, and the reader of each."""
    fixed: dict[str, p.Node] = {}
    for node in plan.nodes:
        if node.id not in pins and fixed.keys() >= set(p.inputs(node)):
            fixed[node.id] = node
    nodes: list[p.Node] = []
    readers: dict[str, str] = {}
    for node in plan.nodes:
        if node.id in fixed:
            continue
        names: dict[str, str] = {}
        for constant in _below(fixed, p.inputs(node)):
            name = constant.id if constant.id not in readers else f"{constant.id}~{node.id}"
            nodes.append(replace(over(constant, names), id=name))
            names[constant.id] = name
            readers[name] = node.id
        nodes.append(over(node, names))
    return p.PhysicalPlan(tuple(nodes), plan.version), readers


def _below(fixed: Mapping[str, p.Node], tops: Iterable[str]) -> list[p.Node]:
    """Return the constant ones of ``tops`` and all nodes below them, inputs first."""
    needed: set[str] = set()
    left = [name for name in tops if name in fixed]
    while left:
        name = left.pop()
        if name not in needed:
            needed.add(name)
            left += p.inputs(fixed[name])
    return [node for name, node in fixed.items() if name in needed]
