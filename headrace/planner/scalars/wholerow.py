"""Whole rows: ``t``, ``t.*`` and ``to_jsonb(t)`` become row constructors of their columns.

On the nullable side of an outer join, a whole row is NULL if it has no match, which differs from a
row of NULLs (``to_jsonb(t)`` shows the difference).  The binder adds a mark below the join, a
column that is true in every row of the entry, to distinguish the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.logical.scalar import Const, Expr
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.rowtypes import composite, record
from headrace.types import RECORD

MARK: Final = 0
"""The number of the mark among the columns of an entry."""
Resolve = Callable[[int, int], Expr]
"""The expression of a column: range-table index, attribute number."""

_SUBQUERY, _JOIN = 1, 2
_INNER, _LEFT, _FULL, _RIGHT = range(4)
"""JoinType."""


def whole_row(
    context: QueryContext, query: Tree, resolve: Resolve, varno: int, declared: int
) -> Expr:
    """Return the whole row of range-table entry ``varno`` of ``query`` as type ``declared``."""
    entry = query.nodes("rtable")[varno - 1]
    oid = context.catalog.types.base(declared)
    kind = context.catalog.types[oid].kind
    if kind not in ("c", "p"):
        # The whole row of a function that returns one value per row is the value.
        return resolve(varno, 1)
    if oid != RECORD:
        numbers = [a.number for a in context.catalog.types.attributes(oid)]
        if entry.number("rtekind") == _SUBQUERY:  # a view; its table may have dropped columns
            numbers = list(range(1, len(numbers) + 1))
        exprs = [resolve(varno, n) for n in numbers]
        row = composite(context, oid, exprs)
    else:
        names = [n for n in entry.child("eref").items("colnames") if isinstance(n, str)]
        numbers = list(_columns(entry, len(names)))
        exprs = [resolve(varno, n) for n in numbers]
        row = record(context, exprs, [names[n - 1] for n in numbers])
    if varno not in _nullable(query.child("jointree")):
        return row
    if entry.number("rtekind") == _JOIN:
        alias = entry.child("eref").text("aliasname")
        context.refuse(f'a whole-row reference to join "{alias}" on the nullable side of a join')
    present = build.null_test(context, "is_not_null", resolve(varno, MARK))
    args = (present, row, Const(None, row.oid))
    return build.choice(context, args, (row.oid, -1, 0))


def marked(query: Tree) -> frozenset[int]:
    """Return the entries of ``query`` whose whole rows need a mark."""
    nullable = _nullable(query.child("jointree"))
    if not nullable:
        return nullable
    return nullable.intersection(
        node.number("varno")
        for node in query.walk()
        if node.kind == "VAR" and node.number("varattno", 1) == 0
    )


def _columns(entry: Tree, count: int) -> Iterator[int]:
    """Yield the numbers of the columns of an entry that still exist."""
    aliases = entry.items("joinaliasvars")
    for number in range(1, count + 1):
        if entry.number("rtekind") != _JOIN or isinstance(aliases[number - 1], Tree):
            yield number


def _nullable(item: Tree, outer: bool = False) -> frozenset[int]:
    """Return the range-table entries below ``item`` whose rows an outer join may null."""
    if item.kind == "RANGETBLREF":
        return frozenset((item.number("rtindex"),)) if outer else frozenset()
    if item.kind == "JOINEXPR":
        kind = item.number("jointype")
        left = _nullable(item.child("larg"), outer or kind in (_FULL, _RIGHT))
        right = _nullable(item.child("rarg"), outer or kind in (_FULL, _LEFT))
        own = frozenset((item.number("rtindex"),)) if outer else frozenset()
        return left | right | own
    found: frozenset[int] = frozenset()
    for each in item.nodes("fromlist"):
        found |= _nullable(each, outer)
    return found
