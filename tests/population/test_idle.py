"""The end of an idle Spark session: the order of steps, with a session that does nothing."""

from __future__ import annotations

import threading

import pytest

from headrace.config import Settings
from headrace.population import spark_session
from headrace.population.job import Job
from headrace.population.spark import Spark
from tests.waiting import wait_until


class Session:
    """A session without a method."""


@pytest.fixture
def ended(monkeypatch) -> list[Session]:
    """Collect the sessions that were ended."""
    found: list[Session] = []
    monkeypatch.setattr(spark_session, "start", lambda settings: Session())
    monkeypatch.setattr(spark_session, "probe", lambda session, settings: "nothing")
    monkeypatch.setattr(spark_session, "end", found.append)
    return found


def job() -> Job:
    return Job(lambda message: None)


def test_one_that_nobody_uses_is_let_go(ended):
    made = Spark(Settings(spark_idle_ms=10))
    made.begin()
    wait_until(lambda: len(ended) == 1, "what nobody came to use is let go")
    first = made.session(job())
    wait_until(lambda: len(ended) == 2, "it is let go again")
    assert ended[1] is first
    assert made.status == "cold"


def test_one_that_is_used_is_kept(ended):
    made = Spark(Settings(spark_idle_ms=10))
    with made._used():
        session = made.session(job())
        # A timeout of an earlier use changes nothing.
        with made._used():
            pass
        looked = threading.Event()
        timer = threading.Timer(0.05, looked.set)
        timer.start()
        looked.wait()
        assert made.session(job()) is session
        assert ended == []
    wait_until(lambda: ended == [session], "it is let go")


@pytest.mark.parametrize("settings", [{"spark_idle_ms": 0}, {"spark_warm": True}])
def test_one_that_is_to_be_kept_has_no_timer(ended, settings):
    made = Spark(Settings(**{"spark_idle_ms": 1, **settings}))
    before = threading.active_count()
    made.session(job())
    with made._used():
        pass
    wait_until(lambda: threading.active_count() <= before, "no thread is left that waits")
    assert ended == []
    assert made.status == "warm"
