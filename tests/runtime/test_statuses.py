"""Statuses whose rows in the catalog are locked by the transaction of another call."""

from __future__ import annotations

import psycopg
import pytest

from headrace.errors import RowsInDoubt, TransientError
from headrace.sql.status import Status
from tests.runtime.harness import create_view, source_plan

QUERY = "SELECT id, word FROM words"


@pytest.fixture(autouse=True)
def words(source: psycopg.Connection) -> None:
    source.execute("CREATE TABLE words (id int PRIMARY KEY, word text)")


def statuses(source: psycopg.Connection) -> dict[int, str]:
    return dict(source.execute("SELECT id, status FROM headrace.views").fetchall())


def test_they_are_written_in_their_order(source, database, start):
    """The last one says why the first one stopped: alone, it would hide that."""
    running = start()
    first, last = (
        create_view(running, database, name, source_plan(source, "words"), QUERY)
        for name in ("a", "b")
    )
    state = running.engine.state

    def write(view_id: int) -> None:
        state.statuses.write(state.owner.conn, view_id, Status.ERROR, RowsInDoubt("it may be"))

    with psycopg.connect(database) as other:
        other.execute("SELECT FROM headrace.views WHERE id = %s FOR UPDATE", (first,))
        running.on(lambda: [write(first), write(last)])
        assert statuses(source) == {first: "running", last: "running"}
        assert state.statuses.stops(first)
        assert state.statuses.stops(last)
        with pytest.raises(TransientError):
            running.on(lambda: state.statuses.settle(state.owner.conn))
        other.rollback()
        running.on(lambda: state.statuses.settle(state.owner.conn))
    assert statuses(source) == {first: "error", last: "error"}
    assert not state.statuses.stops(first)


def test_a_view_that_has_stopped_is_not_run_again(source, database, start):
    """Views are loaded again after an interruption, by their status in the catalog."""
    running = start()
    view = create_view(running, database, "a", source_plan(source, "words"), QUERY)
    state = running.engine.state
    with psycopg.connect(database) as other:
        other.execute("SELECT FROM headrace.views WHERE id = %s FOR UPDATE", (view,))
        running.on(lambda: running.engine.leaving.fail(state.views[view], RowsInDoubt("it may be")))
        running.on(running.engine._recovery._loading.load)
        assert not state.views[view].owned
        assert statuses(source) == {view: "running"}
        other.rollback()
        running.on(lambda: state.statuses.settle(state.owner.conn))
    assert statuses(source) == {view: "error"}
