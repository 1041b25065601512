"""Spark and the builder itself must give the same rows and the same state, byte for byte."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.errors import HeadraceError, QueryCancelled
from headrace.expressions.remote import RemoteEvaluator
from headrace.planner import PlanRequest, plan
from headrace.population import division, inputs, local, merging, out_of_core, stage_graph, tables
from headrace.population import snapshot as snapshots
from headrace.population.fed_rows import FedRows
from headrace.population.feeding import Feeding
from headrace.population.inputs import Inputs
from headrace.population.stage_graph import split_blocks
from headrace.population.staging import Staging, of_proof
from headrace.population.tables import TableSize
from headrace.state.rocks import RocksDatabase
from headrace.views.clocks import at
from tests.population import plans

_numbers = itertools.count()


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def both(
    bench,
    case,
    path,
    partition_rows: int = 100,
    fed: FedRows | None = None,
    modes: tuple[str, ...] = ("local", "spark"),
):
    """Return (rows, state) of in-process and of Spark population from one snapshot, by mode.

    ``fed``: the rows of the feeding view, if the plan has one.
    """
    settings = bench.settings.replace(spark_partition_rows=partition_rows)
    if "spark" in modes:
        bench.context.spark._settings = settings
    job = bench.job()
    out = []
    with snapshots.export(
        job, bench.dsn, slot_name=bench.settings.slot_name, number=str(next(_numbers)), wait_ms=5000
    ) as snapshot:
        sizes = {s.id: tables.size(bench.conn, s) for s in case.plan.sources}
        given, feedings = Inputs(case.plan, sizes), []
        for node in case.plan.feeds:
            sizes[node.id] = tables.size(bench.conn, fed.source)
            given = replace(given, fed={node.id: fed})
            feedings.append(Feeding(bench.context, job, None, node))
            feedings[-1].rows = lambda conn: fed
        for mode in modes:
            staged = Staging(path / mode)
            staged.make()
            if mode == "local":
                remote = RemoteEvaluator(bench.dsn, {})
                count, write = local.populate(
                    job, bench.dsn, given, snapshot.ref, remote, staged, feedings
                )
                write()
                remote.close()
            elif mode == "spark":
                count = bench.context.spark.populate(job, given, snapshot, {}, staged, "")
            else:
                spec = stage_graph.spec_of(given, snapshot, {}, staged, "", settings)
                count = out_of_core.populate(job, spec, sizes, 5)
                assert sorted(p.name for p in staged.path.iterdir()) == [
                    "progress",
                    "rows",
                    "state",
                ]
            lines = b"".join(f.read_bytes() for f in staged.row_files()).splitlines()
            assert len(lines) == count == staged.row_count()
            database = RocksDatabase(path / f"db_{mode}")
            entries = 0
            for number, run in enumerate(staged.runs(), 2):
                alone = shutil.copy(run, path / f"{mode}_{number}.sst")
                database.ingest(number, [Path(alone)])
                entries += sum(map(len, database.view(number).dump().values()))
            database.ingest(1, staged.runs())
            out.append((sorted(lines), database.view(1).dump()))
            assert entries == sum(map(len, out[-1][1].values())), "a key is in two runs"
            database.close()
    return out


@pytest.mark.parametrize("make", plans.CASES, ids=lambda make: make.__name__)
def test_same_rows_and_state_as_in_process(spark_bench, tmp_path, make):
    spark_bench.conn.execute("ANALYZE")
    case = make(spark_bench.conn)
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows
    assert spark_state == local_state
    want = [
        line
        for (line,) in spark_bench.conn.execute(f"SELECT count(*) FROM ({case.sql}) x").fetchall()
    ]
    assert [len(local_rows)] == want


@pytest.mark.parametrize(
    "make", [plans.total, plans.joined, plans.multiset, plans.self_join, plans.threshold]
)
def test_empty_tables(spark_bench, tmp_path, make):
    empty = {plans.total: [b"0\t\\N"], plans.threshold: [b"\\N\t\\N\t\\N\t0"]}
    spark_bench.conn.execute("TRUNCATE orders, customers, tags")
    case = make(spark_bench.conn)
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows == empty.get(make, [])
    assert spark_state == local_state


@pytest.mark.parametrize(
    "query",
    [
        slow("SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 10"),
        # Many rows tie with the last one: more than a partition has.
        "SELECT id FROM orders ORDER BY amount::int / 20 OFFSET 5 FETCH FIRST 7 ROWS WITH TIES",
        # Equal rows, of which the last shown has only some.
        "SELECT tag FROM tags ORDER BY tag OFFSET 3 LIMIT 4",
        # Postgres ranks them.
        "SELECT id, customer FROM orders ORDER BY amount::money DESC, id OFFSET 1 LIMIT 4",
        slow(
            "SELECT count(*), sum(x.f) FROM (SELECT f, id FROM orders ORDER BY id DESC LIMIT 11) x"
            " JOIN customers c ON c.id > x.id"
        ),
        slow("SELECT id FROM orders ORDER BY id LIMIT 0"),
    ],
)
def test_the_first_rows_of_all_are_looked_for_side_by_side(spark_bench, tmp_path, query):
    spark_bench.conn.execute("ANALYZE")
    case = plans.Case(query, plan(spark_bench.conn, PlanRequest(query)).physical)
    sizes = {s.id: tables.size(spark_bench.conn, s).rows for s in case.plan.sources}
    assert "topk" in "".join(division.divided(case.plan, sizes))
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows
    assert spark_state == local_state
    [[count]] = spark_bench.conn.execute(f"SELECT count(*) FROM ({case.sql}) x").fetchall()
    assert len(local_rows) == count
    runs = (tmp_path / "spark" / "state").glob("topk*.sst")
    assert sum(run.stat().st_size > 0 for run in runs) > 1, "one task had all"


@pytest.mark.parametrize(
    ("calls", "rows", "kept"),
    [
        (
            "count(*), count(customer), sum(customer), avg(customer), sum(amount), avg(amount),"
            " sum(f), avg(f), bool_and(id > 0), bool_or(customer > 40),"
            " sum(f) FILTER (WHERE id < 3), sum(amount * 0.001), sum(id::int8)",
            "orders",
            0,
        ),
        slow("sum(amount), sum(f), count(*)", "orders WHERE id % 10 = 2 AND amount > 5", 0),
        slow("sum(x)", "(SELECT 'NaN'::numeric AS x FROM orders) y", 0),
        slow("count(*), avg(id)", "orders WHERE id < 0", 0),
        (
            "count(*), min(customer), max(customer), count(DISTINCT customer),"
            " sum(DISTINCT customer), sum(amount), sum(id)",
            "orders",
            2,
        ),
        # Equal values of two forms, of which the least counts.
        ("count(DISTINCT x), sum(DISTINCT x)", "(SELECT f::numeric AS x FROM spelt) y", 2),
        slow("min(customer), max(customer) FILTER (WHERE id > 9)", "orders", 2),
        # Of several columns, each row comes once for each of them.
        (
            "min(customer), max(amount), count(DISTINCT f), sum(id), count(*), count(customer),"
            " sum(DISTINCT amount) FILTER (WHERE id % 3 = 0), max(customer) FILTER (WHERE f > 1)",
            "orders",
            2,
        ),
        slow("min(customer), max(amount), count(DISTINCT f)", "orders WHERE id < 0", 0),
        slow("min(customer), max(amount)", "(SELECT NULL::int customer, amount FROM orders) y", 2),
        slow("string_agg(customer::text, ',' ORDER BY id)", "orders", 1),
    ],
)
def test_aggregates_without_keys_are_computed_side_by_side(
    spark_bench, tmp_path, calls, rows, kept
):
    """``kept``: 2 if several partial aggregates keep values, 1 if all values are in one place."""
    listed = [f"{call} AS c{i}" for i, call in enumerate(re.split(r", (?![^(]*\))", calls))]
    query = f"SELECT {', '.join(listed)} FROM {rows}"
    conn = spark_bench.conn
    conn.execute(
        "CREATE TABLE spelt (id int PRIMARY KEY, f text); INSERT INTO spelt SELECT i,"
        " (ARRAY['1', '1.0', '1.00', '2.0', '2', '3.00', '3.0'])[i % 7 + 1]"
        " FROM generate_series(1, 90) i"
    )
    conn.execute("ANALYZE")
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    sizes = {s.id: tables.size(conn, s).rows for s in case.plan.sources}
    assert ("reduce" in "".join(division.divided(case.plan, sizes))) == (kept != 1)
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows
    assert spark_state == local_state
    with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
        want = sorted(b"".join(copy).splitlines())
    assert local_rows == want
    runs = list((tmp_path / "spark" / "state").glob("reduce*.values.*.sst"))
    assert (sum(run.stat().st_size > 0 for run in runs) > 1) == (kept == 2)


def test_what_meets_an_aggregate_of_shares(spark_bench, tmp_path):
    conn = spark_bench.conn
    conn.execute("ANALYZE")
    query = "SELECT x.n, o.id FROM (SELECT max(customer) n FROM orders) x JOIN orders o ON id < n"
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows
    assert len(spark_rows) == len(conn.execute(query).fetchall()) > 0
    assert spark_state == local_state


def test_shares_that_are_out_of_range_alone(spark_bench, tmp_path):
    """Only the total of all partial aggregates is shown, and only it may fail."""
    conn = spark_bench.conn
    conn.execute(
        "CREATE TABLE big (id int PRIMARY KEY, f float8);"
        "INSERT INTO big SELECT i, CASE i % 2 WHEN 0 THEN 1.7e308 ELSE -1.7e308 END"
        " FROM generate_series(1, 400) i; ANALYZE big"
    )
    query = "SELECT sum(f), count(*) FROM big"
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    assert spark_rows == local_rows == [b"0\t400"]
    assert spark_state == local_state


EVENTS = """
CREATE TABLE events (at timestamptz, day date, n int);
ALTER TABLE events REPLICA IDENTITY FULL;
INSERT INTO events SELECT at, at::date + i % 3, i % 10 FROM generate_series(0, 199) i,
    LATERAL (SELECT '2024-02-28 12:00+00'::timestamptz + interval '7 min' * (i % 100)) x(at);
INSERT INTO events VALUES (NULL, NULL, 1), ('infinity', '-infinity', 2);
"""


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT n, day FROM events WHERE at > now() - interval '3 h'", True),
        (
            "SELECT day, count(*) FROM events WHERE at < now() AND day > current_date GROUP BY 1",
            True,
        ),
        ("SELECT n FROM events WHERE at > now()", True),
        (
            "SELECT n, current_date - day AS late, date_trunc('hour', now()) - at AS age FROM events"
            " WHERE extract(hour FROM at) < extract(hour FROM now()) AND isfinite(at)",
            True,
        ),
        (
            "SELECT current_date - day AS late, count(*) AS c FROM events WHERE isfinite(day)"
            " GROUP BY 1",
            True,
        ),
        ("SELECT n FROM events WHERE n > 9 AND at > now()", False),
    ],
)
def test_the_clock_shows_the_same_in_all_tasks(spark_bench, tmp_path, monkeypatch, query, rows):
    conn, now = spark_bench.conn, datetime(2024, 2, 28, 20, 0, tzinfo=UTC)
    conn.execute(EVENTS)
    instant = (now - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    monkeypatch.setattr(inputs, "_now", lambda conn: instant)
    planned = plan(conn, PlanRequest(query))
    case = plans.Case(query, planned.physical)
    assert case.plan.temporal
    (local_rows, local_state), (spark_rows, spark_state) = both(spark_bench, case, tmp_path)
    with conn.cursor().copy(
        f"COPY ({at(planned.canonical_sql, now).strip(' ;')}) TO STDOUT"
    ) as copy:
        want = sorted(b"".join(copy).splitlines())
    assert bool(want) == rows
    assert local_rows == want
    assert spark_rows == local_rows
    assert spark_state == local_state


def test_a_proof_stages_the_rows_of_its_own_time_and_no_states(spark_bench, tmp_path):
    conn, now = spark_bench.conn, datetime(2024, 2, 28, 20, 0, tzinfo=UTC)
    conn.execute(EVENTS)
    query = "SELECT day, count(*) FROM events WHERE at < now() AND day > current_date GROUP BY 1"
    planned = plan(conn, PlanRequest(query))
    instant = (now - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    job, name = spark_bench.job(), spark_bench.settings.slot_name
    with snapshots.export(
        job, spark_bench.dsn, slot_name=name, number=str(next(_numbers)), wait_ms=5000
    ) as snapshot:
        sizes = {s.id: tables.size(conn, s) for s in planned.physical.sources}
        given = Inputs(planned.physical, sizes, instant=instant)
        staged = of_proof(tmp_path, job.name)
        staged.make()
        spark_bench.context.spark.populate(job, given, snapshot, {}, staged, "")
    with conn.cursor().copy(
        f"COPY ({at(planned.canonical_sql, now).strip(' ;')}) TO STDOUT"
    ) as copy:
        want = sorted(b"".join(copy).splitlines())
    assert want
    assert sorted(b"".join(f.read_bytes() for f in staged.row_files()).splitlines()) == want
    assert list((staged.path / "state").iterdir()) == []
    merging.leave(staged, "k0", {"temporal_1.clock": [([b"k"], [b"v"])]})
    assert not (staged.path / merging.FOLDER).exists()


def test_the_clock_by_spark(spark_bench):
    """The clock is the snapshot's timestamp, not the epoch."""
    spark_bench.conn.execute(EVENTS + "UPDATE events SET at = now() + interval '1 h' WHERE n = 3")
    query = "SELECT n, day FROM events WHERE at > now()"
    spark_bench.create("v", query, options={"population": "spark"})
    assert spark_bench.rows("TABLE v") == spark_bench.rows(query)
    assert len(spark_bench.rows(query)) == 21


def test_several_reading_tasks_read_every_row_once(spark_bench, tmp_path):
    conn = spark_bench.conn
    plans_rows = 20_000
    conn.execute("TRUNCATE orders, customers, tags")
    plans.fill(conn, plans_rows)
    conn.execute("DELETE FROM orders WHERE id % 3 = 0")
    conn.execute("UPDATE orders SET amount = amount + 1 WHERE id % 4 = 1")
    conn.execute("ANALYZE")
    (local_rows, local_state), (spark_rows, spark_state) = both(
        spark_bench, plans.joined(conn), tmp_path, partition_rows=3_000
    )
    assert spark_rows == local_rows
    assert spark_state == local_state


def test_a_second_attempt_has_its_own_snapshot(spark_bench, tmp_path):
    """Python workers of the first attempt also run the tasks of the second."""
    conn, query = spark_bench.conn, "SELECT customer, count(*) AS n FROM orders GROUP BY customer"
    case = plans.Case(query, plan(conn, PlanRequest(query)).physical)
    for _ in range(2):
        (spark_rows, _) = both(spark_bench, case, tmp_path, modes=("spark",))[0]
        with conn.cursor().copy(f"COPY ({query}) TO STDOUT") as copy:
            assert spark_rows == sorted(b"".join(copy).splitlines())
        assert not list((tmp_path / "spark").glob("*.json"))
        shutil.rmtree(tmp_path / "db_spark")
        conn.execute("UPDATE orders SET customer = customer + 1 WHERE id % 3 = 0")


def test_create_view_by_spark(spark_bench):
    query = plans.joined(spark_bench.conn).sql
    spark_bench.create("v", query, options={"population": "spark"})
    assert spark_bench.rows("TABLE v") == spark_bench.rows(query)
    assert any("percent" in m for m in spark_bench.messages)


def test_error_of_a_row_comes_out_of_the_task(spark_bench):
    with pytest.raises(HeadraceError) as caught:
        spark_bench.create(
            "v", "SELECT id, 1 / (id - 100) AS q FROM orders", options={"population": "spark"}
        )
    assert caught.value.code == "22012", caught.value
    spark_bench.nothing_left()


def test_cancel_in_the_middle(spark_bench):
    spark_bench.conn.execute(
        "INSERT INTO orders SELECT i, i, i, i FROM generate_series(1000001, 1200000) i"
    )
    job = spark_bench.job()
    spark_bench.worker.on_call = lambda method: None
    seen = spark_bench.messages

    class Cancelling(list):
        def append(self, message):
            super().append(message)
            if message["phase"] == "reading" and message.get("rows"):
                job.cancel()

    job._report = Cancelling().append
    with pytest.raises(QueryCancelled):
        spark_bench.create(
            "v", "SELECT amount, count(*) FROM orders GROUP BY amount", job=job,
            options={"population": "spark"},
        )  # fmt: skip
    assert seen == []
    spark_bench.nothing_left()
    spark_bench.create("v", "SELECT count(*) FROM orders", options={"population": "spark"})
    assert spark_bench.rows("TABLE v") == [("(200500)",)]


@pytest.mark.slow
def test_dead_jvm(spark_bench):
    """H38: the population goes on in this process, and the next one has a new Spark."""
    from pyspark import SparkContext

    spark_bench.conn.execute(
        "INSERT INTO orders SELECT i, i, i, i FROM generate_series(1000001, 1200000) i"
    )
    job = spark_bench.job()
    killed = []

    def report(message):
        if message["phase"] == "reading" and message.get("rows") and not killed:
            killed.append(os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL))

    job._report = report
    query = "SELECT count(*) FROM orders"
    for name in ("v", "w"):
        spark_bench.create(name, query, job=job, options={"population": "spark"})
        assert killed
        assert spark_bench.rows(f"TABLE {name}") == [("(200500)",)]


def test_block_ranges_cover_everything():
    assert split_blocks(TableSize(0, 0), 100, 2) == [[0, None]]
    assert split_blocks(TableSize(1000, 10), 400, 2) == [[0, 3], [3, 6], [6, None]]
    assert split_blocks(TableSize(50_000, 1), 400, 2) == [[0, None]]
    assert split_blocks(TableSize(50_000, 100), 1_000_000, 2) == [[0, 50], [50, None]]
    assert split_blocks(TableSize(50_000, 100, whole=True), 400, 2) == [[0, None]]
