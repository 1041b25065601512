"""Windows and OFFSET in ranges: rows as of Postgres, rows and state as of one task."""

from __future__ import annotations

import random

import pytest

from headrace.collections.plan import TopKSpec, WindowSpec
from headrace.planner import PlanRequest, plan
from headrace.population import ranges
from headrace.population.stage_graph import StageGraph
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

MODES = ("local", "out_of_core")
ROWS = 6_000
TABLES = """
CREATE TABLE s (id int PRIMARY KEY, k int, d date, n numeric, f float8, t text COLLATE "C.utf8", i int8, b bool);
INSERT INTO s SELECT x, CASE WHEN r < 0.8 THEN 7 WHEN r < 0.85 THEN NULL ELSE x % 40 END,
    '2024-01-01'::date + (q * {dates})::int,
    CASE x % 97 WHEN 0 THEN 'NaN' WHEN 1 THEN NULL WHEN 2 THEN 123456789012345678901234.5 WHEN 3 THEN '-Infinity'
     ELSE round((r * 100)::numeric, x % 4) END,
    CASE x % 13 WHEN 0 THEN 'NaN' WHEN 1 THEN NULL WHEN 2 THEN '-0'::float8 WHEN 3 THEN 'Infinity' ELSE (q * 50)::int END,
    chr(97 + x % 26) || x % 50, ((q - 0.5) * 9e15)::int8, nullif(x % 5, 3) > 1
  FROM (SELECT x, random() r, random() q FROM generate_series(1, {rows}) x) y;
CREATE TABLE bag (k int, v int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT i % 3, i % 40 FROM generate_series(1, {rows}) i;
CREATE TABLE names (k int PRIMARY KEY, name text COLLATE "C.utf8");
INSERT INTO names SELECT i, 'n' || i % 3 FROM generate_series(0, 39) i;
"""  # fmt: skip
DIVIDED = {
    "row_number": "SELECT id, row_number() OVER (ORDER BY t DESC, id) AS r FROM s",
    "ranks": "SELECT id, rank() OVER w AS r, dense_rank() OVER w AS d FROM s WINDOW w AS (ORDER BY f NULLS FIRST)",
    "numeric": "SELECT id, sum(n) OVER w AS s, min(n + 0.0000) OVER w AS l, max(n * 1.0000) OVER w AS m, rank() OVER w AS r,"
    " avg(n) FILTER (WHERE n < 50) OVER w AS a FROM s WINDOW w AS (ORDER BY n DESC)",
    "sums": "SELECT id, sum(k) OVER w AS s, count(*) OVER w AS c, count(n) OVER w AS n, sum(i) OVER w AS i,"
    " avg(k) OVER w AS a, min(f) OVER w AS l, max(t) OVER w AS m FROM s WINDOW w AS (ORDER BY d, id)",
    "ends": "SELECT id, first_value(t) OVER w AS f, last_value(n) OVER w AS l, first_value(k) OVER w AS k,"
    " sum(i) OVER w AS s FROM s WINDOW w AS (ORDER BY i ROWS UNBOUNDED PRECEDING)",
    "neighbours": "SELECT id, lag(t, 3, 'none') OVER w AS l, lead(n, 2) OVER w AS n, lead(k) OVER w AS k"
    " FROM s WINDOW w AS (ORDER BY f DESC, id)",
    "moving": "SELECT id, sum(n) OVER (w ROWS BETWEEN 4 PRECEDING AND 2 FOLLOWING) AS s, min(f) OVER (w ROWS BETWEEN"
    " 7 PRECEDING AND 1 PRECEDING) AS m, last_value(t) OVER (w ROWS BETWEEN CURRENT ROW AND 3 FOLLOWING) AS l"
    " FROM s WINDOW w AS (ORDER BY i, id)",
    "bag": "SELECT k, v, count(*) OVER (ORDER BY v) AS c, rank() OVER (ORDER BY v) AS r FROM bag",
    "filtered": "SELECT id, row_number() OVER (ORDER BY -id) AS r FROM s WHERE k = 7",
    "joined": "SELECT id, name, rank() OVER (ORDER BY name, d) AS r FROM s JOIN names USING (k)",
    "grouped": "SELECT t, f, s, rank() OVER (ORDER BY s DESC) AS r, sum(s) OVER (ORDER BY s DESC) AS a"
    " FROM (SELECT t, f, count(*) + sum(id) AS s FROM s GROUP BY t, f) x",
    "twice": "SELECT id, r, lag(r) OVER (ORDER BY t, id) AS l FROM (SELECT id, t, sum(id) OVER (ORDER BY d) AS r FROM s) x",
    "union": "SELECT u, v, dense_rank() OVER (ORDER BY v) AS r FROM (SELECT id AS u, i AS v FROM s UNION ALL"
    " SELECT k, v FROM bag) x",
    "above": "SELECT r % 100 AS c, count(*) AS n FROM (SELECT row_number() OVER (ORDER BY i, id) AS r FROM s) x GROUP BY 1",
    "partition": "SELECT id, k, row_number() OVER w AS r, sum(n) OVER w AS s, lag(id) OVER w AS l, lead(t, 2) OVER w AS n"
    " FROM s WINDOW w AS (PARTITION BY k ORDER BY d, id)",
    "partition_ranks": "SELECT id, rank() OVER w AS r, dense_rank() OVER w AS d, max(n * 1.0000) OVER w AS m"
    " FROM s WINDOW w AS (PARTITION BY k ORDER BY f)",
    "offset": "SELECT id, n FROM s ORDER BY n DESC, id OFFSET 100",
    "offset_all": "SELECT id FROM s ORDER BY f, t OFFSET 100000",
    "offset_most": "SELECT id, t FROM s ORDER BY t, id OFFSET 3000",
    "limit": "SELECT id, t FROM s ORDER BY t, id OFFSET 2500 LIMIT 700",
    "limit_ties": "SELECT id, d FROM s ORDER BY d FETCH FIRST 2500 ROWS WITH TIES",
    "limit_copies": "SELECT v FROM bag ORDER BY v OFFSET 3001 LIMIT 1500",
    "offset_above": "SELECT 1 / (id - 1) AS q FROM (SELECT id FROM s ORDER BY id OFFSET 1) x",
}  # fmt: skip
ON_SPARK = ("sums", "moving", "grouped", "twice", "partition", "offset_most", "limit")
TOGETHER = {
    "no_order": "SELECT id, count(*) OVER () AS c, sum(n) OVER () AS s FROM s",
    "even": "SELECT id, rank() OVER (PARTITION BY t ORDER BY d) AS r FROM s",
    "far": "SELECT id, lag(id, 3000) OVER (ORDER BY id) AS l FROM s",
    "of_postgres": "SELECT id, ntile(7) OVER (ORDER BY i, id) AS b FROM s",
    "two_steps": "SELECT id, t FROM s ORDER BY t, id OFFSET 50 LIMIT 20",
    "one_peer_group": "SELECT id, rank() OVER (ORDER BY (id < 0)) AS r FROM s",
}  # fmt: skip


@pytest.fixture
def found(monkeypatch):
    """The ranges of each node that may have some."""
    monkeypatch.setattr(ranges, "ROWS_MIN", 1000)
    kept, made = [], StageGraph._in_ranges

    def noted(self, node):
        flow = made(self, node)
        kept.append(flow.segment.ranges)
        return flow

    monkeypatch.setattr(StageGraph, "_in_ranges", noted)
    return kept


def fill(conn, seed: str, rows: int, dates: int = 400) -> None:
    conn.execute("SELECT setseed(%s)", (random.Random(seed).random(),))
    conn.execute(TABLES.format(rows=rows, dates=dates))
    conn.execute("ANALYZE")


def compare(bench, query: str, path, modes: tuple[str, ...] = MODES) -> list[list[int]]:
    """Compare ways of population; return the sizes of the last window's runs, for each later one."""
    case = plans.Case(query, plan(bench.conn, PlanRequest(query)).physical)
    nodes = [n.id for n in case.plan.nodes if isinstance(n, WindowSpec | TopKSpec)]
    (rows, state), *others = both(bench, case, path, 1000, modes=modes)
    with bench.conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert rows == want
    for found_rows, found_state in others:
        assert found_rows == want
        assert found_state == state
    return [
        [run.stat().st_size for run in (path / mode / "state").glob(f"{nodes[-1]}*.sst")]
        for mode in modes[1:]
    ]


@pytest.mark.parametrize("name", every(3, DIVIDED))
def test_rows_are_divided_into_ranges(bench, tmp_path, found, name):
    fill(bench.conn, name, ROWS)
    divided(found, compare(bench, DIVIDED[name], tmp_path))


@pytest.mark.parametrize("name", every(3, ON_SPARK))
def test_rows_are_divided_into_ranges_on_spark(spark_bench, tmp_path, found, name):
    fill(spark_bench.conn, name, ROWS)
    divided(found, compare(spark_bench, DIVIDED[name], tmp_path, ("local", "spark")))


def divided(found, runs: list[list[int]]) -> None:
    assert found
    assert all(each.starts for each in found)
    for sizes in runs:
        assert len(sizes) > 2
        assert max(sizes) < 0.6 * sum(sizes), sizes


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_stay_together(bench, tmp_path, found, name):
    fill(bench.conn, name, ROWS)
    compare(bench, TOGETHER[name], tmp_path)
    assert not any(found)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("name", ["numeric", "moving", "grouped", "partition", "limit", "offset"])
def test_few_rows(bench, tmp_path, found, monkeypatch, name, rows):
    """Statistics may promise many rows where there are few."""
    monkeypatch.setattr(ranges, "ROWS_MIN", 0)
    fill(bench.conn, name, rows)
    compare(bench, DIVIDED[name], tmp_path)
    assert found


@pytest.mark.parametrize("name", ["ranks", "sums", "partition_ranks", "limit_ties"])
def test_a_huge_peer_group_is_in_one_range(bench, tmp_path, found, name):
    fill(bench.conn, name, ROWS, dates=2)
    bench.conn.execute("UPDATE s SET f = 1, d = '2024-01-02' WHERE id % 10 > 0; ANALYZE")
    compare(bench, DIVIDED[name], tmp_path)
    assert any(found)


def test_ranges_without_starts_come_together(bench, tmp_path, found, monkeypatch):
    """A range without its earlier rows may have a sum that Postgres cannot represent."""
    monkeypatch.setattr(ranges, "starts", lambda *_: None)
    fill(bench.conn, "together", ROWS)
    for name in ("sums", "partition", "grouped"):
        compare(bench, DIVIDED[name], tmp_path / name)
    assert len(found) == 3
    assert not any(found)
