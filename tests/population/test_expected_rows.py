"""The rows that verify_view compares a large view with, where Spark is not there, or no states fit."""

from __future__ import annotations

import pytest

from headrace.collections.plan import SourceSpec
from headrace.errors import HeadraceError, SparkUnavailable
from headrace.population import tasks
from headrace.population.reader import TableOrigin
from headrace.population.snapshot import SnapshotRef
from headrace.sql.verbs import VerifyView
from headrace.types import Lsn
from headrace.views.verify import verify_view
from tests.population.test_without_spark import Broken
from tests.waiting import wait_until

QUERY = "SELECT amount, count(*) AS n FROM orders GROUP BY amount"


def answer(bench, monkeypatch):
    """Let the bench's worker answer as one whose view has written nothing since its population."""
    tap = bench.settings.data_dir / "tap"
    tap.parent.mkdir(parents=True, exist_ok=True)
    tap.touch()
    call = bench.worker.call

    def answered(method, params, job=None, **given):
        found = call(method, params, job, **given)
        match method:
            case "tap":
                return {"path": str(tap)}
            case "tapped":
                return {"txid": 7, "instant": 0}
            case _:
                return found

    monkeypatch.setattr(bench.worker, "call", answered)


def proof(bench, *, in_postgres: bool = False):
    request = VerifyView("v", in_postgres, settings={"search_path": "public"})
    return verify_view(bench.context, bench.job(), request)


def nothing_left(bench) -> None:
    slots = "SELECT slot_name FROM pg_replication_slots WHERE temporary AND database = current_database()"
    # The server drops it once it notices that the connection is closed.
    wait_until(lambda: bench.conn.execute(slots).fetchall() == [], "a slot is left")
    assert not list(bench.settings.staging_dir.glob("*proof*"))
    calls = [method for method in bench.worker.methods if method in ("tap", "untap")]
    assert calls[-1:] != ["tap"]


@pytest.mark.parametrize("starts", [False, True])
def test_what_fits_is_computed_in_this_process(bench, monkeypatch, starts):
    bench.create("v", QUERY)
    bench.change(spark_threshold_rows=1)
    bench.conn.execute("DELETE FROM v WHERE ctid = (SELECT min(ctid) FROM v)")
    answer(bench, monkeypatch)
    bench.context.spark = Broken(starts=starts)
    found = proof(bench)
    assert [row[:2] for row in found["rows"]] == [[0, 1]]
    assert "by Headrace in its own process" in found["notices"][0]
    assert found["rows"] == proof(bench, in_postgres=True)["rows"]
    nothing_left(bench)


@pytest.mark.parametrize("starts", [False, True])
def test_what_does_not_fit_is_computed_over_files(bench, monkeypatch, starts):
    bench.create("v", QUERY)
    answer(bench, monkeypatch)
    bench.change(population_memory_bytes=1)
    bench.context.spark = Broken(starts=starts)
    found = proof(bench)
    assert found["rows"] == []
    assert "by Headrace in its own process" in found["notices"][0]
    # The statement that the notice names works.
    assert "in_postgres => true" in found["notices"][0]
    assert proof(bench, in_postgres=True) == {"rows": [], "notices": []}
    nothing_left(bench)


def test_a_database_that_executors_cannot_reach():
    """The population goes on in process, which reaches the database."""
    ref = SnapshotRef("00000003-0000001B-1", "1:1:", Lsn(0))
    table = SourceSpec("orders", 1, "public", "orders", (), (), False)
    origin = TableOrigin("eu", "host=127.0.0.1 port=1", ref, table)
    with pytest.raises(SparkUnavailable, match='cannot connect to source "eu"'):
        tasks._check_reachable(origin)


def test_a_table_that_is_rewritten_meanwhile(bench, monkeypatch):
    """Its snapshot does not protect it: each attempt is discarded."""
    bench.create("v", QUERY)
    bench.change(spark_threshold_rows=1)
    answer(bench, monkeypatch)
    spark = bench.context.spark = Broken(starts=True)

    def rewritten(job, inputs, snapshot, settings, staged, owner):
        staged.write_rows("0", [])
        bench.conn.execute("VACUUM FULL orders")
        return 0

    spark.populate = rewritten
    with pytest.raises(HeadraceError, match="altered while it was read") as failed:
        proof(bench)
    assert failed.value.code == "40001"
    nothing_left(bench)
