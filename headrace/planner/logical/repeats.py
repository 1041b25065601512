"""Plans that are needed again: copied with other column ids, or named once.

Column ids are unique in a plan, also where parts repeat.  Copies have the better plans: each is
optimised for its own reader, and those that end up alike are computed once in any case.  But copies
of copies grow exponentially with the depth of a query, so only so much is copied; after that a plan
gets a name (``logical.AgainNode``), and the whole is a graph.

A plan that is named is a plan of its own: passes see its readers as leaves, and it as a root.  Its
number is greater than those of the plans that it reads itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from headrace.errors import UnsupportedError
from headrace.planner.analyse.tables import Table, TableColumn
from headrace.planner.logical import nodes
from headrace.planner.logical.facts import serious
from headrace.planner.logical.scalar import Const, Ref, reads_clock, references


def leaves(plan: nodes.Node) -> Iterator[nodes.AgainNode]:
    """The places in ``plan`` itself where it reads named plans."""
    if isinstance(plan, nodes.AgainNode):
        yield plan
    for child in nodes.children(plan):
        yield from leaves(child)


def named(plan: nodes.Node) -> dict[int, nodes.Node]:
    """All plans that ``plan`` and what it reads name, by number: readers first."""
    found: dict[int, nodes.Node] = {}
    rest = [plan]
    while rest:
        for leaf in leaves(rest.pop()):
            if leaf.number not in found:
                found[leaf.number] = leaf.plan
                rest.append(leaf.plan)
    return dict(sorted(found.items(), reverse=True))


def each(plan: nodes.Node, change: Callable[[nodes.Node], nodes.Node]) -> nodes.Node:
    """``plan`` with ``change`` made to it and once to every plan that it names."""
    plans = {number: change(node) for number, node in named(plan).items()}
    return linked(change(plan), plans)


def linked(plan: nodes.Node, plans: Mapping[int, nodes.Node]) -> nodes.Node:
    """``plan`` over ``plans`` instead of those that it names."""
    made: dict[int, nodes.Node] = {}
    for number in sorted(plans):
        made[number] = _over(plans[number], made)
    return _over(plan, made)


def _over(node: nodes.Node, plans: Mapping[int, nodes.Node]) -> nodes.Node:
    if isinstance(node, nodes.AgainNode):
        return dataclasses.replace(node, plan=plans[node.number])
    return nodes.with_children(node, tuple(_over(c, plans) for c in nodes.children(node)))


T = TypeVar("T")
COPIED_MAX = 1_000
"""Nodes that are copied in a query before plans are named."""
SMALL = 8
"""Plans of so many nodes are always copied."""
_IDS_MAX: Final = 1_000_000
"""A minute of planning."""
Pushed = tuple[int, int, tuple[tuple[int, int | None, int], ...]]
_LEAVES = (str, int, bool, type(None), Const, Table, TableColumn)


def defined(node: nodes.Node) -> set[int]:
    """Ids of all columns that ``node`` or something below it makes or shows."""
    found = {c.id for c in node.columns}
    if isinstance(node, nodes.ScanNode):
        found |= {c.id for c, _ in node.hidden}
    for child in nodes.children(node):
        found |= defined(child)
    return found


def renumbered(node: nodes.Node, numbers: Iterator[int]) -> nodes.Node:
    """``node`` with new ids for all its own columns; free references stay.

    Raises:
        UnsupportedError: so many copies have been made that nobody would wait for the plan.
    """
    mapping = {i: next(numbers) for i in sorted(defined(node))}
    if max(mapping.values(), default=0) > _IDS_MAX:
        raise UnsupportedError(
            "subqueries nested this deeply are not supported",
            detail="Each one that reads columns of the query around it is computed for that query's"
            f" rows: in all, over {_IDS_MAX} columns of intermediate results.",
            hint="Write some of them as joins or groups, or make views of parts of the query.",
        )
    return mapped(node, mapping)


def mapped(value: T, mapping: Mapping[int, int]) -> T:
    """``value`` (plan, expression, column) with column ids replaced."""
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
        new = {f.name: mapped(getattr(value, f.name), mapping) for f in dataclasses.fields(value)}
        found = dataclasses.replace(value, **new)  # type: ignore[type-var]
    return found  # type: ignore[no-any-return]


class PlanCopies:
    """What one decorrelation needs again: copied as long as that is little, then named."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._ids = numbers
        self._left = COPIED_MAX
        # By identity; the node is kept, so that no other one gets its place.
        self._named: dict[int, tuple[nodes.Node, nodes.AgainNode]] = {}
        self._free: nodes.Known = {}
        self.pushed: dict[Pushed, tuple[tuple[int, ...], nodes.AgainNode]] = {}
        """Domains that ``domain.Push`` brought into named plans: their columns there, the plan."""

    def again(self, node: nodes.Node) -> nodes.Node:
        """The rows of ``node`` under new ids, columns in the same order; free references stay."""
        size = _size(node)
        if size > max(SMALL, self._left) and not is_local(node):
            return renumbered(self.named(node), self._ids)
        self._left -= size if size > SMALL else 0
        return renumbered(node, self._ids)

    def free(self, node: nodes.Node) -> frozenset[int]:
        """``logical.free``, of each node once."""
        return nodes.free(node, self._free)

    def named(self, node: nodes.Node) -> nodes.AgainNode:
        """``node`` as a plan of its own, its columns called as they are there."""
        if id(node) not in self._named:
            numbers = sorted(self.free(node))
            found = {r.id: r for r in _references(node)}
            outer = tuple((i, found[i]) for i in numbers)
            pairs = tuple((c, c.id) for c in node.columns)
            made = nodes.AgainNode(node, next(self._ids), pairs, serious(node), outer)
            self._named[id(node)] = (node, made)
        return self._named[id(node)][1]

    def copied(self, node: nodes.AgainNode) -> nodes.Node:
        """The named plan itself, instead of its name."""
        mapping = {i: ref.id for i, ref in node.outer}
        copy = renumbered(node.plan, self._ids)
        old = zip(node.plan.columns, copy.columns, strict=True)
        found = {c.id: new.ref for c, new in old}
        items = tuple((c, found[i]) for c, i in node.pairs)
        return nodes.ProjectNode(mapped(copy, mapping), items)


def _size(node: nodes.Node) -> int:
    """The nodes of ``node`` itself."""
    return 1 + sum(map(_size, nodes.children(node)))


def _references(node: nodes.Node) -> Iterator[Ref]:
    """All references that expressions of ``node`` or below it make."""
    for expr in nodes.expressions(node):
        yield from references(expr)
    for child in nodes.children(node):
        yield from _references(child)


def is_local(node: nodes.Node, names: frozenset[str] = frozenset()) -> bool:
    """Whether ``node`` has no place elsewhere: it reads an iteration's rows, or shows the clock."""
    if isinstance(node, nodes.WorkTableNode):
        return node.name not in names
    if any(map(reads_clock, nodes.expressions(node))):
        return True
    if isinstance(node, nodes.RecursiveNode):
        inner = names | {node.name}
        return is_local(node.base, names) or is_local(node.step, inner)
    return any(is_local(child, names) for child in nodes.children(node))
