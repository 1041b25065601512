"""Every ``Apply`` becomes a join: subqueries and LATERAL without a row-by-row evaluation.

Source: Neumann, Kemper, "Unnesting Arbitrary Queries", BTW 2015.  Three ways, the first that fits:

*Carried*: what only maps and filters (FROM t, unnest(t.a)) runs over the rows of the left side.

*Lifted* (``Lift``): conditions that read the left side move up to the join.  Past groups, DISTINCT,
LIMIT and windows go equalities alone, whose inner side becomes one more key:

    Apply(l, Aggregate[sum(x)](Filter[k = l.k](r))) = LeftJoin[k = l.k](l, Aggregate[sum(x) by k](r))

Counter-examples: ``k < l.k`` puts a row into the groups of many rows of the left side.  A group
without keys exists over no rows: ``count(*)`` of none is 0, not NULL, so counts are mended above
the join, and what computes with such an aggregate does so above the join.  What may fail on a row
is not computed for rows that no row of the left side asks for: such expressions go above the
join too, or the third way is taken.

*By domain* (``domain.Push``): the right side is computed for each distinct combination of the
values that it reads of the left side, and joined on these.

Where not every row of the left side asks for the right one (``Apply.asks``), the domain has the values of
those that do, and what is computed above the join is computed for those only:

    Apply(l, r, asks c) = LeftJoin(l, Push(Distinct[what r reads](Filter[c](l)), r))

The others may find rows of the right side or not: nobody looks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace import types as t
from headrace.planner.logical.failing import fails, serious
from headrace.planner.logical.nodes import (
    LEFT_ONLY,
    Agg,
    Aggregate,
    Apply,
    Col,
    Distinct,
    Filter,
    Functions,
    Join,
    Node,
    Project,
    TopK,
    Values,
    Window,
    children,
    expressions,
    free,
    ids,
    with_children,
)
from headrace.planner.logical.renumber import Copies, defined, mapped
from headrace.planner.logical.scalar import (
    Call,
    Const,
    Expr,
    Ref,
    raises,
    refs,
    substitute,
)
from headrace.planner.logical.uniqueness import exactly_one
from headrace.planner.passes.domain import Domain, Push
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.typekeys import is_key

_COUNTS: Final = frozenset({"count", "count_star"})
_NULL_OVER_NOTHING: Final = frozenset(
    {
        *("sum", "avg", "min", "max", "any", "any_value", "bool_and", "bool_or"),
        *("every", "bit_and", "bit_or", "bit_xor", "string_agg", "array_agg"),
        *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"),
        *("json_agg", "jsonb_agg", "json_object_agg", "jsonb_object_agg", "xmlagg"),
        *("percentile_cont", "percentile_disc", "mode", "range_agg", "corr"),
        *("covar_pop", "covar_samp", "range_intersect_agg"),
    }
)
"""Built-in aggregates whose value over no rows is NULL."""


def decorrelate(plan: Node, context: QueryContext) -> Node:
    """``plan`` without ``Apply`` and without free references; the same columns."""
    if not any(isinstance(n, Apply) for n in _walk(plan)):
        return plan
    result = _Decorrelation(context, max(defined(plan), default=0)).run(plan)
    assert not free(result), "no reference is left without its column"
    return result


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _walk(child)


@dataclass(frozen=True, slots=True)
class Lifted:
    """A right side that reads nothing of the left one, and what is left to do.

    For a row of the left side its rows are those of ``node`` for which all of ``match`` is true.
    ``late`` are the columns that are computed above the join.  ``always``: there is exactly one
    row, also where none matches (NULLs in ``node``'s columns then); ``after`` filters it.
    """

    node: Node
    match: tuple[Expr, ...] = ()
    late: dict[int, Expr] = field(default_factory=dict)
    always: bool = False
    after: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Restricted:
    """A domain of the left side, what its columns are called there, and how it joins."""

    push: Push
    domain: Domain
    mapping: dict[int, int]
    same: tuple[Expr, ...]


class _Decorrelation:
    def __init__(self, context: QueryContext, highest: int) -> None:
        self._context = context
        self._ids = itertools.count(highest + 1)
        self._copies = Copies(self._ids)

    def run(self, node: Node) -> Node:
        """``node`` without ``Apply``, from below."""
        node = with_children(node, tuple(self.run(c) for c in children(node)))
        if not isinstance(node, Apply):
            return node
        outer = self._copies.free(node.right) & ids(node.left)
        one = exactly_one(node.right)
        if node.kind == "left" and not node.condition and one and not node.asks:
            node = dataclasses.replace(node, kind="inner")
        result = self._carried(node) if outer and not node.asks else None
        if result is None:
            lifted = self._lift(node, outer).lift(node.right, top=True)
            if lifted is not None and not self._asks(node, lifted):
                result = self._join(node, lifted)
        if result is None:
            result = self._by_domain(node, outer)
        if [c.id for c in result.columns] == [c.id for c in node.columns]:
            return result
        return Project(result, tuple((c, c.ref) for c in node.columns))

    def _asks(self, node: Apply, lifted: Lifted) -> bool:
        """Whether something below the join, or in it, may fail for rows that nobody asks for."""
        if node.asks and any(map(fails, lifted.match)):
            return True
        if lifted.always or serious(lifted.node):
            return serious(lifted.node)
        tests = [substitute(c, lifted.late) for c in node.condition]
        mine = ids(node.left)
        if any(fails(p) and not refs(p) & mine for p in (*lifted.match, *tests)):
            return True
        # An equality that may fail is a join's key, computed for all rows, if it is the only one.
        equal = [p for p in (*lifted.match, *tests) if _equality(p) is not None]
        return bool(equal) and all(map(fails, equal))

    # -- over the rows of the left side

    def _carried(self, node: Apply) -> Node | None:
        if node.kind == "inner":
            over = self._over(node.left, node.right)
            if over is None:
                return None
            return Filter(over, node.condition) if node.condition else over
        right = node.right
        direct = isinstance(right, Functions) and _is_unit(right.input)
        if node.kind == "left" and direct and not node.condition:
            assert isinstance(right, Functions)
            return dataclasses.replace(right, input=node.left, outer=True)
        return None

    def _over(self, left: Node, node: Node) -> Node | None:
        """``left`` joined with ``node`` where that only maps, filters and multiplies rows."""
        if _is_unit(node):
            return left
        if not isinstance(node, Filter | Project | Functions):
            return None
        below = self._over(left, node.input)
        if below is None:
            return None
        if isinstance(node, Project):
            kept = tuple((c, c.ref) for c in left.columns)
            return Project(below, kept + node.items)
        return dataclasses.replace(node, input=below)

    # -- lifted conditions

    def _join(self, node: Apply, lifted: Lifted) -> Node | None:
        condition = tuple(substitute(c, lifted.late) for c in node.condition)
        if lifted.always:
            return self._always(node, lifted, lifted.after + condition)
        match = lifted.match + condition
        if node.kind in LEFT_ONLY:
            return Join(node.left, lifted.node, match, node.kind)
        if node.kind == "inner":
            joined: Node = Join(node.left, lifted.node, match)
            return self._finished(node, joined, lifted.late)
        if not any(c.id in lifted.late for c in node.right.columns):
            return Join(node.left, lifted.node, match, "left")
        mark = self._column("matched", Const("t", t.BOOL))
        passed = tuple((c, c.ref) for c in lifted.node.columns)
        marked = Project(lifted.node, (*passed, (mark, Const("t", t.BOOL))))
        there = build.null_test(self._context, "is_not_null", mark.ref)
        late = {
            i: build.guarded(self._context, there, e) for i, e in lifted.late.items()
        }
        return self._finished(node, Join(node.left, marked, match, "left"), late)

    def _always(self, node: Apply, lifted: Lifted, tests: tuple[Expr, ...]) -> Node:
        joined: Node = Join(node.left, lifted.node, lifted.match, "left")
        if node.kind == "left":
            late = lifted.late
            if tests:
                passes = self._all(tests)
                late = {
                    c.id: build.guarded(self._context, passes, late.get(c.id, c.ref))
                    for c in node.right.columns
                }
            return self._finished(node, joined, late)
        if node.kind == "anti":
            fails = build.boolean_test(self._context, "is_not_true", self._all(tests))
            return Filter(joined, (fails,))
        if tests:
            joined = Filter(joined, tests)
        if node.kind == "semi":
            return joined
        return self._finished(node, joined, lifted.late)

    def _all(self, tests: tuple[Expr, ...]) -> Expr:
        if not tests:
            return Const("t", t.BOOL)
        return tests[0] if len(tests) == 1 else build.logic(self._context, "and", tests)

    def _finished(self, node: Apply, joined: Node, late: dict[int, Expr]) -> Node:
        if not late:
            return joined
        if node.asks:
            asks = self._all(node.asks)
            late = {
                i: build.guarded(self._context, asks, e) if raises(e) else e
                for i, e in late.items()
            }
        return Project(joined, tuple((c, late.get(c.id, c.ref)) for c in node.columns))

    def _column(self, name: str, expr: Expr) -> Col:
        return _column(self._ids, name, expr)

    # -- by domain

    def _lift(self, node: Apply, outer: frozenset[int]) -> Lift:
        return Lift(
            self._context,
            self._ids,
            outer,
            self._copies.free,
            lambda read: self._domain(node.left, read),
        )

    def _domain(self, left: Node, read: frozenset[int]) -> Restricted:
        push = Push(self._context, self._ids, self._copies)
        left = _lean(left, read)
        copy = self._copies.again(left)
        columns = [c for c in left.columns if c.id in read]
        copies = dict(zip(ids_of(left), ids_of(copy), strict=True))
        domain, mapping = push.domain(copy, [(c, copies[c.id]) for c in columns])
        return Restricted(push, domain, mapping, push.same(domain, columns))

    def _by_domain(self, node: Apply, outer: frozenset[int]) -> Node:
        left = Filter(node.left, node.asks) if node.asks else node.left
        to = self._domain(left, outer)
        right = to.push.push(to.domain, to.push.renamed(node.right, to.mapping))
        return Join(node.left, right, (*to.same, *node.condition), node.kind)


def ids_of(node: Node) -> list[int]:
    """Ids of the output columns, in order."""
    return [c.id for c in node.columns]


def _column(numbers: Iterator[int], name: str, expr: Expr) -> Col:
    return Col(next(numbers), name, expr.oid, expr.typmod, expr.collation)


def _lean(node: Node, read: frozenset[int]) -> Node:
    """``node`` for a reader of the distinct values of the columns ``read``.

    What earlier subqueries put beside the rows, and takes none away, is left out.
    """
    match node:
        case Join(kind="left") if not ids(node.right) & read:
            return _lean(node.left, read)
        case Join(kind="inner", condition=()) if not ids(
            node.right
        ) & read and exactly_one(node.right):
            return _lean(node.left, read)
        case Filter():
            more = read.union(*map(refs, node.predicates))
            return Filter(_lean(node.input, more), node.predicates)
        case Project():
            items = tuple((c, e) for c, e in node.items if c.id in read)
            more = frozenset().union(*(refs(e) for _, e in items))
            return Project(_lean(node.input, more), items)
        case _:
            return node


def _failing_chain(node: Node) -> bool:
    """Whether something may fail in the filters and projections on top."""
    while isinstance(node, Filter | Project):
        if any(map(raises, expressions(node))):
            return True
        node = node.input
    return False


def _is_unit(node: Node) -> bool:
    """One row without columns."""
    return isinstance(node, Values) and node.rows == ((),)


class Lift:
    """Moves what reads ``outer`` columns up and out of a plan, as far as that is exact."""

    def __init__(
        self,
        context: QueryContext,
        numbers: Iterator[int],
        outer: frozenset[int],
        free: Callable[[Node], frozenset[int]],
        domain: Callable[[frozenset[int]], Restricted],
    ) -> None:
        """``domain`` makes one of the outer columns with these ids; ``free``: ``Copies.free``."""
        self._context = context
        self._ids = numbers
        self._outer = outer
        self._free = free
        self._domain = domain

    def lift(self, node: Node, *, top: bool = False) -> Lifted | None:
        """``node`` without free references to the outer columns, or None.

        ``top``: there is only the join above, so all that may fail goes there.
        """
        if not self._free(node) & self._outer and not (top and _failing_chain(node)):
            return Lifted(node)
        match node:
            case Filter():
                return self._filter(node, top=top)
            case Project():
                return self._project(node, top=top)
            case Join():
                return self._join(node)
            case Aggregate():
                return self._aggregate(node)
            case Distinct():
                return self._distinct(node)
            case TopK() | Window():
                return self._partitioned(node)
            case _:
                return None

    def _reads(self, expr: Expr) -> bool:
        return bool(refs(expr) & self._outer)

    def _filter(self, node: Filter, *, top: bool) -> Lifted | None:
        below = self.lift(node.input, top=top)
        if below is None:
            return None
        tests = tuple(substitute(p, below.late) for p in node.predicates)
        if below.always:
            return dataclasses.replace(below, after=below.after + tests)
        correlated = top or below.match or any(self._reads(p) for p in tests)
        up = tuple(p for p in tests if self._reads(p) or (correlated and raises(p)))
        stay = tuple(p for p in tests if p not in up)
        kept = Filter(below.node, stay) if stay else below.node
        return dataclasses.replace(below, node=kept, match=below.match + up)

    def _project(self, node: Project, *, top: bool) -> Lifted | None:
        below = self.lift(node.input, top=top)
        if below is None:
            return None
        moved = top or below.match or below.always
        items: dict[int, tuple[Col, Expr]] = {}
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
        kept = Project(below.node, tuple(items.values())) if items else below.node
        return dataclasses.replace(below, node=kept, late=late)

    def _join(self, node: Join) -> Lifted | None:
        left = self.lift(node.left)
        if left is None or left.always:
            return None
        if node.kind != "inner":
            if node.kind == "full" or self._free(node.right) & self._outer:
                return None
            tests = [substitute(c, left.late) for c in node.condition]
            if any(self._reads(c) or (left.match and raises(c)) for c in tests):
                return None
            joined = Join(left.node, node.right, tuple(tests), node.kind)
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
        return Lifted(Join(left.node, right.node, stay), matched + up, late)

    def _aggregate(self, node: Aggregate) -> Lifted | None:
        late = self._over_nothing(node)
        below = self._keyed(node.input)
        lifted = None
        if below is not None and late is not None:
            lifted = self._by_keys(node, below, late)
        if lifted is None and late is not None and not node.keys:
            lifted = self._within(node, late)
        return lifted

    def _over_nothing(self, node: Aggregate) -> dict[int, Expr] | None:
        """How NULLs become what aggregates are over no rows; None: not known."""
        if node.always:
            return None
        if node.keys:
            return {}
        if not all(a.function in _COUNTS or _null_over_nothing(a) for a in node.aggs):
            return None
        return {
            a.column.id: self._or_zero(a.column.ref)
            for a in node.aggs
            if a.function in _COUNTS
        }

    def _by_keys(
        self, node: Aggregate, below: Lifted, late: dict[int, Expr]
    ) -> Lifted | None:
        """The groups of each value of the inner columns that are compared."""
        node = dataclasses.replace(node, input=below.node)
        read = frozenset().union(*(refs(e) for e in expressions(node)))
        if read & (self._outer | below.late.keys()):
            return None
        if below.match and any(raises(e) for e in expressions(node)):
            return None
        keys, match = self._as_keys(below.match)
        result = dataclasses.replace(node, keys=node.keys + keys)
        return Lifted(result, match, late, always=not node.keys)

    def _within(self, node: Aggregate, late: dict[int, Expr]) -> Lifted:
        """One group for each combination of the outer columns that are read."""
        to = self._domain(self._free(node) & self._outer)
        renamed = mapped(node, to.mapping)
        below = to.push.push(to.domain, renamed.input)
        keys: list[tuple[Col, Expr]] = []
        mapping: dict[int, int] = {}
        for column in to.domain.keys:
            keys.append((_column(self._ids, column.name, column.ref), column.ref))
            mapping[column.id] = keys[-1][0].id
        result = dataclasses.replace(renamed, input=below, keys=tuple(keys))
        same = tuple(mapped(test, mapping) for test in to.same)
        return Lifted(result, same, late, always=True)

    def _keyed(self, node: Node) -> Lifted | None:
        """``node`` lifted, if only equalities of columns and tests of outer columns are left."""
        below = self.lift(node)
        if below is None or below.always:
            return None
        if any(self._pair(p) is None and refs(p) - self._outer for p in below.match):
            return None
        return below

    def _as_keys(
        self, match: tuple[Expr, ...]
    ) -> tuple[tuple[tuple[Col, Expr], ...], tuple[Expr, ...]]:
        """The inner sides of equalities as keys, and the equalities with these."""
        keys: dict[Expr, Col] = {}
        tests: list[Expr] = []
        for predicate in match:
            pair = self._pair(predicate)
            if pair is None:
                tests.append(predicate)
                continue
            inner = pair[1]
            if inner not in keys:
                name = inner.label if isinstance(inner, Ref) else "key"
                keys[inner] = _column(self._ids, name.rsplit(".", 1)[-1], inner)
            tests.append(replaced(predicate, inner, keys[inner].ref))
        return tuple((c, e) for e, c in keys.items()), tuple(tests)

    def _pair(self, predicate: Expr) -> tuple[Expr, Expr] | None:
        """(outer side, inner side) of an equality that our keys decide."""
        equality = _equality(predicate)
        if equality is None:
            return None
        first, second = equality.args
        if refs(second) <= self._outer:
            first, second = second, first
        if not refs(first) <= self._outer or refs(second) & self._outer:
            return None
        if not refs(second) or raises(second):
            return None
        catalog = self._context.catalog
        if not is_key(catalog, second.oid, equality.input_collation):
            return None
        return first, second

    def _with_keys(
        self, below: Lifted
    ) -> tuple[Node, tuple[tuple[Col, Expr], ...], tuple[Expr, ...]]:
        """The node with the inner sides of its equalities as more columns."""
        keys, match = self._as_keys(below.match)
        passed = tuple((c, c.ref) for c in below.node.columns)
        node = Project(below.node, passed + keys) if keys else below.node
        return node, keys, match

    def _distinct(self, node: Distinct) -> Lifted | None:
        below = self._keyed(node.input)
        if below is None or any(refs(e) - self._outer for e in below.late.values()):
            return None
        wanted = ids(node)
        keys, match = self._as_keys(below.match)
        passed = tuple((c, c.ref) for c in below.node.columns if c.id in wanted)
        if not passed + keys:
            return None
        return Lifted(Distinct(Project(below.node, passed + keys)), match, below.late)

    def _partitioned(self, node: TopK | Window) -> Lifted | None:
        below = self._keyed(node.input)
        if below is None:
            return None
        read = frozenset().union(*(refs(e) for e in expressions(node)))
        if read & (self._outer | below.late.keys()):
            return None
        inner, keys, match = self._with_keys(below)
        more = tuple(c.ref for c, _ in keys)
        result = dataclasses.replace(node, input=inner, keys=node.keys + more)
        return Lifted(result, match, below.late)

    def _or_zero(self, count: Ref) -> Expr:
        args = (count, Const("0", t.INT8))
        return build.coalesce(self._context, args, (t.INT8, -1, 0))


def _equality(predicate: Expr) -> Call | None:
    """``predicate`` if it is a native ``=``; of NOT (… IS DISTINCT FROM …) the inner part."""
    if not isinstance(predicate, Call) or predicate.native is None:
        return None
    if predicate.symbol == "not" and isinstance(predicate.args[0], Call):
        [inner] = predicate.args
        assert isinstance(inner, Call)
        same = inner.symbol == "is_distinct_from" and inner.native is not None
        return inner if same else None
    return predicate if predicate.symbol == "=" else None


def replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """``expr`` with ``new`` wherever ``old`` stands in it."""
    if expr == old:
        return new
    if not isinstance(expr, Call):
        return expr
    args = tuple(replaced(a, old, new) for a in expr.args)
    return dataclasses.replace(expr, args=args)


def _null_over_nothing(agg: Agg) -> bool:
    name = agg.name if agg.function == "remote" else agg.function
    if agg.function == "remote" and not agg.sql.startswith("pg_catalog."):
        return False
    return name in _NULL_OVER_NOTHING
