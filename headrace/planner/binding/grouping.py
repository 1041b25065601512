"""GROUP BY, GROUPING SETS and HAVING of one query level."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Final

from headrace import types as t
from headrace.expressions import keys
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import same
from headrace.planner.binding.aggregates import AggregateCalls, NewColumn, converted_records
from headrace.planner.binding.subqueries import has_subquery
from headrace.planner.logical import nodes
from headrace.planner.logical.alignment import aligned
from headrace.planner.logical.scalar import Call, Const, Expr, Ref, show
from headrace.planner.scalars import build
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import LateSite, Scope, Site
from headrace.planner.scalars.typekeys import key_value

SETS_MAX: Final = 4096
"""Limit on grouping sets, as in Postgres."""
_EMPTY, _SIMPLE, _ROLLUP, _CUBE, _SETS = range(5)
"""GroupingSetKind."""


class Grouping:
    """Binds the grouped expressions of one query level.

    Pass all expressions above the groups to ``target`` (or ``lower``), then call ``node``: its
    result has the keys and aggregates that they need.  With several grouping sets, each row is
    first repeated once per set (``Expand``), and the number of the set is a key too.
    """

    def __init__(self, lowering: Lowering, column: NewColumn, query: Tree, scope: Scope) -> None:
        """``scope`` has one site: the input of the groups."""
        self._lowering = lowering
        self._column = column
        self._query = query
        self._base = scope
        self._calls = AggregateCalls(lowering, column, self._below)
        self._keys: list[tuple[nodes.Col, Expr]] = []
        self._shown: dict[Expr, Ref] = {}
        self._by_ref: dict[int, Ref] = {}
        self._trees: list[tuple[Tree, Ref]] = []
        self._aggs: list[nodes.Agg] = []
        self._known: dict[tuple[object, ...], Ref] = {}
        self._expanded: dict[int, tuple[nodes.Col, Expr]] = {}
        self._number: tuple[nodes.Col, Ref] | None = None
        self._sets = grouping_sets(query)
        if len(self._sets) > SETS_MAX:
            lowering.refuse(f"a query of more than {SETS_MAX} grouping sets")
        self._groups, self._survivors = LateSite(), LateSite()
        self.scope: Final = dataclasses.replace(
            scope, special=self._special, above=self.above, sites=(self._survivors,)
        )
        """The scope in which expressions above the groups are lowered, before ``above``."""
        self._input = nodes.ids(self._site.node)
        self._bind_keys()

    @property
    def _site(self) -> Site:
        [below] = self._base.sites
        assert isinstance(below, Site), "what the groups are made of is known"
        return below

    def bind(self, targets: list[Tree]) -> tuple[nodes.Node, list[Expr]]:
        """Return the grouped plan, and the expressions of ``targets`` above it."""
        exprs = [self.target(e) for e in targets]
        return self.node(), exprs

    def target(self, entry: Tree) -> Expr:
        """Return a target entry as an expression above the groups."""
        key = self._by_ref.get(entry.number("ressortgroupref"))
        return key if key is not None else self.lower(entry.child("expr"))

    def lower(self, tree: Tree) -> Expr:
        """Lower an expression to one above the groups."""
        return self.above(self._lowering.lower(tree, self.scope))

    def node(self) -> nodes.Node:
        """Return the groups that pass HAVING, with all keys and aggregates requested so far."""
        having = self._query.node("havingQual")
        if having is not None:
            scope = dataclasses.replace(self.scope, sites=(self._groups,))
            assert scope.subqueries is not None, "a query level has them"
            scope.subqueries.filter(having, scope)
        if not self._keys and not self._aggs:
            # HAVING or GROUP BY () without other columns: the one row needs a column.
            count = self._column("count(*)", Const(None, t.INT8))
            self._add(nodes.Agg(count, "count_star", name="count"))
        node = self._site.node
        always: tuple[tuple[str | None, ...], ...] = ()
        if self._number is not None:
            node = self._expand(node, self._number[0])
            always = self._always(self._number[0])
        result = nodes.AggregateNode(node, tuple(self._keys), aligned(self._aggs), always)
        return self._survivors.over(self._groups.over(result))

    # -- keys

    def _bind_keys(self) -> None:
        by_ref = {
            e.number("ressortgroupref"): e.child("expr")
            for e in self._query.nodes("targetList")
            if e.number("ressortgroupref")
        }
        single = len(self._sets) == 1
        for clause in self._query.nodes("groupClause"):
            ref = clause.number("tleSortGroupRef")
            tree = by_ref[ref]
            expr = self._lowering.lower(tree, self._base)
            if single:
                self._by_ref[ref] = self._add_key(expr)
            else:
                self._add_expanded(ref, expr)
            if has_subquery(tree):
                self._trees.append((tree, self._by_ref[ref]))
        if not single:
            column = self._column("grouping set", Const(None, t.INT4))
            self._number = (column, self._add_key(column.ref))

    def _add_key(self, expr: Expr) -> Ref:
        if expr not in self._shown:
            self._shown[expr] = self._new_key(expr, show(expr))
        return self._shown[expr]

    def _new_key(self, expr: Expr, label: str) -> Ref:
        """Add a group key, and return the reference that shows its value above the groups."""
        value = key_value(self._lowering, expr, "GROUP BY")
        column = self._column(label, value)
        self._keys.append((column, value))
        if value == expr and keys.is_canonical(expr.oid):
            return column.ref
        # Equal keys may print differently (1.0, 1.00): the group shows one of them.
        return self._add(nodes.Agg(self._column(label, expr), "any", expr, name="any"))

    def _add_expanded(self, ref: int, expr: Expr) -> None:
        """Add a key that is NULL outside its grouping sets."""
        label = show(expr)
        column = self._column(label, expr)
        self._expanded[ref] = (column, expr)
        self._by_ref[ref] = self._new_key(column.ref, label)
        if not isinstance(expr, Const):
            # A constant keeps its value, unless it is itself the target of GROUP BY.
            self._shown.setdefault(expr, self._by_ref[ref])

    def _expand(self, node: nodes.Node, number: nodes.Col) -> nodes.Node:
        """Return the rows of ``node`` once per grouping set."""
        items: list[tuple[nodes.Col, Expr]] = [(c, c.ref) for c in node.columns]
        shown: list[tuple[nodes.Col, Ref]] = []
        for column, expr in self._expanded.values():
            if not isinstance(expr, Ref):
                below = self._column(show(expr), expr)
                items.append((below, expr))
                shown.append((column, below.ref))
            else:
                shown.append((column, expr))
        if len(items) > len(node.columns):
            node = nodes.ProjectNode(node, tuple(items))
        places = {ref: i for i, ref in enumerate(self._expanded)}
        sets = tuple(frozenset(places[r] for r in one) for one in self._sets)
        return nodes.ExpandNode(node, tuple(shown), sets, number)

    def _always(self, number: nodes.Col) -> tuple[tuple[str | None, ...], ...]:
        """Return the keys of the empty grouping sets, which have a row even for no input."""
        return tuple(
            tuple(str(i) if e == number.ref else None for _, e in self._keys)
            for i, one in enumerate(self._sets)
            if not one
        )

    # -- expressions

    def above(self, expr: Expr) -> Expr:
        """Return ``expr`` in terms of the groups' columns."""
        if expr in self._shown:
            return self._shown[expr]
        match expr:
            case Const():
                return expr
            case Ref():
                if expr.id not in self._input:
                    return expr  # an aggregate, or a column of an outer query
                # Postgres allows it because a key determines it, so it becomes another key.
                return self._add_key(expr)
            case Call():
                args = tuple(self.above(a) for a in expr.args)
                return dataclasses.replace(expr, args=args)

    def _below(self, expr: Expr) -> Expr:
        """Return ``expr``, which reads only keys, in terms of the groups' input."""
        for column, key in self._expanded.values():
            if key == expr:
                return column.ref
        if isinstance(expr, Call):
            args = tuple(map(self._below, expr.args))
            return dataclasses.replace(expr, args=args)
        return expr

    def _special(self, node: Tree) -> Expr | None:
        for tree, expr in self._trees:
            # A grouped expression with a subquery is recognised by its tree.
            if tree.kind == node.kind and same(tree, node):
                return expr
        levels = node.number("agglevelsup")
        if node.kind == "AGGREF":
            return self._add(self._calls.bind(node, self._arguments(node, levels)))
        if (records := converted_records(self._lowering.catalog, node)) is not None:
            scope = self._arguments(records, records.number("agglevelsup"))
            return self._add(self._calls.bind(records, scope, node))
        if node.kind == "GROUPINGFUNC":
            return self._grouping(node)
        if node.kind == "JSONCONSTRUCTOREXPR" and (json := self._json(node)) is not None:
            return json
        return self._base.special(node) if self._base.special is not None else None

    def _arguments(self, node: Tree, levels: int) -> Scope:
        """Return the scope for the arguments of an aggregate ``levels`` queries deeper."""
        if not levels or not has_subquery(node):
            return self._base.below(levels)
        if any(n.kind == "RANGETBLENTRY" and n.text("ctename") for n in node.walk()):
            # References to WITH queries count levels from the deeper query.
            self._lowering.refuse("WITH in an aggregate of an outer query", node)
        return dataclasses.replace(
            self._base.below(levels), subqueries=self._base.subqueries, sites=self._base.sites
        )

    def _json(self, node: Tree) -> Expr | None:
        """Lower JSON_ARRAYAGG or JSON_OBJECTAGG: an aggregate, perhaps with a cast around it."""
        call = node.node("func")
        if call is None or call.kind != "AGGREF":
            return None
        value = self._lowering.lower(call, self.scope)
        coercion = node.node("coercion")
        if coercion is None:
            return value
        scope = dataclasses.replace(self.scope, case_value=value)
        return self._lowering.lower(coercion, scope)

    def _grouping(self, node: Tree) -> Expr:
        """Lower GROUPING: one bit per argument, set if the grouping set lacks the argument."""
        wanted = node.numbers("refs")
        values = [_bits(wanted, one) for one in self._sets]
        constants = [Const(str(v), t.INT4) for v in values]
        if self._number is None or len(set(values)) == 1:
            return constants[0]
        number = self._number[1]
        args: list[Expr] = []
        for place, constant in enumerate(constants[:-1]):
            args += [self._is(number, place), constant]
        args.append(constants[-1])
        return build.choice(self._lowering, tuple(args), (t.INT4, -1, 0))

    def _is(self, number: Ref, place: int) -> Expr:
        wanted = Const(str(place), t.INT4)
        return build.comparison(self._lowering, "=", number, wanted, 0)

    def _add(self, agg: nodes.Agg) -> Ref:
        key = (agg.function, agg.sql, agg.inputs, agg.filter, agg.distinct, agg.direct)
        if key not in self._known:
            self._aggs.append(agg)
            self._known[key] = agg.column.ref
        return self._known[key]


def _bits(wanted: list[int], one: tuple[int, ...]) -> int:
    out = 0
    for ref in wanted:
        out = out << 1 | (ref not in one)
    return out


def grouping_sets(query: Tree) -> list[tuple[int, ...]]:
    """Return the grouping sets of a query (at least one), each as its sorted key numbers.

    Several items of GROUP BY multiply: GROUP BY a, ROLLUP (b, c) is (a, b, c), (a, b), (a).
    """
    items = query.nodes("groupingSets")
    if not items:
        refs = [c.number("tleSortGroupRef") for c in query.nodes("groupClause")]
        return [tuple(sorted(refs))]
    product = itertools.product(*(_expanded(item) for item in items))
    out = [tuple(sorted(set().union(*choice))) for choice in product]
    return list(dict.fromkeys(out)) if query.flag("groupDistinct") else out


def _expanded(item: Tree) -> list[tuple[int, ...]]:
    """Return the sets that one item of GROUP BY stands for."""
    kind = item.number("kind")
    if kind == _EMPTY:
        return [()]
    if kind == _SIMPLE:
        return [tuple(item.numbers("content"))]
    inner = item.nodes("content")
    if kind == _SETS:
        return [one for part in inner for one in _expanded(part)]
    parts = [tuple(part.numbers("content")) for part in inner]
    if kind == _ROLLUP:
        return [tuple(itertools.chain.from_iterable(parts[:n])) for n in range(len(parts), -1, -1)]
    return [
        tuple(ref for place, part in enumerate(parts) if chosen[place] for ref in part)
        for chosen in itertools.product((True, False), repeat=len(parts))
    ]
