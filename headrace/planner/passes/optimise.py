"""The driver of the logical rules: traversal, order of phases, checks, trace.

A rule is a module of ``rules/``.  Its ``apply(node)`` rewrites one node and never changes its
output columns, which is checked at once.  Or its ``apply_all(plans)`` rewrites the root plan and
all plans that it names (``logical.AgainNode``); only the root, the first, must keep its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.errors import BugError
from headrace.planner import limits
from headrace.planner.logical.nodes import Node, children, with_children
from headrace.planner.logical.repeats import linked, named, size
from headrace.planner.rules import (
    defer_errors,
    filter_named,
    infer_predicates,
    join_not_null,
    join_semi,
    join_units,
    lift_clock,
    limit_windows,
    merge_projects,
    order_joins,
    prune_columns,
    push_filters,
)

_log = structlog.get_logger(__name__)

_ROUNDS_MAX: Final = 200


Plans = dict[int, Node]
"""The root plan under ``_ROOT`` and its named plans under their numbers, readers first."""
_ROOT: Final = -1


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewrite of a node."""

    name: str
    apply: Callable[[Node], Node]


@dataclass(frozen=True, slots=True)
class PlanRule:
    """A named rewrite of all plans at once.

    ``once``: it is not repeated until nothing changes, because it makes new columns each time.
    """

    name: str
    apply: Callable[[Plans], Plans]
    once: bool = False


AnyRule = Rule | PlanRule


_PUSH: Final = Rule("push_filters", push_filters.apply)
_MERGE: Final = Rule("merge_projects", merge_projects.apply)
_CLOCK: Final = Rule("lift_clock", lift_clock.apply)
_INFER: Final = Rule("infer_predicates", infer_predicates.apply)
_NAMED: Final = PlanRule("filter_named", filter_named.apply_all)
_UNITS: Final = Rule("join_units", join_units.apply)
PHASES: Final[tuple[tuple[AnyRule, ...], ...]] = (
    # The clock moves up before filters move down past it.
    (_UNITS, _CLOCK),
    (_PUSH, _MERGE, _CLOCK),
    # Outer joins are narrowed by predicates on their columns before those become expressions.
    (PlanRule("defer_errors", defer_errors.apply_all, once=True),),
    (_UNITS,),
    (Rule("order_joins", order_joins.apply),),
    (
        _PUSH,
        _MERGE,
        Rule("join_not_null", join_not_null.apply),
        _INFER,
        Rule("limit_windows", limit_windows.apply),
    ),
    # A named plan that another named plan reads gets its filters in the second round.
    *(((_NAMED,), (_PUSH, _MERGE, _INFER)) * 2),
    (PlanRule("prune_columns", prune_columns.apply_all),),
    (_PUSH, _MERGE, Rule("join_semi", join_semi.apply)),
)
RULES: Final = {rule.name: rule for phase in PHASES for rule in phase}


Settled = dict[str, dict[int, Node]]
"""Nodes per rule, by identity, below which the rule changes nothing, now or later."""


def optimise(plan: Node, phases: tuple[tuple[AnyRule, ...], ...] = PHASES) -> Node:
    """Return ``plan`` after all phases, each run until nothing changes."""
    plans = {_ROOT: plan, **named(plan)}
    limits.check_nodes(sum(map(size, plans.values())))
    settled: Settled = {rule.name: {} for phase in phases for rule in phase}
    for phase in phases:
        plans = _fixpoint(plans, phase, settled)
    return linked(plans.pop(_ROOT), plans)


def _fixpoint(plans: Plans, phase: tuple[AnyRule, ...], settled: Settled) -> Plans:
    for _ in range(_ROUNDS_MAX):
        before = plans
        for rule in phase:
            plans = _run(rule, plans, settled[rule.name])
        if plans == before or all(isinstance(r, PlanRule) and r.once for r in phase):
            return plans
    names = ", ".join(r.name for r in phase)
    raise BugError(f"rules {names} go round in circles")


def _run(rule: AnyRule, plans: Plans, settled: dict[int, Node]) -> Plans:
    """Return ``plans`` after one pass of ``rule``, which leaves the nodes in ``settled`` alone."""
    if isinstance(rule, PlanRule):
        result = rule.apply(plans)
        _keeps(rule, plans[_ROOT], result[_ROOT])
    else:
        result = {n: _descend(rule, p, settled) for n, p in plans.items()}
    if result != plans:
        _log.debug("rule applied", rule=rule.name)
    return result


def _descend(rule: Rule, node: Node, settled: dict[int, Node]) -> Node:
    limits.check()
    if id(node) in settled:
        return node
    made = _checked(rule, node)
    below = tuple(_descend(rule, c, settled) for c in children(made))
    made = with_children(made, below)
    if made is node:
        settled[id(node)] = node
    return made


def _checked(rule: Rule, node: Node) -> Node:
    result = rule.apply(node)
    if result is node or result == node:
        return node
    _keeps(rule, node, result)
    return result


def _keeps(rule: AnyRule, node: Node, result: Node) -> None:
    before = [(c.id, c.oid) for c in node.columns]
    if [(c.id, c.oid) for c in result.columns] != before:
        raise BugError(f"rule {rule.name} changed the columns of a node")
