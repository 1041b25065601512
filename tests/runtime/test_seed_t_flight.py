"""The statements T-1 … T-30 where several batches are in flight, and at the sink."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import replace

import psycopg
import pytest

from headrace.errors import BugError, FencedError, PrerequisiteError, PrivilegeError
from headrace.process import faults
from headrace.runtime.coordinator import FlightState
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.jobs import Answer, CommitJob, ViewPart
from headrace.runtime.ownership import Owner
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.writing import SinkThread
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.sql import progress
from headrace.types import INT4, Field, Txid
from tests.compared import differs
from tests.ledger import diffs
from tests.runtime.harness import create_view, settings_for, settle, source_plan
from tests.runtime.words import QUERY, assert_in_order, count_of, log_commits, write
from tests.waiting import PATIENCE_S, at_any_moment, wait_until

TABLES = "CREATE TABLE words (id serial PRIMARY KEY, word text)"


# --- T-4, T-9, T-25: the compare-and-set of the sink


class Sink:
    """A result table ``v (x int)`` with progress, and direct calls of the sink thread's work."""

    def __init__(self, dsn: str, folder, source) -> None:
        self.source = source
        source.execute("CREATE PUBLICATION headrace")
        oid = table.create(source, "public", "v", "SELECT 0 AS x WHERE false")
        schema = (Field("x", INT4),)
        self.target = ResultTable(1, "public", "v", oid, schema)
        source.execute(
            "INSERT INTO headrace.views (id, schema_name, view_name, query, result_oid)"
            " VALUES (1, 'public', 'v', '', %s)",
            (oid,),
        )
        source.execute("INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (1, 4, '0/1')")
        self.owner = Owner(settings_for(dsn, folder))
        self.pipeline = Pipeline(4)
        self.thread = SinkThread(self.pipeline, CrashAttribution(folder), lambda: None)
        self.take_over()

    def take_over(self) -> None:
        self.progress = progress.take_over(self.owner.conn, [1])[1]
        self.thread.start(self.owner)

    def write(self, txid: int, attempt: int = 0, *, at: int | None = None) -> Answer:
        """Add row ``txid``; ``at`` is the txid that the writer assumes to be stored."""
        known = self.progress if at is None else replace(self.progress, txid=Txid(at))
        rows = diffs(self.target.schema, f"+ {txid}")
        part = ViewPart(1, self.target, "", known, rows)
        return self.thread.write(self.owner, CommitJob(txid, attempt, txid * 16, 1, 0, (part,)))

    def stored(self) -> tuple[int, int, list[int]]:
        """Return progress (txid, attempt) and the rows of the table."""
        row = self.source.execute("SELECT txid, attempt FROM headrace.progress").fetchone()
        rows = self.source.execute("SELECT x FROM v ORDER BY x").fetchall()
        return (*row, [x for (x,) in rows])

    def close(self) -> None:
        self.pipeline.close()
        self.thread.close()
        self.owner.close()


@pytest.fixture
def sink(database, tmp_path, source):
    made = Sink(database, tmp_path, source)
    yield made
    made.close()


def test_T_4_T_9_T_25_sink_compare_and_set(sink):
    """The rows of requirements 3.4, in their order."""
    assert sink.write(5, 1).progress[1].txid == 5
    done = (5, 1, [5])
    assert sink.stored() == done
    # Commit n twice, in one run and after taking over: done, with success.
    assert sink.write(5, 1).failed == {}
    sink.take_over()
    assert sink.write(5, 2).failed == {}
    assert sink.stored() == done
    # An older attempt of n after a newer one committed.
    assert sink.write(5, 0).failed == {}
    assert sink.stored() == done
    # Replay n when n + 3 is stored.
    for txid in (6, 7, 8):
        sink.write(txid)
    sink.take_over()
    assert sink.write(5, 3).progress == {}
    done = (8, 0, [5, 6, 7, 8])
    assert sink.stored() == done
    # Commit n + 1 when only n - 1 is stored: the assumed txid was not written.
    with pytest.raises(BugError, match="a gap"):
        sink.write(10, at=9)
    assert sink.stored() == done
    # Another owner has taken the view over.
    progress.take_over(sink.source, [1])
    with pytest.raises(FencedError):
        sink.write(9)
    assert sink.stored() == done
    sink.take_over()
    sink.write(9)
    assert sink.stored() == (9, 0, [5, 6, 7, 8, 9])


# --- T-30


def in_commit(running) -> int | None:
    found = [f for f in running.book.pipeline.flights() if f.state is FlightState.COMMITTING]
    return found[0].txid if found else None


def test_T_30_fail_batch_replays_it_and_the_process_lives(source, start, database):
    running = start(lock_timeout_ms=90_000)
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    log_commits(source)
    write(source, "before")
    settle(running, source)

    def fail(txid: int, caller: str | None = None) -> None:
        work = running.engine.submit(lambda: running.engine.fail_batch(txid, caller), quiet=False)
        work.result(PATIENCE_S)

    with pytest.raises(PrerequisiteError, match="not in flight"):
        fail(running.book.position.txid)
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE v IN SHARE MODE")
        write(source, "stuck")
        txid = wait_until(lambda: in_commit(running), "it is committed")
        waiter = "SELECT pid FROM pg_locks WHERE relation = 'v'::regclass AND NOT granted"
        first = wait_until(lambda: source.execute(waiter).fetchone(), "the sink waits")
        patient = running.engine.submit(lambda: None)  # until nothing is in flight
        with pytest.raises(PrivilegeError, match="permission denied"):
            fail(txid, "pg_monitor")
        fail(txid)
        wait_until(lambda: source.execute(waiter).fetchone() != first, "it is given up")
    patient.result(PATIENCE_S)
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    attempts = source.execute("SELECT txid, attempt FROM headrace.progress").fetchall()
    assert attempts == [(txid, 1)]
    assert_in_order(source)
    assert running.thread.is_alive()


# --- T-8, T-9, T-10, T-30: several batches in flight


@pytest.fixture
def gate(monkeypatch):
    """Make the sink thread wait for the returned event before it writes."""
    event = threading.Event()
    event.set()
    commit_of = SinkThread.write

    def write(self, owner, job):
        assert event.wait(PATIENCE_S)
        return commit_of(self, owner, job)

    monkeypatch.setattr(SinkThread, "write", write)
    yield event
    event.set()


def states(running) -> list[tuple[int, int, str]]:
    flights = running.book.pipeline.flights()
    return [(f.txid, f.attempt, f.state.value) for f in flights]


def fly(running, source, count: int) -> list[int]:
    """Commit words until ``count`` processed batches wait to be written; return their txids."""
    for i in range(count):
        write(source, f"flying {i}")
        wait_until(
            lambda i=i: [s for *_, s in states(running)] == ["committing"] + ["processed"] * i,
            "a batch for each",
        )
    return [txid for txid, *_ in states(running)]


def test_T_8_T_9_batches_are_processed_while_one_commits(source, start, database, gate):
    running = start(max_inflight_batches=3)
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    log_commits(source)
    gate.clear()
    txids = fly(running, source, 3)
    write(source, "waits for room")
    assert txids == list(range(txids[0], txids[0] + 3))
    assert source.execute("TABLE v").fetchall() == [], "nothing is shown before"
    gate.set()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    assert_in_order(source)
    moves = source.execute("SELECT txid FROM moves ORDER BY n").fetchall()
    assert moves == [(t,) for t in (*txids, txids[-1] + 1)]


@pytest.mark.parametrize("point", ["cp12", "cp13", "cp14", "cp15"])
def test_T_10_T_24_failure_of_one_replays_it_and_what_follows(source, start, database, gate, point):
    """In processing (cp12) or commit, nothing is lost or written twice with three in flight."""
    running = start(max_inflight_batches=4)
    physical, query = count_of(source, "man")
    create_view(running, database, "v", physical, query)
    create_view(running, database, "w", source_plan(source, "words"), QUERY)
    log_commits(source)
    gate.clear()
    fly(running, source, 3)
    faults.arm(f"{point}:raise:1")
    write(source, "man", "man")
    gate.set()
    wait_until(lambda: running.book.reconnects, "the fault must land")
    settle(running, source)
    write(source, "man")
    settle(running, source)
    assert running.book.reconnects == 1
    assert differs(source, "v", query) == differs(source, "w", QUERY) == []
    assert_in_order(source)


def test_T_30_fail_batch_leaves_earlier_ones_alone(source, start, database, gate):
    # Without checkpoints all records stay for inspection.
    running = start(
        max_inflight_batches=4, checkpoint_txids=1_000_000, checkpoint_interval_ms=1_000_000
    )
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    write(source, "first")
    settle(running, source)
    log_commits(source)
    gate.clear()
    txids = fly(running, source, 4)
    work = running.engine.submit(lambda: running.engine.fail_batch(txids[2], None), quiet=False)
    work.result(PATIENCE_S)
    gate.set()
    settle(running, source)
    assert differs(source, "v", QUERY) == []
    moves = source.execute("SELECT txid, attempt > 0 FROM moves ORDER BY n").fetchall()
    assert moves == list(zip(txids, [False, False, True, True], strict=True))
    attempts = {t: r.attempt for t, r in running.book.records.items()}
    assert [attempts.get(t, 0) > 0 for t in txids] == [False, False, True, True]
    assert running.book.reconnects == 0, "no connection was lost for it"


# --- T-1: everything at once


POINTS = ["cp11", "cp12", "cp13", "cp14", "cp15", "cp16", "cp17", "cp18"]


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 12))]
)
def test_T_1_exactly_once_whatever_fails(source, start, database, seed):
    """Random transactions, faults, locks, lost connections and failed batches."""
    dice = random.Random(seed)
    running = start(feedback_interval_ms=50, checkpoint_txids=5, batch_interval_ms=0)
    man, man_query = count_of(source, "man")
    create_view(running, database, "v", source_plan(source, "words"), QUERY)
    create_view(running, database, "w", man, man_query)
    log_commits(source)
    engine = running.engine
    done: Counter[str] = Counter()
    for _ in range(40):
        write(source, *dice.choices(["man", "dog"], k=dice.randint(1, 5)))
        source.execute(
            "UPDATE words SET word = CASE word WHEN 'man' THEN 'dog' ELSE 'man' END"
            " WHERE id %% 9 = %s",
            (dice.randrange(9),),
        )
        what = dice.choice(["none", "none", "point", "cut", "fail", "lock", "settle"])
        if what == "point":
            faults.arm(f"{dice.choice(POINTS)}:raise:{dice.randint(1, 3)}")
        elif what == "cut":
            source.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE"
                " datname = current_database() AND application_name = %s",
                (f"headrace {dice.choice(['stream', 'sink', 'catalog'])}",),
            )
        elif what == "fail" and (flying := running.book.pipeline.flights()):
            txid = dice.choice(flying).txid
            work = engine.submit(lambda txid=txid: engine.fail_batch(txid, None), quiet=False)
            what = type(work.exception(PATIENCE_S)).__name__
        elif what == "lock":
            with psycopg.connect(database) as blocker:
                blocker.execute(f"LOCK TABLE {dice.choice('vw')} IN SHARE MODE")
                write(source, "man", "locked")
                at_any_moment(dice, 0.0, 0.4)
        elif what == "settle":
            settle(running, source)
        done[what] += 1
    faults.arm("")

    def equal() -> bool:
        settle(running, source)
        statuses = source.execute("SELECT DISTINCT status FROM headrace.views").fetchall()
        assert ("error",) not in statuses
        return statuses == [("running",)] and not differs(source, "v", QUERY)

    wait_until(equal, f"the views catch up: {done}")
    assert differs(source, "w", man_query) == [], done
    assert_in_order(source)
