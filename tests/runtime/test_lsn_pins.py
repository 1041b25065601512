"""LSN pins retain WAL for a population; they are granted while the engine's thread is busy."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given

from headrace.errors import PrerequisiteError
from headrace.runtime import positions
from headrace.runtime.lsn_pins import LsnPins
from headrace.runtime.positions import Position
from headrace.state.rocks import RocksDatabase
from headrace.types import parse_lsn
from tests.compared import differs
from tests.runtime.harness import ITEMS, create_view, settle, source_plan
from tests.waiting import PATIENCE_S, wait_until

QUERY = "SELECT * FROM items"


@pytest.fixture(scope="module")
def database_of_states(tmp_path_factory):
    made = RocksDatabase(tmp_path_factory.mktemp("holds") / "db")
    yield made
    made.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("promise"), st.integers(0, 9)),
        st.tuples(st.just("grant"), st.sampled_from("abc")),
        st.tuples(st.just("release"), st.sampled_from("abc")),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_nothing_is_promised_beyond_a_hold_that_was_not_before(database_of_states, steps):
    holds = LsnPins()
    holds.load(database_of_states)
    for job in holds.jobs():
        holds.release(job)
    assert not holds.open
    holds.begin(Position(1, 10))
    position, promised = Position(1, 10), 10
    kept: dict[str, tuple[Position, int]] = {}
    for what, value in steps:
        if what == "promise":
            # Positions only move up; a promised position stays promised.
            position = Position(position.txid + value, position.lsn + value)
            promised = holds.promise(position, promised, lambda hold: hold.lsn)
            assert promised <= position.lsn
        elif what == "grant":
            hold = holds.grant(value)
            kept.setdefault(value, (hold, promised))
            assert hold == kept[value][0], "it is granted once"
            assert hold.txid <= position.txid
        else:
            holds.release(value)
            kept.pop(value, None)
        for hold, then in kept.values():
            assert promised <= max(hold.lsn, then)
            assert hold.txid in holds.txids()
        assert holds.jobs() == {job: hold for job, (hold, _) in kept.items()}
        assert positions.pins(database_of_states) == holds.jobs()


def test_none_is_granted_before_the_beginning_nor_after_the_end(database_of_states):
    holds = LsnPins()
    with pytest.raises(PrerequisiteError):
        holds.grant("a")
    holds.load(database_of_states)
    holds.begin(Position(1, 1))
    assert holds.open
    holds.close()
    assert not holds.open
    with pytest.raises(PrerequisiteError):
        holds.grant("a")
    holds.release("a")


TABLES = ITEMS


def confirmed(conn, running) -> int:
    (lsn,) = conn.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        (running.settings.slot_name,),
    ).fetchone()
    return parse_lsn(lsn)


def end_of_wal(conn) -> int:
    (lsn,) = conn.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    return parse_lsn(lsn)


def change(running, source, number: int) -> int:
    """Change rows and wait until all are written; return the position before them."""
    before = end_of_wal(source)
    source.execute("UPDATE items SET price = price + %s", (number,))
    settle(running, source)
    return before


def test_a_hold_is_granted_and_kept_while_the_engine_is_busy(source, start, database):
    running = start(feedback_interval_ms=20, wal_retention="source")
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    go_on = threading.Event()
    busy = running.engine.submit(lambda: go_on.wait(PATIENCE_S))
    wait_until(busy.running, "the engine's thread is busy")
    hold = running.book.holds.grant("job")
    assert not busy.done()
    go_on.set()
    for number in range(3):
        change(running, source, number)
    txids = running.on(lambda: (running.book.position.txid, list(running.book.records)))
    assert txids[0] > hold.txid
    assert set(range(hold.txid + 1, txids[0] + 1)) <= set(txids[1])
    assert confirmed(source, running) <= hold.lsn
    running.stop()
    # The pin outlives the worker, until the builder releases it.
    running = start(feedback_interval_ms=20, wal_retention="source")
    assert running.book.holds.jobs() == {"job": hold}
    before = change(running, source, 4)
    assert confirmed(source, running) <= hold.lsn
    running.on(lambda: running.engine.lifecycle.keep_pins(set()))
    wait_until(
        lambda: change(running, source, 5) and confirmed(source, running) > before,
        "the source is told",
    )
    assert differs(source, "v", QUERY) == []
