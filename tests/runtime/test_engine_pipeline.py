"""The pipeline between two threads, without any connection: order, failures, stale answers."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BugError, TransientError
from headrace.runtime.coordinator import FlightState
from headrace.runtime.jobs import Answer, Closed, CommitJob
from headrace.runtime.pipeline import Pipeline

WAIT_S = 90.0


def job(txid: int, attempt: int = 0) -> CommitJob:
    return CommitJob(txid, attempt, txid * 100, 1, 0, ())


def started(first: int = 1, depth: int = 4, recorded: int = 0) -> Pipeline:
    made = Pipeline(depth)
    made.rewind(first, recorded or first - 1, {})
    return made


def write(pipeline: Pipeline) -> int | None:
    """Take and commit the next job as the sink thread does; return None if there is none."""
    taken = pipeline.next_job(0)
    if taken is None:
        pipeline.rested()
        return None
    pipeline.committed(Answer(taken))
    return taken.txid


def txids(pipeline: Pipeline) -> list[int]:
    return [answer.job.txid for answer in pipeline.answers()]


def test_commits_follow_the_txids_whatever_is_processed_first():
    pipeline = started()
    for txid in (1, 2, 3):
        assert pipeline.begin(txid) == 0
    pipeline.processed(job(3))
    pipeline.processed(job(2))
    assert write(pipeline) is None, "1 is not processed"
    pipeline.processed(job(1))
    assert [write(pipeline) for _ in range(4)] == [1, 2, 3, None]
    assert txids(pipeline) == [1, 2, 3]
    assert not pipeline.busy


def test_what_is_processed_counts_until_it_is_committed():
    pipeline = Pipeline(4, bytes_max=100)
    pipeline.rewind(1, 0, {})
    for txid, size in ((1, 60), (2, 0), (3, 50)):
        assert pipeline.room
        pipeline.begin(txid)
        pipeline.processed(replace(job(txid), size=size))
    assert pipeline.waiting_bytes == 110
    assert not pipeline.room, "they have to be written first"
    assert write(pipeline) == 1
    assert pipeline.waiting_bytes == 50
    assert pipeline.room


def test_the_next_commit_does_not_wait_for_the_engine():
    pipeline = started()
    for txid in (1, 2):
        pipeline.begin(txid)
        pipeline.processed(job(txid))
    assert write(pipeline) == 1
    assert write(pipeline) == 2, "no answer was taken yet"
    assert pipeline.busy
    assert txids(pipeline) == [1, 2]


def test_room_for_as_many_as_may_be_in_flight():
    pipeline = started(depth=2)
    assert pipeline.room
    pipeline.begin(1)
    assert pipeline.room
    pipeline.begin(2)
    assert not pipeline.room
    with pytest.raises(BugError):
        pipeline.begin(3)
    pipeline.processed(job(1))
    assert not pipeline.room
    write(pipeline)
    assert pipeline.room, "also before the answer is taken"


def test_nothing_comes_out_after_a_failure():
    pipeline = started()
    for txid in (1, 2, 3):
        pipeline.begin(txid)
        pipeline.processed(job(txid))
    assert write(pipeline) == 1
    assert pipeline.next_job(0) == job(2)
    pipeline.failed(TransientError("the connection is lost"))
    got: list[object] = []

    def sink() -> None:
        try:
            got.append(pipeline.next_job(0))
        except Closed:
            got.append(Closed)

    thread = threading.Thread(target=sink)
    thread.start()
    assert txids(pipeline) == [1], "what was committed before is told"
    with pytest.raises(TransientError):
        pipeline.answers()
    with pytest.raises(TransientError):
        pipeline.answers()
    assert got == []
    pipeline.abort(lambda: None)
    pipeline.close()
    thread.join(WAIT_S)
    assert got == [Closed]


def test_attempts_grow_with_each_rewind_and_recorded_batches_come_first():
    pipeline = started()
    for txid in (1, 2, 3):
        pipeline.begin(txid)
    pipeline.processed(job(1))
    write(pipeline)
    pipeline.abort(lambda: None)
    pipeline.rewind(2, 3, {})
    assert [pipeline.begin(txid) for txid in (2, 3, 4)] == [1, 1, 0]
    pipeline.abort(lambda: None)
    # State was lost: a committed txid is computed again, by a new attempt.
    pipeline.rewind(1, 4, {})
    assert [pipeline.begin(txid) for txid in (1, 2, 3, 4)] == [1, 2, 2, 1]


def test_a_stale_job_or_answer_changes_nothing():
    pipeline = started()
    pipeline.begin(1)
    pipeline.processed(job(1))
    old = pipeline.next_job(0)
    assert old is not None
    aborted = threading.Thread(target=pipeline.abort, args=(lambda: None,))
    aborted.start()
    pipeline.committed(Answer(old))
    aborted.join(WAIT_S)
    pipeline.rewind(1, 1, {})
    assert txids(pipeline) == []
    assert pipeline.begin(1) == 1
    pipeline.processed(job(1, attempt=0))
    assert write(pipeline) is None
    pipeline.processed(job(1, attempt=1))
    pipeline.committed(Answer(job(1, attempt=0)))
    assert txids(pipeline) == []
    assert write(pipeline) == 1
    assert txids(pipeline) == [1]


def test_abort_waits_for_the_sink_thread_and_interrupts_it():
    pipeline = started()
    pipeline.begin(1)
    pipeline.processed(job(1))
    assert pipeline.next_job(0) is not None
    cut = threading.Event()
    ended = threading.Event()

    def sink() -> None:
        assert cut.wait(WAIT_S)
        assert not ended.is_set()
        pipeline.failed(TransientError("cut"))

    thread = threading.Thread(target=sink)
    thread.start()
    pipeline.abort(cut.set)
    ended.set()
    thread.join(WAIT_S)
    assert not pipeline.busy
    pipeline.rewind(1, 1, {})
    assert pipeline.answers() == [], "the old failure is nobody's business any more"


def test_upkeep_that_fails_is_a_failure_too():
    pipeline = started()
    assert pipeline.next_job(0) is None
    pipeline.failed(TransientError("gone"))
    with pytest.raises(TransientError):
        pipeline.answers()


def test_waiting_for_answers_ends_by_a_wake_that_came_before():
    pipeline = started()
    pipeline.wake()
    assert pipeline.answers(WAIT_S) == []


def test_flights_show_only_what_was_taken():
    pipeline = started(recorded=3)
    assert pipeline.flights() == []
    pipeline.begin(1)
    pipeline.begin(2)
    pipeline.processed(job(1))
    assert [(f.txid, f.attempt, f.state) for f in pipeline.flights()] == [
        (1, 0, FlightState.COMMITTING),
        (2, 0, FlightState.PROCESSING),
    ]


@given(st.lists(st.sampled_from(["take", "process", "write", "answer", "fail"])))
def test_any_interleaving_commits_each_txid_once_in_order(steps):
    pipeline = started(depth=3)
    taken: list[tuple[int, int]] = []
    committed: list[int] = []
    last = 0
    for step in steps:
        if step == "take" and pipeline.room:
            txid = (taken[-1][0] if taken else len(committed)) + 1
            taken.append((txid, pipeline.begin(txid)))
            last = max(last, txid)
        elif step == "process" and taken:
            states = {f.txid: f.state for f in pipeline.flights()}
            ready = [t for t in taken if states.get(t[0]) is FlightState.PROCESSING]
            if ready:
                pipeline.processed(job(*ready[0]))
        elif step == "write":
            done = write(pipeline)
            if done is not None:
                committed.append(done)
                taken = [t for t in taken if t[0] != done]
        elif step == "answer":
            pipeline.answers()
        elif step == "fail":
            pipeline.abort(lambda: None)
            pipeline.rewind(len(committed) + 1, last, {})
            taken = []
        assert len(pipeline.flights()) <= 3
    assert committed == list(range(1, len(committed) + 1))
