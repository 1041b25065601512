"""A population over files gives the same rows and the same state as one in memory, byte for byte."""

from __future__ import annotations

import errno
import itertools

import psycopg
import pytest

from headrace.errors import HeadraceError, QueryCancelled, UnsupportedError
from headrace.planner import PlanRequest, plan
from headrace.population import out_of_core
from headrace.population.staging import Staging
from headrace.state import layout
from headrace.state.rocks import RocksDatabase
from tests.amounts import Run
from tests.differential.generate import Generator
from tests.population import plans
from tests.population.test_spark import both
from tests.population.test_without_spark import QUERY

MODES = ("local", "out_of_core")
SEEDS, SEEDS_QUICK = 40, 10
OF_FILES = {"population": "local"}


@pytest.mark.parametrize("make", plans.CASES, ids=lambda make: make.__name__)
def test_same_rows_and_state_as_in_memory(bench, tmp_path, make):
    bench.conn.execute("ANALYZE")
    case = make(bench.conn)
    (rows, state), (found_rows, found_state) = both(bench, case, tmp_path, modes=MODES)
    assert found_rows == rows
    assert found_state == state
    assert len(rows) == bench.conn.execute(f"SELECT count(*) FROM ({case.sql}) x").fetchone()[0]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT o.id, c.region FROM orders o LEFT JOIN customers c ON c.id = o.customer",
        "SELECT DISTINCT customer, amount FROM orders",
    ],
)
def test_runs_of_a_state_do_not_overlap(bench, tmp_path, query):
    bench.conn.execute("ANALYZE")
    case = plans.Case(query, plan(bench.conn, PlanRequest(query)).physical)
    both(bench, case, tmp_path, modes=("out_of_core",))
    database = RocksDatabase(tmp_path / "own")
    database.ingest(1, Staging(tmp_path / "out_of_core").runs())
    files = database.disk.place("v1").family.rows.live_files()
    database.close()
    ranges: dict[str, list[tuple[bytes, bytes]]] = {}
    for file in files:
        state = layout.state_of(file["start_key"])
        assert layout.state_of(file["end_key"]) == state
        if not state.startswith("source"):  # rows are read in the table's order
            ranges.setdefault(state, []).append((file["start_key"], file["end_key"]))
    assert ranges, "a state besides the rows of the tables"
    for found in ranges.values():
        assert len(found) > 1, "several parts have keys"
        found.sort()
        assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT tag FROM tags ORDER BY tag OFFSET 3 LIMIT 4",
        "SELECT tag FROM tags ORDER BY tag OFFSET 3",
        "SELECT id, customer FROM orders ORDER BY amount::money DESC, id OFFSET 7",
        "SELECT 1 / (id - 1) AS q FROM (SELECT id FROM orders ORDER BY id OFFSET 1) o",
        "SELECT count(*) AS n, sum(amount), min(customer), count(DISTINCT f) AS d FROM orders",
        "SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount, id) FROM orders",
        "SELECT customer, sum(amount) OVER (ORDER BY id) FROM orders",
        "SELECT tag FROM tags EXCEPT ALL SELECT region FROM customers",
        "WITH RECURSIVE r AS (SELECT id FROM customers WHERE id < 3 UNION"
        " SELECT o.id FROM orders o JOIN r ON o.customer = r.id) SELECT * FROM r",
        "SELECT id, amount::money FROM orders o WHERE EXISTS"
        " (SELECT FROM customers c WHERE c.id = o.customer AND c.region > '')",
    ],
)
def test_the_same_for_plans_of_queries(bench, tmp_path, query):
    bench.conn.execute("ANALYZE")
    compare(bench, query, tmp_path)


def test_the_same_for_random_queries(bench, tmp_path):
    compared, seeds = 0, SEEDS_QUICK if Run.quick else SEEDS
    for seed in range(seeds):
        made = Generator(seed)
        bench.conn.execute("DROP SCHEMA IF EXISTS random CASCADE; CREATE SCHEMA random")
        bench.conn.execute("SET search_path = random, public")
        for statement in made.ddl():
            bench.conn.execute(statement)
        for table in made.tables:
            bench.conn.execute(made.insert(table, 30))
        query = made.query()
        try:
            compare(bench, query, tmp_path / str(seed))
        except (UnsupportedError, psycopg.errors.DataError):
            continue
        compared += 1
    assert compared > seeds / 2


def compare(bench, query, path) -> None:
    request = PlanRequest(query, settings={"search_path": "random, public"})
    case = plans.Case(query, plan(bench.conn, request).physical)
    (rows, state), (found_rows, found_state) = both(bench, case, path, modes=MODES)
    assert found_rows == rows, query
    assert found_state == state, query
    count = bench.conn.execute(f"SELECT count(*) FROM ({query}) x").fetchone()
    assert count == (len(rows),), query


def over_files(bench) -> None:
    bench.change(population_memory_bytes=1)


def test_the_error_of_a_row_comes_out_of_the_task(bench):
    over_files(bench)
    with pytest.raises(HeadraceError) as caught:
        bench.create("v", "SELECT id, 1 / (id - 100) AS q FROM orders", options=OF_FILES)
    assert caught.value.code == "22012", caught.value
    bench.nothing_left()


def test_cancel_in_the_middle(bench):
    over_files(bench)
    job = bench.job()

    def report(message):
        if message["phase"] == "reading" and message.get("rows"):
            job.cancel()

    job._report = report
    with pytest.raises(QueryCancelled):
        bench.create("v", QUERY, job=job, options=OF_FILES)
    bench.nothing_left()
    bench.create("v", QUERY, options=OF_FILES)
    assert bench.rows("TABLE v") == bench.rows(QUERY)


def test_a_full_disk(bench, monkeypatch):
    over_files(bench)

    def full(batch, files):
        raise OSError(errno.ENOSPC, "No space left on device")

    write = out_of_core._write
    monkeypatch.setattr(out_of_core, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        bench.create("v", QUERY, options=OF_FILES)
    bench.nothing_left()
    monkeypatch.setattr(out_of_core, "_write", write)
    bench.create("v", QUERY, options=OF_FILES)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
