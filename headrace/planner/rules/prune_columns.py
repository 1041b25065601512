"""Columns that are never read are removed, down to the scans.

Project[e](x) = Project[e](Project[columns that e reads](x)), pushed through every node

Counter-examples: DISTINCT needs all its columns, read or not: without one of them more rows would
be equal.  The keys of a group stay for the same reason.  At least one column stays in every node,
as ``count(*)`` counts rows and rows need a shape.  EXCEPT and INTERSECT, also ALL, need all their
columns too.  A set-returning function whose columns are not read still determines the number of
rows.  The order of tied rows in a LIMIT or a window is free, but must agree between two uses of a
WITH query: ``x a JOIN x b ON a.number = b.number`` shows two halves of one row.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

from headrace.planner import limits
from headrace.planner.logical import nodes
from headrace.planner.logical.alignment import aligned
from headrace.planner.logical.repeats import leaves
from headrace.planner.logical.scalar import Expr, refs, show


def apply_all(plans: dict[int, nodes.Node]) -> dict[int, nodes.Node]:
    """Prune all plans, readers first: the first keeps its columns, the rest only read columns."""
    shapes = Counter(s for plan in plans.values() for s in _shapes(plan))
    pruner = _Pruner(frozenset(s for s, count in shapes.items() if count > 1))
    root = next(iter(plans))
    required = {root: set(nodes.ids(plans[root]))}
    pruned: dict[int, nodes.Node] = {}
    for number, plan in plans.items():
        if number not in required:
            continue  # a rule has removed its last reader
        read = frozenset(required[number])
        wanted = [c.id for c in plan.columns if c.id in read]
        pruned[number] = _exact(pruner.prune(plan, read), wanted)
        for leaf in leaves(pruned[number]):
            required.setdefault(leaf.number, set()).update(i for _, i in leaf.pairs)
    return pruned


def _shapes(node: nodes.Node) -> Iterator[tuple[object, ...]]:
    if isinstance(node, nodes.TopKNode | nodes.WindowNode):
        yield _shape(node)
    if isinstance(node, nodes.AggregateNode):
        yield from _rows(node)
    for child in nodes.children(node):
        yield from _shapes(child)


def _shape(node: nodes.TopKNode | nodes.WindowNode) -> tuple[object, ...]:
    """Return a key that is equal for all uses of a WITH query, even after other rules."""
    order = tuple((o.operator, o.descending, o.nulls_first) for o in node.order)
    columns = tuple((c.name, c.oid) for c in node.input.columns)
    return (type(node).__name__, len(node.keys), order, columns)


def _rows(node: nodes.AggregateNode) -> Iterator[tuple[object, ...]]:
    """Yield the shapes of the rows by which aggregates of ``node`` order their input."""
    for row in dict.fromkeys(a.row for a in node.aggs if a.row):
        yield ("row", len(node.keys), tuple((show(e), e.oid) for e in row))


@dataclasses.dataclass(frozen=True, slots=True)
class _Pruner:
    """One pass over a plan."""

    repeated: frozenset[tuple[object, ...]]
    """Shapes that occur more than once: perhaps the uses of one WITH query, whose ties all of them
    must break alike, so that all columns stay."""

    def prune(self, node: nodes.Node, required: frozenset[int]) -> nodes.Node:
        limits.check()
        match node:
            case nodes.ScanNode():
                return _scan(node, required)
            case nodes.ValuesNode():
                return _values(node, required)
            case nodes.AgainNode():
                keep = _some(node.columns, required)
                pairs = tuple(p for p in node.pairs if p[0].id in keep)
                return dataclasses.replace(node, pairs=pairs)
            case nodes.FilterNode():
                below = required | _all_refs(node.predicates)
                return dataclasses.replace(node, input=self.prune(node.input, below))
            case nodes.ProjectNode():
                keep = _some(node.columns, required)
                items = tuple((c, e) for c, e in node.items if c.id in keep)
                below = _all_refs(e for _, e in items)
                return nodes.ProjectNode(self.prune(node.input, below), items)
            case nodes.JoinNode():
                below = required | _all_refs(node.condition)
                left, right = (self._side(node.left, below), self._side(node.right, below))
                return dataclasses.replace(node, left=left, right=right)
            case nodes.AggregateNode():
                return self._aggregate(node, required)
            case nodes.DistinctNode():
                wanted = [c.id for c in node.input.columns]
                return nodes.DistinctNode(_exact(self.prune(node.input, frozenset(wanted)), wanted))
            case nodes.UnionNode():
                return self._union(node, required)
            case nodes.WindowNode():
                return self._window(node, required)
            case nodes.FunctionsNode() | nodes.ExpandNode() | nodes.TopKNode():
                below = required | _all_refs(nodes.expressions(node)) | self._ties(node)
                return dataclasses.replace(node, input=self._side(node.input, below))
            case _:
                # It reads all columns: SetOp needs them to distinguish rows.
                new = tuple(
                    _exact(self.prune(c, nodes.ids(c)), [x.id for x in c.columns])
                    for c in nodes.children(node)
                )
                return nodes.with_children(node, new)

    def _side(self, node: nodes.Node, below: frozenset[int]) -> nodes.Node:
        keep = _some(node.columns, below)
        pruned = self.prune(node, keep)
        return _exact(pruned, [c.id for c in pruned.columns if c.id in keep])

    def _aggregate(self, node: nodes.AggregateNode, required: frozenset[int]) -> nodes.Node:
        aggs = tuple(a for a in node.aggs if a.column.id in required)
        if not node.keys and not aggs:
            aggs = node.aggs[:1]
        if not any(shape in self.repeated for shape in _rows(node)):
            aggs = aligned(aggs)
        exprs = [e for _, e in node.keys]
        exprs += [e for a in aggs for e in a.inputs]
        below = self.prune(node.input, _all_refs(exprs))
        return dataclasses.replace(node, input=below, aggs=aggs)

    def _ties(self, node: nodes.Node) -> frozenset[int]:
        """Return the columns that break ties, if several nodes must break them equally."""
        if isinstance(node, nodes.TopKNode | nodes.WindowNode) and _shape(node) in self.repeated:
            return nodes.ids(node.input)
        return frozenset()

    def _window(self, node: nodes.WindowNode, required: frozenset[int]) -> nodes.Node:
        calls = tuple(c for c in node.calls if c.column.id in required)
        if not calls:
            return self.prune(node.input, required)
        kept = dataclasses.replace(node, calls=calls)
        read = required | _all_refs(nodes.expressions(kept)) | self._ties(node)
        below = self._side(node.input, read)
        return dataclasses.replace(kept, input=below)

    def _union(self, node: nodes.UnionNode, required: frozenset[int]) -> nodes.Node:
        keep = _some(node.columns, required)
        places = [i for i, c in enumerate(node.columns) if c.id in keep]
        inputs = []
        for arm in node.inputs:
            wanted = [arm.columns[i].id for i in places]
            inputs.append(_exact(self.prune(arm, frozenset(wanted)), wanted))
        return nodes.UnionNode(tuple(inputs), tuple(node.columns[i] for i in places))


def _all_refs(exprs: Iterable[Expr]) -> frozenset[int]:
    return frozenset().union(*(refs(e) for e in exprs))


def _exact(node: nodes.Node, wanted: list[int]) -> nodes.Node:
    """Return ``node`` with the columns ``wanted`` and no others, in that order."""
    if [c.id for c in node.columns] == wanted:
        return node
    by_id = {c.id: c for c in node.columns}
    return nodes.ProjectNode(node, tuple((by_id[i], by_id[i].ref) for i in wanted))


def _some(columns: tuple[nodes.Col, ...], required: frozenset[int]) -> frozenset[int]:
    """Return ``required``, or one column where nothing is required."""
    mine = required & {c.id for c in columns}
    return mine or frozenset(c.id for c in columns[:1])


def _scan(node: nodes.ScanNode, required: frozenset[int]) -> nodes.Node:
    # A key column is in the row store anyway.
    first = [c for c, f in node.fields if f.attnum in node.table.key[:1]]
    keep = required & nodes.ids(node) or {c.id for c in (*first, *node.columns)[:1]}
    used = _all_refs(node.predicates) - keep
    every = (*node.fields, *node.hidden)
    return dataclasses.replace(
        node,
        fields=tuple(f for f in node.fields if f[0].id in keep),
        hidden=tuple(f for f in every if f[0].id in used),
    )


def _values(node: nodes.ValuesNode, required: frozenset[int]) -> nodes.Node:
    keep = _some(node.columns, required)
    places = [i for i, c in enumerate(node.columns) if c.id in keep]
    return nodes.ValuesNode(
        tuple(node.columns[i] for i in places),
        tuple(tuple(row[i] for i in places) for row in node.rows),
    )
