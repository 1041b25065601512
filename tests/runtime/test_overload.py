"""Overload: whether the engine keeps up, and its messages when it does not (A-43, A-44)."""

from __future__ import annotations

import time

import pytest

from headrace.collections.dataflow import Dataflow
from headrace.errors import TransientError
from headrace.forwarder import policy
from headrace.runtime import overload
from headrace.runtime.jobs import Answer, CommitJob
from headrace.runtime.overload import Workload
from headrace.state.rocks import RocksCheckpoint
from tests.compared import differs
from tests.runtime.harness import create_view, settle, source_plan
from tests.runtime.test_catching_up import grouped
from tests.waiting import PATIENCE_S, again_and_again, time_passes, wait_until

TABLES = "CREATE TABLE items (id int PRIMARY KEY, name text)"
QUERY = "SELECT id, name FROM items"
NOTES = "SELECT note FROM headrace.views"


@pytest.mark.parametrize(("rate", "overloaded"), [(600, True), (500, False), (400, False)])
def test_a43_what_takes_two_milliseconds_bears_500_rows_a_second(rate, overloaded):
    """Rows come evenly for ten seconds, and are processed as long as there is time."""
    cost_s, passed_s = 0.002, 10.0
    done = min(rate * passed_s, passed_s / cost_s)
    load = Workload(passed_s, covered_s=done / rate, worked_s=done * cost_s)
    assert load.overloaded is overloaded
    assert load.needed == pytest.approx(cost_s * rate)


@pytest.mark.parametrize(
    ("load", "overloaded", "needed"),
    [
        (Workload(10.0, 7.0, 9.8), True, 1.4),
        (Workload(10.0, 10.0, 9.8), False, 0.98),  # it keeps up, with nothing to spare
        (Workload(10.0, 600.0, 9.9), False, 0.0165),  # it catches up
        (Workload(10.0, 0.0, 0.0), False, 0.0),  # nothing happens
        (Workload(10.0, 2.0, 1.0), False, 0.5),  # hardly anything does
        (Workload(10.0, 0.0, 10.0), False, 0.0),  # in the midst of one batch
    ],
)
def test_a43_who_has_no_rest_and_falls_behind_is_overloaded(load, overloaded, needed):
    assert load.overloaded is overloaded
    assert load.needed == pytest.approx(needed)


@pytest.mark.parametrize(
    ("leading", "slow", "reported"),
    [
        (Workload(10.0, 10.0, 5.0), Workload(10.0, 7.0, 9.8), "slow"),
        (Workload(10.0, 10.0, 5.0), Workload(10.0, 10.0, 9.8), "leading"),
        (Workload(10.0, 7.0, 9.8), Workload(10.0, 7.0, 9.8), "leading"),
        (Workload(10.0, 7.0, 1.0, 6.0), Workload(10.0, 7.0, 9.8), "leading"),  # the disk limits
    ],
)
def test_a43_slow_groups_are_reported_where_nothing_else_is(leading, slow, reported):
    assert leading.or_slow(slow) is {"leading": leading, "slow": slow}[reported]


@pytest.fixture
def soon(monkeypatch) -> None:
    """Shorten the time before overload is reported."""
    monkeypatch.setattr(overload, "_WINDOW_S", 1.0)
    monkeypatch.setattr(overload, "_LOOK_S", 0.1)


@pytest.fixture
def dear(monkeypatch) -> list[float]:
    """Make each batch take the seconds of the first element of the returned list."""
    seconds = [0.0]
    end = Dataflow.end

    def slowly(flow: Dataflow, txid: int, attempt: int = 0):
        time_passes(seconds[0])
        return end(flow, txid, attempt)

    monkeypatch.setattr(Dataflow, "end", slowly)
    return seconds


def test_a43_slow_groups_that_fall_behind_are_an_overload(
    source, database, start, soon, monkeypatch
):
    """They lag on purpose, and the views that lead keep up."""
    monkeypatch.setattr(policy, "COALESCED_TXIDS", 1)
    source.execute("CREATE TABLE others (id int PRIMARY KEY)")
    running = start(slow_batch_ms=20)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    slow = grouped(running, source, database, "slow", "w", "SELECT id FROM others")
    [table] = source.execute("SELECT 'others'::regclass::oid::int").fetchone()
    end = Dataflow.end

    def slowly(flow: Dataflow, txid: int, attempt: int = 0):
        until = time.thread_time() + (0.3 if table in flow.tables else 0.0)
        while time.thread_time() < until:
            pass  # a group is slow by its processor time
        return end(flow, txid, attempt)

    monkeypatch.setattr(Dataflow, "end", slowly)
    seen = 0
    for n, _ in enumerate(again_and_again(PATIENCE_S)):
        source.execute("INSERT INTO others VALUES (%s)", (n,))
        source.execute("INSERT INTO items VALUES (%s, 'n')", (n,))
        [(note,)] = source.execute(f"{NOTES} WHERE id = {slow}").fetchall()
        leading = running.engine.submit(running.engine.capacity.load, quiet=False)
        limits = running.engine.capacity.processing_limits and note and running.book.lagging.groups
        seen += bool(limits and not leading.result(60).overloaded)
        time_passes(0.1)  # the views that lead have time to rest
        if seen > 20:  # several looks
            break
    else:
        pytest.fail("no overload is reported")
    assert 'most of it view "public"."w"' in note
    running.stop()


def test_a43_it_says_that_it_falls_behind_and_when_that_is_over(
    source, database, start, soon, dear
):
    running = start(batch_rows_max=1)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    assert source.execute(NOTES).fetchall() == [(None,)]
    source.execute("UPDATE headrace.views SET note = 'what else there is'")
    dear[0] = 0.4  # much more than all else that a batch costs on a busy machine
    told = 0
    for n, _ in enumerate(again_and_again(60)):
        source.execute("INSERT INTO items VALUES (%s, 'n')", (n,))
        [(note,)] = source.execute(NOTES).fetchall()
        told += "overloaded: changes take" in (note or "")
        if told > 3:
            break
    assert note.startswith("what else there is; overloaded: changes take ")
    assert note.endswith(
        ' s of work per second, most of it view "public"."v";'
        " batches grow, the views fall behind, and nothing is lost"
    )
    dear[0] = 0.0
    wait_until(
        lambda: source.execute(NOTES).fetchall() == [("what else there is",)],
        lambda: source.execute(NOTES).fetchall(),
    )
    settle(running, source)
    assert differs(source, "v", QUERY) == []


def test_a43_what_an_earlier_process_said_is_said_no_more(source, database, start, dear):
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    running.stop()
    source.execute(
        "UPDATE headrace.views SET note = 'overloaded: changes take 2.0 s of work per second;"
        " batches grow, the views fall behind, and nothing is lost'"
    )
    running = start()
    wait_until(
        lambda: source.execute(NOTES).fetchall() == [(None,)],
        lambda: source.execute(NOTES).fetchall(),
    )


def test_a43_what_is_written_beside_the_others_is_not_what_they_wait_for(
    source, database, start, monkeypatch
):
    """Separate writes count neither for whether all views keep up, nor for which view is slow."""
    running = start()
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    commits = running.engine._commits
    answer = Answer(CommitJob(running.book.position.txid, 0, 0, 0, 0, ()), seconds={"g": 5.0})
    before = commits.written_s
    running.on(lambda: commits.beside(answer))
    assert commits.written_s < before + 5.0
    assert "g" not in commits.writes


def test_a43_it_says_that_it_waits_for_the_disk(source, database, start, soon, monkeypatch):
    """Nothing can be processed before a checkpoint is written, and none can be."""
    running = start(checkpoint_txids=1, batch_rows_max=1)
    create_view(running, database, "v", source_plan(source, "items"), QUERY)
    settle(running, source)
    with monkeypatch.context() as patched:
        patched.setattr(RocksCheckpoint, "write", _full)
        for n in range(2 * policy._MISSING_MAX):
            source.execute("INSERT INTO items VALUES (%s, 'n')", (n,))
        wait_until(
            lambda: source.execute(NOTES).fetchall()[0][0],
            running.book.checkpoints.statistics,
        )
        assert source.execute(NOTES).fetchall() == [
            (
                "overloaded: nothing is taken before what is in memory is on disk: the disk is full;"
                " batches grow, the views fall behind, and nothing is lost",
            )
        ]
    wait_until(
        lambda: source.execute(NOTES).fetchall() == [(None,)],
        lambda: source.execute(NOTES).fetchall(),
    )
    settle(running, source)
    assert differs(source, "v", QUERY) == []


def _full(checkpoint: RocksCheckpoint, *, sync: bool) -> None:
    raise TransientError("the disk is full", sqlstate="53100")
