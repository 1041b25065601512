"""Subqueries in expressions: EXISTS, IN, ANY, ALL, scalar and row-wise ones, ARRAY.

Each becomes an ``Apply`` below the node that evaluates the expression, and is replaced by columns
of the ``Apply``:

    x op (SELECT …)      left Apply of the one row; ``single`` fails if there are more
    [NOT] EXISTS, IN …   as a conjunct of WHERE or ON: semi or anti Apply
    anywhere else        left Apply of counts: rows that match, rows for which it is unknown

For a subquery that may fail inside CASE, COALESCE, AND or OR, ``Apply.asks`` selects the rows
that need it.

IN, ANY and ALL are three-valued.  ``x = ANY (S)`` is true if some y = x; else unknown if S is not
empty and x is NULL, or if S has a NULL; else false.  So a row passes NOT IN only if no y is
equal, no y is NULL, and x is not NULL or S is empty.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from headrace import types as t
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import frozen
from headrace.planner.logical import facts
from headrace.planner.logical.facts import serious
from headrace.planner.logical.nodes import (
    Agg,
    AggregateNode,
    Col,
    FilterNode,
    Node,
    OrderNode,
    free,
    ids,
)
from headrace.planner.logical.scalar import ARG, SINGLE, Call, Const, Expr, Ref, conjuncts, refs
from headrace.planner.scalars import build
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope, Site, home

EXISTS, ALL, ANY, ROWCOMPARE, EXPR, MULTIEXPR, ARRAY = 0, 1, 2, 3, 4, 5, 6
"""SubLinkType."""
_PARAM_SUBLINK: Final = 2
_TRUE: Final = Const("t", t.BOOL)
_FALSE: Final = Const("f", t.BOOL)
_UNKNOWN: Final = Const(None, t.BOOL)
_ZERO: Final = Const("0", t.INT8)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The value of a subquery that may occur at several places."""

    scope: Scope
    when: tuple[tuple[str, Expr], ...]
    """The tests that a row must pass for the subquery to run, as in ``Scope``."""
    value: Expr

    def serves(self, scope: Scope) -> bool:
        """Return whether the same subquery has this value in another scope too."""
        mine = self.scope
        if len(scope.sites) != 1 or len(mine.sites) != 1 or scope.sites[0] is not mine.sites[0]:
            return False
        [site] = scope.sites
        return (
            isinstance(site, Site)
            and scope.special is mine.special
            and scope.case_value is mine.case_value
            and scope.above is mine.above
            and scope.depth == mine.depth
            and self.when in ((), scope.when)
            and refs(self.value) <= ids(site.node)
        )


class Subqueries:
    """Makes expressions, and semi and anti joins, of the subqueries of one query level."""

    def __init__(
        self,
        lowering: Lowering,
        column: Callable[[str, Expr], Col],
        bind: Callable[[Tree, Scope], Node],
        bind_sorted: Callable[[Tree, Scope], tuple[Node, tuple[OrderNode, ...]]],
    ) -> None:
        """``bind`` binds a query in a scope, with new column ids every time.

        ``bind_sorted`` also appends the sort columns to the query's own, and returns the order.
        """
        self._bind_sorted = bind_sorted
        self._lowering = lowering
        self._column = column
        self._bind = bind
        self._known: dict[tuple[int, Hashable], list[_Shared]] = {}
        self._asked = False
        """Whether a subquery runs only for the rows that need it."""

    # -- as a value

    def value(self, node: Tree, scope: Scope) -> Expr:
        """Return the expression that replaces the subquery in the enclosing expression."""
        kind = node.number("subLinkType")
        if kind in (EXISTS, EXPR):
            return self._shared(node, kind, scope)
        kinds = {ALL: self._all, ANY: self._any, ROWCOMPARE: self._row, ARRAY: self._array}
        found = kinds.get(kind)
        if found is None:
            self._lowering.refuse("this kind of subquery", node)
        return found(node, scope)

    def _shared(self, node: Tree, kind: int, scope: Scope) -> Expr:
        """Return the value of EXISTS or a scalar subquery; equal subqueries are attached once."""
        known = self._known.setdefault((kind, frozen(node.child("subselect"))), [])
        for each in known:
            if each.serves(scope):
                return each.value
        self._asked = False
        if kind == EXISTS:
            value = self._positive(self._count(node, scope))
        else:
            [value] = self._one(node, scope)
        known.append(_Shared(scope, scope.when if self._asked else (), value))
        return value

    def _hang(self, scope: Scope, right: Node) -> None:
        """Join ``right``; if it may fail, it runs only for the rows that need it."""
        asks = self._asks(scope) if serious(right) else ()
        self._asked = self._asked or bool(asks)
        read = frozenset().union(free(right), *map(refs, asks))
        home(scope.sites, read).hang(right, asks=asks)

    def _asks(self, scope: Scope) -> tuple[Expr, ...]:
        """Return the tests under which the enclosing expression needs a subquery."""
        tests: list[Expr] = []
        later = scope.later | refs_of(self._lowering.known.values())
        for symbol, expr in scope.when:
            above = _above(scope, expr)
            if refs(above) & later:
                self._lowering.refuse(
                    "a subquery that may fail inside of CASE, COALESCE, AND or OR"
                    " beside a window or set-returning function",
                    hint="Compute the function in a subquery in FROM.",
                )
            if symbol == "is_null":
                tests.append(build.null_test(self._lowering, symbol, above))
            else:
                tests.append(build.boolean_test(self._lowering, symbol, above))
        return tuple(tests)

    def _one(self, node: Tree, scope: Scope) -> list[Expr]:
        """Return the columns of the subquery's only row; NULL if there is none."""
        right = self._bind(node.child("subselect"), scope)
        if facts.at_most_one(right):
            self._hang(scope, right)
            return [c.ref for c in right.columns]
        count = self._column("count(*)", _ZERO)
        aggs = [Agg(count, "count_star", name="count")]
        values: list[Expr] = []
        for column in right.columns:
            value = self._column(column.name, column.ref)
            aggs.append(Agg(value, "any", column.ref, name="any"))
            values.append(single(count.ref, value.ref))
        self._hang(scope, AggregateNode(right, (), tuple(aggs)))
        return values

    def _row(self, node: Tree, scope: Scope) -> Expr:
        return self._test(node, scope, self._one(node, scope))

    def _array(self, node: Tree, scope: Scope) -> Expr:
        """Return the values as an array in the order of the subquery, empty if it has no rows."""
        lowering = self._lowering
        right, order = self._bind_sorted(node.child("subselect"), scope)
        value = right.columns[0]
        oid = lowering.catalog.types.array_of(value.oid)
        if not oid or lowering.catalog.types[value.oid].kind in ("c", "p"):
            lowering.refuse(f"an array of type {lowering.type_name(value.oid)}", node)
        more = tuple(dict.fromkeys(o.column for o in order if o.column != value.ref))
        places: dict[Ref, int] = {ref: n for n, ref in enumerate((value.ref, *more), 1)}
        by = [
            f"${places[o.column]} USING {o.operator} NULLS {'FIRST' if o.nulls_first else 'LAST'}"
            for o in order
        ]
        column = self._column("array", Const(None, oid, -1, value.collation))
        agg = Agg(
            column,
            "remote",
            value.ref,
            sql=f"pg_catalog.array_agg($1 ORDER BY {', '.join([*by, '$0'])})",
            name="array_agg",
            more=more,
            trusted=all(lowering.plain_type(c.oid) for c in (value.ref, *more)),
            shows_order=True,
        )
        self._hang(scope, AggregateNode(right, (), (agg,)))
        return self._or_empty(column.ref)

    def _or_empty(self, array: Ref) -> Expr:
        args = (array, Const("{}", array.oid, -1, array.collation))
        result = (array.oid, -1, array.collation)
        return build.coalesce(self._lowering, args, result)

    def _count(self, node: Tree, scope: Scope) -> Ref:
        right = self._bind(node.child("subselect"), scope)
        [count] = self._counts(scope, right, [None])
        return count

    def _counts(self, scope: Scope, right: Node, filters: list[Expr | None]) -> list[Ref]:
        """Return how many rows of ``right`` satisfy each of ``filters``."""
        columns = [self._column("count(*)", _ZERO) for _ in filters]
        aggs = tuple(
            Agg(column, "count_star", filter=f, name="count")
            for column, f in zip(columns, filters, strict=True)
        )
        self._hang(scope, AggregateNode(right, (), aggs))
        return [c.ref for c in columns]

    def _any(self, node: Tree, scope: Scope) -> Expr:
        right = self._bind(node.child("subselect"), scope)
        test = self._test(node, scope, [c.ref for c in right.columns])
        pair = _pair(test, right)
        if pair is None:
            true, unknown = self._counts(
                scope, right, [self._is("is_true", test), self._is("is_unknown", test)]
            )
            return self._choose(true, _TRUE, self._positive(unknown), _FALSE)
        outer, inner = pair
        [equal] = self._counts(scope, FilterNode(right, (test,)), [None])
        unknown_when = self._unknown(node, scope, outer, inner, right)
        if unknown_when is None:
            return self._positive(equal)
        return self._choose(equal, _TRUE, unknown_when, _FALSE)

    def _unknown(
        self, node: Tree, scope: Scope, outer: Expr, inner: Ref, right: Node
    ) -> Expr | None:
        """Return when ``outer = ANY (…)`` is unknown for a row without an equal; None: never."""
        sure_inner = facts.not_null(right, inner.id)
        sure_outer = self._sure(scope, outer)
        if sure_inner and sure_outer:
            return None
        again = self._bind(node.child("subselect"), scope)
        place = [c.id for c in right.columns].index(inner.id)
        nulls = build.null_test(self._lowering, "is_null", again.columns[place].ref)
        total, unknown = self._counts(scope, again, [None, nulls])
        null = build.null_test(self._lowering, "is_null", outer)
        empty = build.logic(self._lowering, "and", (null, self._positive(total)))
        return build.logic(self._lowering, "or", (empty, self._positive(unknown)))

    def _sure(self, scope: Scope, outer: Expr) -> bool:
        """Return whether ``outer`` is known not to be NULL."""
        if isinstance(outer, Const):
            return outer.text is not None
        nodes = [s.node for s in scope.sites if isinstance(s, Site)]
        return isinstance(outer, Ref) and any(
            outer.id in ids(n) and facts.not_null(n, outer.id) for n in nodes
        )

    def _all(self, node: Tree, scope: Scope) -> Expr:
        right = self._bind(node.child("subselect"), scope)
        test = self._test(node, scope, [c.ref for c in right.columns])
        false, unknown = self._counts(
            scope, right, [self._is("is_false", test), self._is("is_unknown", test)]
        )
        return self._choose(false, _FALSE, self._positive(unknown), _TRUE)

    def _choose(self, count: Ref, found: Const, unknown: Expr, other: Const) -> Expr:
        args = (self._positive(count), found, unknown, _UNKNOWN, other)
        return build.choice(self._lowering, args, build.BOOLEAN)

    def _positive(self, count: Ref) -> Expr:
        return build.comparison(self._lowering, ">", count, _ZERO, 0)

    def _is(self, symbol: str, test: Expr) -> Expr:
        return build.boolean_test(self._lowering, symbol, test)

    def _test(self, node: Tree, scope: Scope, columns: list[Expr]) -> Expr:
        """Return the comparison of the left-hand side with ``columns`` of the subquery."""

        def special(tree: Tree) -> Expr | None:
            if tree.kind == "PARAM" and tree.number("paramkind") == _PARAM_SUBLINK:
                return columns[tree.number("paramid") - 1]
            return scope.special(tree) if scope.special is not None else None

        inner = dataclasses.replace(scope, special=special)
        return _above(scope, self._lowering.lower(node.child("testexpr"), inner))

    # -- as a condition

    def filter(self, condition: Tree, scope: Scope) -> None:
        """Keep the rows of the scope's only site for which ``condition`` is true.

        Conjuncts without a subquery come first, as in Postgres, because they are cheaper.
        """
        [site] = scope.sites
        parts = conjunct_trees(condition)
        for part in parts:
            if not has_subquery(part):
                site.filter(_above(scope, self._lowering.lower(part, scope)))
        for part in parts:
            if has_subquery(part) and not self._joined(part, scope):
                site.filter(_above(scope, self._lowering.lower(part, scope)))

    def _joined(self, part: Tree, scope: Scope) -> bool:
        """Make a semi or anti join of ``part`` if it is [NOT] EXISTS, IN, ANY or ALL."""
        negated = False
        while part.kind == "BOOLEXPR" and part.text("boolop") == "not":
            negated = not negated
            [part] = part.nodes("args")
        kind = part.number("subLinkType", -1)
        if part.kind != "SUBLINK" or kind not in (EXISTS, ANY, ALL):
            return False
        [site] = scope.sites
        right = self._bind(part.child("subselect"), scope)
        if kind == EXISTS:
            site.hang(right, (), "anti" if negated else "semi")
            return True
        test = self._test(part, scope, [c.ref for c in right.columns])
        if kind == ANY and negated:
            self._not_any(part, scope, right, test)
        elif kind == ANY:
            site.hang(right, tuple(conjuncts(test)), "semi")
        elif negated:
            site.hang(right, (self._is("is_false", test),), "semi")
        elif (equal := self._negated(test)) is not None:
            self._not_any(part, scope, right, equal)
        else:
            site.hang(right, (self._is("is_not_true", test),), "anti")
        return True

    def _negated(self, test: Expr) -> Expr | None:
        """Return ``x = y`` for ``x <> y``, or None."""
        if not isinstance(test, Call) or test.symbol != "<>" or test.native is None:
            return None
        left, right = test.args
        return build.comparison(self._lowering, "=", left, right, test.input_collation)

    def _not_any(self, part: Tree, scope: Scope, right: Node, test: Expr) -> None:
        """Apply NOT IN, with NULLs as in the module docstring, by anti joins."""
        [site] = scope.sites
        tests = conjuncts(test)
        pairs = [_pair(x, right) for x in tests]
        known = [p for p in pairs if p is not None]
        doubtful = [
            (outer, inner)
            for outer, inner in known
            if not (facts.not_null(right, inner.id) and self._sure(scope, outer))
        ]
        if len(known) < len(pairs) or (doubtful and len(pairs) > 1):
            site.hang(right, (self._is("is_not_false", test),), "anti")
            return
        site.hang(right, tuple(tests), "anti")
        for outer, inner in doubtful:
            place = [c.id for c in right.columns].index(inner.id)
            if not facts.not_null(right, inner.id):
                again = self._bind(part.child("subselect"), scope)
                null = build.null_test(self._lowering, "is_null", again.columns[place].ref)
                site.hang(FilterNode(again, (null,)), (), "anti")
            if not self._sure(scope, outer):
                again = self._bind(part.child("subselect"), scope)
                null = build.null_test(self._lowering, "is_null", outer)
                site.hang(again, (null,), "anti")


def single(count: Ref, value: Ref) -> Call:
    """Return ``value``; evaluating it raises error 21000 if ``count`` is more than one."""
    return Call(
        symbol=SINGLE,
        args=(count, value),
        oid=value.oid,
        typmod=value.typmod,
        collation=value.collation,
        sql=f"{SINGLE}({ARG}, {ARG})",
        show=f"{SINGLE}({ARG}, {ARG})",
        native=SINGLE,
        raises=True,
    )


def refs_of(exprs: Iterable[Expr]) -> frozenset[int]:
    """Return the ids of all columns that ``exprs`` read."""
    return frozenset().union(*map(refs, exprs))


def _above(scope: Scope, expr: Expr) -> Expr:
    return scope.above(expr) if scope.above is not None else expr


def _pair(test: Expr, right: Node) -> tuple[Expr, Ref] | None:
    """Return (outer expression, column of ``right``) of a native equality, or None."""
    if not isinstance(test, Call) or test.symbol != "=" or test.native is None:
        return None
    first, second = test.args
    mine = ids(right)
    if refs(first) & mine:
        first, second = second, first
    if refs(first) & mine or not isinstance(second, Ref) or second.id not in mine:
        return None
    return first, second


def conjunct_trees(condition: Tree) -> list[Tree]:
    """Return the parts of a conjunction, in order."""
    if condition.kind == "BOOLEXPR" and condition.text("boolop") == "and":
        return [p for arg in condition.nodes("args") for p in conjunct_trees(arg)]
    return [condition]


def has_subquery(tree: Tree) -> bool:
    """Return whether ``tree`` contains a subquery."""
    return any(node.kind == "SUBLINK" for node in tree.walk())
