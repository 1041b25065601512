"""Lifting: expressions that read the left side of an ``Apply`` move out of its right side.

Conditions move as they are.  Only equalities move past groups, DISTINCT, LIMIT and windows; their
inner side becomes an additional key:

    Apply(l, Aggregate[sum(x)](Filter[k = l.k](r)))
  = LeftJoin[k = l.k](l, Aggregate[sum(x) by k](r))

Counter-examples: ``k < l.k`` puts a row into the groups of many rows of the left side.  A group
without keys exists over no rows: ``count(*)`` of none is 0, not NULL.  So counts are corrected
above the join, and expressions over such an aggregate are computed there too.  An expression that
may fail must not be computed for rows that no row of the left side needs: it also moves above the
join, or the right side is computed by domain; so is an aggregate that may fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace import types as t
from headrace.collections.aggregate_traits import NATIVE, AggregateTraits, Empty, built_in
from headrace.planner import limits
from headrace.planner.logical import nodes
from headrace.planner.logical.repeats import mapped
from headrace.planner.logical.scalar import Call, Const, Expr, Ref, raises, refs, substitute
from headrace.planner.passes.domain import Domain, Push
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.typekeys import is_key


@dataclass(frozen=True, slots=True)
class Lifted:
    """A right side that does not read the left side, and the work left for the join above.

    The rows for a row of the left side are those of ``node`` for which all of ``match`` is true.
    ``late`` has the columns computed above the join.  ``always``: there is exactly one row, even if
    none matches (``node``'s columns are then NULL); ``after`` filters it.
    """

    node: nodes.Node
    match: tuple[Expr, ...] = ()
    late: dict[int, Expr] = field(default_factory=dict)
    always: bool = False
    after: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Restricted:
    """A domain of the left side, the ids of its columns there, and how it joins."""

    push: Push
    domain: Domain
    mapping: dict[int, int]
    same: tuple[Expr, ...]


def _failing_chain(node: nodes.Node) -> bool:
    """Return whether something may fail in the filters and projections on top."""
    while isinstance(node, nodes.FilterNode | nodes.ProjectNode):
        if any(map(raises, nodes.expressions(node))):
            return True
        node = node.input
    return False


class Lift:
    """Moves expressions that read ``outer`` columns up and out of a plan, if that is exact."""

    def __init__(
        self,
        context: QueryContext,
        numbers: Iterator[int],
        outer: frozenset[int],
        free: Callable[[nodes.Node], frozenset[int]],
        domain: Callable[[frozenset[int]], Restricted],
    ) -> None:
        """Store ``domain``, which makes one of outer columns, and ``free`` of ``PlanCopies``."""
        self._context = context
        self._ids = numbers
        self._outer = outer
        self._free = free
        self._domain = domain

    def lift(self, node: nodes.Node, *, top: bool = False) -> Lifted | None:
        """Return ``node`` without free references to the outer columns, or None.

        ``top``: only the join is above, so all expressions that may fail move there.
        """
        limits.check()
        if not self._free(node) & self._outer and not (top and _failing_chain(node)):
            return Lifted(node)
        match node:
            case nodes.FilterNode():
                return self._filter(node, top=top)
            case nodes.ProjectNode():
                return self._project(node, top=top)
            case nodes.JoinNode():
                return self._join(node)
            case nodes.AggregateNode():
                return self._aggregate(node)
            case nodes.DistinctNode():
                return self._distinct(node)
            case nodes.TopKNode() | nodes.WindowNode():
                return self._partitioned(node)
            case _:
                return None

    def _reads(self, expr: Expr) -> bool:
        return bool(refs(expr) & self._outer)

    def _filter(self, node: nodes.FilterNode, *, top: bool) -> Lifted | None:
        below = self.lift(node.input, top=top)
        if below is None:
            return None
        tests = tuple(substitute(p, below.late) for p in node.predicates)
        if below.always:
            return dataclasses.replace(below, after=below.after + tests)
        correlated = top or below.match or any(self._reads(p) for p in tests)
        up = tuple(p for p in tests if self._reads(p) or (correlated and raises(p)))
        stay = tuple(p for p in tests if p not in up)
        kept = nodes.FilterNode(below.node, stay) if stay else below.node
        return dataclasses.replace(below, node=kept, match=below.match + up)

    def _project(self, node: nodes.ProjectNode, *, top: bool) -> Lifted | None:
        below = self.lift(node.input, top=top)
        if below is None:
            return None
        moved = top or below.match or below.always
        items: dict[int, tuple[nodes.Col, Expr]] = {}
        late: dict[int, Expr] = {}
        for column, expr in node.items:
            found = substitute(expr, below.late)
            plain = isinstance(expr, Ref) and expr.id not in below.late
            up = self._reads(found) or (moved and raises(found))
            if up or (below.always and not plain):
                late[column.id] = found
            else:
                items[column.id] = (column, found)
        mine = {c.id: c for c in below.node.columns}
        for expr in (*below.match, *below.after, *late.values()):
            for number in sorted(refs(expr) - self._outer):
                if number in mine:
                    items.setdefault(number, (mine[number], mine[number].ref))
        kept = nodes.ProjectNode(below.node, tuple(items.values())) if items else below.node
        return dataclasses.replace(below, node=kept, late=late)

    def _join(self, node: nodes.JoinNode) -> Lifted | None:
        left = self.lift(node.left)
        if left is None or left.always:
            return None
        if node.kind != "inner":
            if node.kind == "full" or self._free(node.right) & self._outer:
                return None
            tests = [substitute(c, left.late) for c in node.condition]
            if any(self._reads(c) or (left.match and raises(c)) for c in tests):
                return None
            joined = nodes.JoinNode(left.node, node.right, tuple(tests), node.kind)
            return dataclasses.replace(left, node=joined)
        right = self.lift(node.right)
        if right is None or right.always:
            return None
        late = left.late | right.late
        tests = [substitute(c, late) for c in node.condition]
        matched = left.match + right.match
        correlated = matched or any(self._reads(c) for c in tests)
        up = tuple(c for c in tests if self._reads(c) or (correlated and raises(c)))
        stay = tuple(c for c in tests if c not in up)
        return Lifted(nodes.JoinNode(left.node, right.node, stay), matched + up, late)

    def _aggregate(self, node: nodes.AggregateNode) -> Lifted | None:
        late = self._over_nothing(node)
        below = self._keyed(node.input)
        lifted = None
        if below is not None and late is not None:
            lifted = self._by_keys(node, below, late)
        if lifted is None and late is not None and not node.keys:
            lifted = self._within(node, late)
        return lifted

    def _over_nothing(self, node: nodes.AggregateNode) -> dict[int, Expr] | None:
        """Return the values of aggregates over no rows, computed from NULLs; None: not known."""
        if node.always:
            return None
        if node.keys:
            return {}
        empty = {a.column: _traits(a).empty for a in node.aggs}
        if None in empty.values():
            return None
        return {c.id: self._or_zero(c.ref) for c, value in empty.items() if value is Empty.ZERO}

    def _by_keys(
        self, node: nodes.AggregateNode, below: Lifted, late: dict[int, Expr]
    ) -> Lifted | None:
        """Return the groups of each value of the inner columns that are compared."""
        node = dataclasses.replace(node, input=below.node)
        read = frozenset().union(*(refs(e) for e in nodes.expressions(node)))
        if read & (self._outer | below.late.keys()):
            return None
        if below.match and any(raises(e) for e in nodes.expressions(node)):
            return None
        if below.match and any(map(_may_fail, node.aggs)):
            return None
        keys, match = self._as_keys(below.match)
        result = dataclasses.replace(node, keys=node.keys + keys)
        return Lifted(result, match, late, always=not node.keys)

    def _within(self, node: nodes.AggregateNode, late: dict[int, Expr]) -> Lifted:
        """Return one group for each combination of the outer columns that are read."""
        to = self._domain(self._free(node) & self._outer)
        renamed = mapped(node, to.mapping)
        below = to.push.push(to.domain, renamed.input)
        keys: list[tuple[nodes.Col, Expr]] = []
        mapping: dict[int, int] = {}
        for column in to.domain.keys:
            keys.append((new_column(self._ids, column.name, column.ref), column.ref))
            mapping[column.id] = keys[-1][0].id
        result = dataclasses.replace(renamed, input=below, keys=tuple(keys))
        same = tuple(mapped(test, mapping) for test in to.same)
        return Lifted(result, same, late, always=True)

    def _keyed(self, node: nodes.Node) -> Lifted | None:
        """Lift ``node`` if only equalities of columns and tests of outer columns are left."""
        below = self.lift(node)
        if below is None or below.always:
            return None
        if any(self._pair(p) is None and refs(p) - self._outer for p in below.match):
            return None
        return below

    def _as_keys(
        self, match: tuple[Expr, ...]
    ) -> tuple[tuple[tuple[nodes.Col, Expr], ...], tuple[Expr, ...]]:
        """Return the inner sides of equalities as keys, and the equalities with these."""
        keys: dict[Expr, nodes.Col] = {}
        tests: list[Expr] = []
        for predicate in match:
            pair = self._pair(predicate)
            if pair is None:
                tests.append(predicate)
                continue
            inner = pair[1]
            if inner not in keys:
                name = inner.label if isinstance(inner, Ref) else "key"
                keys[inner] = new_column(self._ids, name.rsplit(".", 1)[-1], inner)
            tests.append(replaced(predicate, inner, keys[inner].ref))
        return tuple((c, e) for e, c in keys.items()), tuple(tests)

    def _pair(self, predicate: Expr) -> tuple[Expr, Expr] | None:
        """Return the outer and the inner side of an equality that canonical keys decide."""
        found = equality(predicate)
        if found is None:
            return None
        first, second = found.args
        if refs(second) <= self._outer:
            first, second = second, first
        if not refs(first) <= self._outer or refs(second) & self._outer:
            return None
        if not refs(second) or raises(second):
            return None
        catalog = self._context.catalog
        if not is_key(catalog, second.oid, found.input_collation):
            return None
        return first, second

    def _with_keys(
        self, below: Lifted
    ) -> tuple[nodes.Node, tuple[tuple[nodes.Col, Expr], ...], tuple[Expr, ...]]:
        """Return the node with the inner sides of its equalities as additional columns."""
        keys, match = self._as_keys(below.match)
        passed = tuple((c, c.ref) for c in below.node.columns)
        node = nodes.ProjectNode(below.node, passed + keys) if keys else below.node
        return node, keys, match

    def _distinct(self, node: nodes.DistinctNode) -> Lifted | None:
        below = self._keyed(node.input)
        if below is None or any(refs(e) - self._outer for e in below.late.values()):
            return None
        wanted = nodes.ids(node)
        keys, match = self._as_keys(below.match)
        passed = tuple((c, c.ref) for c in below.node.columns if c.id in wanted)
        if not passed + keys:
            return None
        return Lifted(
            nodes.DistinctNode(nodes.ProjectNode(below.node, passed + keys)), match, below.late
        )

    def _partitioned(self, node: nodes.TopKNode | nodes.WindowNode) -> Lifted | None:
        below = self._keyed(node.input)
        if below is None:
            return None
        read = frozenset().union(*(refs(e) for e in nodes.expressions(node)))
        if read & (self._outer | below.late.keys()):
            return None
        inner, keys, match = self._with_keys(below)
        more = tuple(c.ref for c, _ in keys)
        result = dataclasses.replace(node, input=inner, keys=node.keys + more)
        return Lifted(result, match, below.late)

    def _or_zero(self, count: Ref) -> Expr:
        args = (count, Const("0", t.INT8))
        return build.coalesce(self._context, args, (t.INT8, -1, 0))


def equality(predicate: Expr) -> Call | None:
    """Return ``predicate`` if a native ``=``; of NOT (… IS DISTINCT FROM …) the inner part."""
    if not isinstance(predicate, Call) or predicate.native is None:
        return None
    if predicate.symbol == "not" and isinstance(predicate.args[0], Call):
        [inner] = predicate.args
        assert isinstance(inner, Call)
        same = inner.symbol == "is_distinct_from" and inner.native is not None
        return inner if same else None
    return predicate if predicate.symbol == "=" else None


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """Replace ``old`` by ``new`` everywhere in ``expr``."""
    if expr == old:
        return new
    if not isinstance(expr, Call):
        return expr
    args = tuple(replaced(a, old, new) for a in expr.args)
    return dataclasses.replace(expr, args=args)


def _traits(agg: nodes.Agg) -> AggregateTraits:
    if agg.function == "remote" and agg.sql.startswith("pg_catalog."):
        return built_in(agg.name)
    return NATIVE[agg.function]


def _may_fail(agg: nodes.Agg) -> bool:
    """Return whether evaluation may fail in a group that no row of the left side needs."""
    argument = None if agg.argument is None else agg.argument.oid
    return _traits(agg).may_fail(argument, agg.column.oid)


def new_column(numbers: Iterator[int], name: str, expr: Expr) -> nodes.Col:
    """Return a column like ``expr`` with a new id."""
    return nodes.Col(next(numbers), name, expr.oid, expr.typmod, expr.collation)
