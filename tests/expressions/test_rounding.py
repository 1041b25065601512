"""Rounding of numeric and float8 against Postgres, at the edges and at random."""

from __future__ import annotations

import pytest

from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import TypeRef, resolve
from tests.expressions.test_native import EDGES, check, conn, edges
from tests.expressions.test_texts import bulk, type_of
from tests.kernels.test_numeric import SPECIAL, numbers

__all__ = ["conn"]

NUMERIC, FLOAT8, INT4 = 1700, 701, 23
FUNCTIONS = ["round", "trunc", "ceil", "floor"]
HALVES = [
    "0.5", "-0.5", "1.5", "2.5", "-2.5", "0.4999", "0.05", "0.005", "99.995", "-99.995", "9.5",
    "999999999999999999", "0.999999999999999999", "-0.000000000000000001", "500", "-500", "499",
    "5", "-49.999", "123456789012345678.5", "99999999999999999.99", "949999999999999999",
]  # fmt: skip


def values():
    return [None, *SPECIAL, *HALVES, *EDGES["numeric"][1], *numbers(11, 1500)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_numeric_without_places_equals_postgres(conn, name):
    node = Native(name, (Column(0, NUMERIC),), NUMERIC)
    assert resolve(name, [TypeRef(NUMERIC)]).oid == NUMERIC
    bulk(conn, f"{name}($1)", ["numeric"], [values()], node)


@pytest.mark.parametrize("name", ["round", "trunc"])
@pytest.mark.parametrize("places", [0, 1, 2, 6, 15, 17, -1, -3, -17])
def test_numeric_with_places_equals_postgres(conn, name, places):
    args = (Column(0, NUMERIC), Literal(str(places), INT4))
    assert resolve(name, [type_of(a) for a in args])
    node = Native(name, args, NUMERIC)
    bulk(conn, f"{name}($1, {places})", ["numeric"], [values()], node)


@pytest.mark.parametrize("name", [*FUNCTIONS, "ceiling"])
def test_floats_equal_postgres(conn, name):
    halves = [
        "0.5",
        "-0.5",
        "1.5",
        "2.5",
        "-2.5",
        "0.49999999999999994",
        "-0.2",
        "4503599627370495.5",
    ]
    op = resolve(name, [TypeRef(FLOAT8)])
    node = Native(op.name, (Column(0, FLOAT8),), FLOAT8)
    bulk(conn, f"{name}($1)", ["float8"], [[*edges("float8"), *halves]], node)


@pytest.mark.parametrize(
    "declared", [(5, 2), (15, 2), (3, 0), (18, 6), (19, 17), (40, 4), (2, 2)]
)
def test_a_declared_precision_equals_postgres(conn, declared):
    precision, scale = declared
    typmod = (precision << 16 | scale) + 4
    args = (Column(0, NUMERIC), Literal(str(typmod), INT4))
    op = resolve("numeric", [type_of(a) for a in args])
    node = Native(op.name, args, NUMERIC)
    few = [None, *SPECIAL, *HALVES, *EDGES["numeric"][1], *numbers(12, 40)]
    check(conn, f"pg_catalog.numeric($1, {typmod})", ["numeric"], [few], op, node)


def test_may_raise_knows_a_declared_precision():
    assert resolve("round", [TypeRef(NUMERIC)]).may_raise
    assert not resolve("round", [TypeRef(NUMERIC, typmod=655366)]).may_raise
    assert not resolve("trunc", [TypeRef(NUMERIC)]).may_raise


def test_unusual_places_are_left_to_postgres():
    for text in ("18", "-18", "2000"):
        assert resolve("round", [TypeRef(NUMERIC), TypeRef(INT4, literal=text)]) is None
    assert resolve("round", [TypeRef(NUMERIC), TypeRef(INT4)]) is None
    negative = (5 << 16 | (-2 & 0x7FF)) + 4
    assert (
        resolve("numeric", [TypeRef(NUMERIC), TypeRef(INT4, literal=str(negative))])
        is None
    )
