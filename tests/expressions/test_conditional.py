"""Conditionals with failing parts against Postgres; a part runs only for its own rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import RowError
from headrace.expressions.evaluate import Program
from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import NativeOp
from tests.expressions.test_native import check, conn, edges

__all__ = ["conn"]

BOOL, INT4, INT8, NUMERIC = 16, 23, 20, 1700


def divided(kind, a, b):
    return Native("/", (a, b), kind)


def not_zero(a):
    return Native("<>", (a, Literal("0", INT4)), BOOL)


A, B = Column(0, INT4), Column(1, INT4)
N, M = Column(0, NUMERIC), Column(1, NUMERIC)
ZERO, ONE = Literal("0", INT4), Literal("1", INT4)
BIGGER = Native(">", (divided(INT4, B, A), ONE), BOOL)
SHAPES = {
    "CASE WHEN $1 <> 0 THEN $2 / $1 ELSE 0 END": (
        "int4",
        Native("case", (not_zero(A), divided(INT4, B, A), ZERO), INT4),
    ),
    "CASE WHEN $2 / $1 > 1 THEN $1 WHEN $1 = 3 THEN NULL ELSE $2 + 1 END": (
        "int4",
        Native(
            "case",
            (
                *(BIGGER, A, Native("=", (A, Literal("3", INT4)), BOOL)),
                *(Literal(None, INT4), Native("+", (B, ONE), INT4)),
            ),
            INT4,
        ),
    ),
    "CASE WHEN $1 = 1 THEN $2 + 1 ELSE 5000000000 END": (
        "int4",
        Native(
            "case",
            (
                *(Native("=", (A, ONE), BOOL), Native("+", (B, ONE), INT4)),
                Literal("5000000000", INT8),
            ),
            INT8,
        ),
    ),
    "$1 <> 0 AND $2 / $1 > 1": ("int4", Native("and", (not_zero(A), BIGGER), BOOL)),
    "$2 / $1 > 1 AND $1 <> 0": ("int4", Native("and", (BIGGER, not_zero(A)), BOOL)),
    "$1 = 0 OR $2 / $1 > 1 OR $2 = 0": (
        "int4",
        Native("or", (Native("=", (A, ZERO), BOOL), BIGGER, Native("=", (B, ZERO), BOOL)), BOOL),
    ),
    "COALESCE($1, $2 + 1, 7)": (
        "int4",
        Native("coalesce", (A, Native("+", (B, ONE), INT4), Literal("7", INT4)), INT4),
    ),
    "COALESCE($1, $2 + 1)": ("int4", Native("coalesce", (A, Native("+", (B, ONE), INT4)), INT4)),
    "CASE WHEN $1 <> 0 THEN CASE WHEN $2 > 0 THEN $2 / $1 END ELSE $2 END": (
        "numeric",
        Native(
            "case",
            (
                Native("<>", (N, Literal("0", NUMERIC)), BOOL),
                Native(
                    "case",
                    (
                        Native(">", (M, Literal("0", NUMERIC)), BOOL),
                        divided(NUMERIC, M, N),
                        Literal(None, NUMERIC),
                    ),
                    NUMERIC,
                ),
                M,
            ),
            NUMERIC,
        ),
    ),
    "NULLIF($1 + 1, $2)": ("int4", Native("nullif", (Native("+", (A, ONE), INT4), B), INT4)),
}


@pytest.mark.parametrize("expr", SHAPES)
def test_parts_that_fail_equal_postgres(conn, expr):
    kind, node = SHAPES[expr]
    op = NativeOp(node.op, node.oid, may_raise=True)
    check(conn, expr, [kind, kind], [edges(kind), edges(kind)], op, node)


def test_the_failing_row_is_named_by_its_place_in_the_batch():
    node = SHAPES["CASE WHEN $1 <> 0 THEN $2 / $1 ELSE 0 END"][1]
    least = -(2**31)
    a = pa.array([0, 1, 0, -1, 0], pa.int32())
    b = pa.array([5, 5, 5, least, 5], pa.int32())
    with pytest.raises(RowError) as caught:
        Program([node], None).run([a, b], 5)
    assert caught.value.row == 3
    assert caught.value.code == "22003"
