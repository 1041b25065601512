"""A source that was restored does not send again what it sent last; see ``last_commit.py``."""

from __future__ import annotations

import random

import pytest

from headrace.errors import ContinuityLost
from headrace.kernels.pgoutput import Commit, read_commit
from tests.forwarder.test_batcher import batcher, transaction


def received(end: int, at_us: int = 7) -> Commit:
    b = batcher()
    b.add(transaction(end, at_us=at_us))
    assert b.last is not None
    return b.last


def test_it_is_the_last_transaction_accepted():
    b = batcher()
    assert b.last is None
    b.add(transaction(10) + transaction(20, at_us=9) + transaction(30)[:2])
    assert b.last == Commit(15, 20, 9)
    assert b.accepted == 20
    assert read_commit(b.last.encode()) == b.last


@pytest.mark.parametrize("start", [0, 20, 35])
def test_a_stream_that_repeats_it_goes_on(start):
    """Whether it begins at the last commit, before it, or with other transactions in between."""
    b = batcher(start_lsn=start)
    b.expected = received(20)
    b.keepalive(19)
    b.add(transaction(10) + transaction(20) + transaction(30) + transaction(40))
    b.keepalive(50)
    assert b.expected is None
    assert b.take(0).end_lsn == 40


@pytest.mark.parametrize(
    "other",
    [transaction(20, at_us=8), transaction(21), transaction(30), []],
    ids=["another time", "another place", "a later one", "none"],
)
@pytest.mark.parametrize("start", [0, 20, 25])
def test_a_stream_with_another_one_is_given_up(start, other):
    b = batcher(start_lsn=start)
    b.expected = received(20)
    b.add(transaction(10))
    with pytest.raises(ContinuityLost, match="it was restored") as raised:
        _ = b.add(other) and b.keepalive(30)
    assert "0/F" in raised.value.detail
    batch = b.take(0)
    assert (batch and batch.end_lsn) == (10 if start == 0 else None)


@pytest.mark.parametrize("seed", range(30))
def test_any_two_histories_are_told_apart(seed):
    """A stream is accepted if, and only if, it has the last commit of the other history."""
    rng = random.Random(seed)

    def history(begin: int, count: int) -> list[tuple[int, int]]:
        ends = []
        for _ in range(count):
            begin += rng.choice((10, 20, 30))
            ends.append((begin, rng.choice((1, 2))))
        return ends

    common = history(0, rng.randrange(4))
    at = common[-1][0] if common else 0
    ours = common + history(at, rng.randrange(4))
    theirs = common + history(at, rng.randrange(6))
    if not ours:
        return
    end, at_us = ours[-1]
    b = batcher(start_lsn=rng.choice([0, end, end + rng.randrange(30)]))
    b.expected = received(end, at_us)
    try:
        for where, when in theirs:
            b.add(transaction(where, at_us=when))
        b.keepalive(max([end, *(where for where, _ in theirs)]))
    except ContinuityLost:
        assert ours[-1] not in theirs
    else:
        assert ours[-1] in theirs
