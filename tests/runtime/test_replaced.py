"""A view is replaced by a resync while a call waits for it, or while another is filled from it."""

from __future__ import annotations

import shutil
from concurrent.futures import Future

import psycopg
import pytest

from headrace.errors import DefiniteFailure, UndefinedError, ViewStopped
from headrace.runtime import waits
from tests.compared import differs, status_of
from tests.runtime.harness import ITEMS, create_view, settle, source_plan
from tests.waiting import PATIENCE_S

QUERY = "SELECT * FROM items"
TABLES = ITEMS


def replace(running, source, database, before: int, **more: object) -> int:
    """Fill a view anew as a resync does, under another id; it is not adopted yet."""
    physical = source_plan(source, "items")
    made = create_view(running, database, "filler", physical, QUERY, adopt=False, more=more)
    with source.transaction():
        source.execute("DELETE FROM headrace.views WHERE id = %s", (made,))
        source.execute("UPDATE headrace.views SET id = %s WHERE id = %s", (made, before))
        source.execute(
            "INSERT INTO headrace.progress (view_id, txid, lsn) VALUES (%s, %s, '0/0')",
            (made, running.book.position.txid),
        )
    return made


def adopt(running, view_id: int):
    return running.on(lambda: running.engine.lifecycle.adopt(view_id))


@pytest.fixture
def waited(source, start, database):
    """A view that cannot catch up because of a lock, and the future of the call that waits."""
    running = start()
    create_view(running, database, "other", source_plan(source, "items"), QUERY)
    view = create_view(running, database, "v", source_plan(source, "items"), QUERY, adopt=False)
    source.execute("INSERT INTO items VALUES (100, 'more', 0.50)")
    settle(running, source)
    with psycopg.connect(database) as locker:
        locker.execute("LOCK TABLE v IN SHARE MODE")
        yield running, view, adopt(running, view), locker


def forget(running, view_id: int) -> None:
    running.on(lambda: running.engine.leaving.forget(view_id))


def test_the_call_waits_for_the_view_in_its_place(waited, source, database):
    running, view, future, locker = waited
    source.execute("DELETE FROM headrace.progress WHERE view_id = %s", (view,))
    made = replace(running, source, database, view)
    forget(running, view)
    locker.rollback()
    settle(running, source)
    assert not future.done()  # the view in its place is not adopted yet
    source.execute("TRUNCATE v")
    source.execute("INSERT INTO v TABLE items")
    adopt(running, made).result(PATIENCE_S)
    assert future.result(PATIENCE_S) is None
    settle(running, source)
    assert differs(source, "v", QUERY) == []


def test_the_call_ends_if_nobody_has_the_other_adopted(waited, source, database, monkeypatch):
    running, view, future, locker = waited
    locker.rollback()
    source.execute("DELETE FROM headrace.progress WHERE view_id = %s", (view,))
    replace(running, source, database, view)
    monkeypatch.setattr(waits, "_TAKE_S", 0.5)
    forget(running, view)
    settle(running, source)
    with pytest.raises(DefiniteFailure, match="has not taken it over"):
        future.result(PATIENCE_S)


def test_an_error_of_the_catalog_answers_no_call_twice(waited, source, monkeypatch):
    """One call was answered in the round that failed; the next round must not stumble over it."""
    running, view, future, locker = waited

    def answer_and_fail() -> list[object]:
        engine = running.engine
        engine.waits._adopted[:0] = [waits._Adopted(view, 0, 0, Future())]
        known = running.book.views.pop(view)
        with monkeypatch.context() as patch:
            patch.setattr(waits.catalog, "of_table", outage)
            with pytest.raises(psycopg.OperationalError):
                engine.waits.caught_up()
        running.book.views[view] = known
        return []

    def outage(conn: object, oid: int) -> int | None:
        if oid == 0:
            return None
        raise psycopg.OperationalError("the server has gone away")

    running.on(answer_and_fail)
    locker.rollback()
    assert future.result(PATIENCE_S) is None
    assert running.error is None


def test_the_call_fails_if_the_view_is_dropped(waited, source):
    running, view, future, locker = waited
    locker.rollback()
    source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
    forget(running, view)
    with pytest.raises(UndefinedError):
        future.result(PATIENCE_S)


@pytest.mark.parametrize("adopted", [True, False], ids=["adopted", "staged"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "unknown"])
def test_a_view_that_was_filled_from_it(source, start, database, right, adopted):
    running = start()
    physical = source_plan(source, "items")
    below = create_view(running, database, "v", physical, QUERY)
    above = create_view(
        *(running, database, "w", physical, QUERY), adopt=False, more={"fed_by": [below]}
    )
    source.execute("DELETE FROM headrace.progress WHERE view_id = %s", (below,))
    made = replace(running, source, database, below, replaces=below if right else 0)
    if adopted:
        adopt(running, made).result(PATIENCE_S)
        shutil.rmtree(running.settings.staging_dir / str(made))
    future = adopt(running, above)
    if right:
        future.result(PATIENCE_S)
        settle(running, source)
        assert differs(source, "w", QUERY) == []
        return
    with pytest.raises(ViewStopped):
        future.result(PATIENCE_S)
    assert status_of(source, "w")[:2] == ("error", "55H02")
