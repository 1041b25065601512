"""The method of a population, and the reported reason."""

from __future__ import annotations

import pytest

from headrace.config import Settings
from headrace.planner import PlanRequest, plan
from headrace.population import choice, division, tables
from headrace.population.choice import LOCAL, OUT_OF_CORE, SPARK
from headrace.population.tables import TableSize
from headrace.sql.view_spec import ViewSpec
from tests.population import plans

MB = 1 << 20


def chosen(bench, case, rows, settings=None, **options):
    sizes = {s.id: TableSize(rows, rows // 50, width=20) for s in case.plan.sources}
    given = Settings(**(settings or {}))
    return choice.choose(case.plan, sizes, given, ViewSpec.of(options))


@pytest.mark.parametrize(
    ("rows", "settings", "options", "mode", "large"),
    [
        (0, {}, {}, LOCAL, False),
        (100_000, {}, {}, LOCAL, False),
        (1_000_000, {}, {}, LOCAL, True),
        (10_000_000, {}, {}, SPARK, True),
        (1_000_000, {"population_memory_bytes": 10 * MB}, {}, SPARK, True),
        (10_000_000, {}, {"population": "local"}, OUT_OF_CORE, True),
        (1_000, {}, {"population": "local"}, LOCAL, False),
        (10, {}, {"population": "spark"}, SPARK, False),
        # Options override all settings, and settings in rows override those in bytes.
        (10_000_000, {}, {"threshold_rows": 20_000_000}, OUT_OF_CORE, True),
        (10, {}, {"threshold_rows": 10}, SPARK, True),
        (9, {}, {"threshold_rows": 10}, LOCAL, False),
        (0, {}, {"threshold_rows": 0}, LOCAL, False),
        (10, {"spark_threshold_rows": 10}, {}, SPARK, True),
        (10, {"spark_threshold_rows": 10}, {"threshold_rows": 11}, LOCAL, False),
        (200_000, {"spark_master": "spark://host:7077"}, {}, SPARK, False),
        (50_000, {"spark_master": "spark://host:7077"}, {}, LOCAL, False),
        (200_000, {"spark_master": "spark://host:7077"}, {"threshold_rows": 300_000}, LOCAL, False),
        (200_000, {"spark_master": "local[7]"}, {}, LOCAL, False),
    ],
)
def test_choice(bench, rows, settings, options, mode, large):
    found = chosen(bench, plans.total(bench.conn), rows, settings, **options)
    # ``large`` does not matter for a population on Spark.
    assert (found.mode, mode == SPARK or found.large) == (mode, mode == SPARK or large)


def test_what_needs_more_states_needs_more_memory(bench):
    needed = {
        make.__name__: chosen(bench, make(bench.conn), 1000).bytes
        for make in (plans.total, plans.self_join)
    }
    assert needed["self_join"] > needed["total"] > 1000 * 20


def test_what_reads_the_clock_may_use_spark(bench):
    query = (
        "SELECT id FROM orders WHERE now() > '2000-01-01'::timestamptz + amount * interval '1 h'"
    )
    case = plans.Case(query, plan(bench.conn, PlanRequest(query)).physical)
    assert case.plan.temporal
    assert chosen(bench, case, 10_000_000).mode == SPARK
    assert chosen(bench, case, 10, population="spark").mode == SPARK


@pytest.mark.parametrize(
    ("make", "tags", "want"),
    [
        (plans.threshold, 10, {"reduce": 0, "left": 0, "anti": 0, "semi": 0}),
        # A full join checks both sides for a lone row; an outer join has a small left side.
        (plans.threshold, 1000, {"reduce": 0, "left": 0}),
        (plans.total_first, 10, {"reduce": 0, "join": 1}),
        (plans.cross, 10, {"join": 0}),
        (plans.joined, 10, {}),
    ],
)
def test_the_larger_side_is_divided_where_that_is_right(bench, make, tags, want):
    case = make(bench.conn)
    rows = {"source_tags": tags, "source_orders": 100, "source_customers": 50}
    assert division.divided(case.plan, rows) == want


def test_words(bench):
    case = plans.total(bench.conn)
    sizes = {s.id: TableSize(1_200_000, 1, width=10) for s in case.plan.sources}
    told = str(choice.choose(case.plan, sizes, Settings(), ViewSpec()))
    assert told.startswith("population: in process, about 1 200 000 rows, ")
    assert told.endswith(" MB (limit in process: 1.0 GB)")
    told = str(choice.choose(case.plan, sizes, Settings(), ViewSpec.of({"population": "spark"})))
    assert told.startswith("population: on Spark, ")
    assert told.endswith("; by option population")


def test_widths_come_from_statistics(bench):
    bench.conn.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, a text, unread text);"
        "INSERT INTO wide SELECT i, repeat('x', 100), repeat('y', 500) FROM generate_series(1, 99) i"
    )
    source = plans.source(bench.conn, "wide", ["id", "a"])
    assert tables.size(bench.conn, source).width == 4 + 32
    bench.conn.execute("ANALYZE wide")
    assert 100 < tables.size(bench.conn, source).width < 120
    # Values that are stored out of line count as well.
    bench.conn.execute(
        "ALTER TABLE wide ALTER a SET STORAGE EXTERNAL;UPDATE wide SET a = repeat('z', 10000)"
    )
    bench.conn.execute("VACUUM FULL wide")
    bench.conn.execute("ANALYZE wide")
    assert 9_000 < tables.size(bench.conn, source).width < 20_000


def test_the_choice_is_told(bench):
    bench.conn.execute(
        "INSERT INTO customers SELECT i, 'r', '' FROM generate_series(1000, 120000) i; ANALYZE"
    )
    bench.create("v", "SELECT count(*) FROM customers")
    told = [m["message"] for m in bench.messages if "message" in m]
    assert [t for t in told if t.startswith("population: in process, about 119 0")], told
    bench.messages.clear()
    bench.create("w", "SELECT count(*) FROM orders")
    assert not any("message" in m for m in bench.messages), "nobody asks of a small one"
