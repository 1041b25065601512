"""Batches that end at certain positions, one of which may not be known yet."""

from __future__ import annotations

import random

import pytest

from headrace import clock
from headrace.forwarder.batcher import Batch, Cut
from tests.forwarder.test_batcher import batcher, transaction


@pytest.fixture
def now(monkeypatch):
    """The time, in a list of one number."""
    time = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def add(b, *ends: int) -> None:
    for end in ends:
        b.add(transaction(end))


def taken(b) -> list[tuple[int, int, int]]:
    """Take all batches that are ready; return first and last position and size of each."""
    found = []
    while (batch := b.take(0)) is not None:
        found.append((batch.first_lsn, batch.end_lsn, batch.transactions))
    return found


def test_transactions_stay_apart_until_the_position_is_known(now):
    b = batcher(interval_s=600.0)
    add(b, 10, 20)
    b.divide((), 1.0)
    add(b, 30, 40, 50, 60)
    assert taken(b) == [(10, 20, 2), (30, 30, 1), (40, 40, 1), (50, 50, 1), (60, 60, 1)]
    add(b, 70, 80, 90, 100)
    b.divide((85,), None)
    assert taken(b) == [(70, 80, 2), (90, 100, 2)]
    add(b, 110, 120)
    b.hurry(120)
    assert taken(b) == [(110, 120, 2)]


def test_the_oldest_are_joined_if_nobody_takes_them_in_time(now):
    b = batcher(interval_s=600.0)
    b.divide((), 1.0)
    add(b, 10, 20, 30)
    now[0] += 0.9
    add(b, 40, 50)
    now[0] += 0.2
    assert taken(b) == [(10, 30, 3), (40, 40, 1), (50, 50, 1)]


def test_a_batch_that_gathers_ends_at_a_known_position():
    b = batcher(interval_s=600.0)
    b.divide((25,), None)
    add(b, 10, 20, 30, 40)
    b.hurry(40)
    assert taken(b) == [(10, 20, 2), (30, 40, 2)]


def test_recorded_batches_stay_as_they_were(now):
    b = batcher(interval_s=600.0, cuts=[Cut(1, 20), Cut(2, 30), Cut(3, 50)])
    b.divide((25,), 1.0)
    add(b, 10, 20, 30, 40, 50, 60, 70)
    now[0] += 5.0
    assert taken(b) == [(10, 20, 2), (30, 30, 1), (40, 50, 2), (60, 70, 2)]


def test_joined_batches_are_bounded(now):
    whole = batcher(interval_s=600.0, rows_max=12)
    apart = batcher(interval_s=600.0, rows_max=12)
    apart.divide((), 1.0)
    for b in (whole, apart):
        add(b, *range(10, 200, 10))
    apart.divide((), None)
    sizes = [batch[2] for batch in taken(apart)]
    assert max(sizes) <= max(batch[2] for batch in taken(whole))
    assert sum(sizes) == 19


class Model:
    """A batcher with random calls, and a record of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.batcher = batcher(interval_s=rng.choice([0.01, 600.0]), rows_max=rng.choice([8, 1000]))
        self.sent: list[int] = []
        self.taken: list[Batch] = []
        self.known_at: dict[int, int] = {}
        """By position: how many batches were taken when it became known."""
        self.apart_s: float | None = None

    def add(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            last = self.sent[-1] if self.sent else 0
            self.sent.append(last + self.rng.randrange(5, 15))
            add(self.batcher, self.sent[-1])

    def take(self) -> None:
        if (batch := self.batcher.take(0)) is not None:
            self.taken.append(batch)

    def divide(self) -> None:
        self.apart_s = self.rng.choice([None, 0.5, 1.0])
        self.batcher.divide(frozenset(self.known_at), self.apart_s)

    def know(self) -> None:
        """Let a position become known, for which transactions are kept apart."""
        if self.apart_s is not None and self.sent:
            # A batch that was taken already could not end before its end.
            least = self.taken[-1].end_lsn if self.taken else 0
            self.known_at[self.rng.randrange(least, self.sent[-1] + 20)] = len(self.taken)
            self.batcher.divide(frozenset(self.known_at), self.apart_s)

    def end(self) -> None:
        self.batcher.divide(frozenset(self.known_at), None)
        self.batcher.hurry(self.sent[-1])
        while (batch := self.batcher.take(0)) is not None:
            self.taken.append(batch)


@pytest.mark.parametrize("seed", range(200))
def test_every_transaction_comes_once_and_no_batch_crosses_a_position(now, seed):
    rng = random.Random(seed)
    model = Model(rng)
    model.add()
    for _ in range(120):
        now[0] += rng.choice([0.0, 0.001, 0.2, 2.0])
        rng.choice([model.add, model.add, model.take, model.divide, model.know])()
    model.end()
    starts = iter(model.sent)
    for batch in model.taken:
        of_it = [next(starts) for _ in range(batch.transactions)]
        assert (batch.first_lsn, batch.end_lsn) == (of_it[0], of_it[-1])
        assert batch.messages == 3 * batch.transactions
        assert len([m for chunk in batch.chunks() for m in chunk]) == batch.messages
    assert list(starts) == []
    for end, count in model.known_at.items():
        # A batch that had begun before transactions were kept apart may go beyond a position.
        later = [batch for batch in model.taken[count:] if batch.apart]
        assert not any(batch.first_lsn <= end < batch.end_lsn for batch in later)
