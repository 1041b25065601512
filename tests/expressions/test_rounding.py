"""Rounding of numeric and float8 against Postgres, at the edges and at random."""

from __future__ import annotations

import pytest

from headrace.expressions.ir import Column, Literal, Native
from headrace.expressions.native import TypeRef, resolve, resolve_cast
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


@pytest.mark.parametrize("declared", [(5, 2), (15, 2), (3, 0), (18, 6), (19, 17), (40, 4), (2, 2)])
def test_a_declared_precision_equals_postgres(conn, declared):
    precision, scale = declared
    typmod = (precision << 16 | scale) + 4
    args = (Column(0, NUMERIC), Literal(str(typmod), INT4))
    op = resolve("numeric", [type_of(a) for a in args])
    node = Native(op.name, args, NUMERIC)
    few = [None, *SPECIAL, *HALVES, *EDGES["numeric"][1], *numbers(12, 40)]
    check(conn, f"pg_catalog.numeric($1, {typmod})", ["numeric"], [few], op, node)


@pytest.mark.parametrize("target", ["int2", "int4", "int8", "float4", "float8"])
def test_casts_of_numerics_equal_postgres(conn, target):
    near = [
        "32767.4", "32767.5", "-32768.5", "-32768.4", "2147483647.49", "2147483647.5",
        "-2147483648.5", "9223372036854775807.4", "9223372036854775807.5", "1" + "0" * 400,
        "-9223372036854775808.4999999999999999999", "-9223372036854775808.5",
        "0." + "0" * 400 + "1", "0." + "0" * 310 + "1", "0." + "0" * 44 + "14", "3" + "4" * 38,
        "3" + "5" * 38, "0.1", "16777217", "9007199254740993", "0." + "0" * 60,
        "1.00000017881393432617187499999999999", "0.1000000000000000055511151231257827021181583404541015625",
    ]  # fmt: skip
    op = resolve_cast(TypeRef(NUMERIC), TypeRef(EDGES[target][0]))
    few = [None, *SPECIAL, *HALVES, *EDGES["numeric"][1], *near, *numbers(13, 100)]
    check(conn, f"CAST($1 AS {target})", ["numeric"], [few], op)


@pytest.mark.parametrize("source", ["float4", "float8"])
@pytest.mark.parametrize("target", ["int2", "int4", "int8", "float4"])
def test_casts_of_floats_equal_postgres(conn, source, target):
    near = [
        "0.5", "1.5", "-0.5", "2.5", "32767.49", "32767.5", "-32768.5", "-32768.51",
        "2147483647.5", "2147483647.4", "-2147483648.5", "2147483648", "9223372036854775807",
        "-9223372036854775808", "9223372036854774784", "1e10", "3.4028236e38", "1e-46", "0.1",
    ]  # fmt: skip
    if source == target:
        return
    near = [v for v in near if source == "float8" or v not in ("3.4028236e38", "1e-46")]
    op = resolve_cast(TypeRef(EDGES[source][0]), TypeRef(EDGES[target][0]))
    check(conn, f"CAST($1 AS {target})", [source], [[*edges(source), *near]], op)


def test_may_raise_knows_a_declared_precision():
    assert resolve("round", [TypeRef(NUMERIC)]).may_raise
    assert not resolve("round", [TypeRef(NUMERIC, typmod=655366)]).may_raise
    assert not resolve("trunc", [TypeRef(NUMERIC)]).may_raise


def test_unusual_places_are_left_to_postgres():
    for text in ("18", "-18", "2000"):
        assert resolve("round", [TypeRef(NUMERIC), TypeRef(INT4, literal=text)]) is None
    assert resolve("round", [TypeRef(NUMERIC), TypeRef(INT4)]) is None
    negative = (5 << 16 | (-2 & 0x7FF)) + 4
    assert resolve("numeric", [TypeRef(NUMERIC), TypeRef(INT4, literal=str(negative))]) is None
