"""Statuses whose rows in the catalog are locked by the transaction of another call."""

from __future__ import annotations

import psycopg
import pytest
from structlog.testing import capture_logs

from headrace.errors import RowsInDoubt, TransientError
from headrace.sql.status import Status
from tests.runtime.harness import create_view, source_plan
from tests.waiting import wait_until

QUERY = "SELECT id, word FROM words"


@pytest.fixture(autouse=True)
def words(source: psycopg.Connection) -> None:
    source.execute("CREATE TABLE words (id int PRIMARY KEY, word text)")


def statuses(source: psycopg.Connection) -> dict[int, str]:
    return dict(source.execute("SELECT id, status FROM headrace.views").fetchall())


def test_a_view_that_stops_because_of_another_one_is_written_first(source, database, start):
    """The last one says why the first one stopped: alone, it would hide that."""
    running = start()
    first, last, other = (
        create_view(running, database, name, source_plan(source, "words"), QUERY)
        for name in ("a", "b", "c")
    )
    state = running.engine.state

    def write(view_id: int, after: tuple[int, ...] = ()) -> None:
        error = RowsInDoubt("it may be")
        state.statuses.write(state.owner.conn, view_id, Status.ERROR, error, after=after)

    with psycopg.connect(database) as locking, capture_logs() as logs:
        locking.execute("SELECT FROM headrace.views WHERE id = %s FOR UPDATE", (first,))
        running.on(lambda: [write(first), write(last, (first,)), write(other)])
        assert statuses(source) == {first: "running", last: "running", other: "error"}
        assert state.statuses.stops(first)
        assert state.statuses.stops(last)
        assert not state.statuses.stops(other)
        tries = running.engine.submit(lambda: state.statuses.due)
        wait_until(
            lambda: running.on(lambda: state.statuses.due) > tries.result() + 0.5, "it is retried"
        )
        with pytest.raises(TransientError):
            running.on(lambda: state.statuses.settle(state.owner.conn, [last]))
        locking.rollback()
        running.on(lambda: state.statuses.settle(state.owner.conn, [last]))
    assert statuses(source) == {first: "error", last: "error", other: "error"}
    assert not state.statuses.stops(first)
    waits = [line for line in logs if line["event"] == "status waits for a row that is locked"]
    assert len(waits) == 1, "each try would fill the log"


def test_statuses_are_written_once_the_row_is_free(source, database, start):
    running = start()
    view = create_view(running, database, "a", source_plan(source, "words"), QUERY)
    with psycopg.connect(database) as locking:
        locking.execute("SELECT FROM headrace.views WHERE id = %s FOR UPDATE", (view,))
        error = RowsInDoubt("it may be")
        running.on(lambda: running.engine.leaving.fail(running.book.views[view], error))
        assert statuses(source) == {view: "running"}
    wait_until(lambda: statuses(source) == {view: "error"}, "it is written")


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
        running.on(lambda: state.statuses.settle(state.owner.conn, [view]))
    assert statuses(source) == {view: "error"}
