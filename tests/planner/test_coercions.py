"""Postgres' silent coercions: the SQL that Headrace generates coerces in the same way.

The tests use every construct that finds a common type, over every pair of types that Postgres
accepts in it. Each query is planned, and a second analysis proves its remote expressions. The bound
plan, written as SQL, gives the same rows as the query.
"""

from __future__ import annotations

import itertools

import psycopg
import pytest

from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan
from tests.planner.plan_sql import texts

COLUMNS = {
    "c_small": ("smallint", "1", "-3"),
    "c_int": ("int", "1", "7"),
    "c_big": ("bigint", "1", "9000000000"),
    "c_num": ("numeric", "1.0", "2.50"),
    "c_num2": ("numeric(8,2)", "1", "2.5"),
    "c_real": ("real", "1", "0.1"),
    "c_double": ("float8", "1", "0.1"),
    "c_text": ("text", "'a'", "'1 '"),
    "c_varchar": ("varchar(5)", "'a'", "'1'"),
    "c_char": ("char(3)", "'a'", "'1'"),
    "c_name": ("name", "'a'", "'1'"),
    "c_collated": ('text COLLATE "C"', "'a'", "'A'"),
    "c_domain": ("coerced_domain", "'a'", "'b'"),
    "c_date": ("date", "'2020-01-02'", "'2021-01-01'"),
    "c_ts": ("timestamp", "'2020-01-02 00:00'", "'2021-01-01 10:00'"),
    "c_tz": ("timestamptz", "'2020-01-02 00:00+00'", "'2021-01-01 10:00+00'"),
    "c_oid": ("oid", "1", "5"),
    "c_ints": ("int[]", "'{1,2}'", "'{}'"),
    "c_bigs": ("bigint[]", "'{1,2}'", "'{NULL}'"),
    "c_texts": ("text[]", "'{a,1}'", "'{}'"),
    "c_varchars": ("varchar(5)[]", "'{a,1}'", "'{NULL}'"),
    "c_literal": (None, "'1'", ""),
    "c_null": (None, "NULL", ""),
    "c_one": (None, "1", ""),
    "c_half": (None, "0.5", ""),
}
FORMS = (
    "{a} = ANY (ARRAY[{b}, {a}])",
    "{a} = ANY (ARRAY[{b}])",
    "{a} <> ALL (ARRAY[{b}, {b}])",
    "{a} < ANY (ARRAY[{b}])",
    "{a} LIKE ANY (ARRAY[{b}, {b}])",
    "{a} = ANY ({b})",
    "{a} IN ({b}, {b})",
    "{a} IN ({b}, {a})",
    "{a} NOT IN ({b})",
    "{a} BETWEEN {b} AND {a}",
    "ARRAY[{a}, {b}]",
    "ARRAY[[{a}], [{b}]]",
    "ARRAY[ARRAY[{a}], ARRAY[{b}]]",
    "ARRAY[{a}] || {b}",
    "{a} || ARRAY[{b}, {b}]",
    "ARRAY[{a}, {a}] || ARRAY[{b}]",
    "ARRAY[{a}] || {b} || {a}",
    "(ARRAY[{a}, {b}])[1]",
    "ARRAY[{a}]::text[] || {b}",
    "{a} || {b}",
    "array_append(ARRAY[{a}], {b})",
    "array_append({a}, {b})",
    "array_prepend({a}, ARRAY[{b}])",
    "array_cat(ARRAY[{a}], ARRAY[{b}])",
    "array_position(ARRAY[{a}, {b}], {b})",
    "array_remove(ARRAY[{a}], {b})",
    "array_replace(ARRAY[{a}], {b}, {b})",
    "array_to_string(ARRAY[{a}, {b}], ',')",
    "width_bucket({a}, ARRAY[{b}])",
    "ARRAY[{a}] = ARRAY[{b}]",
    "ARRAY[{a}, {b}] @> ARRAY[{a}]",
    "CASE WHEN id > 1 THEN {a} ELSE {b} END",
    "CASE {a} WHEN {b} THEN 1 WHEN {a} THEN 2 END",
    "CASE WHEN id > 1 THEN ARRAY[{a}] ELSE ARRAY[{b}, {a}] END",
    "coalesce({a}, {b})",
    "coalesce({a}, {b}) = ANY (ARRAY[{b}])",
    "coalesce(ARRAY[{a}], ARRAY[{b}])",
    "greatest({a}, {b})",
    "least({a}, {b}, {a})",
    "nullif({a}, {b})",
    "{a} = {b}",
    "{a} < {b}",
    "{a} IS DISTINCT FROM {b}",
    "({a}, id) = ({b}, 1)",
    "({a}, {b}) < ({b}, {a})",
    "({a}, id) IN (({b}, 1), ({b}, 2))",
    "ROW({a}, 1) = ROW({b}, id)",
    "{a} + {b}",
    "concat({a}, {b})",
    "to_jsonb(ARRAY[{a}, {b}])",
    "(SELECT max(x::text) FROM (VALUES ({a}), ({b})) v (x))",
    "(SELECT string_agg(x::text, ',' ORDER BY x) FROM (SELECT {a} AS x UNION SELECT {b}) v)",
    "(SELECT sum(cardinality(ARRAY[x, {b}])) FROM (SELECT {a} AS x UNION ALL SELECT {b}) v)",
)
CHUNK = 120


@pytest.fixture(scope="module")
def coerced(planner_dsn):
    with psycopg.connect(planner_dsn, autocommit=True) as conn:
        conn.execute("CREATE DOMAIN coerced_domain AS varchar(4)")
        kinds = {n: (k, one, two) for n, (k, one, two) in COLUMNS.items() if k}
        columns = ", ".join(f"{n} {k}" for n, (k, _, _) in kinds.items())
        conn.execute(f"CREATE TABLE coerced (id int PRIMARY KEY, {columns})")
        for number, place in enumerate((1, 2), 1):
            values = ", ".join(v[place] for v in kinds.values())
            conn.execute(f"INSERT INTO coerced VALUES ({number}, {values})")
        nulls = ", ".join(["NULL"] * len(kinds))
        conn.execute(f"INSERT INTO coerced VALUES (3, {nulls})")
        yield conn


def operands() -> list[str]:
    return [n if kind else first for n, (kind, first, _) in COLUMNS.items()]


def query(calls: list[str]) -> str:
    listed = ", ".join(f"{call} AS x{i}" for i, call in enumerate(calls))
    return f"SELECT id, {listed} FROM coerced"


def accepted(conn, calls: list[str]) -> list[str]:
    """Return the expressions that Postgres accepts in a view."""
    out = []
    for call in calls:
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(f"CREATE TEMP VIEW taken AS {query([call])}")
        except psycopg.Error:
            continue
        out.append(call)
    return out


def refusals(conn, calls: list[str]) -> dict[str, str]:
    try:
        plan(conn, PlanRequest(query(calls)))
    except UnsupportedError as error:
        if len(calls) == 1:
            return {calls[0]: error.message}
        half = len(calls) // 2
        return refusals(conn, calls[:half]) | refusals(conn, calls[half:])
    return {}


POLYMORPHIC = ("||", "array_", "width_bucket")


def known(call: str, message: str) -> bool:
    """Return whether the refusal is expected for a domain column.

    Below, the column has its base type, and these functions then resolve otherwise.
    """
    return (
        "c_domain" in call
        and any(name in call for name in POLYMORPHIC)
        and "cannot be reproduced" in message
    )


def test_one_pair_of_types_in_every_construct(coerced, monkeypatch):
    pairs = (("c_num", "c_small"), ("c_text", "c_varchar"), ("c_int", "c_big"))
    check(coerced, monkeypatch, pairs)


@pytest.mark.slow
@pytest.mark.parametrize("first", operands())
def test_every_pair_of_types_in_every_construct(first, coerced, monkeypatch):
    check(coerced, monkeypatch, [(first, other) for other in operands()])


def check(conn, monkeypatch, pairs) -> None:
    every = [f.format(a=a, b=b) for (a, b), f in itertools.product(pairs, FORMS)]
    calls = accepted(conn, every)
    assert len(calls) > len(FORMS) // 4
    refused: dict[str, str] = {}
    for start in range(0, len(calls), CHUNK):
        refused |= refusals(conn, calls[start : start + CHUNK])
    wrong = {c: m for c, m in refused.items() if not known(c, m)}
    assert not wrong
    same_values(conn, monkeypatch, [c for c in calls if c not in refused])


def same_values(conn, monkeypatch, calls: list[str]) -> None:
    """Check that the plan's SQL has the query's rows, or fails for each expression as it does."""
    for start in range(0, len(calls), CHUNK):
        chunk = calls[start : start + CHUNK]
        want = answer(conn, query(chunk))
        if isinstance(want, str) and len(chunk) > 1:
            half = len(chunk) // 2
            same_values(conn, monkeypatch, chunk[:half])
            same_values(conn, monkeypatch, chunk[half:])
            continue
        mine = texts(conn, monkeypatch, query(chunk))["bound"]
        assert answer(conn, mine) == want, f"{chunk}\n{mine}"


def answer(conn, sql: str) -> list[tuple[object, ...]] | str | None:
    try:
        return sorted(conn.execute(f"SELECT q::text FROM ({sql}) q").fetchall())
    except (psycopg.errors.DataError, psycopg.errors.FeatureNotSupported) as error:
        return error.sqlstate
