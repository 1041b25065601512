"""Equal rows of a frequent key are added up before they leave a task."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from headrace.collections import plan as nodes
from headrace.planner import PlanRequest, plan
from headrace.population import equal_rows, rows
from headrace.types import INT4, TEXT, Field, diff_batch
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

SCHEMA = (Field("k", INT4), Field("t", TEXT), Field("v", INT4))
DISTINCT = nodes.DistinctSpec("d", "in", SCHEMA)
MODES = ("local", "spark", "out_of_core")
TABLE = """
CREATE TABLE s (id int PRIMARY KEY, k int, n numeric, f float8, t text COLLATE "C.utf8", v int);
INSERT INTO s SELECT x, CASE WHEN x % 10 < 8 THEN 7 ELSE x % 40 END,
    CASE x % 7 WHEN 0 THEN NULL WHEN 1 THEN 1.0 WHEN 2 THEN 1.00 ELSE x % 20 END,
    CASE x % 5 WHEN 0 THEN '-0'::float8 WHEN 1 THEN 0 WHEN 2 THEN 'NaN' ELSE x % 9 END,
    CASE x % 4 WHEN 0 THEN NULL ELSE 't' || x % 3 END, x % 6
  FROM generate_series(1, 6000) x;
CREATE TABLE names (k int PRIMARY KEY, name text);
INSERT INTO names SELECT i, 'n' || i % 3 FROM generate_series(0, 39) i;
ANALYZE;
"""
QUERIES = {
    "extremes": "SELECT k, min(n) AS l, max(f) AS h, count(*) AS c, sum(v) AS s FROM s GROUP BY k",
    "distinct": "SELECT k, count(DISTINCT n) AS a, sum(DISTINCT v) FILTER (WHERE t > 't0') AS b FROM s GROUP BY k",
    "lists": "SELECT k, string_agg(t, ',' ORDER BY t) AS l, array_agg(v ORDER BY v) AS a FROM s GROUP BY k",
    "asked": "SELECT k, mode() WITHIN GROUP (ORDER BY v) AS m, max(t) AS t FROM s GROUP BY k",
    "rows": "SELECT DISTINCT k, n, f FROM s",
    "except": "SELECT k, v FROM s EXCEPT ALL SELECT k, k FROM names",
    "intersect": "SELECT k, f::int AS f FROM s WHERE f < 9 INTERSECT ALL SELECT k, v FROM s",
    "joined": "SELECT s.k, s.v, name FROM s JOIN names USING (k)",
    "left": "SELECT s.k, name, min(v) AS l FROM s LEFT JOIN names ON names.k = s.k + v GROUP BY 1, 2",
    "anti": "SELECT k, v FROM s WHERE NOT EXISTS (SELECT FROM names x WHERE x.k = s.k + s.v AND x.name > s.t)",
    "total": "SELECT min(n) AS l, max(n) AS h, count(DISTINCT v) AS d, count(*) AS c FROM s",
    "rollup": "SELECT k, v, max(n) AS h, count(DISTINCT t) AS d FROM s GROUP BY CUBE (k, v)",
}  # fmt: skip
SEVERAL_FORMS = ("extremes", "rows")
"""Queries of which Postgres shows any of equal values (1.0, 1.00)."""


@pytest.mark.parametrize("name", every(3, QUERIES))
def test_the_same_rows_and_states(spark_bench, tmp_path, monkeypatch, name):
    conn, query = spark_bench.conn, QUERIES[name]
    conn.execute(TABLE)
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    came, went = Counter(), Counter()
    added_up = equal_rows.added_up

    def counted(node, schema, batches):
        def each():
            for batch in batches:
                came[node.id] += batch.num_rows
                yield batch

        for batch in added_up(node, schema, each()):
            went[node.id] += batch.num_rows
            yield batch

    monkeypatch.setattr(equal_rows, "added_up", counted)
    (found, state), *others = both(spark_bench, case, tmp_path, 3000, modes=MODES)
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert len(want) == len(found) > 0
    if name not in SEVERAL_FORMS:
        assert found == want
    for found_rows, found_state in others:
        assert found_rows == found
        assert found_state == state
    assert any(went[node] * 3 < count for node, count in came.items()), (came, went)


def batch_of(rng: random.Random, count: int, kinds: int) -> pa.RecordBatch:
    found = [rng.randrange(kinds) for _ in range(count)]
    return diff_batch(
        SCHEMA,
        [
            pa.array([None if i % 7 == 0 else i for i in found], pa.int32()),
            pa.array([None if i % 5 == 0 else "ä" * (i % 9) for i in found], pa.string()),
            pa.array(found, pa.int32()),
        ],
        pa.array([rng.choice((1, 1, 2)) for _ in found], pa.int64()),
    )


def totals(batches: list[pa.RecordBatch]) -> Counter[tuple[object, ...]]:
    out: Counter[tuple[object, ...]] = Counter()
    for batch in batches:
        for *row, weight in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            out[tuple(row)] += weight
    return out


@pytest.mark.parametrize("kinds", [1, 5, 300, 3000, 10**9])
@pytest.mark.parametrize("held", [100, equal_rows.HELD_MAX])
def test_weights_are_kept_and_few_rows_are_held(monkeypatch, kinds, held):
    monkeypatch.setattr(equal_rows, "HELD_MAX", held)
    rng = random.Random(kinds)
    given = [batch_of(rng, count, kinds) for count in (0, 700, 1, 2000, 2000, 0, 300)]
    found = list(equal_rows.added_up(DISTINCT, SCHEMA, iter(given)))
    assert totals(found) == totals(given)
    sent = sum(batch.num_rows for batch in found)
    if kinds <= 5:
        assert sent == min(kinds, held)
    if kinds >= 10**9:
        assert [batch for batch in found if batch.num_rows] == [b for b in given if b.num_rows]
    # A batch is taken whole.
    assert max(batch.num_rows for batch in found) <= max(held + 2000, 2000)


def test_rows_that_differ_are_no_longer_held():
    """The first batch promises more than the later ones keep."""
    rng = random.Random(3)
    given = [batch_of(rng, 4000, 50), *(batch_of(rng, 40_000, 10**9) for _ in range(4))]
    taken = iter(given)
    found = equal_rows.added_up(DISTINCT, SCHEMA, taken)
    sent = [next(found), next(found), next(found)]
    assert len(list(taken)) == 1, "it has stopped after two large batches, and passes the third"
    assert sent[-1] == given[3]


def test_columns_that_a_reduce_does_not_read_are_null():
    calls = (nodes.AggregateSpec("max", 2, None, Field("m", INT4)),)
    node = nodes.ReduceSpec("r", "in", (0,), calls, (SCHEMA[0], calls[0].result))
    rng = random.Random(9)
    given = [batch_of(rng, 4000, 10**9), batch_of(rng, 4000, 10)]
    found = list(equal_rows.added_up(node, SCHEMA, iter(given)))
    assert {row[1] for row in totals(found)} == {None}
    assert totals(found) == totals([equal_rows.reduced(batch, {0, 2}) for batch in given])


def test_a_row_of_a_large_weight_is_written_in_pieces(monkeypatch):
    monkeypatch.setattr(rows, "_ROWS_PER_PIECE", 4)
    columns = [pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b", "c"], pa.string())]
    batch = diff_batch(SCHEMA[:2], columns, pa.array(np.array([5, 1, 4])))
    pieces = list(rows.render(SCHEMA[:2], batch))
    assert [count for count, _ in pieces] == [4, 4, 2]
    assert b"".join(data for _, data in pieces) == b"1\ta\n" * 5 + b"2\tb\n" + b"3\tc\n" * 4
