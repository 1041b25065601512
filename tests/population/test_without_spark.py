"""A population for which Spark was chosen, where there is no Spark."""

from __future__ import annotations

import importlib.util

import psycopg
import pytest

from headrace.errors import SparkUnavailable
from headrace.population.spark import Spark
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


@pytest.mark.parametrize("starts", [False, True])
def test_what_does_not_fit_is_loaded_over_files(bench, starts):
    bench.change(population_memory_bytes=1)
    spark = bench.context.spark = Broken(starts=starts)
    bench.create("v", QUERY)
    assert spark.awaited == 1
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    told = [m["message"] for m in bench.messages if "message" in m]
    assert any("in process, over files" in text and "Spark" in text for text in told), told


def test_option_local_does_not_take_more_memory_than_there_is(bench):
    bench.change(population_memory_bytes=1)
    bench.create("v", QUERY, options={"population": "local"})
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    told = [m["message"] for m in bench.messages if "message" in m]
    assert any("in process, over files" in text for text in told), told


@pytest.mark.parametrize("package", ["pyspark", "pandas"])
def test_spark_that_is_not_installed(bench, monkeypatch, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    spark = bench.context.spark = Spark(bench.settings)
    bench.create("v", QUERY, options=BY_SPARK)
    assert bench.rows("TABLE v") == bench.rows(QUERY)
    told = [m["message"] for m in bench.messages if "message" in m]
    assert any("pip install 'headrace[spark]'" in text for text in told), told
    assert spark.status.startswith("failed: Spark is not installed")


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
