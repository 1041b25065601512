"""Costs that must not grow with the number of views: work in idle cycles, statements at a start."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from headrace.runtime import gauges, insight
from headrace.runtime.registry import Registry
from headrace.runtime.views import View
from headrace.state.disk import Disk
from headrace.state.rocks import RocksDatabase
from tests.runtime.harness import ITEMS, Running, create_view, settle, source_plan
from tests.waiting import wait_until

TABLES = ITEMS
_CYCLES = 5
_NEVER_MS = 600_000
_STILL = {
    "catalog_poll_ms": _NEVER_MS,
    "feedback_interval_ms": _NEVER_MS,
    "checkpoint_interval_ms": 20,
}
"""Settings under which other databases' transactions cause no checks by this engine."""


def many(running: Running, database: str, conn: psycopg.Connection, count: int) -> None:
    plan = source_plan(conn, "items")
    known = len(running.book.views)
    for number in range(known, known + count):
        create_view(running, database, f"v{number}", plan, "TABLE items")


@contextmanager
def visited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield the names of the functions that iterate over all units or all states."""
    seen: list[str] = []
    with monkeypatch.context() as patch:

        def watch(kind: type, name: str) -> None:
            before = getattr(kind, name)

            def noted(*args, **named):
                seen.append(f"{kind.__name__}.{name}")
                return before(*args, **named)

            patch.setattr(kind, name, noted)

        for name in ("values", "items", "__iter__"):
            watch(Registry, name)
        watch(RocksDatabase, "_tiers")
        yield seen


def cycles(running: Running, count: int) -> None:
    for _ in range(count):
        running.on(lambda: None)


def test_an_idle_cycle_visits_no_view(source, database, start, monkeypatch):
    running = start(**_STILL)
    many(running, database, source, 3)
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source)
    book = running.book

    def resting() -> bool:
        durable = all(v.durable == v.mark for v in list(book.views.values()))
        return durable and not (book.checkpoints.underway or book.checkpoints.pending)

    def visits() -> list[str]:
        """Return the iterations in a few cycles without a batch."""
        batches, confirmed = book.batches, book.confirmed
        with visited(monkeypatch) as seen:
            cycles(running, _CYCLES)
        if (batches, confirmed) != (book.batches, book.confirmed):
            return ["something has happened"]
        return seen

    wait_until(resting, "all is durable")
    wait_until(lambda: not visits(), "no view is visited")
    # No work is left, so later cycles iterate over nothing either.
    assert visits() in ([], ["something has happened"])


def test_a_view_that_stands_still_costs_no_visit_of_others(source, database, start, monkeypatch):
    running = start(**_STILL)
    many(running, database, source, 3)
    paused = next(iter(running.book.views))
    running.on(lambda: running.engine.lifecycle.pause(paused))
    source.execute("UPDATE items SET price = price + 1 WHERE id = 1")
    settle(running, source)
    index, at = running.book.index, running.book.position.txid
    assert [unit.id for unit in index.behind(at)] == [paused]
    assert [view.id for view in index.standing] == [paused]
    looked: list[int] = []
    missing = running.book.missing
    monkeypatch.setattr(
        running.book, "missing", lambda view: (looked.append(view.id), missing(view))[1]
    )
    cycles(running, _CYCLES)
    assert set(looked) <= {paused}
    running.on(lambda: running.engine.lifecycle.resume(paused))
    settle(running, source)
    assert not index.standing
    assert not index.behind(running.book.position.txid)


def test_the_index_agrees_with_the_units(source, database, start):
    """The index is right after each kind of change, and after views are dropped."""
    running = start(**_STILL)
    many(running, database, source, 3)
    book, engine = running.book, running.engine
    one, two, three = book.views

    def agrees() -> None:
        views, index = list(book.views.values()), book.index
        assert {v.id for v in index.standing} == {
            v.id for v in views if v.owned and v.status != "running"
        }
        assert index.latency_ms == min((v.latency_ms for v in views if v.live), default=0)
        catching_up = {v.id for v in views if v.status == "running" and not v.leads}
        assert {v.id for v in index.catching_up} == catching_up
        for txid in range(book.position.txid + 2):
            behind = {unit.id for unit in index.behind(txid)}
            assert behind == {v.id for v in views if v.owned and (v.mark.txid < txid or v.staged)}

    steps = (
        lambda: None,
        lambda: book.views[one].allow(200),
        lambda: engine.lifecycle.pause(two),
        lambda: source.execute("UPDATE items SET price = price + 1"),
        lambda: engine.lifecycle.suspend(three, "job"),
        lambda: source.execute("DELETE FROM items WHERE id = 2"),
        lambda: engine.lifecycle.release("job"),
        lambda: engine.lifecycle.resume(two),
        lambda: engine.lifecycle.drop(one),
    )
    for step in steps:
        running.on(step)
        settle(running, source)
        running.on(agrees)
    wait_until(lambda: all(v.leads for v in book.views.values()), "two views run")


def test_a_start_sends_as_many_statements_for_any_number_of_views(
    source, database, start, monkeypatch
):
    def sent() -> int:
        """Count the statements of a start after another engine, and the scans of all its states."""
        seen: list[object] = []
        execute = psycopg.Cursor.execute
        with monkeypatch.context() as patch:

            def noted(self, query, *args, **named):
                seen.append(query)
                return execute(self, query, *args, **named)

            patch.setattr(psycopg.Cursor, "execute", noted)
            names = Disk.names
            patch.setattr(Disk, "names", lambda disk: (seen.append("names"), names(disk))[1])
            # As the builder does, once a view is adopted.
            shutil.rmtree(running.settings.staging_dir)
            again = start(**_STILL)
            wait_until(lambda: all(v.live for v in list(again.book.views.values())), "all run")
            again.on(lambda: None)
            loaded = again.on(lambda: _load_again(again, seen))
        again.stop()
        return loaded

    running = start(**_STILL)
    many(running, database, source, 1)
    running.stop()
    few = sent()
    running = start(**_STILL)
    many(running, database, source, 4)
    running.stop()
    assert sent() == few


def test_a_sample_has_only_views_that_were_written(source, database, start, monkeypatch):
    monkeypatch.setattr(gauges, "WINDOW_S", 1e9)
    running = start(**_STILL)
    many(running, database, source, 2)
    book = running.book
    with visited(monkeypatch) as seen:
        told = insight.gauges(book, whole=False)
        assert "Registry.values" not in seen
    assert told["views"] == {}
    assert told["memory_used_bytes"] == insight.gauges(book)["memory_used_bytes"]
    paused = next(iter(book.views))
    running.on(lambda: running.engine.lifecycle.pause(paused))
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source)
    part, whole = (insight.gauges(book, whole=some)["views"] for some in (False, True))
    assert part.keys() == book.views.keys() - {paused}
    assert whole.keys() == book.views.keys()
    assert part == {view_id: whole[view_id] for view_id in part}


def _load_again(running: Running, seen: list[object]) -> int:
    """Load all views as at a start, and return the number of statements and scans."""
    book = running.book
    for view in list(book.views.values()):
        view.release()
    book.views.clear()
    del seen[:]
    running.engine._recovery._loading.load()
    assert book.views
    assert all(isinstance(view, View) and view.live for view in book.views.values())
    return len(seen)
