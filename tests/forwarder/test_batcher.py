"""Batches: whole transactions, recorded cuts, duplicates, bounded memory."""

from __future__ import annotations

import math
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import clock
from headrace.errors import ContinuityLost, TransientError
from headrace.forwarder.batcher import Batcher, Cut
from tests.waiting import PATIENCE_S, wait_until


def transaction(end: int, rows: int = 1, size: int = 10, at_us: int = 7) -> list[bytes]:
    """Return the messages of a transaction that ends at ``end`` and committed at ``at_us``."""
    begin = struct.pack("!cQqI", b"B", end - 5, at_us, 1)
    commit = struct.pack("!cBQQq", b"C", 0, end - 5, end, at_us)
    return [begin, *(b"I" + bytes(size) for _ in range(rows)), commit]


def batcher(**kwargs) -> Batcher:
    return Batcher(**{"start_lsn": 0, "interval_s": 0.0} | kwargs)


def test_takes_what_is_complete_and_nothing_else():
    b = batcher()
    b.add(transaction(10) + transaction(20) + transaction(30)[:2])
    batch = b.take(0)
    assert (batch.transactions, batch.end_lsn, batch.messages) == (2, 20, 6)
    assert b.take(0) is None
    b.add(transaction(30)[2:])
    assert b.take(0).end_lsn == 30


def test_a42_a_batch_knows_when_its_oldest_was_committed():
    """The time is right even if the source's clock goes back; the next batch starts again."""
    b = batcher()
    for end, at_us in ((10, 900), (20, 700), (30, 800)):
        b.add(transaction(end, at_us=at_us))
    batch = b.take(0)
    assert (batch.transactions, batch.oldest_us, batch.commit_time_us) == (3, 700, 800)
    b.add(transaction(40, at_us=1000))
    assert b.take(0).oldest_us == 1000


def test_e19_commits_within_the_interval_are_one_batch(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])
    b = batcher(interval_s=0.050)
    ends = []

    def look(at_ms: int) -> None:
        now[0] = 100.0 + at_ms / 1000
        batch = b.take(0)
        ends.append((at_ms, batch and (batch.transactions, batch.end_lsn)))

    for at_ms, end in ((0, 10), (10, 20), (49, 30)):
        look(at_ms)
        b.add(transaction(end, rows=3))
    look(49)
    look(50)
    now[0] = 100.051
    b.add(transaction(40)[:2])
    look(51)
    b.add(transaction(40)[2:])
    look(100)
    look(102)
    look(200)
    assert ends == [
        (0, None), (10, None), (49, None), (49, None), (50, (3, 30)),
        (51, None), (100, None), (102, (1, 40)), (200, None),
    ]  # fmt: skip


def test_e19_with_no_interval_each_transaction_is_a_batch():
    b = batcher(interval_s=0.0)
    for end in (10, 20, 30):
        b.add(transaction(end))
        assert b.take(0).end_lsn == end
    assert b.take(0) is None


def test_waits_for_the_interval_since_the_first():
    b = batcher(interval_s=30.0)
    b.add(transaction(10))
    assert b.take(0.01) is None
    b.fail(TransientError("gone"))
    assert b.take(0).end_lsn == 10  # a stream that has ended sends no more
    with pytest.raises(TransientError):
        b.take(0)


def test_nothing_is_gathered_while_nothing_is_under_way():
    b = batcher(interval_s=600.0, cuts=[Cut(7, 20)])
    b.add(transaction(10))
    assert b.take(0, rested_at=0) is None  # recorded batches stay what they were
    b.add(transaction(20) + transaction(30))
    assert b.take(0, rested_at=0).txid == 7
    assert b.take(0) is None
    assert b.take(0, rested_at=clock.monotonic() + 600) is None
    soon = clock.monotonic() + 0.01
    assert b.take(600, rested_at=soon).end_lsn == 30
    assert clock.monotonic() >= soon
    assert b.take(0, rested_at=0) is None


def test_what_waits_is_kept_elsewhere_from_half_of_the_room_on():
    b = batcher(bytes_max=1000, rows_max=1)
    kept = []

    def keep(batch) -> bool:
        if len(kept) == 2:
            batch.txid = 9
            return False
        kept.append(batch.end_lsn)
        return True

    b.add(transaction(10))
    assert not b.relieve(keep)
    b.add(transaction(20) + transaction(30) + transaction(40) + transaction(50))
    assert b.relieve(keep)
    assert b.relieve(keep)
    assert kept == [10, 20]
    assert b.statistics()["buffered_bytes"] < 1000
    b.add(transaction(60))
    assert not b.relieve(keep), "there is no room"
    assert b.replaying, "it is on record"
    assert not b.relieve(kept.append), "nothing may pass it"
    assert [(batch.txid, batch.end_lsn) for batch in iter(lambda: b.take(0), None)] == [
        (9, 30), (None, 40), (None, 50), (None, 60)
    ]  # fmt: skip
    assert kept == [10, 20]


def test_an_open_batch_is_kept_elsewhere_but_none_that_is_still_to_be_cut():
    for cuts, relieved in ([], True), ([Cut(7, 90)], False):
        b = batcher(bytes_max=100, interval_s=600.0, cuts=cuts)
        b.add(transaction(10) + transaction(20))
        ends = []
        assert b.relieve(lambda batch, ends=ends: ends.append(batch.end_lsn) or True) == relieved
        assert ends == [20] * relieved


def test_what_may_be_late_is_gathered_for_longer():
    b = batcher(interval_s=0.0, bytes_max=1000)
    b.add(transaction(10))
    assert b.take(0, rested_at=0, gather_s=600) is None
    b.add(transaction(20))
    b.hurry(15)
    assert b.take(0, rested_at=0, gather_s=600).end_lsn == 20, "somebody waits"
    b.hurry(0)
    b.add(transaction(30))
    assert b.take(0, rested_at=0, gather_s=600) is None
    b.add(transaction(40, size=2000))
    assert b.take(0, rested_at=0, gather_s=600).end_lsn == 40, "there is no room for more"
    b.add(transaction(50))
    assert b.take(600, rested_at=0, gather_s=0.01).end_lsn == 50
    b.add(transaction(60))
    assert b.take(0, gather_s=600) is None
    b.fail(TransientError("gone"))
    assert b.take(0, gather_s=600).end_lsn == 60


def test_poke_returns_at_once():
    b = batcher()
    thread = threading.Timer(0.02, b.poke)
    thread.start()
    assert b.take(20) is None
    thread.join()


def test_who_waits_is_woken_by_what_concerns_him_only():
    b = batcher(interval_s=600.0)
    told = []

    class Counted(threading.Condition):
        def notify_all(self):
            told.append(len(self._waiters))
            super().notify_all()

    b._lock = lock = Counted()
    b._idle_at = math.inf  # a keepalive's position is no reason now
    taken = []
    thread = threading.Thread(target=lambda: taken.append(b.take(600)))
    thread.start()
    wait_until(lambda: lock._waiters, "he waits")
    b.keepalive(5)
    assert told == []
    b.add(transaction(10))
    assert told == [1], "a batch is opened: he need not wait for as long"
    for number in range(2, 100):
        b.add(transaction(10 * number))
        b.keepalive(10 * number)
    assert told == [1]
    b.hurry(2000)
    b.add(transaction(1990))
    assert len(told) == 2
    b.keepalive(2000)
    thread.join(PATIENCE_S)
    assert [batch.end_lsn for batch in taken] == [1990]
    assert len(told) == 4, "there is what somebody is in a hurry for; it was taken"


def test_take_returns_when_an_idle_server_has_moved_on():
    """Lags are measured from the engine's position."""
    b = batcher(interval_s=600.0)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(b.take(600)))
    thread.start()
    b.keepalive(5)
    thread.join(PATIENCE_S)
    assert taken == [None]
    assert b.idle_lsn == 5


def test_who_waits_is_woken_when_there_is_no_more_room():
    b = batcher(interval_s=600.0, bytes_max=2000)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(b.take(600)))
    thread.start()
    wait_until(lambda: b._lock._waiters, "he waits")
    b.add(transaction(10))
    wait_until(lambda: b._lock._waiters, "he waits again, for as long as a batch gathers")
    numbers = iter(range(2, 100))
    while b.add(transaction(10 * next(numbers))):
        pass
    thread.join(PATIENCE_S)
    assert [batch.transactions for batch in taken] == [next(numbers) - 1]


def test_row_limit_closes_at_a_transaction_end():
    b = batcher(rows_max=5, interval_s=30.0)
    b.add(transaction(10) + transaction(20) + transaction(30))
    assert b.take(0).end_lsn == 20
    assert b.take(0) is None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30), st.data())
def test_cuts_are_met_exactly(rows, data):
    ends = [10 * (i + 1) for i in range(len(rows))]
    chosen = sorted(data.draw(st.sets(st.sampled_from(ends))))
    cuts = [Cut(100 + i, end) for i, end in enumerate(chosen)]
    b = batcher(cuts=cuts, rows_max=2)
    b.add([m for end, n in zip(ends, rows, strict=True) for m in transaction(end, n)])
    for cut in cuts:
        batch = b.take(0)
        assert (batch.txid, batch.end_lsn) == (cut.txid, cut.end_lsn)
    assert not b.replaying
    rest = ends[ends.index(chosen[-1]) + 1 :] if chosen else ends
    seen = []
    while (batch := b.take(0)) is not None:
        assert batch.txid is None
        seen.append(batch.end_lsn)
    assert (seen[-1:] or rest[-1:]) == rest[-1:]


def test_cut_whose_transactions_are_no_longer_sent():
    b = batcher(cuts=[Cut(4, 10), Cut(5, 20)])
    b.add(transaction(30))
    assert [(b.take(0).txid, 0)] == [(4, 0)]
    assert b.take(0).txid == 5
    assert b.take(0).end_lsn == 30
    b = batcher(cuts=[Cut(4, 10)])
    b.keepalive(9)
    assert b.take(0) is None
    b.keepalive(10)
    assert b.take(0).txid == 4


def test_duplicates_are_dropped_but_their_relations_stay():  # H17
    b = batcher(start_lsn=20)
    begin, row, commit = transaction(20)
    b.add([begin, row, commit])
    b.add([begin, b"Rrelation", row, commit, *transaction(30)])
    batch = b.take(0)
    assert batch.transactions == 1
    told = [m[:1] for m in next(batch.chunks())]
    assert told == [b"B", b"R", b"C", b"B", b"I", b"C"]
    assert b.duplicates == 2


def test_idle_position_only_when_nothing_is_left():  # H15
    b = batcher(interval_s=30.0)
    b.keepalive(5)
    assert b.idle_lsn == 5
    b.add(transaction(10))
    b.keepalive(12)
    assert b.idle_lsn == 5
    b.add(transaction(20)[:2])
    b.keepalive(15)
    assert b.idle_lsn == 5


def test_large_transaction_goes_to_disk_and_back(tmp_path):
    b = batcher(spool_bytes_min=10_000, spool_dir=tmp_path, bytes_max=50_000)
    messages = transaction(10, rows=5000, size=50)
    for start in range(0, len(messages), 500):
        assert b.add(messages[start : start + 500])
    numbers = b.statistics()
    assert numbers["spooled_bytes"] + numbers["buffered_bytes"] > 5000 * 50
    assert numbers["spooled_bytes"] > 200_000 > 20_000 > numbers["buffered_bytes"] > 0
    batch = b.take(0)
    assert b.statistics()["spooled_bytes"] == 0
    assert batch.spooled
    for _ in range(2):  # it may be read again
        assert [m for chunk in batch.chunks() for m in chunk] == messages
    assert batch.size < 20_000
    batch.close()
    assert list(tmp_path.iterdir()) == []


def test_holds_back_when_full_but_never_a_recorded_batch():
    b = batcher(bytes_max=1000, interval_s=30.0)
    assert not b.add(transaction(10, rows=50))
    assert not b.wait_for_room(0.01)
    b.fail(TransientError("gone"))
    b.take(0)
    assert b.wait_for_room(0.01)
    b = batcher(bytes_max=1000, cuts=[Cut(1, 20)])
    assert b.add(transaction(10, rows=50))
    assert not b.add(transaction(20, rows=50))


def test_malformed_transactions_end_the_stream():
    begin, row, commit = transaction(10)
    wrong = ([commit], [begin, begin], [begin, row, transaction(20)[2]])
    cut = ([begin[:-1]], [begin + b"\0"], [begin, row, commit[:-1]])
    for messages in (*wrong, *cut):
        with pytest.raises(ContinuityLost):
            batcher().add(messages)
