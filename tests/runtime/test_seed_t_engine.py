"""The statements T-1 … T-30 on a real Postgres; the others are in ``test_seed_t.py``."""

from __future__ import annotations

import threading

import psycopg
import pytest

from headrace.collections.dataflow import Dataflow
from headrace.errors import ContinuityLost
from headrace.forwarder import receiver
from headrace.postgres.slot import drop_slot
from headrace.process import faults
from headrace.process.bounds import Bound
from headrace.runtime import positions
from headrace.runtime.batches import LOST_MAX
from headrace.runtime.edges import Edge, TableDiffs
from tests.compared import differs
from tests.runtime.harness import create_view, settle, source_plan
from tests.runtime.words import QUERY, assert_in_order, count_of, log_commits, stored, write
from tests.waiting import PATIENCE_S, wait_until

TABLES = "CREATE TABLE words (id serial PRIMARY KEY, word text)"


@pytest.mark.parametrize("point", ["cp14", "cp15", "cp16"])
def test_T_1_T_4_a_count_counts_every_word_once(source, start, database, point):
    """10 stored; a batch of 5 whose success is not reported, and again: (15, n) once."""
    write(source, *["man"] * 10)
    running = start()
    physical, query = count_of(source, "man")
    create_view(running, database, "v", physical, query)
    write(source, "other")
    settle(running, source)
    before = stored(source, "v")
    log_commits(source)
    faults.arm(f"{point}:raise:1")
    write(source, *["man"] * 5)
    wait_until(lambda: running.book.reconnects, "the fault must land")
    settle(running, source)
    after = stored(source, "v")
    assert (before[0], after[0]) == (10, 15)
    assert after[2] > before[2]
    # Where the commit had succeeded the replay wrote nothing: one row version, one move.
    assert source.execute("SELECT count(*) FROM moves").fetchone() == (1,)
    write(source, *["man"] * 5)
    settle(running, source)
    assert stored(source, "v")[0] == 20
    assert_in_order(source)


def test_T_5_states_that_have_the_txid_skip_it_others_do_it(source, start, database):
    """man 3, dog 3, apple 10; {man, man, dog} reaches dog only, then man; apple is not touched."""
    write(source, *["man"] * 3, *["dog"] * 3, *["apple"] * 10)
    running = start()
    for word in ("man", "dog", "apple"):
        physical, query = count_of(source, word)
        create_view(running, database, word, physical, query)
    before = {word: stored(source, word) for word in ("man", "dog", "apple")}
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE man IN SHARE MODE")
        write(source, "man", "man", "dog")
        settle(running, source)
        dog = stored(source, "dog")
        assert dog[0] == 4
        assert stored(source, "man") == before["man"]
    wait_until(lambda: stored(source, "man")[0] == 5, "man is replayed")
    settle(running, source)
    assert stored(source, "man")[2] == dog[2], "by the same txid"
    assert stored(source, "dog") == dog, "it was skipped"
    assert stored(source, "apple")[:2] == before["apple"][:2]


def test_T_6_one_transaction_per_batch(source, start, database):
    running = start(batch_rows_max=100, batch_interval_ms=0)
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    log_commits(source)
    with psycopg.connect(database, autocommit=True) as writer:
        for _ in range(100):
            writer.execute("INSERT INTO words (word) SELECT 'x' FROM generate_series(1, 100)")
    settle(running, source)
    assert source.execute("SELECT count(*) FROM v").fetchone() == (10_000,)
    assert source.execute("SELECT count(DISTINCT xid) FROM moves").fetchone() == (100,)
    assert_in_order(source)


def test_T_7_views_work_on_one_batch_at_the_same_time(source, start, database, monkeypatch):
    running = start()
    for name in ("a", "b"):
        create_view(running, database, name, source_plan(source, "words"), QUERY)
    both = threading.Barrier(2)
    end = Dataflow.end

    def meet(self, *args) -> object:
        both.wait(PATIENCE_S)
        return end(self, *args)

    monkeypatch.setattr(Dataflow, "end", meet)
    source.execute("INSERT INTO words (word) SELECT 'x' || i FROM generate_series(1, 5000) i")
    settle(running, source)
    assert not both.broken
    assert differs(source, "a", QUERY) == differs(source, "b", QUERY) == []


def test_small_batches_of_brief_views_are_worked_on_in_turn(source, start, database, monkeypatch):
    """A second thread would cost more than it saves; a view that was slow still gets one."""
    running = start()
    for name in ("a", "b", "slow"):
        create_view(running, database, name, source_plan(source, "words"), QUERY)
    a, b, slow = running.on(lambda: list(running.book.views.values()))
    dear = running.on(lambda: slow.bounded(running.settings))
    monkeypatch.setattr(Bound, "taken_s", property(lambda self: float(self is dear)))
    threads: dict[int, str] = {}
    end = Dataflow.end

    def seen(self, *args) -> object:
        of = next(view.id for view in (a, b, slow) if view.dataflow is self)
        threads[of] = threading.current_thread().name
        return end(self, *args)

    monkeypatch.setattr(Dataflow, "end", seen)
    for word in ("x", "y"):  # the first batch tells which views are brief
        threads.clear()
        write(source, word)
        settle(running, source)
    assert threads[a.id] == threads[b.id] != threads[slow.id]


def test_T_13_failures_are_found_without_anybody_telling(source, start, database):
    running = start()
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    log_commits(source)
    for i, role in enumerate(("stream", "sink", "stream", "sink")):
        write(source, str(i), "x")
        source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
            " application_name = %s AND datname = current_database()",
            (f"headrace {role}",),
        )
    settle(running, source)
    assert running.book.reconnects >= 1
    assert differs(source, "v", QUERY) == []
    assert_in_order(source)


def test_T_17_a_replay_keeps_its_txid_and_has_a_new_attempt(source, start, database):
    running = start()
    physical, query = count_of(source, "man")
    create_view(running, database, "v", physical, query)
    faults.arm("cp13:raise:1")
    write(source, "man")
    settle(running, source)
    assert running.book.reconnects == 1
    txid, attempt = source.execute("SELECT txid, attempt FROM headrace.progress").fetchone()
    recorded = running.on(lambda: positions.records(running.book.db)[txid])
    assert (attempt, recorded.attempt) == (1, 1)
    assert source.execute(query).fetchone() == source.execute("TABLE v").fetchone()


def test_T_11_T_26_batches_are_recorded_and_forgotten(source, start, database):
    running = start(feedback_interval_ms=20)
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    for i in range(30):
        write(source, str(i))
        if i % 10 == 0:
            settle(running, source)
    settle(running, source)
    running.stop()
    running = start()

    def kept() -> tuple[list[int], int]:
        records = positions.records(running.book.db)
        return list(records), running.book.position.txid

    records, last = running.on(kept)
    assert records == [last], "of what all views have, only the last is kept"
    write(source, "more")
    settle(running, source)
    assert differs(source, "v", QUERY) == []


def test_T_28_replay_of_a_slot_that_went_back(source, start, database, monkeypatch):
    """Repeated rows are dropped by Headrace's position, and counted."""
    slot = f"headrace_{source.info.dbname}"
    running = start(feedback_interval_ms=20)
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    source.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, f"{slot}_old"))
    for i in range(5):
        write(source, str(i), "x")
        settle(running, source)
    source.execute("UPDATE words SET word = word || '!' WHERE id % 2 = 0")
    settle(running, source)
    running.stop()
    drop_slot(source, slot)
    source.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (f"{slot}_old", slot))
    source.execute("SELECT pg_drop_replication_slot(%s)", (f"{slot}_old",))
    # Postgres would skip them on request; a server that does not must do no harm either.
    monkeypatch.setattr(receiver, "format_lsn", lambda _: "0/0")
    running = start()
    write(source, "last")
    settle(running, source)
    assert running.book.stream.batcher.duplicates >= 6
    assert differs(source, "v", QUERY) == []


def test_T_28_a_lost_slot_is_not_guessed_over(source, start, database):
    """A recreated slot is another stream: the views report it and stay stopped."""
    slot = f"headrace_{source.info.dbname}"
    running = start()
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    write(source, "kept")
    settle(running, source)
    running.stop()
    drop_slot(source, slot)
    write(source, "unseen")
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    running = start()
    status, code, message = wait_until(
        lambda: source.execute(
            "SELECT status, sqlstate, headrace.view_message(id) FROM headrace.views WHERE status = 'error'"
        ).fetchone(),
        "the view stops",
    )
    assert (status, code) == ("error", ContinuityLost.sqlstate)
    assert slot in message
    assert source.execute("SELECT word FROM v").fetchall() == [("kept",)]


def test_T_29_a_row_lost_once_on_the_way_to_a_dataflow(source, start, database, monkeypatch):
    running = start()
    physical, query = count_of(source, "man")
    create_view(running, database, "v", physical, query)
    pull = Edge.pull
    lost = []

    def lossy(self, successor):
        if not lost and any(isinstance(f, TableDiffs) for f in self._frames):
            lost.append(successor)
            self._pulled[successor] -= 1
        return pull(self, successor)

    monkeypatch.setattr(Edge, "pull", lossy)
    write(source, "man", "man", "dog")
    settle(running, source)
    assert lost
    assert running.book.reconnects == 1
    assert source.execute("TABLE v").fetchall() == [("man", 2)]


def test_T_29_a_row_lost_on_the_way_to_the_dataflows(source, start, database, monkeypatch):
    """The row is lost in every attempt: the view stops, the others go on."""
    running = start()
    for name in ("a", "b"):
        create_view(running, database, name, source_plan(source, "words"), QUERY)
    first = min(running.book.views)
    pull = Edge.pull

    def lossy(self, successor):
        if successor == first and any(isinstance(f, TableDiffs) for f in self._frames):
            self._pulled[successor] -= 1
        return pull(self, successor)

    monkeypatch.setattr(Edge, "pull", lossy)
    write(source, "x")
    wait_until(
        lambda: (
            source.execute("SELECT view_name FROM headrace.views WHERE status = 'error'").fetchall()
            == [("a",)]
        ),
        "the view stops",
    )
    settle(running, source)
    assert running.book.reconnects == LOST_MAX
    assert source.execute("TABLE a").fetchall() == []
    assert differs(source, "b", QUERY) == []


def test_T_16_frames_carry_the_attempt_that_processes_them(source, start, database, monkeypatch):
    seen = []
    put = Edge.put
    monkeypatch.setattr(Edge, "put", lambda self, frame: seen.append(frame) or put(self, frame))
    running = start()
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    faults.arm("cp12:raise:1,cp14:raise:2")
    for i in range(4):
        write(source, str(i))
        settle(running, source)
    assert running.book.reconnects == 2
    pairs = [(f.diffs if isinstance(f, TableDiffs) else f) for f in seen]
    pairs = [(f.txid, f.attempt) for f in pairs]
    assert {a for _, a in pairs} >= {0, 1}
    for txid in {t for t, _ in pairs}:
        attempts = [a for t, a in pairs if t == txid]
        assert attempts == sorted(attempts), "an old attempt never comes later"
