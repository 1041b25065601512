"""The driver of the logical rules: traversal, order of phases, checks, trace.

A rule is a module of ``rules/``: ``apply(node)`` rewrites one node and never changes its
output columns, or ``apply_root(plan)`` rewrites the whole plan.  A rule that breaks this is
a bug and says so at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.errors import BugError
from headrace.planner.logical import Node, children, with_children
from headrace.planner.rules import (
    infer_predicates,
    join_not_null,
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


@dataclass(frozen=True, slots=True)
class Rule:
    """A named rewrite."""

    name: str
    apply: Callable[[Node], Node]
    whole_plan: bool = False


_PUSH: Final = Rule("push_filters", push_filters.apply)
_MERGE: Final = Rule("merge_projects", merge_projects.apply)
_CLOCK: Final = Rule("lift_clock", lift_clock.apply)
PHASES: Final[tuple[tuple[Rule, ...], ...]] = (
    # The clock moves up before filters move down past it.
    (Rule("join_units", join_units.apply), _CLOCK),
    (_PUSH, _MERGE, _CLOCK),
    (Rule("order_joins", order_joins.apply),),
    (
        _PUSH,
        _MERGE,
        Rule("join_not_null", join_not_null.apply),
        Rule("infer_predicates", infer_predicates.apply),
        Rule("limit_windows", limit_windows.apply),
    ),
    (Rule("prune_columns", prune_columns.apply_root, whole_plan=True),),
    (_PUSH, _MERGE),
)
RULES: Final = {rule.name: rule for phase in PHASES for rule in phase}


Settled = dict[str, dict[int, Node]]
"""Per rule the nodes, by identity, under which it changes nothing: it will not later either."""


def optimise(plan: Node, phases: tuple[tuple[Rule, ...], ...] = PHASES) -> Node:
    """``plan`` after all phases, each run until nothing changes."""
    settled: Settled = {rule.name: {} for phase in phases for rule in phase}
    for phase in phases:
        plan = _fixpoint(plan, phase, settled)
    return plan


def _fixpoint(plan: Node, phase: tuple[Rule, ...], settled: Settled) -> Node:
    for _ in range(_ROUNDS_MAX):
        before = plan
        for rule in phase:
            plan = run(rule, plan, settled[rule.name])
        if plan == before:
            return plan
    names = ", ".join(r.name for r in phase)
    raise BugError(f"rules {names} go round in circles")


def run(rule: Rule, plan: Node, settled: dict[int, Node]) -> Node:
    """``plan`` after one pass of ``rule``, which leaves the nodes in ``settled`` alone."""
    result = _checked(rule, plan) if rule.whole_plan else _descend(rule, plan, settled)
    if result != plan:
        _log.debug("rule applied", rule=rule.name)
    return result


def _descend(rule: Rule, node: Node, settled: dict[int, Node]) -> Node:
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
    before = [(c.id, c.oid) for c in node.columns]
    if [(c.id, c.oid) for c in result.columns] != before:
        raise BugError(f"rule {rule.name} changed the columns of a node")
    return result
