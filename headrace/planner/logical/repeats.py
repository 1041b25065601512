"""Plans that are used several times: copied with other column ids, or named once.

Column ids are unique in a plan, even if parts repeat.  Copies have the better plans: each is
optimised for its own reader, and copies that become equal are computed once in any case.  But the
number of nested copies grows exponentially with the depth of a query, so copying is limited;
beyond the limit a plan gets a name (``logical.AgainNode``), and the whole plan is a graph.

A named plan is separate: passes see its readers as leaves, and the plan as a root.  Its number is
greater than those of the plans that it reads.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from headrace.planner import limits
from headrace.planner.analyse.tables import Table, TableColumn
from headrace.planner.logical import nodes
from headrace.planner.logical.facts import at_most_one, exactly_one, serious
from headrace.planner.logical.scalar import Const, Expr, Ref, reads_clock, references, refs


def leaves(plan: nodes.Node) -> Iterator[nodes.AgainNode]:
    """Yield the places in ``plan`` itself where it reads named plans."""
    if isinstance(plan, nodes.AgainNode):
        yield plan
    for child in nodes.children(plan):
        yield from leaves(child)


def named(plan: nodes.Node) -> dict[int, nodes.Node]:
    """Return all plans that ``plan`` names, directly or not, by number: readers first."""
    found: dict[int, nodes.Node] = {}
    rest = [plan]
    while rest:
        for leaf in leaves(rest.pop()):
            if leaf.number not in found:
                found[leaf.number] = leaf.plan
                rest.append(leaf.plan)
    return dict(sorted(found.items(), reverse=True))


def scans_by_table(plan: nodes.Node) -> dict[int, list[nodes.ScanNode]]:
    """Return every scan of the plan, by table."""
    found: dict[int, list[nodes.ScanNode]] = defaultdict(list)

    def visit(node: nodes.Node) -> None:
        if isinstance(node, nodes.ScanNode):
            found[node.table.oid].append(node)
        for child in nodes.children(node):
            visit(child)

    for each in (plan, *named(plan).values()):
        visit(each)
    return found


def each(plan: nodes.Node, change: Callable[[nodes.Node], nodes.Node]) -> nodes.Node:
    """Apply ``change`` to ``plan``, and once to every plan that it names."""
    plans = {number: change(node) for number, node in named(plan).items()}
    return linked(change(plan), plans)


def linked(plan: nodes.Node, plans: Mapping[int, nodes.Node]) -> nodes.Node:
    """Return ``plan`` over ``plans`` instead of those that it names."""
    made: dict[int, nodes.AgainNode] = {}
    for number in sorted(plans):
        made[number] = nodes.AgainNode(over(plans[number], made), number, (), fails=False)
    return over(plan, made)


def over(node: nodes.Node, plans: Mapping[int, nodes.AgainNode]) -> nodes.Node:
    """Replace the named plans that ``node`` reads by ``plans``, keyed by the old numbers."""
    if isinstance(node, nodes.AgainNode):
        named_plan = plans[node.number]
        return dataclasses.replace(node, plan=named_plan.plan, number=named_plan.number)
    return nodes.with_children(node, tuple(over(c, plans) for c in nodes.children(node)))


T = TypeVar("T")
COPIED_MAX = 200
"""Nodes that are copied in a query before plans are named: a tenth of a second of planning."""
SMALL = 8
"""Number of nodes up to which a plan is always copied."""
Pushed = tuple[int, int, tuple[tuple[int, int | None, int], ...]]
_LEAVES = (str, int, bool, type(None), Const, Table, TableColumn)


def defined(node: nodes.Node) -> set[int]:
    """Return ids of all columns that ``node`` or a node below it makes or shows."""
    found = {c.id for c in node.columns}
    if isinstance(node, nodes.ScanNode):
        found |= {c.id for c, _ in node.hidden}
    for child in nodes.children(node):
        found |= defined(child)
    return found


def renumbered(node: nodes.Node, numbers: Iterator[int]) -> nodes.Node:
    """Return ``node`` with new ids for all its own columns; free references stay.

    Raises:
        UnsupportedError: too many columns have been made.
    """
    mapping = {i: next(numbers) for i in sorted(defined(node))}
    limits.check()
    limits.check_columns(max(mapping.values(), default=0))
    return mapped(node, mapping)


def mapped(value: T, mapping: Mapping[int, int]) -> T:
    """Return ``value`` (plan, expression, column) with column ids replaced."""
    found: Any = value
    if isinstance(value, nodes.Col | Ref):
        found = dataclasses.replace(value, id=mapping.get(value.id, value.id))
    elif isinstance(value, nodes.AgainNode):
        pairs, outer = mapped((value.pairs, value.outer), mapping)
        found = dataclasses.replace(value, pairs=pairs, outer=outer)
    elif isinstance(value, tuple):
        found = tuple(mapped(v, mapping) for v in value)
    elif isinstance(value, frozenset):
        found = frozenset(mapped(v, mapping) for v in value)
    elif not isinstance(value, _LEAVES) and dataclasses.is_dataclass(value):
        new = {
            f.name: mapped(getattr(value, f.name), mapping)
            for f in dataclasses.fields(value)
            if f.init
        }
        found = dataclasses.replace(value, **new)  # type: ignore[type-var]
    return found  # type: ignore[no-any-return]


class PlanCopies:
    """Repeated use of subplans in one decorrelation: small ones are copied, the rest are named."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._ids = numbers
        self._left = COPIED_MAX
        # By id(); the node is kept alive, so that no other node gets the same id.
        self._named: dict[int, tuple[nodes.Node, nodes.AgainNode]] = {}
        self._free: nodes.Known = {}
        self.pushed: dict[Pushed, tuple[tuple[int, ...], nodes.AgainNode]] = {}
        """Domains that ``domain.Push`` brought into named plans: their columns there, the plan."""

    def again(self, node: nodes.Node) -> nodes.Node:
        """Return ``node`` under new ids, columns in the same order; free references stay."""
        count = size(node)
        if count > max(SMALL, self._left) and not is_local(node):
            return renumbered(self.named(node), self._ids)
        self._left -= count if count > SMALL else 0
        return renumbered(node, self._ids)

    def free(self, node: nodes.Node) -> frozenset[int]:
        """Return ``nodes.free``, cached per node."""
        return nodes.free(node, self._free)

    def named(self, node: nodes.Node) -> nodes.AgainNode:
        """Return ``node`` as a named plan; its columns keep their ids."""
        if id(node) not in self._named:
            made = name(node, next(self._ids), self.free(node))
            self._named[id(node)] = (node, made)
        return self._named[id(node)][1]

    def copied(self, node: nodes.AgainNode) -> nodes.Node:
        """Replace a named plan by a copy of it."""
        mapping = {i: ref.id for i, ref in node.outer}
        copy = renumbered(node.plan, self._ids)
        old = zip(node.plan.columns, copy.columns, strict=True)
        found = {c.id: new.ref for c, new in old}
        items = tuple((c, found[i]) for c, i in node.pairs)
        return nodes.ProjectNode(mapped(copy, mapping), items)


def size(node: nodes.Node) -> int:
    """Return the number of nodes of ``node`` itself, without those of named plans."""
    return 1 + sum(map(size, nodes.children(node)))


def _references(node: nodes.Node) -> Iterator[Ref]:
    """Yield all references in expressions of ``node`` or below it."""
    for expr in nodes.expressions(node):
        yield from references(expr)
    for child in nodes.children(node):
        yield from _references(child)


def is_local(node: nodes.Node) -> bool:
    """Return whether ``node`` cannot be named: it reads an iteration's rows, or shows the clock."""
    return reads_iteration(node) or bool(clock_columns(node, {}))


def reads_iteration(node: nodes.Node, names: frozenset[str] = frozenset()) -> bool:
    """Return whether ``node`` reads an outer recursion's work table that is not in ``names``."""
    if isinstance(node, nodes.WorkTableNode):
        return node.name not in names
    if isinstance(node, nodes.RecursiveNode):
        inner = names | {node.name}
        return reads_iteration(node.base, names) or reads_iteration(node.step, inner)
    return any(reads_iteration(child, names) for child in nodes.children(node))


def clock_columns(node: nodes.Node, again: Mapping[int, frozenset[int]]) -> frozenset[int]:
    """Return ids of the columns of ``node`` whose values depend on the clock.

    A rule moves such a column up to the comparison that reads it (``rules.lift_clock``).  A
    condition that reads the clock may stay in place, because it only selects rows.  ``again``: the
    columns of named plans, by number; columns of plans without an entry do not depend on the clock.
    """
    if isinstance(node, nodes.AgainNode):
        found = again.get(node.number, frozenset())
        return frozenset(c.id for c, i in node.pairs if i in found)
    inputs = nodes.children(node)
    parts = [clock_columns(child, again) for child in inputs]
    below = frozenset().union(*parts)

    def shows(expr: Expr) -> bool:
        return reads_clock(expr) or bool(below and refs(expr) & below)

    match node:
        case nodes.FilterNode() | nodes.JoinNode() | nodes.ApplyNode() | nodes.DistinctNode():
            made: frozenset[int] = frozenset()
        case nodes.ProjectNode():
            made = frozenset(c.id for c, e in node.items if shows(e))
            below -= nodes.ids(node)
        case nodes.AggregateNode():
            keys = frozenset(c.id for c, e in node.keys if shows(e))
            made = keys.union(a.column.id for a in node.aggs if any(map(shows, a.inputs)))
            below -= nodes.ids(node)
        case nodes.UnionNode() | nodes.SetOpNode() | nodes.RecursiveNode():
            made = frozenset(
                column.id
                for place, column in enumerate(node.columns)
                for child, found in zip(inputs, parts, strict=True)
                if place < len(child.columns) and child.columns[place].id in found
            )
        case _:
            new = nodes.ids(node).difference(*map(nodes.ids, inputs))
            made = new if any(map(shows, nodes.expressions(node))) else frozenset()
    return (made | below) & nodes.ids(node)


def name(node: nodes.Node, number: int, free: frozenset[int]) -> nodes.AgainNode:
    """Return ``node``, which reads the outer columns ``free``, as a named plan.

    Its columns keep their ids.
    """
    found = {r.id: r for r in _references(node)} if free else {}
    return nodes.AgainNode(
        node,
        number,
        tuple((c, c.id) for c in node.columns),
        serious(node),
        tuple((i, found[i]) for i in sorted(free)),
        (int(exactly_one(node)), 1 if at_most_one(node) else None),
    )
