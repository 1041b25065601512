"""``single(count, value)``, the check of a scalar subquery, gets a separate column if necessary.

SQL cannot express it, so a kernel computes it.  If Postgres computes the enclosing expression, or
does not always evaluate ``single``, a column below has it for the rows that Postgres would check:

    Project[upper(single(n, v))](x)   -> Project[upper(s)](Project[s = single(n, v)](x))
    Project[CASE WHEN c THEN single(n, v) END](x) -> s = single(CASE WHEN c THEN n ELSE 0 END, v)

The same holds for key texts (``expressions.keytexts``), which SQL cannot express: arguments that
Postgres computes get columns below.

Runs after all rules: merging the projections again would undo it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Final

from headrace import types as t
from headrace.expressions.keytexts import KEY_TEXT, ROW_KEY_TEXT
from headrace.planner.logical import nodes
from headrace.planner.logical.repeats import defined
from headrace.planner.logical.scalar import SINGLE, Call, Const, Expr, any_call, native, show
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext


def place_singles(plan: nodes.Node, context: QueryContext) -> nodes.Node:
    """Move every ``single`` in ``plan`` to a place where kernels compute it, only when needed."""
    return _Placing(context, itertools.count(max(defined(plan), default=0) + 1)).run(plan)


_KERNELS_ONLY: Final = frozenset({SINGLE, KEY_TEXT, ROW_KEY_TEXT})


def _kernels_only(call: Call) -> bool:
    return call.symbol in _KERNELS_ONLY


def _stray(expr: Expr) -> bool:
    return not native(expr) and any_call(expr, _kernels_only)


class _Placing:
    def __init__(self, context: QueryContext, numbers: Iterator[int]) -> None:
        self._context = context
        self._ids = numbers
        self._below: nodes.Node

    def run(self, node: nodes.Node) -> nodes.Node:
        node = nodes.with_children(node, tuple(self.run(c) for c in nodes.children(node)))
        if not any(_stray(e) for e in nodes.expressions(node)):
            return node
        match node:
            case nodes.FilterNode():
                return self._filter(node)
            case nodes.ProjectNode():
                self._below = node.input
                items = tuple((c, self._placed(e)) for c, e in node.items)
                return nodes.ProjectNode(self._below, items)
            case nodes.FunctionsNode():
                self._below = node.input
                calls = tuple(self._placed(e) for e in node.calls)
                kept = {c.id for c in node.columns}
                made = dataclasses.replace(node, input=self._below, calls=calls)
                return nodes.ProjectNode(
                    made, tuple((c, c.ref) for c in made.columns if c.id in kept)
                )
            case nodes.AggregateNode():
                return self._aggregate(node)
            case _:
                return self._context.refuse("a scalar subquery in this condition")

    def _filter(self, node: nodes.FilterNode) -> nodes.Node:
        """Apply each test to the rows that pass the tests before it."""
        self._below = node.input
        for predicate in node.predicates:
            test = self._placed(predicate)
            if isinstance(self._below, nodes.FilterNode):
                tests = (*self._below.predicates, test)
                self._below = nodes.FilterNode(self._below.input, tests)
            else:
                self._below = nodes.FilterNode(self._below, (test,))
        return nodes.ProjectNode(self._below, tuple((c, c.ref) for c in node.columns))

    def _aggregate(self, node: nodes.AggregateNode) -> nodes.Node:
        self._below = node.input
        keys = tuple((c, self._placed(e)) for c, e in node.keys)
        aggs = nodes.over(node.aggs, self._placed)
        return dataclasses.replace(node, input=self._below, keys=keys, aggs=aggs)

    def _placed(self, expr: Expr) -> Expr:
        return self._extract(expr, ()) if _stray(expr) else expr

    def _column_of(self, expr: Expr) -> Expr:
        """Return ``expr``, or a column below it if Postgres computes it."""
        expr = self._extract(expr, ())
        if native(expr):
            return expr
        column = nodes.Col(next(self._ids), show(expr), expr.oid, expr.typmod, expr.collation)
        passed = tuple((c, c.ref) for c in self._below.columns)
        self._below = nodes.ProjectNode(self._below, (*passed, (column, expr)))
        return column.ref

    def _extract(self, expr: Expr, when: tuple[Expr, ...]) -> Expr:
        """Add columns for ``single`` calls of ``expr``, run if all of ``when`` is true."""
        if not any_call(expr, _kernels_only):
            return expr
        assert isinstance(expr, Call)
        if expr.symbol in (KEY_TEXT, ROW_KEY_TEXT):
            return dataclasses.replace(expr, args=tuple(map(self._column_of, expr.args)))
        if expr.symbol == "case":
            return self._case(expr, when)
        if expr.symbol in ("and", "or", "coalesce"):
            return self._chain(expr, when)
        args = tuple(self._extract(a, when) for a in expr.args)
        expr = dataclasses.replace(expr, args=args)
        if expr.symbol != SINGLE:
            return expr
        count, value = expr.args
        for test in reversed(when):
            count = self._if(test, count)
        column = nodes.Col(next(self._ids), SINGLE, expr.oid, expr.typmod, expr.collation)
        made = dataclasses.replace(expr, args=(count, value))
        passed = tuple((c, c.ref) for c in self._below.columns)
        if not native(made):
            number = nodes.Col(next(self._ids), "count", t.INT8)
            self._below = nodes.ProjectNode(self._below, (*passed, (number, count)))
            made = dataclasses.replace(expr, args=(number.ref, value))
        self._below = nodes.ProjectNode(self._below, (*passed, (column, made)))
        return column.ref

    def _case(self, expr: Call, when: tuple[Expr, ...]) -> Expr:
        args: list[Expr] = []
        for place in range(0, len(expr.args) - 1, 2):
            test = self._extract(expr.args[place], when)
            value = self._extract(expr.args[place + 1], (*when, test))
            args += [test, value]
            when = (*when, build.boolean_test(self._context, "is_not_true", test))
        args.append(self._extract(expr.args[-1], when))
        return dataclasses.replace(expr, args=tuple(args))

    def _chain(self, expr: Call, when: tuple[Expr, ...]) -> Expr:
        """Extract from arguments that are evaluated in order until one decides."""
        args: list[Expr] = []
        for arg in expr.args:
            args.append(self._extract(arg, when))
            if expr.symbol == "coalesce":
                more = build.null_test(self._context, "is_null", args[-1])
            else:
                decided = "is_not_false" if expr.symbol == "and" else "is_not_true"
                more = build.boolean_test(self._context, decided, args[-1])
            when = (*when, more)
        return dataclasses.replace(expr, args=tuple(args))

    def _if(self, test: Expr, count: Expr) -> Expr:
        args = (test, count, Const("0", t.INT8))
        return build.choice(self._context, args, (t.INT8, -1, 0))
