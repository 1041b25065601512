"""The right side of a dependent join, computed once for each value that it reads.

The domain D has the distinct combinations of the columns of the left side that the right side
reads.  ``Push.push(D, n)`` is a plan that joins each row of D with the rows that ``n`` has for it,
and ``Push.same`` joins that plan with the left side (Neumann, Kemper 2015):

    Filter[p](x)        -> Filter[p](D x)
    Project[e](x)       -> Project[D, e](D x)
    Aggregate[k](x)     -> Aggregate[D, k](D x)
    Aggregate[](x)      -> Aggregate[D](LeftJoin(D, D x)), each aggregate where x is there
    GROUPING SETS (…, ()) -> Aggregate[D, k](Union(D x, D)), so that the empty set has a row
    Distinct, TopK, Window, Union, SetOp, Functions: D's columns are more columns or keys
    Recursive(b, s)     -> Recursive(D b, s), D's columns go along through every iteration
    Join(x, y)          -> D on the sides that read it, equal on both
    FULL JOIN(x, y)     -> D on both sides, of the side that is there

Equal values may print differently (1.0, 1.00), and the right side may distinguish them.  So D has
such columns by their text, together with the value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from headrace import types as t
from headrace.expressions import keys as key_types
from headrace.planner import limits
from headrace.planner.binding.recursion import Carrier
from headrace.planner.logical.alignment import aligned
from headrace.planner.logical.facts import serious
from headrace.planner.logical.node_names import construct
from headrace.planner.logical.nodes import (
    LEFT_ONLY,
    AgainNode,
    Agg,
    AggregateNode,
    Col,
    DistinctNode,
    ExpandNode,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    ProjectNode,
    RecursiveNode,
    SetOpNode,
    TopKNode,
    UnionNode,
    WindowNode,
)
from headrace.planner.logical.repeats import PlanCopies, defined, is_local, mapped
from headrace.planner.logical.scalar import Const, Expr, Ref, raises, refs, show
from headrace.planner.scalars import build, casts
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.typekeys import is_key


@dataclass(frozen=True, slots=True)
class Domain:
    """Distinct values of the left side.

    ``keys`` decide which are distinct; ``carried`` columns depend on them.  Copies have the same
    ``origin``.
    """

    node: Node
    keys: tuple[Col, ...]
    carried: tuple[Col, ...]
    origin: int

    @property
    def columns(self) -> tuple[Col, ...]:
        """All columns."""
        return self.keys + self.carried

    @property
    def passed(self) -> tuple[tuple[Col, Expr], ...]:
        """All columns as items of a projection."""
        return tuple((c, c.ref) for c in self.columns)


class Push:
    """Pushes domains into plans."""

    def __init__(self, context: QueryContext, numbers: Iterator[int], copies: PlanCopies) -> None:
        self._context = context
        self._ids = numbers
        self._copies = copies

    # -- domains

    def domain(self, left: Node, read: list[tuple[Col, int]]) -> tuple[Domain, dict[int, int]]:
        """Return the domain of the columns of ``left`` with these ids, and the new id of each.

        ``read``: (column as the right side calls it, its id in ``left``).
        """
        keys: list[tuple[Col, Expr]] = []
        carried: list[tuple[Col, Expr]] = []
        mapping: dict[int, int] = {}
        for column, number in read:
            ref = dataclasses.replace(column.ref, id=number)
            new = dataclasses.replace(column, id=next(self._ids))
            mapping[column.id] = new.id
            if self._plain(column):
                keys.append((new, ref))
            else:
                text = self._text(ref)
                keys.append((self._column(column.name, text), text))
                carried.append((new, ref))
        if not keys:
            # Whether there is a row at all.
            asks = Const("t", t.BOOL)
            keys.append((self._column("asks", asks), asks))
        made = tuple(c for c, _ in keys), tuple(c for c, _ in carried)
        node: Node = DistinctNode(ProjectNode(left, tuple(keys)))
        if carried:
            aggs = tuple(Agg(c, "any", e, name="any") for c, e in carried)
            node = AggregateNode(left, tuple(keys), aggs)
        return Domain(node, *made, next(self._ids)), mapping

    def same(self, domain: Domain, read: list[Col]) -> tuple[Expr, ...]:
        """Return conditions that join the left side with the domain of its columns ``read``."""
        tests: list[Expr] = []
        for column, key in zip(read, domain.keys[: len(read)], strict=True):
            ref: Expr = column.ref if self._plain(column) else self._text(column.ref)
            tests.append(self.equal(ref, key.ref))
        return tuple(tests)

    def equal(self, left: Expr, right: Expr) -> Expr:
        """Return ``left IS NOT DISTINCT FROM right``."""
        return build.logic(self._context, "not", (build.distinct(self._context, left, right),))

    def renamed(self, node: Node, mapping: Mapping[int, int]) -> Node:
        """Return ``node`` reading other columns."""
        return mapped(node, mapping)

    def _plain(self, column: Col) -> bool:
        catalog = self._context.catalog
        known = is_key(catalog, column.oid, column.collation)
        return known and key_types.is_canonical(column.oid)

    def _text(self, ref: Ref) -> Expr:
        """Return the exact text of a value."""
        if ref.oid == t.BPCHAR and ref.typmod == -1:
            self._context.refuse("a correlated subquery that computes with a value of type bpchar")
        return casts.cast(self._context, ref, t.TEXT, -1, _COLLATION_C)

    def _column(self, name: str, expr: Expr) -> Col:
        return Col(next(self._ids), name, expr.oid, expr.typmod, expr.collation)

    def _again(self, domain: Domain, node: Node) -> tuple[Domain, Node]:
        """Return a copy of ``domain``, and ``node`` reading the copy."""
        old = [c.id for c in domain.columns]
        copy = self._copies.again(domain.node)
        mapping = {c.id: n.id for c, n in zip(domain.node.columns, copy.columns, strict=True)}
        assert set(old) <= mapping.keys(), "a domain shows its columns"
        keys, carried = mapped((domain.keys, domain.carried), mapping)
        new = Domain(copy, keys, carried, domain.origin)
        return new, mapped(node, mapping)

    # -- pushing

    def push(self, domain: Domain, node: Node) -> Node:
        """Return the rows of ``domain``, each joined with the rows of ``node`` for it."""
        limits.check()
        reads = self._copies.free(node) & {c.id for c in domain.columns}
        if not reads and (isinstance(node, RecursiveNode) or not serious(node)):
            return JoinNode(domain.node, node)
        match node:
            case FilterNode() | FunctionsNode() | ExpandNode():
                below = self.push(domain, node.input)
                return dataclasses.replace(node, input=below)
            case ProjectNode():
                below = self.push(domain, node.input)
                return ProjectNode(below, domain.passed + node.items)
            case TopKNode() | WindowNode():
                below = self.push(domain, node.input)
                more = tuple(c.ref for c in domain.keys)
                return dataclasses.replace(node, input=below, keys=more + node.keys)
            case JoinNode():
                return self._join(domain, node)
            case AggregateNode():
                return self._aggregate(domain, node)
            case DistinctNode():
                return self._distinct(domain, self.push(domain, node.input), node)
            case UnionNode():
                return self._union(domain, node)
            case SetOpNode():
                return self._set_operation(domain, node)
            case RecursiveNode():
                return self._recursive(domain, node)
            case AgainNode():
                return self._named(domain, node)
            case _:
                return self._context.refuse(f"a correlated subquery with {construct(node)}")

    def _named(self, domain: Domain, node: AgainNode) -> Node:
        """Push into a named plan once, for all readers and their names of the domain's columns."""
        if is_local(domain.node):
            return self.push(domain, self._copies.copied(node))
        mine = [c.id for c in domain.columns]
        places = {number: place for place, number in enumerate(mine)}
        outer = tuple((i, places.get(ref.id), ref.id) for i, ref in node.outer)
        # Copies of a domain agree on the ids of columns they read, but not of their own columns.
        names = tuple((i, p, n if p is None else 0) for i, p, n in outer)
        key = domain.origin, node.number, names
        if key not in self._copies.pushed:
            mapping = {i: n for i, _, n in outer if i != n}
            assert not defined(node.plan) & set(mapping.values()), "names are new"
            pushed = self.push(domain, mapped(node.plan, mapping))
            self._copies.pushed[key] = (tuple(mine), self._copies.named(pushed))
        there, found = self._copies.pushed[key]
        pairs = tuple(zip(domain.columns, there, strict=True)) + node.pairs
        return dataclasses.replace(found, pairs=pairs)

    def _join(self, domain: Domain, node: JoinNode) -> Node:
        mine = {c.id for c in domain.columns}
        if node.kind == "full":
            return self._full(domain, node)
        left_reads = bool(self._copies.free(node.left) & mine) or serious(node.left)
        right_reads = bool(self._copies.free(node.right) & mine) or serious(node.right)
        if not right_reads:
            return dataclasses.replace(node, left=self.push(domain, node.left))
        if not left_reads and node.kind == "inner":
            return JoinNode(node.left, self.push(domain, node.right), node.condition)
        other, right = self._again(domain, node.right)
        same = self._both(domain, other)
        joined = JoinNode(
            self.push(domain, node.left),
            self.push(other, right),
            (*same, *node.condition),
            node.kind,
        )
        if node.kind in LEFT_ONLY:
            return joined
        return ProjectNode(joined, domain.passed + tuple((c, c.ref) for c in node.columns))

    def _both(self, first: Domain, second: Domain) -> tuple[Expr, ...]:
        pairs = zip(first.keys, second.keys, strict=True)
        return tuple(self.equal(a.ref, b.ref) for a, b in pairs)

    def _full(self, domain: Domain, node: JoinNode) -> Node:
        first, left = self._again(domain, node.left)
        second, right = self._again(domain, node.right)
        mapping = {c.id: n.id for c, n in zip(domain.columns, first.columns, strict=True)}
        same = self._both(first, second)
        joined = JoinNode(
            self.push(first, left),
            self.push(second, right),
            (*same, *mapped(node.condition, mapping)),
            "full",
        )
        items = tuple(
            (c, self._first(a.ref, b.ref))
            for c, a, b in zip(domain.columns, first.columns, second.columns, strict=True)
        )
        return ProjectNode(joined, items + tuple((c, c.ref) for c in node.columns))

    def _first(self, left: Ref, right: Ref) -> Expr:
        result = (left.oid, left.typmod, left.collation)
        return build.coalesce(self._context, (left, right), result)

    def _aggregate(self, domain: Domain, node: AggregateNode) -> Node:
        keys: tuple[tuple[Col, Expr], ...] = tuple((c, c.ref) for c in domain.keys)
        carried = tuple(Agg(c, "any", c.ref, name="any") for c in domain.carried)
        if node.always:
            return self._with_always(domain, node, keys, carried)
        if node.keys:
            below = self.push(domain, node.input)
            return self._grouped(node, below, keys, carried)
        # Every value has a group, even over no rows; such groups are marked.
        other, again = self._again(domain, node.input)
        mark = self._column("there", Const("t", t.BOOL))
        rows = self.push(other, again)
        marked = ProjectNode(
            rows, (*((c, c.ref) for c in rows.columns), (mark, Const("t", t.BOOL)))
        )
        mapping = {c.id: n.id for c, n in zip(domain.columns, other.columns, strict=True)}
        there = build.null_test(self._context, "is_not_null", mark.ref)
        aggs = tuple(self._where(there, agg) for agg in mapped(node.aggs, mapping))
        joined = JoinNode(domain.node, marked, self._both(domain, other), "left")
        return self._grouped(dataclasses.replace(node, aggs=aggs), joined, keys, carried)

    def _with_always(
        self,
        domain: Domain,
        node: AggregateNode,
        keys: tuple[tuple[Col, Expr], ...],
        carried: tuple[Agg, ...],
    ) -> Node:
        """Group by grouping sets so that the empty sets have a row for every value of the domain.

        That takes an additional row below, marked so that no aggregate counts it.
        """
        true, unknown = Const("t", t.BOOL), Const(None, t.BOOL)
        made = tuple(self._column(show(e), e) for _, e in node.keys)
        mark = self._column("there", true)
        read = frozenset().union(*(refs(e) for a in node.aggs for e in a.inputs))
        inputs = tuple(c for c in node.input.columns if c.id in read)
        there = [
            *(c.ref for c in domain.columns),
            *(e for _, e in node.keys),
            *(c.ref for c in inputs),
            true,
        ]
        arms = [self._items(self.push(domain, node.input), there)]
        for texts in node.always:
            other, _ = self._again(domain, node)
            absent: list[Expr] = [c.ref for c in other.columns]
            for text, column in zip(texts, made, strict=True):
                absent.append(Const(text, column.oid, -1, column.collation))
            absent += [Const(None, c.oid, -1, c.collation) for c in inputs]
            arms.append(self._items(other.node, [*absent, unknown]))
        present = build.null_test(self._context, "is_not_null", mark.ref)
        grouped = dataclasses.replace(
            node,
            keys=tuple((k, c.ref) for (k, _), c in zip(node.keys, made, strict=True)),
            aggs=tuple(self._where(present, agg) for agg in node.aggs),
            always=(),
        )
        below = UnionNode(tuple(arms), (*domain.columns, *made, *inputs, mark))
        return self._grouped(grouped, below, keys, carried)

    def _items(self, node: Node, exprs: list[Expr]) -> Node:
        """Return ``exprs`` over ``node``, as new columns."""
        return ProjectNode(node, tuple((self._column(show(e), e), e) for e in exprs))

    def _where(self, there: Expr, agg: Agg) -> Agg:
        """Restrict ``agg`` to the rows for which ``there`` is true."""
        guarded = partial(build.guarded, self._context)

        def safe(expr: Expr) -> Expr:
            return guarded(there, expr) if raises(expr) else expr

        condition = there if agg.filter is None else guarded(there, agg.filter)
        return dataclasses.replace(agg.over(safe), filter=condition)

    def _grouped(
        self,
        node: AggregateNode,
        below: Node,
        keys: tuple[tuple[Col, Expr], ...],
        carried: tuple[Agg, ...],
    ) -> Node:
        """Return the groups; the keys get new ids, and their old ids again above."""
        made = tuple((dataclasses.replace(c, id=next(self._ids)), e) for c, e in keys)
        values = tuple(
            dataclasses.replace(a, column=dataclasses.replace(a.column, id=next(self._ids)))
            for a in carried
        )
        result = dataclasses.replace(
            node, input=below, keys=made + node.keys, aggs=values + node.aggs
        )
        old = (*(c for c, _ in keys), *(a.column for a in carried))
        new = (*(c for c, _ in made), *(a.column for a in values))
        items = tuple((o, n.ref) for o, n in zip(old, new, strict=True))
        return ProjectNode(result, items + tuple((c, c.ref) for c in node.columns))

    def _distinct(self, domain: Domain, below: Node, node: DistinctNode) -> Node:
        if not domain.carried:
            kept = (*domain.columns, *node.columns)
            return DistinctNode(ProjectNode(below, tuple((c, c.ref) for c in kept)))
        keys = (*domain.keys, *node.columns)
        made = tuple((dataclasses.replace(c, id=next(self._ids)), c.ref) for c in keys)
        shown = [
            c
            for c in (*node.columns, *domain.carried)
            if c in domain.carried or not key_types.is_canonical(c.oid)
        ]
        aggs = tuple(
            Agg(dataclasses.replace(c, id=next(self._ids)), "any", c.ref, name="any") for c in shown
        )
        found: dict[int, Expr] = {k.id: c.ref for k, (c, _) in zip(keys, made, strict=True)}
        found |= {c.id: a.column.ref for c, a in zip(shown, aggs, strict=True)}
        return ProjectNode(
            AggregateNode(below, made, aligned(aggs)),
            tuple((c, found[c.id]) for c in (*domain.columns, *node.columns)),
        )

    def _arm(self, domain: Domain, arm: Node, *, carried: bool) -> Node:
        """Return one input of a union, with D's columns first."""
        other, mine = self._again(domain, arm)
        shown = other.columns if carried else other.keys
        items = tuple((c, c.ref) for c in (*shown, *mine.columns))
        return ProjectNode(self.push(other, mine), items)

    def _union(self, domain: Domain, node: UnionNode) -> Node:
        inputs = tuple(self._arm(domain, arm, carried=True) for arm in node.inputs)
        return dataclasses.replace(node, inputs=inputs, columns=domain.columns + node.columns)

    def _set_operation(self, domain: Domain, node: SetOpNode) -> Node:
        """Compare rows only by the keys of D; carried columns are joined to the result."""
        other, _ = self._again(domain, node)
        keys = other.keys if domain.carried else domain.keys
        result = dataclasses.replace(
            node,
            left=self._arm(domain, node.left, carried=False),
            right=self._arm(domain, node.right, carried=False),
            columns=keys + node.columns,
        )
        if not domain.carried:
            return result
        pairs = zip(domain.keys, keys, strict=True)
        same = tuple(self.equal(a.ref, b.ref) for a, b in pairs)
        return JoinNode(domain.node, result, same)

    def _recursive(self, domain: Domain, node: RecursiveNode) -> Node:
        """Add D's columns to the base and to every iteration."""
        if domain.carried:
            self._context.refuse(
                "WITH RECURSIVE in a subquery that reads columns of type"
                f" {self._context.type_name(domain.carried[0].oid)} of an outer query"
            )
        first, mine = self._again(domain, node.base)
        base = ProjectNode(
            self.push(first, mine), tuple((c, c.ref) for c in mine.columns) + first.passed
        )
        inside = tuple(dataclasses.replace(c, id=next(self._ids)) for c in domain.columns)
        mapping = {o.id: n.id for o, n in zip(domain.columns, inside, strict=True)}

        def outside(other: Node) -> tuple[Node, tuple[Expr, ...]]:
            back = {n: o for o, n in mapping.items()}
            copy, reading = self._again(domain, mapped(other, back))
            same = tuple(
                self.equal(a.ref, b.ref) for a, b in zip(inside, copy.columns, strict=True)
            )
            return self.push(copy, reading), same

        carrier = Carrier(self._context, node.name, lambda: inside, outside=outside)
        step, _ = carrier.carried(mapped(node.step, mapping))
        columns = tuple((c, c.ref) for c in (*node.step.columns, *inside))
        return dataclasses.replace(
            node, base=base, step=ProjectNode(step, columns), columns=node.columns + domain.columns
        )


_COLLATION_C = 950
"""pg_collation "C": texts are compared by bytes."""
