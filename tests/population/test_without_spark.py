"""A population for which Spark was chosen, where there is no Spark."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import QueryCancelled, SparkUnavailable
from headrace.population import loader
from headrace.population.spark_session import cause_of

QUERY = "SELECT amount, count(*) AS n FROM orders GROUP BY amount"
BY_SPARK = {"population": "spark"}
STACK = """An error occurred while calling o91.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2785)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 16 more
"""


class Broken:
    """Spark that does not start, or fails at work after it has written something."""

    def __init__(self, *, starts: bool) -> None:
        self.starts, self.awaited = starts, 0

    def begin(self) -> None:
        pass

    def await_start(self, job) -> None:
        self.awaited += 1
        if not self.starts:
            raise SparkUnavailable("Spark could not be started: no master")

    def populate(self, job, inputs, snapshot, settings, staged, owner) -> int:
        (staged.path / "rows" / "torn").write_text("half a row")
        raise SparkUnavailable("the job on Spark failed: no space")


@pytest.mark.parametrize("starts", [False, True])
def test_what_fits_is_loaded_in_this_process(bench, starts):
    bench.context.spark = Broken(starts=starts)
    bench.create("v", QUERY, options=BY_SPARK)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    told = [m["message"] for m in bench.messages if "message" in m]
    assert any("in process" in text and "Spark" in text for text in told), told


def test_what_does_not_fit_waits_in_words_and_begins_nothing(bench, monkeypatch):
    monkeypatch.setattr(loader, "_SPARK_PAUSE_S", 0.01)
    monkeypatch.setattr(loader, "_SPARK_S", 0.05)
    bench.change(population_memory_bytes=1)
    spark = bench.context.spark = Broken(starts=False)
    with pytest.raises(SparkUnavailable, match="no master") as failed:
        bench.create("v", QUERY)
    assert "on Spark" in failed.value.detail
    assert spark.awaited > 1
    assert "hold" not in bench.worker.methods
    bench.nothing_left()
    monkeypatch.setattr(loader, "_SPARK_S", 3600)
    job = bench.job()
    spark.await_start = lambda _: job.cancel() or (_ for _ in ()).throw(SparkUnavailable("gone"))
    with pytest.raises(QueryCancelled):
        bench.create("v", QUERY, job=job)
    bench.nothing_left()


def test_a_failure_at_work_of_what_does_not_fit_is_told_without_a_stack(bench):
    bench.change(population_memory_bytes=1)
    bench.context.spark = Broken(starts=True)
    with pytest.raises(SparkUnavailable, match="no space"):
        bench.create("v", QUERY)
    bench.nothing_left()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STACK, "No space left on device"),
        ("An error occurred\n: java.lang.IllegalStateException: Cannot call methods", "Cannot call methods"),
        ("[SESSION_CLOSED] The session is closed.\nMore", "[SESSION_CLOSED] The session is closed."),
        ("Traceback (most recent call last):\n ValueError: Alice", "a Python worker of Spark failed (see the log)"),
        ('<_Rendezvous:\n\tdetails = "failed to connect"\n>', "failed to connect"),
        ("", "RuntimeError"),
    ],
)  # fmt: skip
def test_the_cause_is_the_innermost(text, cause):
    assert cause_of(RuntimeError(text)) == cause


@pytest.mark.slow
@pytest.mark.shared_engine
@pytest.mark.engine_with(HEADRACE_SPARK_MASTER="spark://127.0.0.1:1")
def test_a_dead_master_costs_seconds(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("INSERT INTO t SELECT generate_series(1, 1000)")
        told: list[str] = []
        conn.add_notice_handler(lambda notice: told.append(notice.message_primary))
        for name in ("v", "w"):
            told.clear()
            call = "CALL headrace.create_view(%s, 'SELECT id FROM t', %s)"
            conn.execute(call, (name, '{"population": "spark"}'))
            assert conn.execute(f"SELECT count(*) FROM {name}").fetchone() == (1000,)
            assert any("in process" in text and "Spark" in text for text in told), told
            assert not any("\\tat " in text for text in told), told
