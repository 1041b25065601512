"""The coordinator: rewinds, attempts, limits, and any order of events against a model.

The statements T-3 … T-27, with the trace of the requirements, are in ``test_seed_t.py``.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.errors import BugError
from headrace.runtime.coordinator import Coordinator, Emission, EmitBatch, FlightState
from tests.runtime.told import words


def test_answers_out_of_turn_are_bugs():
    c = Coordinator()
    c.tick()
    with pytest.raises(BugError):
        c.committed(1, 0)
    c.processed(1, 0)
    with pytest.raises(BugError):
        c.processed(1, 0)


def test_no_more_new_batches_than_asked_for():
    c = Coordinator(max_pending=4)
    assert words(c.tick(1)) == "batch 1.0"
    assert words(c.tick(0)) == "—"
    assert words(c.tick(2)) == "batch 2.0 3.0"
    assert words(c.failed(2, 0)) == "batch 2.1 3.1 4.0"


def test_rewind_goes_back_before_what_has_committed():
    c = Coordinator(max_pending=3)
    c.source_ready = False
    c.tick()
    c.source_ready = True
    assert words(c.tick()) == "batch 1.0 2.0 3.0"
    for txid in (1, 2):
        c.processed(txid, 0)
        c.committed(txid, 0)
    assert c.current == 3
    c.source_ready = False
    c.rewind(2)
    assert (c.in_flight, c.current) == (0, 2)
    assert words(c.tick()) == "batch 2.1 3.1 4.1"
    assert c.processed(3, 0) == c.failed(2, 0) == []
    assert words(c.processed(2, 1)) == "commit 2.1"
    assert words(c.committed(2, 1)) == "batch 5.1"
    assert [(f.txid, f.attempt, f.state) for f in c.flights()] == [
        (txid, 1, FlightState.PROCESSING) for txid in (3, 4, 5)
    ]
    assert (c.attempt(5), c.attempt(6)) == (1, None)


def test_rewind_forward_leaves_nothing_behind():
    c = Coordinator(max_pending=2)
    c.tick()
    c.failed(1, 0)
    c.rewind(9)
    assert words(c.tick()) == "batch 9.0 10.0"
    assert c.processed(1, 1) == []


def test_recorded_batches_are_emitted_without_the_source_and_attempts_go_on():
    c = Coordinator(4, 4, recorded=6, attempts={3: 7, 4: 0, 5: 2})
    c.source_ready = False
    assert words(c.tick()) == "batch 4.1 5.3 6.0"


def test_attempts_are_forgotten_once_nobody_can_go_back():
    c = Coordinator()
    for txid in range(1, 50):
        c.tick()
        c.failed(txid, 0)
        c.processed(txid, 1)
        c.committed(txid, 1)
        c.durable(txid - 3)
    assert c._taken.keys() == {(t, t) for t in (47, 48, 49)}
    c.rewind(48)
    assert words(c.tick()) == "batch 48.2"


@settings(stateful_step_count=60, max_examples=60)
class Machine(RuleBasedStateMachine):
    """Answers in any order, also stale ones, against a model that only counts."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = 3
        self.c = Coordinator(max_pending=self.pending)
        self.flying: dict[int, int] = {}
        self.processed: set[int] = set()
        self.committing: int | None = None
        self.answers: list[tuple[int, int]] = []
        self.commits: list[int] = []
        self.attempts: dict[int, int] = {}
        self.known = 0
        self.durable = 0
        self.source_ready = True

    def take(self, emitted: list[Emission]) -> None:
        for emission in emitted:
            txid, attempt = emission.txid, emission.attempt
            if isinstance(emission, EmitBatch):
                assert txid not in self.flying
                assert attempt > self.attempts.get(txid, -1), "attempts go up"
                assert txid <= self.known or self.source_ready
                self.known = max(self.known, txid)
                self.attempts[txid] = attempt
                self.flying[txid] = attempt
                self.answers.append((txid, attempt))
            else:
                assert self.committing is None, "one commits at a time"
                assert (self.flying[txid], txid in self.processed) == (attempt, True)
                assert txid == len(self.commits) + 1, "in order, without a gap"
                self.committing = txid

    def lose(self, first: int) -> None:
        self.flying = {t: a for t, a in self.flying.items() if t < first}
        self.processed = {t for t in self.processed if t < first}
        if self.committing is not None and self.committing >= first:
            self.committing = None

    @rule(ready=st.booleans())
    def tick(self, ready: bool) -> None:
        self.source_ready = self.c.source_ready = ready
        self.take(self.c.tick())

    @precondition(lambda self: self.flying.keys() - self.processed)
    @rule(data=st.data())
    def process(self, data: st.DataObject) -> None:
        txid = data.draw(st.sampled_from(sorted(self.flying.keys() - self.processed)))
        self.processed.add(txid)
        self.take(self.c.processed(txid, self.flying[txid]))

    @precondition(lambda self: self.committing is not None)
    @rule()
    def commit(self) -> None:
        txid = self.committing
        assert txid is not None
        attempt = self.flying.pop(txid)
        self.processed.discard(txid)
        self.committing = None
        self.commits.append(txid)
        self.take(self.c.committed(txid, attempt))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        txid = data.draw(st.sampled_from(sorted(self.flying)))
        attempt = self.flying[txid]
        self.lose(txid)
        self.take(self.c.failed(txid, attempt))

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), kind=st.sampled_from(["processed", "committed", "failed"]))
    def answer_late(self, data: st.DataObject, kind: str) -> None:
        txid, attempt = data.draw(st.sampled_from(self.answers))
        if self.flying.get(txid) != attempt:
            assert getattr(self.c, kind)(txid, attempt) == []

    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        self.durable = data.draw(st.integers(self.durable, len(self.commits)))
        self.c.durable(self.durable)

    @rule()
    def rewind(self) -> None:
        self.lose(0)
        del self.commits[self.durable :]
        self.c.rewind(self.durable + 1)

    @invariant()
    def window(self) -> None:
        assert self.c.current == len(self.commits) + 1
        assert {f.txid: f.attempt for f in self.c.flights()} == self.flying
        assert self.c.in_flight == len(self.flying) <= self.pending
        assert all(self.c.current <= t < self.c.current + self.pending for t in self.flying)
        if self.c.current in self.processed:
            assert self.committing == self.c.current, "it waits for nobody"
        for txid in self.flying:
            state = (
                FlightState.COMMITTING if txid == self.committing
                else FlightState.PROCESSED if txid in self.processed
                else FlightState.PROCESSING
            )  # fmt: skip
            assert self.c.state(txid) is state


TestMachine = Machine.TestCase
