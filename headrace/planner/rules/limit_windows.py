"""A window is computed only over the first rows of its partitions if a filter keeps only these.

Filter[r <= n](Window[k, row_number() r](x))
    = Filter[r <= n](Window[k, row_number() r](TopK[k, n](x)))
Filter[r <= n](Window[k, rank() r](x))
    = Filter[r <= n](Window[k, rank() r](TopK[k, n, ties](x)))

A change then costs as much as the first n rows of its group, not as the whole partition.

Counter-examples: ``count(*) OVER (PARTITION BY k)`` beside row_number() counts rows that TopK
removes, so every call of the window must read only rows before its own.  ``dense_rank() <= n``
keeps any number of rows.  ``r > n`` keeps the other rows.
"""

from __future__ import annotations

from typing import Final

from headrace.planner.logical.nodes import FilterNode, Node, TopKNode, WindowCall, WindowNode
from headrace.planner.logical.scalar import Call, Const, Expr, Ref
from headrace.types import INT2, INT4, INT8

_BACKWARD: Final = ("row_number", "rank", "dense_rank", "lag", "first_value")
"""Functions whose value depends on the rows up to their own, with the default frame."""
_INTEGERS: Final = (INT2, INT4, INT8)
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_ROWS_MAX: Final = 10_000
"""Limit on rows per group: more gain nothing over the whole partition."""


def apply(node: Node) -> Node:
    """Insert a TopK below the window of ``node``."""
    if not isinstance(node, FilterNode) or not isinstance(node.input, WindowNode):
        return node
    window = node.input
    if not all(map(_backward, window.calls)):
        return node
    functions = {c.column.id: c.function for c in window.calls}
    found = [
        (limit, functions[column] == "rank")
        for predicate in node.predicates
        for column, limit in [_bound(predicate)]
        if functions.get(column) in ("row_number", "rank") and 0 < limit <= _ROWS_MAX
    ]
    if not found or isinstance(window.input, TopKNode):
        return node
    limit, ties = min(found)
    below = TopKNode(window.input, window.keys, window.order, limit, 0, ties)
    return FilterNode(WindowNode(below, window.keys, window.order, window.calls), node.predicates)


def _backward(call: WindowCall) -> bool:
    if call.frame or not call.sql.startswith("pg_catalog.") or "FILTER (" in call.sql:
        return False
    if call.function == "lag":
        # A negative distance looks forward.
        return len(call.args) == 1 and call.sql == "pg_catalog.lag($1)"
    return call.function in _BACKWARD


def _bound(predicate: Expr) -> tuple[int, int]:
    """Return (column, its upper bound) from ``predicate``; (0, 0) if it gives none."""
    nothing = (0, 0)
    if not isinstance(predicate, Call) or predicate.symbol not in _MIRRORED:
        return nothing
    if "OPERATOR(pg_catalog." not in predicate.sql or len(predicate.args) != 2:
        return nothing
    left, right = predicate.args
    symbol = predicate.symbol
    if isinstance(left, Const):
        left, right, symbol = right, left, _MIRRORED[symbol]
    if not isinstance(left, Ref) or not isinstance(right, Const):
        return nothing
    if right.oid not in _INTEGERS or right.text is None or left.oid != INT8:
        return nothing
    if symbol in ("<=", "="):
        return left.id, int(right.text)
    return (left.id, int(right.text) - 1) if symbol == "<" else nothing
