"""``x = ANY (…)`` and ``x <> ALL (…)`` over a constant array (IN and NOT IN lists)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace import types
from headrace.expressions.ir import Expr, Literal, Native
from headrace.expressions.signature import (
    INTS,
    TEXTS,
    Args,
    Builder,
    Kernel,
    NativeOp,
    Resolver,
    TypeRef,
)
from headrace.kernels import buffers, text

ELEMENTS: Final = {
    1000: types.BOOL, 1005: types.INT2, 1007: types.INT4, 1016: types.INT8, 1009: types.TEXT, 1015: types.VARCHAR, 1014: types.BPCHAR,
    1182: types.DATE, 1183: types.TIME, 1115: types.TIMESTAMP, 1185: types.TIMESTAMPTZ, 2951: types.UUID,
}  # fmt: skip
"""Element types of array types (OIDs) whose elements are equal if their Arrow values are."""
_ITEM: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|([^{}",\\]+)', re.DOTALL)


def elements(array: str) -> list[str | None] | None:
    """Parse the text of a one-dimensional array with lower bound 1; None for other arrays."""
    if not array.startswith("{") or array == "{}":
        return [] if array == "{}" else None
    out: list[str | None] = []
    at = 1
    while (found := _ITEM.match(array, at)) is not None:
        quoted, bare = found.groups()
        if bare is None:
            out.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            out.append(None if bare == "NULL" else bare)
        at = found.end()
        if array[at] == "}":
            return out
        at += 1
    return None


def _membership(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or args[1].literal is None:
        return None
    left, array = args
    element = ELEMENTS.get(array.oid)
    if element is None or not _same(left, element):
        return None
    return NativeOp(name, types.BOOL) if elements(array.literal or "") else None


def _same(left: TypeRef, element: int) -> bool:
    if left.oid in (*TEXTS, types.BPCHAR) and not left.deterministic:
        return False
    if left.oid in INTS or left.oid in TEXTS:
        return element in (INTS if left.oid in INTS else TEXTS)
    return left.oid == element


def _build(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    array = expr.args[1]
    assert isinstance(array, Literal), "resolved with a constant"
    parts = elements(array.text or "")
    assert parts, "resolved with elements"
    element = ELEMENTS[array.oid]
    oid = types.INT8 if element in INTS else element
    texts = pa.array([p for p in parts if p is not None], pa.string())
    known, wanted = _keys(text.parse(texts, oid), oid), oid
    has_null = None in parts

    def run(args: list[pa.Array]) -> pa.Array:
        column = _keys(args[0], wanted)
        found = pc.is_in(column, value_set=known)
        if expr.op == "<> ALL":
            found = pc.invert(found)
        valid = buffers.validity(column)
        if has_null:
            # A NULL element may be equal, so a miss is unknown.
            valid = valid & (buffers.values(found) == (expr.op == "= ANY"))
        return buffers.make_fixed(buffers.values(found), valid, pa.bool_())

    return run, expr.args[:1]


def _keys(column: pa.Array, oid: int) -> pa.Array:
    """Return values that are equal exactly where Postgres' values are equal."""
    if oid == types.INT8:
        return pc.cast(column, pa.int64())
    return pc.ascii_rtrim(column, characters=" ") if oid == types.BPCHAR else column


RESOLVERS: Final[dict[str, Resolver]] = {"= ANY": _membership, "<> ALL": _membership}
BUILDERS: Final[dict[str, Builder]] = {"= ANY": _build, "<> ALL": _build}
