"""Reduces over skewed keys on Spark: rows of frequent groups are added up before they are sent."""

from __future__ import annotations

import math
import random

import pytest

from headrace.collections import combined_reduce
from headrace.collections.plan import ReduceSpec
from headrace.planner import PlanRequest, plan
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

TABLES = """
CREATE TABLE s (id int PRIMARY KEY, k int, t text COLLATE "C.utf8", d date, n numeric, f float8, g float8,
    i int8, b bool);
INSERT INTO s SELECT x, CASE WHEN r < {skew} THEN {key} WHEN r < 0.9 THEN (r * 1000)::int % 40 ELSE x END,
    CASE WHEN r < {skew} THEN {text} ELSE chr(97 + x % 26) || x % 50 END,
    '2024-01-01'::date + x % 3,
    CASE x % 97 WHEN 0 THEN 'NaN' WHEN 1 THEN 'Infinity' WHEN 2 THEN NULL WHEN 3 THEN 123456789012345678901234.5
     ELSE round((r * 1000)::numeric, x % 4) END,
    CASE x % 89 WHEN 0 THEN NULL WHEN 1 THEN '-0'::float8 ELSE (x % 4096) / 8.0 - 100 END,
    CASE x % 61 WHEN 0 THEN 1e300 WHEN 1 THEN -1e300 ELSE (r - 0.5) * 10 ^ (x % 20) END,
    (r * 9e18)::int8, nullif(x % 5, 3) > 1
  FROM (SELECT x, random() r FROM generate_series(1, {rows}) x) y;
CREATE TABLE names (k int PRIMARY KEY, name text);
INSERT INTO names SELECT i, 'n' || i % 3 FROM generate_series(0, 39) i;
"""
NUMBERS = (
    "count(*) AS c, count(n) AS cn, sum(n) AS sn, avg(n) AS an, sum(f) AS sf, avg(f) AS af, sum(i) AS si,"
    " avg(k) AS ak, bool_and(b) AS ba, bool_or(b) FILTER (WHERE id % 7 = 1) AS bo, var_samp(id) AS v,"
    " stddev_pop(n) FILTER (WHERE id % 97 > 3) AS sp, sum(n) FILTER (WHERE id % 97 > 3) AS ns"
)
QUERIES = {
    "int": f"SELECT k, {NUMBERS} FROM s GROUP BY k",
    "text": f"SELECT t, {NUMBERS} FROM s GROUP BY t",
    "two": f"SELECT k % 3 AS r, d, {NUMBERS} FROM s GROUP BY 1, 2",
    "none": "SELECT DISTINCT b, k FROM s GROUP BY b, k",
    "rollup": f"SELECT k, d, {NUMBERS}, grouping(k, d) AS gr FROM s GROUP BY ROLLUP (k, d)",
    "cube": "SELECT b, d, count(*) AS c, sum(n) AS s FROM s WHERE n < 400 GROUP BY CUBE (b, d)",
    "sets": "SELECT d, t, sum(f) AS s FROM s GROUP BY GROUPING SETS ((d), (t), (), (d, t))",
    "join": f"SELECT name, {NUMBERS.replace('(k)', '(s.k)')} FROM s JOIN names x ON x.k = s.k GROUP BY name",
    "outer": "SELECT name, d, count(*) AS c, sum(f) AS s FROM s LEFT JOIN names USING (k) GROUP BY 1, 2",
    "union": "SELECT k, count(*) AS c, sum(n) AS s FROM (SELECT k, n FROM s UNION ALL SELECT k, 1.50 FROM names"
    " UNION ALL SELECT id % 2, f::numeric FROM s WHERE f < 5) u GROUP BY k",
    "above": "SELECT c, count(*) AS n, sum(s) AS s FROM (SELECT k, d, count(*) / 100 AS c, sum(f) AS s FROM s"
    " GROUP BY k, d) x GROUP BY c",
    "empty": f"SELECT k, {NUMBERS} FROM s WHERE id < 0 GROUP BY ROLLUP (k)",
}  # fmt: skip


def fill(conn, rng: random.Random, rows: int) -> None:
    conn.execute("SELECT setseed(%s)", (rng.random(),))
    key, text = rng.choice((("7", "'é'"), ("NULL", "NULL"), ("-1", "''")))
    skew = rng.choice((0.3, 0.8, 0.99))
    conn.execute(TABLES.format(skew=skew, key=key, text=text, rows=rows))
    conn.execute("ANALYZE")


def reduces(case: plans.Case) -> list[bool]:
    """Return for each reduce whether rows may be added up before it."""
    return [
        combined_reduce.is_combinable(node, case.plan.node(node.input).schema)
        for node in case.plan.nodes
        if isinstance(node, ReduceSpec)
    ]


@pytest.mark.parametrize("name", every(3, QUERIES))
def test_the_same_as_postgres_and_in_process(spark_bench, tmp_path, name):
    conn, query = spark_bench.conn, QUERIES[name]
    fill(conn, random.Random(name), 12_000)
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    assert any(reduces(case))
    (local_rows, local_state), (spark_rows, spark_state) = both(
        spark_bench, case, tmp_path, partition_rows=3_000
    )
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert want
    assert local_rows == want
    assert spark_rows == local_rows
    assert spark_state == local_state


def test_sums_of_floats_do_not_depend_on_the_tasks(spark_bench, tmp_path):
    """Postgres rounds after each addition, in the order of the rows: its last digits differ."""
    conn = spark_bench.conn
    fill(conn, random.Random(5), 12_000)
    query = "SELECT k, sum(g) AS s, avg(g) AS a, sum(g::float4) FILTER (WHERE abs(g) < 1e9) AS r FROM s GROUP BY k"
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    assert reduces(case) == [True]
    (local_rows, local_state), (spark_rows, spark_state) = both(
        spark_bench, case, tmp_path, partition_rows=3_000
    )
    assert spark_rows == local_rows
    assert spark_state == local_state
    want = conn.execute("SELECT k, avg(g::numeric)::float8 FROM s GROUP BY k").fetchall()
    found = {row.split(b"\t")[0]: float(row.split(b"\t")[2]) for row in spark_rows}
    assert len(found) == len(want)
    for key, mean in want:
        shown = found[b"\\N" if key is None else str(key).encode()]
        assert math.isclose(shown, mean, rel_tol=1e-14, abs_tol=1e-300), key


@pytest.mark.parametrize(
    "query",
    every(
        2,
        [
            "SELECT k, count(*) AS c, min(n) AS m FROM s GROUP BY k",
            "SELECT k, count(DISTINCT d) AS c FROM s GROUP BY k",
            "SELECT n, count(*) AS c FROM s GROUP BY n",
            "SELECT f, count(*) AS c FROM s GROUP BY f",
            "SELECT k, string_agg(t, ',' ORDER BY id) AS l FROM s GROUP BY k",
        ],
    ),
)
def test_rows_are_not_added_up_where_a_group_keeps_values_or_forms(spark_bench, tmp_path, query):
    conn = spark_bench.conn
    fill(conn, random.Random(query), 3_000)
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    assert reduces(case) == [False]
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows
    assert spark_state == local_state
