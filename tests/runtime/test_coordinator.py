"""The coordinator's state machine: the traced example (T-23), and properties (T-9, T-10, T-25)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BugError
from headrace.runtime.coordinator import Coordinator, EmitBatch, EmitCommit, State


def words(emitted) -> str:
    """``batch 1.0 2.0`` and ``commit 1.0`` as the requirements write them."""
    out = []
    for emission in emitted:
        kind = "batch" if isinstance(emission, EmitBatch) else "commit"
        out.append(f"{kind} {emission.txid}.{emission.attempt}")
    return ", ".join(out)


def test_trace_of_the_requirements():
    c = Coordinator(max_pending=4)
    assert words(c.tick()) == "batch 1.0, batch 2.0, batch 3.0, batch 4.0"
    assert words(c.tick()) == ""
    assert words(c.failed(2, 0)) == "batch 2.1, batch 3.1, batch 4.1"
    assert words(c.processed(2, 1)) == ""
    assert words(c.processed(1, 0)) == "commit 1.0"
    assert words(c.committed(1, 0)) == "commit 2.1, batch 5.0"
    c.source_ready = False
    assert words(c.committed(2, 1)) == ""
    assert words(c.failed(3, 0)) == ""
    assert words(c.failed(3, 1)) == "batch 3.2, batch 4.2, batch 5.1"
    c.source_ready = True
    assert words(c.tick()) == "batch 6.0"
    assert words(c.processed(3, 2)) == "commit 3.2"
    assert words(c.failed(3, 2)) == "batch 3.3, batch 4.3, batch 5.2, batch 6.1"
    assert words(c.processed(3, 3)) == "commit 3.3"
    assert words(c.processed(4, 3)) == ""
    assert words(c.committed(3, 3)) == "commit 4.3, batch 7.0"


def test_first_txid_is_one_and_a_replay_has_the_same(  # T-3
):
    c = Coordinator()
    assert words(c.tick()) == "batch 1.0"
    assert words(c.failed(1, 0)) == "batch 1.1"


def test_failed_commit_runs_both_phases_again():  # T-10
    c = Coordinator()
    c.tick()
    assert words(c.processed(1, 0)) == "commit 1.0"
    assert words(c.failed(1, 0)) == "batch 1.1"
    assert c.state(1) is State.PROCESSING
    assert words(c.committed(1, 0)) == ""
    assert words(c.processed(1, 1)) == "commit 1.1"


def test_stale_answers_change_nothing():  # T-25
    c = Coordinator(max_pending=2)
    c.tick()
    c.failed(1, 0)
    assert c.failed(1, 0) == c.processed(1, 0) == c.committed(2, 0) == []
    assert c.in_flight == 2
    assert words(c.processed(1, 1)) == "commit 1.1"


def test_answers_out_of_turn_are_bugs():
    c = Coordinator()
    c.tick()
    with pytest.raises(BugError):
        c.committed(1, 0)
    c.processed(1, 0)
    with pytest.raises(BugError):
        c.processed(1, 0)


@given(st.data(), st.integers(1, 5))
def test_any_order_of_answers_commits_in_order_once(data, pending):  # T-9
    c = Coordinator(max_pending=pending)
    processing: set[tuple[int, int]] = set()
    committing: list[tuple[int, int]] = []
    committed: list[int] = []

    def take(emitted) -> None:
        for emission in emitted:
            pair = (emission.txid, emission.attempt)
            if isinstance(emission, EmitCommit):
                committing.append(pair)
            else:
                processing.add(pair)
        alive = [p for p in committing if c.state(p[0]) is State.COMMITTING]
        assert len({t for t, _ in alive}) <= 1
        assert c.in_flight <= pending

    take(c.tick())
    for _ in range(data.draw(st.integers(0, 60))):
        c.source_ready = data.draw(st.booleans())
        live = [p for p in committing if c.state(p[0]) is State.COMMITTING][-1:]
        choice = data.draw(st.sampled_from(["process", "commit", "fail", "tick"]))
        if choice == "process" and processing:
            pair = data.draw(st.sampled_from(sorted(processing)))
            processing.discard(pair)
            take(c.processed(*pair))
        elif choice == "commit" and live:
            before = c.current
            take(c.committed(*live[0]))
            if c.current != before:
                committed.append(before)
        elif choice == "fail":
            every = sorted({*processing, *committing})
            if every:
                take(c.failed(*data.draw(st.sampled_from(every))))
        else:
            take(c.tick())
    assert committed == list(range(1, len(committed) + 1))
