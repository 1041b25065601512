"""Binds Postgres' parse tree to a logical plan."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from headrace import types as t
from headrace.expressions import keys
from headrace.planner import limits
from headrace.planner.analyse import check
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.binding import functions_in_from
from headrace.planner.binding.full_joins import full_join
from headrace.planner.binding.functions_in_from import TargetSets
from headrace.planner.binding.grouping import Grouping
from headrace.planner.binding.named_plans import NamedPlans
from headrace.planner.binding.ordering import Ordering
from headrace.planner.binding.recursion import Recursions
from headrace.planner.binding.relations import IS_VIEW, Relations
from headrace.planner.binding.setops import SetOperations, value_rows
from headrace.planner.binding.subqueries import Subqueries, conjunct_trees, has_subquery
from headrace.planner.binding.windows import Windows
from headrace.planner.logical.alignment import aligned
from headrace.planner.logical.nodes import (
    Agg,
    AggregateNode,
    Col,
    DistinctNode,
    Node,
    OrderNode,
    ProjectNode,
    ids,
)
from headrace.planner.logical.scalar import Const, Expr, Ref, conjuncts, show
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import UNIT, Scope, Site, joined
from headrace.planner.scalars.typekeys import key_value, require_keys
from headrace.planner.scalars.wholerow import MARK, marked, whole_row

_JOIN_KINDS: Final = {0: "inner", 1: "left", 2: "full", 3: "left"}
"""Join kind by JoinType; a right join becomes a left join with its sides exchanged."""
_RIGHT: Final = 3


@dataclass(frozen=True, slots=True)
class With:
    """The WITH queries of one query level, and their enclosing scope."""

    queries: dict[str, Tree]
    scope: Scope


Env = tuple[With, ...]
"""One entry per query level, outermost first."""


@dataclass(slots=True)
class Level:
    """One query level while it is bound."""

    query: Tree
    env: Env
    outer: Scope | None = None
    """The scope of the enclosing query at the position of this one."""
    marked: frozenset[int] = frozenset()
    """Entries whose rows have a column that marks them as present (``wholerow.marked``)."""
    columns: dict[tuple[int, int], Expr] = field(default_factory=dict)
    below: Scope | None = None
    """The scope of grouped expressions, which are an entry's columns from Postgres 18 on."""

    def entry(self, index: int) -> Tree:
        """Return the range-table entry with that 1-based index."""
        return self.query.nodes("rtable")[index - 1]


class Binder:
    """Binds one query; column ids are unique within it."""

    def __init__(self, lowering: Lowering, tables: Relations) -> None:
        self._lowering = lowering
        self._catalog: Catalog = lowering.catalog
        self._tables = tables
        self.numbers = itertools.count(1)
        """Ids of columns, and numbers of named plans."""
        self._recursions = Recursions(lowering, self.column)
        self._named = NamedPlans(self.numbers)

    def column(self, name: str, expr: Expr, qualifier: str = "") -> Col:
        """Return a new column for the values of ``expr``."""
        number = next(self.numbers)
        limits.check()
        limits.check_columns(number)
        return Col(number, name, expr.oid, expr.typmod, expr.collation, qualifier)

    def bind(self, query: Tree, env: Env = (), outer: Scope | None = None) -> Node:
        """Return the plan of ``query``, with the columns of the query in order.

        ``outer`` is the scope of the enclosing query at the position of this one.  The plan may
        then have free references to its columns.
        """
        return self._bind(self._level(query, env, outer), sorted_=False)[0]

    def bind_sorted(
        self, query: Tree, env: Env, outer: Scope
    ) -> tuple[Node, tuple[OrderNode, ...]]:
        """Return the plan of ``query``, followed by its sort columns, and the sort order."""
        return self._bind(self._level(query, env, outer), sorted_=True)

    def _bind(self, level: Level, *, sorted_: bool) -> tuple[Node, tuple[OrderNode, ...]]:
        query = level.query
        ordering = Ordering(self._lowering, query, key_value, self.column, sorted_=sorted_)
        operations = query.node("setOperations")
        if operations is None:
            node = self._select(level, ordering)
        else:
            node = self._renamed(self._set_operation(operations, level), query)
            node = ordering.bind(node, ordering.targets(), self.scope(level))
        return node, ordering.order

    def _level(self, query: Tree, env: Env, outer: Scope | None) -> Level:
        ctes = {cte.text("ctename") or "": cte for cte in query.nodes("cteList")}
        level = Level(query, env, outer, marked(query))
        level.env = (*env, With(ctes, self.scope(level)))
        return level

    def scope(self, level: Level, *sites: Site) -> Scope:
        """Return the scope in which expressions of ``level`` are lowered over ``sites``.

        A subquery in an expression is attached below the first site that has the columns of this
        level that it reads, or else below the last one.
        """
        return Scope(
            lambda varno, attno: self._resolve(level, varno, attno),
            outer=level.outer,
            subqueries=self._subqueries(level),
            sites=sites,
            row=lambda varno, oid: whole_row(
                self._lowering, level.query, partial(self._resolve, level), varno, oid
            ),
        )

    def _subqueries(self, level: Level) -> Subqueries:
        return Subqueries(
            self._lowering,
            self.column,
            lambda query, scope: self.bind(query, _env(level, scope), scope),
            lambda query, scope: self.bind_sorted(query, _env(level, scope), scope),
        )

    def _select(self, level: Level, ordering: Ordering) -> Node:
        """Bind FROM, WHERE, GROUP BY, HAVING, windows, select list, DISTINCT, LIMIT, in order."""
        query = level.query
        node = self._from(query.child("jointree"), level)
        site = Site(node)
        windows = Windows(self._lowering, self.column, query, key_value)
        scope = windows.scope(self.scope(level, site))
        sets = TargetSets(self._lowering, self.column, query)
        sets.below(site, scope)
        node = site.node
        shown = ordering.targets()
        lowered = [*shown, *sets.arguments, *windows.targets()]
        grouped = (
            query.flag("hasAggs")
            or bool(query.nodes("groupClause"))
            or bool(query.nodes("groupingSets"))
            or query.node("havingQual") is not None
        )
        if grouped:
            level.below = scope
            grouping = Grouping(self._lowering, self.column, query, scope)
            node, exprs = grouping.bind(lowered)
        else:
            exprs = [self._lowering.lower(e.child("expr"), scope) for e in lowered]
            node = site.node
        node, exprs = windows.bind(node, exprs)
        node = sets.above(node, exprs[len(shown) :])
        exprs = exprs[: len(shown)]
        names = [
            entry.text("resname") or show(expr) for entry, expr in zip(shown, exprs, strict=True)
        ]
        node = self._project(node, names, exprs)
        if query.nodes("distinctClause") and not ordering.distinct_on:
            node = self._distinct(node, "DISTINCT")
        return ordering.bind(node, shown, scope)

    def _project(self, node: Node, names: list[str], exprs: list[Expr]) -> Node:
        """Return a Project; an unchanged column keeps its id (the first time)."""
        items: list[tuple[Col, Expr]] = []
        seen: set[int] = set()
        mine = ids(node)
        for name, expr in zip(names, exprs, strict=True):
            if isinstance(expr, Ref) and expr.id in mine and expr.id not in seen:
                seen.add(expr.id)
                col = Col(expr.id, name, expr.oid, expr.typmod, expr.collation)
            else:
                col = self.column(name, expr)
            items.append((col, expr))
        return ProjectNode(node, tuple(items))

    # -- FROM

    def _from(self, jointree: Tree, level: Level) -> Node:
        node: Node | None = None
        for item in jointree.nodes("fromlist"):
            right = self._item(item, level)
            node = right if node is None else joined(node, right)
        if node is None:
            node = UNIT
        condition = jointree.node("quals")
        if condition is not None:
            site = Site(node)
            self._subqueries(level).filter(condition, self.scope(level, site))
            node = site.node
        return node

    def _item(self, item: Tree, level: Level) -> Node:
        if item.kind == "FROMEXPR":
            return self._from(item, level)
        if item.kind == "RANGETBLREF":
            return self._entry(item.number("rtindex"), level)
        kind = item.number("jointype")
        if item.kind != "JOINEXPR" or kind not in _JOIN_KINDS:
            self._lowering.refuse("an item of this kind in FROM")
        left = self._item(item.child("larg"), level)
        right = self._item(item.child("rarg"), level)
        if kind == _RIGHT:
            left, right = right, left
        condition = item.node("quals")
        if condition is None:
            return joined(left, right, (), _JOIN_KINDS[kind])
        return self._joined(left, right, condition, level, _JOIN_KINDS[kind])

    def _joined(self, left: Node, right: Node, condition: Tree, level: Level, kind: str) -> Node:
        """Return a join; conditions with subqueries become filters over it or its right side."""
        parts = conjunct_trees(condition)
        hard = [p for p in parts if has_subquery(p)]
        scope = self.scope(level)
        tests: list[Expr] = []
        for part in parts:
            if part not in hard:
                tests += conjuncts(self._lowering.lower(part, scope))
        if hard and kind == "full":
            sites = (Site(left), Site(right))
            return full_join(self._lowering, sites, tests, hard, self.scope(level, *sites))
        if kind == "inner":
            site = Site(joined(left, right, tuple(tests)))
            for part in hard:
                self._subqueries(level).filter(part, self.scope(level, site))
            return site.node
        site = Site(right)
        for part in hard:
            self._subqueries(level).filter(part, self.scope(level, site))
        return joined(left, site.node, tuple(tests), kind)

    def _entry(self, index: int, level: Level) -> Node:
        node = self._unmarked(index, level)
        if index not in level.marked:
            return node
        mark = self.column("present", Const("t", t.BOOL))
        level.columns[index, MARK] = mark.ref
        kept = tuple((c, c.ref) for c in node.columns)
        return ProjectNode(node, (*kept, (mark, Const("t", t.BOOL))))

    def _unmarked(self, index: int, level: Level) -> Node:
        entry = level.entry(index)
        alias = entry.child("eref").text("aliasname") or ""
        kind = entry.number("rtekind")
        if kind == check.RELATION:
            return self._scan(index, entry, alias, level)
        if kind == check.RESULT:
            return UNIT
        if kind == check.SUBQUERY:
            query = entry.child("subquery")
            # A view reads nothing of the enclosing query, so all its uses share one plan.
            node = (
                self._named.mention(partial(self.bind, query), query)
                if entry.flag(IS_VIEW)
                else self.bind(query, level.env, self.scope(level))
            )
        elif kind == check.CTE:
            owner = len(level.env) - 1 - entry.number("ctelevelsup")
            name = entry.text("ctename") or ""
            node = self._with(entry, level.env[: owner + 1], name)
        elif kind == check.FUNCTION:
            node = self._functions(entry, level)
        elif kind == check.VALUES:
            node = self._values(entry, level)
        else:
            self._lowering.refuse("an item of this kind in FROM")
        names = [n for n in entry.child("eref").items("colnames") if isinstance(n, str)]
        for number, column in enumerate(node.columns, 1):
            name = names[number - 1] if number <= len(names) else column.name
            level.columns[index, number] = Ref(
                column.id, column.oid, column.typmod, column.collation, f"{alias}.{name}"
            )
        return node

    def _with(self, entry: Tree, env: Env, name: str) -> Node:
        """Return a reference to the WITH query ``name`` of the last level of ``env``."""
        home = env[-1]
        cte = home.queries[name]
        if entry.flag("self_reference"):
            return self._recursions.work_table(cte)
        return self._named.mention(partial(self._with_query, cte, env), cte, home)

    def _with_query(self, cte: Tree, env: Env) -> Node:
        home = env[-1]
        query = cte.child("ctequery")
        if not cte.flag("cterecursive"):
            return self.bind(query, env, home.scope)
        level = self._level(query, env, home.scope)
        return self._recursions.bind(cte, self._operations(level))

    def _functions(self, entry: Tree, level: Level) -> Node:
        site = Site(UNIT)
        scalar = functions_in_from.bind_scalar(
            self._lowering, entry, self.scope(level, site), self.column
        )
        if scalar is not None:
            return ProjectNode(site.node, (scalar,))
        calls = functions_in_from.bind_calls(self._lowering, entry, self.scope(level, site))
        return functions_in_from.bind_functions(
            self._lowering, entry, calls, self.column, site.node
        )

    def _scan(self, index: int, entry: Tree, alias: str, level: Level) -> Node:
        node, columns = self._tables.scan(self._lowering, self.column, entry, alias)
        level.columns.update({(index, number): expr for number, expr in columns.items()})
        return node

    def _values(self, entry: Tree, level: Level) -> Node:
        rows: list[tuple[Node, list[Expr]]] = []
        for row in entry.items("values_lists"):
            site = Site(UNIT)
            scope = self.scope(level, site)
            # A row without columns is a null list.
            items = row if isinstance(row, list) else []
            exprs = [self._lowering.lower(e, scope) for e in items if isinstance(e, Tree)]
            rows.append((site.node, exprs))
        return value_rows(rows, self.column)

    def _resolve(self, level: Level, varno: int, attno: int) -> Expr:
        found = level.columns.get((varno, attno))
        if found is not None:
            return found
        entry = level.entry(varno)
        kind = entry.number("rtekind")
        scope = self.scope(level)
        if kind == check.JOIN:
            inner = entry.items("joinaliasvars")[attno - 1]
        elif kind == check.GROUP:
            inner = entry.items("groupexprs")[attno - 1]
            scope = level.below or scope
        elif kind == check.RELATION:
            self._tables.refuse(entry, attno)
        elif kind == check.CTE:
            self._lowering.refuse("the path or order column of a CYCLE or SEARCH clause")
        else:
            self._lowering.refuse("a reference to a later FROM item (LATERAL)")
        assert isinstance(inner, Tree), "only a dropped column has no expression"
        found = self._lowering.lower(inner, scope)
        level.columns[varno, attno] = found
        return found

    # -- set operations, DISTINCT

    def _set_operation(self, node: Tree, level: Level) -> Node:
        return self._operations(level).bind(node)

    def _operations(self, level: Level) -> SetOperations:
        return SetOperations(
            self._lowering,
            lambda arm: self._entry(arm.number("rtindex"), level),
            self.column,
            self._distinct,
            partial(require_keys, self._lowering),
        )

    def _renamed(self, node: Node, query: Tree) -> Node:
        targets = [e for e in query.nodes("targetList") if not e.flag("resjunk")]
        names = [entry.text("resname") or "?column?" for entry in targets]
        return self._project(node, names, [c.ref for c in node.columns])

    def _distinct(self, node: Node, construct: str) -> Node:
        values = [key_value(self._lowering, c.ref, construct) for c in node.columns]
        if all(isinstance(v, Ref) for v in values):
            return DistinctNode(node)
        # Equal values may print differently: the group shows the values of one row.
        made = tuple((self.column(show(v), v), v) for v in values)
        shown: list[tuple[Col, Expr]] = []
        aggs: list[Agg] = []
        for column, (key, value) in zip(node.columns, made, strict=True):
            if value == column.ref and keys.is_canonical(column.oid):
                shown.append((column, key.ref))
                continue
            form = self.column(column.name, column.ref)
            aggs.append(Agg(form, "any", column.ref, name="any"))
            shown.append((column, form.ref))
        return ProjectNode(AggregateNode(node, made, aligned(aggs)), tuple(shown))


def _env(level: Level, scope: Scope) -> Env:
    """Return the WITH queries visible to a query in an expression, one entry per level."""
    return (*level.env, *[With({}, scope)] * scope.depth)
