"""GROUP BY, HAVING and aggregate functions of one query level."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from headrace import types as t
from headrace.expressions import keys
from headrace.planner.logical import Agg, Aggregate, Col, Node, ids
from headrace.planner.lower import Lowering, Scope
from headrace.planner.nodetree import Node as Tree
from headrace.planner.nodetree import same
from headrace.planner.scalar import (
    Call,
    Const,
    Expr,
    Ref,
    raises,
    show,
)
from headrace.planner.sites import LateSite, Site
from headrace.planner.subqueries import has_subquery

_NUMBERS: Final = frozenset({t.INT2, t.INT4, t.INT8, t.NUMERIC, t.FLOAT4, t.FLOAT8})
_FUNCTIONS: Final = frozenset({"count", "sum", "avg", "min", "max"})

NewColumn = Callable[[str, Expr], Col]


class Grouping:
    """Binds the grouped expressions of one query level."""

    def __init__(
        self, lowering: Lowering, column: NewColumn, query: Tree, scope: Scope
    ) -> None:
        self._lowering = lowering
        self._column = column
        self._query = query
        self._base = scope
        self._keys: list[tuple[Col, Expr]] = []
        self._shown: dict[Expr, Ref] = {}
        self._aggs: list[Agg] = []
        self._known: dict[tuple[object, ...], Ref] = {}
        self._input: frozenset[int] = frozenset()
        self._trees: list[tuple[Tree, Expr]] = []

    def bind(self, node: Node, targets: list[Tree]) -> tuple[Node, list[Expr]]:
        """The grouped plan over ``node`` and what ``targets`` are above it."""
        self._input = ids(node)
        by_ref = {
            e.number("ressortgroupref"): e.child("expr")
            for e in self._query.nodes("targetList")
            if e.number("ressortgroupref")
        }
        for clause in self._query.nodes("groupClause"):
            key = by_ref[clause.number("tleSortGroupRef")]
            expr = self._lowering.lower(key, self._base)
            if has_subquery(key):
                self._trees.append((key, expr))
            self._add_key(expr)
        groups, survivors = LateSite(), LateSite()
        scope = dataclasses.replace(
            self._base, special=self._special, above=self.above, sites=(survivors,)
        )
        exprs = [
            self.above(self._lowering.lower(e.child("expr"), scope)) for e in targets
        ]
        having = self._query.node("havingQual")
        if having is not None:
            assert scope.subqueries is not None, "a query level has them"
            groups_scope = dataclasses.replace(scope, sites=(groups,))
            scope.subqueries.filter(having, groups_scope)
        if not self._keys and not self._aggs:
            # HAVING or GROUP BY () alone: one row, and rows need a column.
            count = self._column("count(*)", Const(None, t.INT8))
            self._add(Agg(count, "count_star", name="count"))
        [below] = self._base.sites
        assert isinstance(below, Site), "what the groups are made of is known"
        result = Aggregate(below.node, tuple(self._keys), tuple(self._aggs))
        return survivors.over(groups.over(result)), exprs

    def _special(self, node: Tree) -> Expr | None:
        """A grouped expression with a subquery in it is known by its tree."""
        for tree, expr in self._trees:
            if tree.kind == node.kind and same(tree, node):
                return expr
        return self._aggregate(node)

    def _add_key(self, expr: Expr) -> Ref:
        if expr in self._shown:
            return self._shown[expr]
        self._require_key(expr, "GROUP BY")
        label = show(expr)
        column = self._column(label, expr)
        self._keys.append((column, expr))
        shown = column.ref
        if not keys.is_canonical(expr.oid):
            # Equal keys may look different (1.0, 1.00): the group shows one of them.
            shown = self._add(Agg(self._column(label, expr), "any", expr, name="any"))
        self._shown[expr] = shown
        return shown

    def above(self, expr: Expr) -> Expr:
        """``expr`` in terms of the aggregate's output."""
        if expr in self._shown:
            return self._shown[expr]
        match expr:
            case Const():
                return expr
            case Ref():
                if expr.id not in self._input:
                    return expr  # an aggregate, or a column of an outer query
                # Allowed by Postgres because a key determines it: one more key.
                return self._add_key(expr)
            case Call():
                args = tuple(self.above(a) for a in expr.args)
                return dataclasses.replace(expr, args=args)

    def _require_key(self, expr: Expr, construct: str) -> None:
        lowering = self._lowering
        kind = lowering.catalog.type(expr.oid)
        element = lowering.catalog.type(kind.element).kind if kind.element else "b"
        found = keys.key_class(
            expr.oid,
            kind=kind.kind,
            deterministic=lowering.catalog.deterministic(expr.collation),
            element_kind=element,
        )
        if found is None:
            lowering.refuse(f"{construct} over type {kind.name}")

    # -- aggregate functions

    def _aggregate(self, node: Tree) -> Expr | None:
        if node.kind != "AGGREF":
            known = self._base.special
            return known(node) if known is not None else None
        lowering = self._lowering
        function = lowering.catalog.function(node.number("aggfnoid"))
        name = function.name
        if not function.builtin or name not in _FUNCTIONS:
            lowering.refuse(f'aggregate function "{name}"', node)
        base = self._base.below(node.number("agglevelsup"))
        if node.text("aggkind") != "n" or node.nodes("aggorder"):
            lowering.refuse(f'ORDER BY in aggregate function "{name}"', node)
        condition = node.node("aggfilter")
        filter_ = lowering.lower(condition, base) if condition else None
        args = [a.child("expr") for a in node.nodes("args") if not a.flag("resjunk")]
        argument = lowering.lower(args[0], base) if args else None
        distinct = bool(node.nodes("aggdistinct"))
        if len(args) > 1 or node.flag("aggvariadic"):
            lowering.refuse(f"aggregate function {name} with several arguments", node)
        if argument is not None and filter_ is not None and raises(argument):
            # Postgres looks at the filter first.
            argument = lowering.guarded(filter_, argument)
        return self._make(node, name, argument, filter_, distinct=distinct)

    def _make(
        self,
        node: Tree,
        name: str,
        argument: Expr | None,
        filter_: Expr | None,
        *,
        distinct: bool,
    ) -> Ref:
        result = Const(
            None,
            self._lowering.catalog.base(node.number("aggtype")),
            -1,
            node.number("aggcollid"),
        )
        function, sql = name, ""
        if argument is None:
            function = "count_star"
        elif name in ("sum", "avg") and argument.oid not in _NUMBERS:
            function, sql = "remote", self._remote(node, name, argument)
            if distinct:
                self._lowering.refuse(f"DISTINCT in {name} over this type", node)
        elif name in ("min", "max"):
            distinct = False  # changes nothing
            collation = node.number("inputcollid")
            if not self._lowering.catalog.deterministic(collation):
                self._lowering.refuse(f"{name} with a nondeterministic collation", node)
            bytewise = self._lowering.catalog.bytewise(collation)
            if not keys.order_native(argument.oid, bytewise=bytewise):
                function, sql = "remote", self._remote(node, name, argument)
        if distinct and argument is not None:
            self._require_key(argument, f"DISTINCT in {name}")
        text = "*" if argument is None else show(argument)
        label = f"{name}({'DISTINCT ' if distinct else ''}{text})"
        column = self._column(label, result)
        return self._add(Agg(column, function, argument, filter_, distinct, sql, name))

    def _remote(self, node: Tree, name: str, argument: Expr) -> str:
        lowering = self._lowering
        kind = lowering.catalog.type(argument.oid)
        if not lowering.plain_type(kind.element or kind.oid) or kind.kind == "p":
            lowering.refuse(f"{name} over type {kind.name}", node)
        value = lowering.sql(
            Ref(0, argument.oid, -1, node.number("inputcollid")), lambda _: "$1"
        )
        return f"pg_catalog.{name}({value})"

    def _add(self, agg: Agg) -> Ref:
        key = (agg.function, agg.sql, agg.argument, agg.filter, agg.distinct)
        if key not in self._known:
            self._aggs.append(agg)
            self._known[key] = agg.column.ref
        return self._known[key]
