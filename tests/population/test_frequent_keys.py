"""Joins over skewed keys: rows of a frequent key are divided among tasks, in rows and states."""

from __future__ import annotations

import pytest

from headrace.collections.plan import JoinSpec
from headrace.planner import PlanRequest, plan
from headrace.population import join_sample
from headrace.population.join_sample import JoinSample
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

MODES = ("local", "spark", "out_of_core")
ROWS = 6_000
TABLES = """
CREATE TABLE big (id int PRIMARY KEY, k int, n numeric, t text COLLATE "C.utf8", d int);
INSERT INTO big SELECT x, CASE WHEN x % 10 < 6 THEN 7 WHEN x % 10 < 8 THEN NULL ELSE x % 400 END,
    CASE x % 3 WHEN 0 THEN 7 WHEN 1 THEN 7.0 ELSE x % 50 END, 't' || x % 5, x % 90
  FROM generate_series(1, %(rows)s) x;
CREATE TABLE dim (id int PRIMARY KEY, k int, n numeric, label text);
INSERT INTO dim SELECT i, i %% 300, CASE i % 2 WHEN 0 THEN 7.00 ELSE i % 60 END, 'l' || i % 4
  FROM generate_series(1, 900) i;
CREATE TABLE bag (k int, v int);
ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT CASE WHEN i % 5 < 4 THEN 7 ELSE i % 400 END, i % 30 FROM generate_series(1, 4000) i;
""".replace("%(rows)s", str(ROWS)).replace("%%", "%")
DIVIDED = {
    "inner": "SELECT b.id, b.t, d.label FROM big b JOIN dim d ON d.k = b.k",
    "inner_right": "SELECT b.id, b.t, d.label FROM dim d JOIN big b ON d.k = b.k",
    "left": "SELECT b.id, d.label FROM big b LEFT JOIN dim d ON d.k = b.k",
    "left_residual": "SELECT b.id, d.label FROM big b LEFT JOIN dim d ON d.k = b.k AND d.id > b.d * 8",
    "semi": "SELECT id, t FROM big b WHERE EXISTS (SELECT FROM dim d WHERE d.k = b.k)",
    "semi_residual": "SELECT id FROM big b WHERE EXISTS (SELECT FROM dim d WHERE d.k = b.k AND d.id % 7 = b.d % 5)",
    "semi_compared": "SELECT id FROM big b WHERE EXISTS (SELECT FROM dim d WHERE d.k = b.k AND d.id > b.d * 9)",
    "anti": "SELECT id, t FROM big b WHERE NOT EXISTS (SELECT FROM dim d WHERE d.k = b.k)",
    "anti_residual": "SELECT id FROM big b WHERE NOT EXISTS (SELECT FROM dim d WHERE d.k = b.k AND d.id % 7 = b.d)",
    "forms": "SELECT b.id, b.n AS l, d.n AS r, d.id AS i FROM big b JOIN dim d ON d.n = b.n WHERE d.id < 40",
    "null_safe": "SELECT b.id, x.v FROM big b JOIN (VALUES (NULL::int, 1), (7, 2), (7, 3)) x(k, v)"
    " ON x.k IS NOT DISTINCT FROM b.k",
    "bag": "SELECT g.v, d.label, d.id FROM bag g JOIN dim d ON d.k = g.k",
    "aggregated": "SELECT label, count(*) AS c, min(b.n) AS m FROM big b JOIN dim d ON d.k = b.k GROUP BY label",
    "mapped": "SELECT b.id, d.id AS i FROM (SELECT id, k + 1 AS k FROM big WHERE t <> 't1') b JOIN dim d ON d.k = b.k",
    "star": "SELECT b.id, d.label, e.id AS e FROM big b JOIN dim d ON d.id = b.d JOIN dim e ON e.k = b.k",
    "both": "SELECT b.id, g.v FROM (SELECT * FROM big WHERE id % 20 = 1) b JOIN bag g ON g.k = b.k WHERE g.v < 3",
}  # fmt: skip
WHOLE = {
    "full": "SELECT b.id, d.label FROM big b FULL JOIN dim d ON d.k = b.k",
    "left_of_fewer": "SELECT b.id, d.label FROM dim d LEFT JOIN big b ON d.k = b.k",
    "rare": "SELECT b.id, d.label FROM big b JOIN dim d ON d.id = b.id",
    "unknown": "SELECT b.id, x.k FROM big b LEFT JOIN (SELECT k, v, count(*) AS c FROM bag GROUP BY k, v) x"
    " ON x.k = b.k",
}  # fmt: skip


@pytest.fixture
def found(spark_bench, monkeypatch):
    """The frequent keys of each join of the populations of the test."""
    spark_bench.conn.execute(TABLES + "ANALYZE")
    monkeypatch.setattr(join_sample, "ROWS_MIN", 1000)
    kept, frequent = [], JoinSample.frequent

    def noted(self, node):
        kept.append(frequent(self, node))
        return kept[-1]

    monkeypatch.setattr(JoinSample, "frequent", noted)
    return kept


def compare(
    bench, query: str, path, partition_rows: int = 1000, modes: tuple[str, ...] = MODES
) -> list[list[int]]:
    """Compare ways of population; return the sizes of the last join's runs, for each later one."""
    case = plans.Case(query, plan(bench.conn, PlanRequest(query)).physical)
    joins = [node.id for node in case.plan.nodes if isinstance(node, JoinSpec)]
    assert joins
    (rows, state), *others = both(bench, case, path, partition_rows, modes=modes)
    with bench.conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert want
    assert rows == want
    for found_rows, found_state in others:
        assert found_rows == want
        assert found_state == state
    return [
        [run.stat().st_size for run in (path / mode / "state").glob(f"{joins[-1]}*.sst")]
        for mode in modes[1:]
    ]


@pytest.mark.parametrize("name", every(3, DIVIDED))
def test_rows_of_a_frequent_key_are_divided(spark_bench, tmp_path, found, name):
    for runs in compare(spark_bench, DIVIDED[name], tmp_path):
        assert any(found), "no frequent key"
        assert len(runs) > 2
        # Without it, one task has 60 % of the rows or more.
        assert max(runs) < 0.5 * sum(runs), runs


@pytest.mark.parametrize("name", WHOLE)
def test_rows_of_a_key_stay_together(spark_bench, tmp_path, found, name):
    compare(spark_bench, WHOLE[name], tmp_path)
    assert not any(found)


def test_rows_without_a_key_are_divided_where_they_are_output(spark_bench, tmp_path, found):
    """They are in no state, and most rows may be among them."""
    spark_bench.conn.execute("UPDATE big SET k = NULL WHERE k = 7")
    compare(spark_bench, DIVIDED["left"], tmp_path)
    assert all(len(keys.divided[0]) == 1 for keys in found)
    found.clear()
    compare(spark_bench, DIVIDED["inner"], tmp_path / "inner")
    assert not any(found)


def test_an_error_in_the_sample_is_no_error(spark_bench, tmp_path, found):
    """The other join removes the row before the division."""
    spark_bench.conn.execute("SET join_collapse_limit = 1")
    query = (
        "SELECT x.id, e.id AS e FROM (SELECT b.id, b.k + 0 / (b.d - 50) AS k FROM big b"
        " JOIN dim d ON d.id = b.d AND d.label <> 'l2') x JOIN dim e ON e.k = x.k"
    )
    compare(spark_bench, query, tmp_path)
    assert not any(found)


def test_the_rows_that_all_tasks_get_are_limited(spark_bench, tmp_path, found):
    """Of five keys with 180 rows of 1 000 on both sides, two fit into a fifth of 2 000 rows."""
    spark_bench.conn.execute(
        "CREATE TABLE l AS SELECT i AS id, CASE WHEN i % 10 < 9 THEN i % 5 ELSE i END AS k"
        " FROM generate_series(1, 1000) i; ALTER TABLE l ADD PRIMARY KEY (id);"
        "CREATE TABLE r AS TABLE l; ALTER TABLE r ADD PRIMARY KEY (id); ANALYZE"
    )
    query = "SELECT l.id, r.id AS r FROM l JOIN r ON r.k = l.k"
    compare(spark_bench, query, tmp_path, modes=("local", "out_of_core"))
    assert [len(keys.divided[0]) for keys in found] == [2]


def test_a_sample_of_large_rows_ends_early(spark_bench, tmp_path, found, monkeypatch):
    """The share of a key is estimated from the blocks that were read."""
    counted, rows = [], JoinSample._counted

    def noted(self, node, port):
        counted.append(rows(self, node, port))
        return counted[-1]

    monkeypatch.setattr(JoinSample, "_counted", noted)
    monkeypatch.setattr(join_sample, "_ROWS", 3000)
    for size in (1, 1 << 30):
        monkeypatch.setattr(join_sample, "_BYTES_MAX", size)
        compare(spark_bench, DIVIDED["left"], tmp_path / str(size), modes=("local", "out_of_core"))
    [early, _, late, _] = counted
    assert early.least > 2 * late.least
    assert 0.5 * ROWS < early.rows < 2 * ROWS
    assert 0.9 * ROWS < late.rows < 1.1 * ROWS
    assert len(found[1].divided[0]) == 2, "7 and NULL"
