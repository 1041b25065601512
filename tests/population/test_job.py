"""A cancel reaches an operation whenever it comes."""

from __future__ import annotations

import contextlib
import threading

import psycopg
import pytest

from headrace.errors import QueryCancelled
from headrace.population.job import Job
from tests.waiting import PATIENCE_S, wait_until


def test_a_cancel_before_the_statement_begins_ends_it(bench):
    """Postgres ignores a cancel while it executes nothing."""
    job = bench.job()
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(QueryCancelled))
        stack.enter_context(job.translating())
        conn = stack.enter_context(job.connection(bench.dsn, what="a"))
        job.cancel()
        conn.execute("SELECT pg_sleep(%s)", (10 * PATIENCE_S,))


def test_the_actions_are_repeated_until_the_block_ends():
    job, calls, enough = Job(lambda _: None), [], threading.Event()

    def action() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 3:
            enough.set()

    with job.cancelling(action):
        job.cancel()
        assert enough.wait(PATIENCE_S)
    ended = len(calls)
    wait_until(lambda: not job._repeating, "the thread ends")
    assert len(calls) == ended
    assert calls[0] == threading.current_thread().name
    assert set(calls[1:]) == {f"cancel {job.name}"}
    with pytest.raises(QueryCancelled), job.cancelling(action):
        pass


def test_an_action_under_way_does_not_reach_the_next_statement(bench):
    """The block ends only after the action, which otherwise could cancel another statement."""
    job, inside, ended = Job(lambda _: None), threading.Event(), threading.Event()
    goes_on = threading.Event()

    def action() -> None:
        inside.set()
        assert goes_on.wait(PATIENCE_S)

    def work() -> None:
        with job.cancelling(action):
            assert inside.wait(PATIENCE_S)
        ended.set()

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: job._cancels, "it is registered")
    cancels = threading.Thread(target=job.cancel)
    cancels.start()
    assert inside.wait(PATIENCE_S)
    assert not ended.is_set()
    goes_on.set()
    for thread in (worker, cancels):
        thread.join(PATIENCE_S)
    assert ended.is_set()


def test_an_action_that_fails_keeps_no_other_from_being_called():
    job, calls = Job(lambda _: None), []

    def fails() -> None:
        raise psycopg.OperationalError("gone")

    with job.cancelling(fails), job.cancelling(lambda: calls.append(1)):
        job.cancel()
        assert calls
