"""Batches that a caller waits for, and batches of one transaction each."""

from __future__ import annotations

import math

from headrace.forwarder.batcher import Cut
from tests.forwarder.test_batcher import batcher, transaction


def test_a_batch_that_is_waited_for_is_closed_at_once():
    b = batcher(interval_s=600.0)
    b.add(transaction(10))
    b.hurry(20)
    assert b.urgent
    assert b.take(0) is None, "what ends before 20 may still come"
    b.add(transaction(20))
    assert not b.urgent
    assert b.take(0).end_lsn == 20
    b.hurry(0)
    b.add(transaction(30))
    assert b.take(0) is None


def test_a_keepalive_closes_it_and_moves_the_idle_position():
    b = batcher(interval_s=600.0)
    b.add(transaction(10))
    b.hurry(15)
    assert b.take(0) is None
    b.keepalive(17)
    assert b.take(0).end_lsn == 10
    assert b.idle_lsn == 17, "nothing is left before it"
    # The engine is told although nothing more arrives.
    assert b.take(600) is None


def test_the_idle_position_waits_for_what_is_still_here():  # Invariant 4
    b = batcher(rows_max=1)
    b.add(transaction(10) + transaction(20) + transaction(30)[:2])
    b.keepalive(25)
    assert b.idle_lsn == 0, "in the middle of a transaction it may mean anything"
    b.add(transaction(30)[2:])
    b.keepalive(35)
    for end, idle in ((10, 0), (20, 0), (30, 35)):
        assert b.take(0).end_lsn == end
        assert b.idle_lsn == idle
    b = batcher(cuts=[Cut(1, 40)])
    b.keepalive(35)
    assert b.idle_lsn == 0, "a recorded batch is to come"
    b.keepalive(40)
    assert b.take(0).txid == 1
    assert b.idle_lsn == 40


def test_each_transaction_is_a_batch_if_none_is_ever_joined():
    b = batcher(interval_s=600.0)
    b.add(transaction(10) + transaction(20))
    b.divide((), math.inf)
    b.add(transaction(30) + transaction(40))
    batches = [b.take(0) for _ in range(3)]
    assert [(x.end_lsn, x.transactions) for x in batches] == [(20, 2), (30, 1), (40, 1)]
    b.divide((), None)
    b.add(transaction(50) + transaction(60))
    assert b.take(0) is None
