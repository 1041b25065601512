"""Common subplans: equal parts of a plan are computed once.

    x_1(a) … x_2(a)   =   x_1(a) … x_1(a)        if x_1 and x_2 differ only in their names

Examples are a WITH query that is used twice, a view inside a view, and the copy of a query's rows
that a decorrelated subquery needs.  One node has several readers, so its state is stored once.  The
worker finds equal parts of two views (runtime/sharing.py).

Counter-example: ``sum(x)`` and ``sum(DISTINCT x)`` of one input share the input, not the groups.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.collections import plan as p
from headrace.collections.subplans import meaning, over


def shared(nodes: Iterable[p.Node]) -> tuple[p.Node, ...]:
    """Return ``nodes``, in topological order, without those that repeat an earlier one."""
    kept: list[p.Node] = []
    first: dict[str, str] = {}
    names: dict[str, str] = {}
    for old in nodes:
        node = over(old, names)
        if isinstance(node, p.SinkSpec):
            kept.append(node)
            continue
        names[node.id] = first.setdefault(meaning(node), node.id)
        if names[node.id] == node.id:
            kept.append(node)
    return tuple(kept)
