"""Many views that change at one time lag for it, some at a time, and the others go on."""

from __future__ import annotations

import random
import threading
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest

from headrace.forwarder import policy
from headrace.runtime import catching_up
from headrace.runtime.coalesced_batch import CoalescedBatch, part_of
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.ticker import Ticker
from headrace.sql.status import CursorState
from tests.compared import differs, multiset
from tests.runtime import test_sharing
from tests.runtime.harness import check, settle
from tests.runtime.hosted import hosting
from tests.runtime.test_catching_up import grouped
from tests.runtime.test_sharing import change, create
from tests.runtime.test_worker_handles import placed
from tests.waiting import PATIENCE_S, time_passes, wait_until

TABLES = test_sharing.TABLES + "CREATE TABLE due (id int PRIMARY KEY, at timestamptz);"
QUICK = "SELECT id, n FROM orders"
LATE = "SELECT id, {} AS i FROM due WHERE at < now()"
SECOND = "SELECT id, {} AS i, date_trunc('second', {now}) - at AS age FROM due"
SIZE = 2


class Parts:
    """Records the batches of views that lag, and lets them wait."""

    def __init__(self) -> None:
        self.views: list[set[int]] = []
        self.gate = threading.Event()
        self.gate.set()


@pytest.fixture
def parts(monkeypatch) -> Parts:
    """Let views lag for any change of the time, ``SIZE`` in a batch."""
    monkeypatch.setattr(policy, "_TIME_ROWS_MAX", 0)
    monkeypatch.setattr(catching_up, "part_of", lambda views, _, whole: part_of(views, SIZE, whole))
    found, run = Parts(), CoalescedBatch.run

    def held(batch: CoalescedBatch, *more):
        assert found.gate.wait(PATIENCE_S)
        if batch.views:
            found.views.append({view.id for view in batch.views})
        return run(batch, *more)

    monkeypatch.setattr(CoalescedBatch, "run", held)
    return found


def soon(source: psycopg.Connection, rows: int = 3) -> None:
    """Insert rows that are due at one time, after a moment."""
    source.execute(
        "INSERT INTO due SELECT coalesce((SELECT max(id) FROM due), 0) + i, t"
        " FROM generate_series(1, %s) i, (SELECT clock_timestamp() + interval '0.5 s' AS t) x",
        (rows,),
    )


def test_views_take_a_time_in_parts_and_others_go_on_between_them(source, database, start, parts):
    running = start(clock_interval_ms=20)
    queries = {f"late{i}": LATE.format(i) for i in range(5)}
    pair = {"one": LATE.format(11), "two": LATE.format(12), "listed": "SELECT id, at FROM due"}
    ids = {name: create(running, database, name, query) for name, query in queries.items()}
    named = {grouped(running, source, database, "pair", n, q) for n, q in pair.items()}
    quick = running.book.views[create(running, database, "quick", QUICK)]
    clocked = [running.book.views[i] for i in (*ids.values(), *named)]
    wait_until(lambda: not running.book.index.catching_up, "all lead")
    parts.views.clear()
    parts.gate.clear()
    try:
        soon(source)
        wait_until(lambda: not any(view.leads for view in clocked), "they lag")
        rng = random.Random(1)
        for _ in range(5):
            change(source, rng)
            wait_until(lambda: differs(source, "quick", QUICK) == [], "the other view goes on")
            assert quick.leads
        assert source.execute("SELECT count(*) FROM late0").fetchone() == (0,)
    finally:
        parts.gate.set()
    everything = {**queries, **pair}
    for name, query in everything.items():
        wait_until(lambda n=name, q=query: differs(source, n, q) == [], f"{name} changes")
    wait_until(lambda: not running.book.index.catching_up, "all lead again")
    check(running, source, quick=QUICK, **everything)
    assert quick.works <= running.book.taken.txid
    # A group with a name counts as a whole, and is never divided.
    assert all(len(part - named) <= SIZE for part in parts.views)
    assert all(part & named in (set(), named) for part in parts.views)
    assert len(parts.views) > len(ids) // SIZE


def test_views_lead_if_the_log_has_no_room_for_them(source, database, start, parts, monkeypatch):
    running = start(clock_interval_ms=20)
    queries = {f"late{i}": LATE.format(i) for i in range(3)}
    for name, query in queries.items():
        create(running, database, name, query)
    wait_until(lambda: not running.book.index.catching_up, "all lead")
    parts.views.clear()
    monkeypatch.setattr(IntakeLog, "appending", False)
    soon(source)
    for name in queries:
        count = f"SELECT count(*) FROM {name}"
        wait_until(lambda c=count: source.execute(c).fetchone() == (3,), f"{name} changes")
    check(running, source, **queries)
    assert parts.views == []


def is_as_of(source: psycopg.Connection, name: str, number: int) -> bool:
    """Return whether a view equals its query as of the timestamp of its progress."""
    source.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    try:
        [(at,)] = source.execute(
            "SELECT coalesce(p.source_commit_at, now())::text FROM headrace.progress p"
            " JOIN headrace.views v ON v.id = p.view_id WHERE v.view_name = %s",
            (name,),
        )
        want = multiset(source, SECOND.format(number, now=f"'{at}'::timestamptz"))
        return multiset(source, f"SELECT * FROM {name}") == want
    finally:
        source.execute("ROLLBACK")


def test_views_of_each_kind_are_right_at_each_of_their_times(source, database, start, parts):
    """Each second changes all of them: here, on another worker, paused meanwhile, in a group."""
    running = start(clock_interval_ms=20, checkpoint_txids=3)
    with hosting(running.settings, "w1"):
        names = ["here0", "here1", "here2", "there", "paused", "one", "two"]
        queries = {name: SECOND.format(i, now="now()") for i, name in enumerate(names)}
        soon(source)
        ids = {name: create(running, database, name, queries[name]) for name in names[:3]}
        placed(running, source, database, "there", queries["there"])
        ids["paused"] = create(running, database, "paused", queries["paused"])
        for name in ("one", "two"):
            grouped(running, source, database, "pair", name, queries[name])
        create(running, database, "quick", QUICK)
        rng = random.Random(3)
        for _ in range(6):
            running.on(partial(running.engine.lifecycle.pause, ids["paused"]))
            change(source, rng)
            soon(source, 1)
            time_passes(0.4)
            running.on(partial(running.engine.lifecycle.resume, ids["paused"]))
            settle(running, source)
            for i, name in enumerate(names):
                assert is_as_of(source, name, i), name
        check(running, source, quick=QUICK)
        assert all(view.cursor != CursorState.BLOCKED for view in running.book.views.values())
        assert {view.message for view in running.book.views.values()} == {None}
        running.stop()
    assert parts.views, "they lagged"


def test_a_commit_before_the_tick_does_not_date_a_change_of_the_calendar():
    """The change has a batch of its own, with the time at which the value began."""
    midnight, commit = 1_000, 5_000
    passed: list[int] = []

    class Clocked:
        now = 0

        def due(self, instant: int) -> bool:
            return not passed and instant >= midnight

        def changed(self, instant: int) -> int:
            return midnight if self.due(instant) else 0

        def near(self, _: int) -> int:
            return 0

        rows = crossing = near

    view = SimpleNamespace(id=1, leads=True, clocked=lambda *_: Clocked())
    state = SimpleNamespace(
        index=SimpleNamespace(clocked=[view]), settings=None, evaluators=None, stopping=False
    )
    ticker = Ticker(state, passed.append, lambda _: None)
    ticker.catch_up(midnight - 1)
    assert passed == []
    ticker.catch_up(commit)
    assert passed == [midnight]
    ticker.catch_up(commit + 1)
    assert passed == [midnight]
