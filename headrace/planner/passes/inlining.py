"""Named plans of the bound query are inlined if that costs little.

The binder reads every view and every WITH query once and names its plan (``AgainNode``) at each
mention.  A copy has the better plan: filters of its reader move into it, and copies that become
equal are computed once in any case.  But the number of copies grows exponentially with the depth of
nested views.  So a plan with one reader is always inlined, and a plan with several readers only
while this adds few nodes (``repeats.COPIED_MAX``).

Counter-example: a plan whose output has the clock is always copied, because the rule that moves the
clock to its comparisons does not change named plans.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Container, Iterator, Mapping

from headrace.planner import limits
from headrace.planner.logical import nodes, repeats
from headrace.planner.logical.repeats import clock_columns, leaves, mapped, named, size


def inline(plan: nodes.Node, numbers: Iterator[int]) -> nodes.Node:
    """Return ``plan`` with only those plans named that are large and have several readers."""
    plans = named(plan)
    if not plans:
        return plan
    copied = _copied(plan, plans)
    return _Inlining(plans, copied, numbers).run(plan)


def _copied(plan: nodes.Node, plans: Mapping[int, nodes.Node]) -> frozenset[int]:
    """Return the numbers of the plans that replace their names."""
    readers = Counter(leaf.number for each in (plan, *plans.values()) for leaf in leaves(each))
    whole: dict[int, int] = {}
    clock: dict[int, frozenset[int]] = {}
    for number, each in reversed(list(plans.items())):
        # Of the plan with all that it reads in the place of names.
        whole[number] = size(each) + sum(whole[leaf.number] - 1 for leaf in leaves(each))
        clock[number] = clock_columns(each, clock)
    left = repeats.COPIED_MAX
    copied: set[int] = set()
    for number in plans:
        cost = (readers[number] - 1) * whole[number]
        if whole[number] <= repeats.SMALL or clock[number]:
            cost = 0
        if cost <= left:
            copied.add(number)
            left -= cost
    _check_size(plan, plans, copied)
    return frozenset(copied)


def _check_size(plan: nodes.Node, plans: Mapping[int, nodes.Node], copied: Container[int]) -> None:
    """Refuse a plan that would be too large; nothing has been copied yet."""
    whole: dict[int, int] = {}

    def grown(each: nodes.Node) -> int:
        more = (whole[leaf.number] - 1 for leaf in leaves(each) if leaf.number in copied)
        return size(each) + sum(more)

    for number, each in reversed(list(plans.items())):
        whole[number] = grown(each)
    named_sizes = (count for number, count in whole.items() if number not in copied)
    limits.check_nodes(grown(plan) + sum(named_sizes))


class _Inlining:
    def __init__(
        self, plans: Mapping[int, nodes.Node], copied: frozenset[int], numbers: Iterator[int]
    ) -> None:
        self._copied = copied
        self._ids = numbers
        self._plans = plans
        self._made: dict[int, nodes.Node] = {}
        self._used: set[int] = set()

    def run(self, plan: nodes.Node) -> nodes.Node:
        for number, each in reversed(list(self._plans.items())):
            self._made[number] = self._inside(each)
        return self._inside(plan)

    def _inside(self, node: nodes.Node) -> nodes.Node:
        limits.check()
        if not isinstance(node, nodes.AgainNode):
            below = tuple(map(self._inside, nodes.children(node)))
            return nodes.with_children(node, below)
        plan = self._made[node.number]
        if node.number not in self._copied:
            return dataclasses.replace(node, plan=plan)
        same = all(c.id == i for c, i in node.pairs)
        if same and node.number not in self._used:
            self._used.add(node.number)
            return plan
        mapping = {i: ref.id for i, ref in node.outer}
        mapping |= {i: next(self._ids) for i in sorted(repeats.defined(plan))}
        mapping |= {i: c.id for c, i in node.pairs}
        return mapped(plan, mapping)
