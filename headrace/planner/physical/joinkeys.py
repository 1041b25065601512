"""Keys of joins: equalities of the sides in one type, where our keys decide as Postgres does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace import types as t
from headrace.expressions.keys import order_native
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.scalar import Call, Const, Expr, core, raises, refs
from headrace.planner.scalars import build, casts
from headrace.planner.scalars.coercions import convert
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.typekeys import is_key

_TRUE: Final = Const("t", t.BOOL)
_COMMON: Final = (
    ((t.INT2, t.INT4, t.INT8), t.INT8),
    ((t.FLOAT4, t.FLOAT8), t.FLOAT8),
    ((t.NAME, t.TEXT), t.TEXT),
    ((t.DATE, t.TIMESTAMP), t.TIMESTAMP),
    ((t.DATE, t.TIMESTAMPTZ), t.TIMESTAMPTZ),
    ((t.TIMESTAMP, t.TIMESTAMPTZ), t.TIMESTAMPTZ),
)
MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""Comparisons, with those of the sides exchanged."""
_LAST_DAY: Final = "294276-12-31"
"""Of timestamps; dates go on for longer."""


@dataclass(frozen=True, slots=True)
class JoinKey:
    """Two expressions that are equal for each matching pair of rows."""

    left: Expr
    right: Expr
    null_safe: bool = False


def join_keys(lowering: Lowering, node: lg.JoinNode) -> tuple[list[JoinKey], list[Expr]]:
    """Return keys of one type, and the remaining conditions.

    A side that may fail becomes a key only if there is no other: as a key it is computed for every
    row of its side.
    """
    found: list[tuple[JoinKey, Expr]] = []
    residual: list[Expr] = []
    left, right = lg.ids(node.left), lg.ids(node.right)
    for predicate in node.condition:
        if isinstance(predicate, Const) and predicate.text == "t":
            continue
        key = _pair(lowering, predicate, left, right)
        if key is None and node.kind != "inner" and not raises(predicate):
            key = _one_sided(predicate, left, right)
        if key is None:
            residual.append(predicate)
        else:
            found.append((key, predicate))
    safe = [q for q in found if not (raises(q[0].left) or raises(q[0].right))]
    chosen = safe or found[:1]
    residual += [q[1] for q in found if q not in chosen]
    order = {id(e): i for i, e in enumerate(node.condition)}
    residual.sort(key=lambda e: order[id(e)])
    return [q[0] for q in chosen], residual


@dataclass(frozen=True, slots=True)
class JoinComparison:
    """``left operator right``, of expressions over one side each; see ``plan.Comparison``."""

    left: Expr
    operator: str
    right: Expr


def join_comparison(
    lowering: Lowering, node: lg.JoinNode, residual: list[Expr]
) -> JoinComparison | None:
    """Return the only condition of a semi or anti join beside its keys, if it is a comparison."""
    if node.kind not in lg.LEFT_ONLY or len(residual) != 1:
        return None
    [predicate] = residual
    if not isinstance(predicate, Call) or predicate.symbol not in MIRRORED or raises(predicate):
        return None
    first, second = predicate.args
    operator = predicate.symbol
    left, right = lg.ids(node.left), lg.ids(node.right)
    if refs(first) <= right:
        first, second, operator = second, first, MIRRORED[operator]
    sides = refs(first) and refs(first) <= left and refs(second) and refs(second) <= right
    if not sides or "OPERATOR(pg_catalog." not in predicate.sql:
        return None
    if first.oid != second.oid:
        common = _common(first.oid, second.oid)
        if common not in (t.INT8, t.FLOAT8):
            return None  # only these hold every value of the other types
        first, second = (_in_type(lowering, e, common) for e in (first, second))
    collations, collation = lowering.catalog.collations, predicate.input_collation
    bytewise = collations.bytewise(collation) and collations.deterministic(collation)
    ordered = order_native(first.oid, bytewise=bytewise)
    return JoinComparison(first, operator, second) if ordered else None


def _pair(
    lowering: Lowering, predicate: Expr, left: frozenset[int], right: frozenset[int]
) -> JoinKey | None:
    null_safe = False
    if isinstance(predicate, Call) and predicate.symbol == "not":
        [predicate] = predicate.args
        null_safe = True
    symbol = "is_distinct_from" if null_safe else "="
    if not isinstance(predicate, Call) or predicate.symbol != symbol:
        return None
    first, second = predicate.args
    if not (refs(first) and refs(second)):
        return None
    if refs(first) <= right and refs(second) <= left:
        first, second = second, first
    if not (refs(first) <= left and refs(second) <= right):
        return None
    if not null_safe and "OPERATOR(pg_catalog.=)" not in predicate.sql:
        return None
    if null_safe and t.DATE in (first.oid, second.oid) and first.oid != second.oid:
        return None  # a date beyond all timestamps is no NULL
    sides = _unified(lowering, predicate, first, second)
    return None if sides is None else JoinKey(*sides, null_safe)


def _unified(
    lowering: Lowering, predicate: Call, first: Expr, second: Expr
) -> tuple[Expr, Expr] | None:
    """Return both sides in one type, if our keys decide this equality."""
    if core(first).oid == core(second).oid:
        first, second = core(first), core(second)
    if first.oid != second.oid:
        common = _common(first.oid, second.oid)
        if common is None:
            return None
        first, second = (_in_type(lowering, e, common) for e in (first, second))
    if not is_key(lowering.catalog, first.oid, predicate.input_collation):
        return None
    return first, second


def _one_sided(predicate: Expr, left: frozenset[int], right: frozenset[int]) -> JoinKey | None:
    """Return a predicate on one side as a key that equals true, so that no residual is needed."""
    if refs(predicate) <= left:
        return JoinKey(predicate, _TRUE)
    return JoinKey(_TRUE, predicate) if refs(predicate) <= right else None


def _common(first: int, second: int) -> int | None:
    """Return the type in which Postgres compares values of two types for equality."""
    for types, common in _COMMON:
        if first in types and second in types:
            return common
    return None


def _in_type(lowering: Lowering, expr: Expr, oid: int) -> Expr:
    """Return ``expr`` cast to the type, NULL where no value of the type can be equal."""
    if expr.oid == oid:
        return expr
    if expr.oid == t.NAME:
        return casts.cast(lowering, expr, oid, -1, expr.collation)
    value = convert(lowering, expr, oid, 0)
    if expr.oid != t.DATE:
        return value
    bounds = (("<=", Const(_LAST_DAY, t.DATE)), ("=", Const("infinity", t.DATE)))
    tests = tuple(build.comparison(lowering, op, expr, day, 0) for op, day in bounds)
    return build.guarded(lowering, build.logic(lowering, "or", tests), value)
