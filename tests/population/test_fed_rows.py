"""Rows of a feeding view, on Spark and in process: its table, less removed rows, plus added ones."""

from __future__ import annotations

import random

import msgspec
import pytest

from headrace.collections.plan import FeedSpec, SourceSpec
from headrace.collections.source import only_wanted
from headrace.errors import StateDamaged
from headrace.planner import PlanRequest, plan
from headrace.population import fed_rows, feeding, reader
from headrace.population.fed_rows import FedRows
from tests.population import plans
from tests.population.test_spark import both
from tests.seeds import every

# Postgres adds floats in the order of the rows; the sums of these are exact in any order.
TABLES = """
CREATE TABLE v (k int, n numeric, f float8, s text, t timestamptz, ok bool);
ALTER TABLE v REPLICA IDENTITY FULL;
CREATE FUNCTION shown(x int) RETURNS v LANGUAGE sql AS $$
    SELECT nullif(x % 9, 4), (ARRAY['1.0', '1.00', '2.5', 'NaN', NULL])[1 + x % 5]::numeric,
    (ARRAY['-0', '0', '0.5', 'NaN', '4096.5', '-Infinity', NULL])[1 + x % 7]::float8,
    (ARRAY['a', E'b\\t\\\\\\n', '', 'é', NULL])[1 + x / 3 % 5],
    '2024-01-01'::timestamptz + x % 3 * interval '1 s', nullif(x % 3, 2) = 1 $$;
"""
QUERIES = [
    "SELECT k, n, f, s, t, ok FROM v",
    "SELECT k, count(*), sum(n), sum(f) AS f, min(s COLLATE \"C\"), count(DISTINCT n) AS d FROM v GROUP BY k",
    "SELECT count(*), sum(f), max(t) FROM v WHERE n < 5",
    "SELECT a.s, b.k FROM v a JOIN v b ON a.k = b.k + 1 AND a.ok",
    "SELECT v.s, o.amount FROM v LEFT JOIN orders o ON o.id = v.k UNION ALL SELECT s, n FROM v",
    "SELECT DISTINCT k, ok FROM v",
]  # fmt: skip


def copied(conn, query: str) -> bytes:
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        return b"".join(copy)


def rows_of(values: list[int]) -> str:
    return f"SELECT (shown(x)).* FROM unnest('{{{','.join(map(str, values))}}}'::int[]) x"


def fed_case(conn, query: str) -> tuple[plans.Case, SourceSpec]:
    """Return ``query`` with the rows of table ``v`` from a feed, and the table."""
    physical = plan(conn, PlanRequest(query)).physical
    nodes, table = [], None
    for node in physical.nodes:
        if isinstance(node, SourceSpec) and node.table_name == "v":
            table = msgspec.structs.replace(node, schema=node.schema)
            node = FeedSpec(node.id, node.schema, '"public"."v"', node.table_oid)  # noqa: PLW2901
        nodes.append(node)
    return plans.Case(query, msgspec.structs.replace(physical, nodes=tuple(nodes))), table


@pytest.mark.parametrize("query", every(3, QUERIES))
@pytest.mark.parametrize("changes", ["none", "added", "some", "all"])
def test_the_same_as_postgres_and_in_process(spark_bench, tmp_path, query, changes):
    rng = random.Random(f"{query} {changes}")
    conn = spark_bench.conn
    conn.execute(TABLES)
    values = [rng.randrange(40) for _ in range(rng.choice((1, 300, 3000)))]
    conn.execute(f"INSERT INTO v {rows_of(values)}")
    conn.execute("ANALYZE")
    case, table = fed_case(conn, query)
    rng.shuffle(values)
    gone = {"none": 0, "added": 0, "some": len(values) // 3, "all": len(values)}[changes]
    new = [] if changes == "none" else [rng.randrange(45) for _ in range(rng.randrange(50))]
    names = ", ".join(f.name for f in table.schema)
    added, removed = (
        copied(conn, f"SELECT {names} FROM ({rows_of(some)}) x") for some in (new, values[:gone])
    )
    if table.pushdown:  # as ``Feeding.rows``
        gone_rows = only_wanted(table, fed_rows.typed(removed, table.schema))
        removed = fed_rows.rendered(gone_rows, table.schema)
    fed = FedRows(table, '"public"."v"', added, removed)
    (local_rows, local_state), (spark_rows, spark_state) = both(
        spark_bench, case, tmp_path, fed=fed
    )
    conn.execute(f"TRUNCATE v; INSERT INTO v {rows_of(values[gone:] + new)}")
    assert local_rows == sorted(copied(conn, query).splitlines())
    assert spark_rows == local_rows
    assert spark_state == local_state


@pytest.mark.parametrize("lacks", [7, 41])
def test_a_removed_row_that_the_table_lacks(spark_bench, tmp_path, lacks):
    """Whether the other tasks have rows or not: 7 is in the table, but not that often."""
    conn = spark_bench.conn
    conn.execute(TABLES)
    conn.execute(f"INSERT INTO v {rows_of([7, 3])}")
    case, table = fed_case(conn, QUERIES[0])
    removed = copied(conn, rows_of([lacks, lacks]))
    fed = FedRows(table, '"public"."v"', b"", removed)
    for modes in (("local",), ("spark",)):
        with pytest.raises(StateDamaged, match="lacks rows"):
            both(spark_bench, case, tmp_path, fed=fed, modes=modes)


def test_the_size_of_a_feed_with_a_filter_is_that_of_its_rows(bench):
    conn = bench.conn
    conn.execute("CREATE TABLE v (k int, s text); CREATE INDEX ON v (k)")
    conn.execute("INSERT INTO v SELECT i % 1000, 'x' FROM generate_series(1, 50000) i; ANALYZE v")
    [oid] = conn.execute("SELECT 'v'::regclass::oid::bigint").fetchone()
    query = "SELECT k, s FROM v WHERE k = 7"
    conn.execute("ALTER TABLE v REPLICA IDENTITY FULL")
    [table] = plan(conn, PlanRequest(query)).physical.sources
    assert table.pushdown
    all_rows, some = (
        feeding.size(conn, FeedSpec("f", table.schema, '"public"."v"', oid, filter_))
        for filter_ in ((), table.pushdown)
    )
    assert all_rows.rows == 50_000
    assert 10 < some.rows < 200
    assert some.blocks == all_rows.blocks
    assert reader.estimated(conn, table) == some.rows
