"""Plans that are graphs: what ``logical.Again`` names, each plan once.

A plan that is named is a plan of its own: passes see its readers as leaves, and it as a root.  Its
number is greater than those of the plans that it reads itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from headrace.planner.logical.nodes import Again, Node, children, with_children


def leaves(plan: Node) -> Iterator[Again]:
    """The places in ``plan`` itself where it reads named plans."""
    if isinstance(plan, Again):
        yield plan
    for child in children(plan):
        yield from leaves(child)


def named(plan: Node) -> dict[int, Node]:
    """All plans that ``plan`` and what it reads name, by number: readers first."""
    found: dict[int, Node] = {}
    rest = [plan]
    while rest:
        for leaf in leaves(rest.pop()):
            if leaf.number not in found:
                found[leaf.number] = leaf.plan
                rest.append(leaf.plan)
    return dict(sorted(found.items(), reverse=True))


def each(plan: Node, change: Callable[[Node], Node]) -> Node:
    """``plan`` with ``change`` made to it and once to every plan that it names."""
    plans = {number: change(node) for number, node in named(plan).items()}
    return linked(change(plan), plans)


def linked(plan: Node, plans: Mapping[int, Node]) -> Node:
    """``plan`` over ``plans`` instead of those that it names."""
    made: dict[int, Node] = {}
    for number in sorted(plans):
        made[number] = _over(plans[number], made)
    return _over(plan, made)


def _over(node: Node, plans: Mapping[int, Node]) -> Node:
    if isinstance(node, Again):
        return dataclasses.replace(node, plan=plans[node.number])
    return with_children(node, tuple(_over(c, plans) for c in children(node)))
