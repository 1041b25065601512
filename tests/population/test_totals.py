"""Groups of ROLLUP, CUBE and GROUPING SETS are divided among tasks; one task makes each total."""

from __future__ import annotations

import pytest

from headrace.collections.plan import ReduceSpec
from headrace.planner import PlanRequest, plan
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

MODES = ("local", "spark", "out_of_core")
QUERIES = {
    "rollup": "SELECT customer, f, count(*) AS c, sum(amount) AS s, grouping(customer, f) AS g"
    " FROM orders GROUP BY ROLLUP (customer, f)",
    "cube": "SELECT customer, f, min(amount) AS l, max(id) AS m, count(DISTINCT f) AS d"
    " FROM orders GROUP BY CUBE (customer, f)",
    "sets": "SELECT customer, f, max(amount) AS m FROM orders"
    " GROUP BY GROUPING SETS ((customer), (f), (), ())",
    "above": "SELECT c, count(*) AS n, min(s) AS l FROM (SELECT customer, count(*) AS c, sum(amount) AS s"
    " FROM orders GROUP BY ROLLUP (customer)) x GROUP BY ROLLUP (c)",
    "joined": "SELECT region, customer, count(*) AS c, string_agg(o.id::text, ',' ORDER BY o.id) AS l"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY ROLLUP (region, customer)",
    "union": "SELECT customer, count(*) AS c FROM orders GROUP BY ROLLUP (customer) UNION ALL"
    " SELECT id, min(id) AS c FROM customers GROUP BY CUBE (id)",
}  # fmt: skip


@pytest.mark.parametrize("rows", [500, 0])
@pytest.mark.parametrize("name", every(2, QUERIES))
def test_groups_are_divided_and_each_total_is_there_once(spark_bench, tmp_path, name, rows):
    conn, query = spark_bench.conn, QUERIES[name]
    if not rows:
        conn.execute("TRUNCATE orders, customers")
    conn.execute("ANALYZE")
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    reduces = [node for node in case.plan.nodes if isinstance(node, ReduceSpec)]
    assert any(node.always for node in reduces)
    (rows_here, state), *others = both(spark_bench, case, tmp_path, modes=MODES)
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert want
    assert rows_here == want
    for found_rows, found_state in others:
        assert found_rows == want
        assert found_state == state
    for mode in MODES[1:] if rows else ():
        for node in reduces:
            runs = (tmp_path / mode / "state").glob(f"{node.id}*.sst")
            assert sum(run.stat().st_size > 0 for run in runs) > 1, "one task had all groups"
