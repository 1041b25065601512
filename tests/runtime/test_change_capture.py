"""A batch ends at the position of a tap, although the engine is too slow for single transactions."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import TransientError
from headrace.runtime.change_capture import ChangeCapture
from headrace.types import parse_lsn
from tests.runtime.harness import create_view, settle, source_plan
from tests.waiting import PATIENCE_S, wait_until

TABLES = "CREATE TABLE items (id int PRIMARY KEY, name text);"
QUERY = "SELECT * FROM items"
COUNT = 30
JOB = "job"


@pytest.fixture
def running(source, start):
    return start()


@pytest.fixture
def view(running, source, database) -> int:
    return create_view(running, database, "v", source_plan(source, "items"), QUERY)


def position(source) -> int:
    return parse_lsn(source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])


def soon(running, work):
    """Run ``work`` on the engine's thread, although batches are in flight."""
    return running.engine.submit(work, quiet=False).result(PATIENCE_S)


def fill(running, source, begin: int, count: int) -> int:
    """Commit transactions of one row, and wait until the stream has them; return the position."""
    for number in range(begin, begin + count):
        source.execute("INSERT INTO items VALUES (%s, 'x')", (number,))
    end = position(source)
    batcher = running.book.stream.batcher
    source.execute("SELECT pg_logical_emit_message(false, 'test', 'x')")
    wait_until(lambda: max(batcher.accepted, batcher._kept_alive) >= end, "it is received")
    return end


@pytest.mark.parametrize("apart_s", [0.0, 100.0], ids=["too slow", "in time"])
@pytest.mark.parametrize("early", [True, False], ids=["known early", "known late"])
def test_the_rows_before_the_position(running, source, database, view, apart_s, early):
    taps: ChangeCapture = running.engine.taps
    path = running.on(lambda: running.engine.lifecycle.tap(view, JOB, apart_s))
    before = running.book.taken.txid
    with psycopg.connect(database) as locker:
        locker.execute("LOCK TABLE v IN SHARE MODE")  # the sink cannot write, so batches pile up
        lsn = fill(running, source, 1, COUNT)
        if early:
            soon(running, lambda: taps.cut_until(JOB, view, lsn))
        fill(running, source, COUNT + 1, COUNT)
    settle(running, source)
    soon(running, lambda: taps.cut_until(JOB, view, lsn))
    batches = running.book.taken.txid - before
    try:
        txid = running.on(lambda: taps.position(JOB, view, lsn))
    except TransientError:
        # All that waited was joined, so no batch ends there; the caller begins again.
        ends_there = False
    else:
        ends_there = True
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        assert [int(row[2]) for row in rows if int(row[0]) <= txid] == list(range(1, COUNT + 1))
        assert len(rows) == 2 * COUNT
    assert ends_there or not (apart_s or early)
    if apart_s and not early:
        assert batches >= 2 * COUNT
    else:
        assert batches < COUNT
