"""The traits of aggregates: every aggregate has a row, and the rows are true of Postgres."""

from __future__ import annotations

import ast
import inspect
import typing

import psycopg
import pytest

from headrace.collections import accumulators, aggregates, plan, retained_values
from headrace.collections import aggregate_traits as traits
from headrace.collections.aggregate_traits import BUILT_IN, COMPILED, NATIVE, Empty
from headrace.types import Field

INT4, INT8, BOOL = 23, 20, 16
CONCRETE = {
    "any": "int4",
    "anyelement": "int4",
    "anynonarray": "int4",
    "anycompatible": "int4",
    "anyarray": "int4[]",
    "anyenum": "pg_temp.traits_enum",
    "anyrange": "int4range",
    "anymultirange": "int4multirange",
}
"""A type for each pseudo-type that aggregates take."""
OVERLOADS = """
    SELECT p.proname, a.aggkind, a.aggnumdirectargs,
           ARRAY (SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY u (t, n)
                  ORDER BY n)
    FROM pg_aggregate a JOIN pg_proc p ON p.oid = a.aggfnoid
    WHERE p.pronamespace = 'pg_catalog'::regnamespace
"""


@pytest.fixture(scope="module")
def conn(postgres):
    with psycopg.connect(postgres, autocommit=True) as conn:
        conn.execute("CREATE TYPE pg_temp.traits_enum AS ENUM ('a')")
        yield conn


def test_every_aggregate_function_has_traits_and_an_accumulator():
    assert typing.get_args(traits.AggregateFunction) == tuple(NATIVE)
    for function in NATIVE.keys() - {"remote"}:
        argument = BOOL if function in ("bool_and", "bool_or") else INT4
        column = None if function == "count_star" else 0
        spec = plan.AggregateSpec(function, column, None, Field("r", INT8))
        [part], _ = aggregates.make([spec], "n", (Field("a", argument),), None)
        assert isinstance(part, accumulators.Accumulator) != NATIVE[function].retained


def test_every_function_that_an_accumulator_names_has_traits():
    named: set[str] = set()
    for module in (accumulators, aggregates, retained_values):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Compare) and ast.unparse(node.left).endswith("function"):
                strings = (c.value for c in ast.walk(node) if isinstance(c, ast.Constant))
                named |= {value for value in strings if isinstance(value, str)}
    assert named == NATIVE.keys()


def test_every_aggregate_of_postgres_has_traits(conn):
    assert {name for name, *_ in conn.execute(OVERLOADS)} - BUILT_IN.keys() == set()
    assert COMPILED.keys() <= BUILT_IN.keys()


def test_an_unknown_aggregate_has_no_trait():
    assert traits.built_in("of_a_later_postgres") == traits.AggregateTraits()


def test_values_over_no_rows_are_those_of_postgres(conn):
    tested = set()
    for name, kind, direct, types in conn.execute(OVERLOADS).fetchall():
        expected = BUILT_IN[name].empty
        if kind == "h":
            assert expected is None, name
            continue
        nulls = [f"NULL::{CONCRETE.get(each.strip(chr(34)), each)}" for each in types]
        if kind == "o":
            call = f"{name}({', '.join(nulls[:direct])}) WITHIN GROUP (ORDER BY {nulls[direct]})"
        else:
            call = f"{name}({', '.join(nulls) or '*'})"
        row = conn.execute(f"SELECT {call}::text, pg_typeof({call})::text WHERE false").fetchone()
        if expected is Empty.ZERO:
            assert row == ("0", "bigint"), call
        else:
            assert expected is Empty.NULL and row[0] is None, call
        tested.add(name)
    assert len(tested) > 40


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_distinct_changes_nothing_if_the_traits_say_so(conn, name):
    if name == "any_value" and conn.info.server_version < 160000:
        pytest.skip("Postgres 16 has it first")
    value = "x > 1" if name in ("bool_and", "every", "bool_or") else "x"
    rows = "(SELECT 3 WHERE $1 UNION ALL SELECT unnest(ARRAY[3, 3, 7, NULL]) WHERE NOT $1)"
    rows = rows.replace("$1", "%(few)s")
    different = False
    for few in (True, False):
        query = f"SELECT {name}({value}), {name}(DISTINCT {value}) FROM {rows} r (x)"
        whole, distinct = conn.execute(query, {"few": few}).fetchone()
        different |= whole != distinct
    assert different != BUILT_IN[name].idempotent


FAILING = [
    ("sum", "sum(x)", "(VALUES (1e308::float8), (1e308)) r (x)"),
    ("sum", "sum(x)", "(VALUES (3e38::float4), (3e38)) r (x)"),
    ("avg", "avg(x)", "(VALUES (1e308::float8), (1e308)) r (x)"),
    ("stddev", "stddev(x)", "(VALUES (1e308::float8), (-1e308)) r (x)"),
    ("regr_sxx", "regr_sxx(x, x)", "(VALUES (1e308::float8), (-1e308)) r (x)"),
    ("bit_and", "bit_and(x)", "(VALUES ('1'::varbit), ('10')) r (x)"),
    ("array_agg", "array_agg(x)", "(VALUES (ARRAY[1]), (ARRAY[1, 2])) r (x)"),
    ("json_object_agg", "json_object_agg(x, 1)", "(VALUES (NULL::text)) r (x)"),
    ("jsonb_object_agg", "jsonb_object_agg(x, 1)", "(VALUES (NULL::text)) r (x)"),
    ("percentile_cont", "percentile_cont(2) WITHIN GROUP (ORDER BY x)", "(VALUES (1)) r (x)"),
]


@pytest.mark.parametrize(("name", "call", "rows"), FAILING)
def test_an_aggregate_that_fails_in_postgres_may_fail(conn, name, call, rows):
    with pytest.raises(psycopg.DataError):
        conn.execute(f"SELECT {call} FROM {rows}")
    described = conn.execute(f"SELECT x, {call} FROM {rows} WHERE false GROUP BY x").description
    argument, result = (column.type_code for column in described)
    assert BUILT_IN[name].may_fail(argument, result)


def test_common_aggregates_cannot_fail():
    for name, argument, result in (("sum", INT4, INT8), ("count", INT4, INT8), ("max", 25, 25)):
        assert not BUILT_IN[name].may_fail(argument, result)
    assert not BUILT_IN["array_agg"].may_fail(INT4, 1007)
    assert BUILT_IN["array_agg"].may_fail(1007, 1007)
