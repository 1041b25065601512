"""Operators to place, with the slots they need and the bytes they send."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from headrace.collections import plan as p
from headrace.errors import BugError, UndefinedError, UserError
from headrace.planner.placement.expansion import ExpandedPlan


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes that operators send and slots they need, by id in the plan or id of a copy (N-40).

    An entry for an operator that is copied is the total of all its copies.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    """Bytes per second that it sends: measured, or expected.  Of a source without: 1."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Output bytes / input bytes, for an operator without a rate.  Without: 1."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Slots that an operator, or each copy of it, takes.  Without: 1."""


@dataclass(frozen=True, slots=True)
class PlanOperator:
    """One collection of an expanded plan."""

    name: str
    inputs: tuple[str, ...]
    """Operators that it reads, constants left out; each once, in the order of ports."""
    slots: int
    sends: float
    """Bytes per second of its output."""
    pin: str | None
    """The node where it must be."""


class Operators:
    """The operators of an expanded plan, inputs before readers, the sink last.

    A node without a source below it is not an operator: it is placed with its reader, without a
    slot.
    """

    def __init__(self, expanded: ExpandedPlan, costs: Costs) -> None:
        """Take the operators of ``expanded``, with their ``costs``.

        Raises:
            UserError: ``costs`` are invalid, or name an operator that is not in the plan.
        """
        self.expanded = expanded
        self._check(costs)
        found: dict[str, PlanOperator] = {}
        for node in expanded.plan.nodes:
            if node.id in expanded.constants:
                continue
            below = tuple(n for n in dict.fromkeys(p.inputs(node)) if n in found)
            origin = expanded.origins.get(node.id, node.id)
            union = node.id in expanded.unions
            slots = 0 if union else costs.slots.get(node.id, costs.slots.get(origin, 1))
            received = sum(found[n].sends for n in p.inputs(node) if n in found)
            sends = self._sends(node.id, received, bool(below), costs)
            found[node.id] = PlanOperator(node.id, below, slots, sends, expanded.pins.get(node.id))
        if unread := [n for n in found if n != expanded.plan.sink.id and not self._read(n)]:
            raise BugError(f'operator "{unread[0]}" has no reader')
        self.by_name = found
        """All operators, in the order of the plan."""

    def _read(self, name: str) -> bool:
        return any(name in p.inputs(node) for node in self.expanded.plan.nodes)

    def _check(self, costs: Costs) -> None:
        known = {node.id for node in self.expanded.plan.nodes} | set(self.expanded.origins.values())
        said = (costs.rates, costs.factors, costs.slots)
        for name in (name for kind in said for name in kind):
            if name not in known:
                raise UndefinedError(f'operator "{name}" does not exist in the plan')
        for kind in said:
            for name, value in kind.items():
                if not 0 <= value < math.inf:
                    raise UserError(f'costs of operator "{name}" cannot be {value:g}')

    def _sends(self, name: str, received: float, reads: bool, costs: Costs) -> float:
        if name in costs.rates:
            return costs.rates[name]
        origin = self.expanded.origins.get(name, name)
        copies = sum(o == origin for o in self.expanded.origins.values()) or 1
        if origin in costs.rates:
            return costs.rates[origin] / copies
        factor = costs.factors.get(name, costs.factors.get(origin, 1.0))
        return factor * (received if reads else 1.0 / copies)

    @property
    def sink(self) -> PlanOperator:
        """The last operator."""
        return self.by_name[self.expanded.plan.sink.id]

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Operators that read no other operator, in the order of the plan; not the sink."""
        return tuple(
            o.name for o in self.by_name.values() if not o.inputs and o.name != self.sink.name
        )

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Readers of each operator."""
        found: dict[str, list[str]] = {name: [] for name in self.by_name}
        for operator in self.by_name.values():
            for name in operator.inputs:
                found[name].append(operator.name)
        return {name: tuple(who) for name, who in found.items()}

    @cached_property
    def upstream(self) -> Mapping[str, frozenset[str]]:
        """Of each operator: all that its rows come from."""
        found: dict[str, frozenset[str]] = {}
        for operator in self.by_name.values():
            below = operator.inputs
            found[operator.name] = frozenset(below).union(*(found[n] for n in below))
        return found

    @cached_property
    def downstream(self) -> Mapping[str, frozenset[str]]:
        """Of each operator: all that its rows come to."""
        found: dict[str, frozenset[str]] = {}
        for name in reversed(self.by_name):
            up = self.readers[name]
            found[name] = frozenset(up).union(*(found[n] for n in up))
        return found

    @cached_property
    def pinned(self) -> Mapping[str, str]:
        """The nodes of those that are pinned."""
        return {o.name: o.pin for o in self.by_name.values() if o.pin is not None}

    @property
    def received(self) -> float:
        """Bytes per second that all sources send."""
        return sum(self.by_name[name].sends for name in self.sources)
