"""ORDER BY, LIMIT, OFFSET, WITH TIES and DISTINCT ON of one query level.

A view is a multiset of rows, so ORDER BY alone changes nothing and is not computed.  If one of its
expressions fails on a row, only a query that reads the view in that order fails.  With LIMIT or
OFFSET it determines the rows of the view; ties, and all rows if there is no ORDER BY, are in one
canonical order (``collections.sorting``).

An untyped row, ORDER BY (a, b), is sorted by its fields: the row itself is never NULL, and a NULL
field is greater than any value.

A computed number of rows (LIMIT (SELECT …), or from an outer query's row) is compared with
row_number() in the same order.  A change then costs as many rows as change their number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import psycopg

from headrace.collections.plan import RunningSpec
from headrace.planner.analyse.check import WITH_TIES
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.logical.nodes import (
    Col,
    FilterNode,
    Node,
    OrderNode,
    ProjectNode,
    TopKNode,
    WindowCall,
    WindowNode,
)
from headrace.planner.logical.scalar import Const, Expr, Ref
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope, Site
from headrace.types import INT8, RECORD

_NUMBER_THEM: Final = (
    "Number the rows in a subquery, row_number() OVER (ORDER BY …) AS n, and compare n."
)
_WITHIN: Final = """
    SELECT CASE WHEN s.l < 0 THEN pg_catalog.length(pg_catalog.substring('', 1, s.l::int4)) = 0
                WHEN s.o < 0 THEN pg_catalog.length(pg_catalog.substring('', 1, s.o::int4)) = 0
                ELSE s.n > COALESCE(s.o, 0)
                     AND (s.l IS NULL OR s.n - COALESCE(s.o, 0) <= s.l) END
      FROM (SELECT NULL::int8 AS n, NULL::int8 AS l, NULL::int8 AS o) s
"""
"""Whether row n is within LIMIT l OFFSET o; substring raises the error for a negative number."""
_ROWS_MAX: Final = 2**60
"""A number of rows that no view reaches."""

_NOT_CONSTANT: Final = ("SUBLINK", "PARAM", "VAR")

_ROW_ORDERS: Final = {2990: False, 2991: True}
"""Whether the order descends, for the operators < and > of type record."""

KeyOf = Callable[[Lowering, Expr, str], Expr]
"""Function for the key that decides equality of values in a construct (``typekeys.key_value``)."""


class Ordering:
    """The sort order of one query level, and its LIMIT, OFFSET and DISTINCT ON."""

    def __init__(
        self,
        lowering: Lowering,
        query: Tree,
        key: KeyOf,
        column: Callable[[str, Expr], Col],
        *,
        sorted_: bool = False,
    ) -> None:
        """``sorted_``: the order of the result matters, so the sort columns stay."""
        self._lowering = lowering
        self._query = query
        self._key = key
        self._column = column
        self.distinct_on: Final = query.flag("hasDistinctOn")
        self._limited = bool(query.node("limitCount") or query.node("limitOffset"))
        self._sorted = sorted_
        self.order: tuple[OrderNode, ...] = ()
        """Set by ``bind``."""
        self._rows: set[int] = set()
        """Sort group references of untyped rows, found by ``targets``."""

    def targets(self) -> list[Tree]:
        """Return the visible entries of the target list, then the entries only sorted by."""
        entries = self._query.nodes("targetList")
        visible = [e for e in entries if not e.flag("resjunk")]
        if not self._limited and not self.distinct_on and not self._sorted:
            return visible
        wanted: dict[int, list[Tree]] = {}
        for clause in self._clauses():
            wanted.setdefault(clause.number("tleSortGroupRef"), []).append(clause)
        self._rows = {
            reference
            for e in entries
            if e.flag("resjunk") and (reference := e.number("ressortgroupref")) in wanted
            if sorted_by_fields(e.child("expr"), wanted[reference])
        }
        return visible + [
            Tree("TARGETENTRY", {**e.fields, "expr": part})
            for e in entries
            if e.flag("resjunk") and e.number("ressortgroupref") in wanted
            for part in sorted_by(e.child("expr"), wanted[e.number("ressortgroupref")])
        ]

    def bind(self, node: Node, targets: list[Tree], scope: Scope) -> Node:
        """Return a plan of the rows of ``node`` to keep; its columns are ``targets`` in order."""
        by_ref: dict[int, list[Ref]] = {}
        for entry, column in zip(targets, node.columns, strict=True):
            if reference := entry.number("ressortgroupref"):
                by_ref.setdefault(reference, []).append(column.ref)
        order: tuple[OrderNode, ...] = ()
        if self._limited or self.distinct_on or self._sorted:
            order = orders(self._lowering, self._query.nodes("sortClause"), by_ref, self._rows)
        visible = node.columns[: sum(not e.flag("resjunk") for e in targets)]
        if self.distinct_on:
            node = self._distinct_on(node, order, by_ref)
        if self._limited:
            node = self._limit(node, order, scope)
        self.order = order
        if len(visible) < len(node.columns) and not self._sorted:
            node = ProjectNode(node, tuple((c, c.ref) for c in visible))
        return node

    def _clauses(self) -> list[Tree]:
        clauses = self._query.nodes("sortClause")
        if self.distinct_on:
            clauses = clauses + self._query.nodes("distinctClause")
        return clauses

    def _distinct_on(
        self, node: Node, order: tuple[OrderNode, ...], by_ref: dict[int, list[Ref]]
    ) -> Node:
        columns = node.columns
        named = [
            ref
            for c in self._query.nodes("distinctClause")
            for ref in by_ref[c.number("tleSortGroupRef")]
        ]
        keys: list[Ref] = []
        made: list[tuple[Col, Expr]] = []
        for ref in named:
            value = self._key(self._lowering, ref, "DISTINCT ON")
            if not isinstance(value, Ref):
                made.append((self._column(ref.label, value), value))
                value = made[-1][0].ref
            keys.append(value)
        if made:
            node = ProjectNode(node, (*((c, c.ref) for c in columns), *made))
        # The keys are equal within a group, so they do not affect its order.
        mine = {ref.id for ref in named}
        rest = tuple(item for item in order if item.column.id not in mine)
        first = TopKNode(node, tuple(keys), rest, 1)
        return ProjectNode(first, tuple((c, c.ref) for c in columns)) if made else first

    def _limit(self, node: Node, order: tuple[OrderNode, ...], scope: Scope) -> Node:
        if self._reads_rows("limitCount") or self._reads_rows("limitOffset"):
            return self._numbered(node, order, scope)
        limit = self._count("limitCount", "LIMIT", scope)
        offset = self._count("limitOffset", "OFFSET", scope) or 0
        ties = self._query.text("limitOption") in WITH_TIES
        if ties and limit is None:
            self._lowering.refuse("WITH TIES without a number of rows")
        if limit is not None and limit >= _ROWS_MAX:
            limit, ties = None, False
        if limit is None and offset == 0:
            return node
        return TopKNode(node, (), order, limit, min(offset, _ROWS_MAX), ties)

    def _reads_rows(self, name: str) -> bool:
        """Return whether the count may depend on the contents of the database."""
        tree = self._query.node(name)
        return tree is not None and any(p.kind in _NOT_CONSTANT for p in tree.walk())

    def _numbered(self, node: Node, order: tuple[OrderNode, ...], scope: Scope) -> Node:
        """Apply computed counts: filter the rows by their row number in the order."""
        if self._query.text("limitOption") in WITH_TIES:
            self._lowering.refuse("WITH TIES for a number of rows that is not constant")
        number = self._column("row_number", Const(None, INT8))
        call = WindowCall(
            number,
            "row_number",
            (),
            "pg_catalog.row_number()",
            "row_number()",
            running=RunningSpec("row_number"),
        )
        site = Site(WindowNode(node, (), order, (call,)))
        inner = dataclasses.replace(scope, sites=(site,))
        counts: list[Expr] = []
        for name in ("limitCount", "limitOffset"):
            tree = self._query.node(name)
            found = self._lowering.lower(tree, inner) if tree is not None else None
            counts.append(found or Const(None, INT8))
        [target] = self._lowering.analysed(_WITHIN).nodes("targetList")
        values = (number.ref, *counts)
        read = Scope(lambda _, attno: values[attno - 1])
        test = self._lowering.lower(target.child("expr"), read)
        kept = FilterNode(site.node, (test,))
        return ProjectNode(kept, tuple((c, c.ref) for c in node.columns))

    def _count(self, name: str, word: str, scope: Scope) -> int | None:
        tree = self._query.node(name)
        if tree is None:
            return None
        what = f"{word} with an expression that is not constant"
        if any(part.kind in _NOT_CONSTANT for part in tree.walk()):
            self._lowering.refuse(what, pattern=rf"\b({word}|fetch)\b", hint=_NUMBER_THEM)
        expr = self._lowering.lower(tree, scope)
        if not isinstance(expr, Const):
            self._lowering.refuse(what, pattern=rf"\b({word}|fetch)\b", hint=_NUMBER_THEM)
        if expr.text is None:
            return None
        count = int(expr.text)
        if count < 0:
            self._lowering.refuse(f"a negative {word}", pattern=rf"\b{word}\b")
        return count


def sorted_by(expr: Tree, clauses: list[Tree]) -> list[Tree]:
    """Return the expressions that the sort clauses of ``expr`` read: a row's fields, or itself."""
    if not sorted_by_fields(expr, clauses):
        return [expr]
    return [part for field in expr.nodes("args") for part in sorted_by(field, [])]


def sorted_by_fields(expr: Tree, clauses: list[Tree]) -> bool:
    """Return whether ``expr`` is an untyped row, so that ``clauses`` sort by its fields."""
    untyped = expr.kind == "ROWEXPR" and expr.number("row_typeid") == RECORD
    return untyped and all(c.number("sortop") in _ROW_ORDERS for c in clauses)


def orders(
    lowering: Lowering,
    clauses: list[Tree],
    by_ref: Mapping[int, Sequence[Ref]],
    rows: Collection[int],
) -> tuple[OrderNode, ...]:
    """Return ORDER BY items; ``by_ref`` has the ``sorted_by`` columns by sort group reference.

    ``rows``: references that are ``sorted_by_fields``. A value of a composite type is not: it has
    the operators of a row, but may be NULL.
    """
    out: list[OrderNode] = []
    for clause in clauses:
        operator = lowering.catalog.operators[clause.number("sortop")]
        descending = operator.builtin and operator.name == ">"
        nulls_first = clause.flag("nulls_first")
        reference = clause.number("tleSortGroupRef")
        for ref in by_ref[reference]:
            found = operator
            if any(item.column == ref for item in out):
                continue  # already a sort column
            if reference in rows:
                nulls_first = descending
                found = lowering.catalog.operators[_order_of(lowering, ref, descending)]
            lowering.function(found.function, clause)
            out.append(OrderNode(ref, found.quoted, descending, nulls_first))
    return tuple(out)


def _order_of(lowering: Lowering, ref: Ref, descending: bool) -> int:
    """Return the operator by which Postgres sorts values of the type of ``ref``."""
    kind = lowering.type_name(ref.oid)
    # The type's name is already quoted.
    query = (
        f"SELECT 1 FROM (SELECT NULL::{kind} AS a) s ORDER BY s.a {'DESC' if descending else ''}"  # noqa: S608
    )
    try:
        [clause] = lowering.analysed(query).nodes("sortClause")
    except psycopg.ProgrammingError:
        lowering.refuse(f"ORDER BY a row with a value of type {kind}")
    return clause.number("sortop")
