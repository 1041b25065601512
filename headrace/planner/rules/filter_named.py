"""A filter that all readers of a named plan apply is also applied in the plan itself.

Filter[p and q](Again 1), Filter[p and r](Again 1)  =  the same over Again 1 = Filter[p](x)

So the plan has no rows that no reader needs, and ``push_filters`` moves the filter further down.
The filters of the readers stay in place.

Counter-examples: one reader without the filter needs all rows.  A predicate that may fail on a row
stays above.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.planner.logical.facts import entails
from headrace.planner.logical.nodes import AgainNode, FilterNode, Node, children
from headrace.planner.logical.scalar import Expr, native, raises, refs, substitute


def apply_all(plans: dict[int, Node]) -> dict[int, Node]:
    """Return all plans, readers first; named plans get their readers' common filters."""
    common: dict[int, list[Expr]] = {}
    made: dict[int, Node] = {}
    for number, plan in plans.items():
        wanted = tuple(p for p in common.get(number, ()) if not entails(plan, p))
        made[number] = FilterNode(plan, wanted) if wanted else plan
        for leaf, predicates in _readers(made[number], ()):
            found = _inside(leaf, predicates)
            before = common.get(leaf.number, found)
            common[leaf.number] = [p for p in before if p in found]
    return made


def _readers(
    node: Node, predicates: tuple[Expr, ...]
) -> Iterator[tuple[AgainNode, tuple[Expr, ...]]]:
    """Yield the references to named plans, each with the predicates of the filter above it."""
    if isinstance(node, AgainNode):
        yield node, predicates
    below = node.predicates if isinstance(node, FilterNode) else ()
    for child in children(node):
        yield from _readers(child, below)


def _inside(leaf: AgainNode, predicates: tuple[Expr, ...]) -> list[Expr]:
    """Return the ``predicates`` that the named plan can check, over its columns."""
    columns = {c.id: c for c in leaf.plan.columns}
    names: dict[int, Expr] = {c.id: columns[i].ref for c, i in leaf.pairs}
    return [
        substitute(p, names)
        for p in predicates
        if refs(p) and refs(p) <= names.keys() and native(p) and not raises(p)
    ]
