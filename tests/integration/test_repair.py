"""A call that found a view before the server filled it anew: the view has another ID since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import DefiniteFailure, HeadraceError, UndefinedError, UserError
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.spark import Spark
from headrace.sql import views
from headrace.sql.verbs import DropView, ViewRequest
from headrace.sql.views import ViewRow
from headrace.views import pause, repair
from tests.integration.conftest import ITEMS

pytestmark = pytest.mark.shared_engine

TABLES = ITEMS
VIEWS = {"v": "SELECT id, g FROM items"}


class Worker:
    """A worker that is asked once the view was filled anew, and knows only the latest ID."""

    def __init__(self, conn: psycopg.Connection, between: Callable[[], None]) -> None:
        self.asked: list[int] = []
        self._conn = conn
        self._between = between

    def call(self, method: str, params: dict[str, Any], *_: object) -> object:
        if not self.asked:
            self._between()
        self.asked.append(params["view_id"])
        if not views.exists(self._conn, params["view_id"]):
            raise UndefinedError("the view was dropped", sqlstate="42P01")
        return {}


@pytest.fixture
def context(source, commander, engine, tmp_path) -> JobContext:
    def filled() -> None:
        commander.execute("CALL headrace.resync_view('v')")

    settings = Settings(source=engine.source, data_dir=tmp_path)
    return JobContext(settings, Worker(source, filled), Spark(settings))


def found(conn) -> ViewRow:
    view = names.find(conn, "v", None, {})
    assert view is not None
    return view


def test_the_worker_knows_it_by_the_new_id(context, source):
    before = found(source).id
    job, request = Job(lambda _: None), ViewRequest("v")
    repair.after_repair(context, job, request, lambda: pause.pause_view(context, job, request))
    assert context.worker.asked == [before, found(source).id]


@pytest.mark.parametrize("kind", [ViewRequest, DropView])
def test_its_catalog_row_cannot_be_locked(kind, context, source, commander):
    job, request = Job(lambda _: None), kind("v")
    tries = []

    def act() -> int:
        view = found(source)
        pause.check_not_live(context, job, view)
        if not tries:
            commander.execute("CALL headrace.resync_view('v')")
        tries.append(view.id)
        names.lock(source, view)
        return view.id

    assert repair.after_repair(context, job, request, act) == found(source).id
    assert len(tries) == 2


def test_a_stopped_view_that_is_being_filled(context, source):
    said, other = [], Job(lambda _: None)
    other.unasked = True

    def ended(progress: dict[str, Any]) -> None:
        if "message" in progress:
            said.append(progress["message"])
            context.live.clear()

    job, view, tries = Job(ended), found(source), []

    def act() -> str:
        pause.check_not_live(context, job, view)
        tries.append(view.id)
        if len(tries) == 1:
            context.live[view.id] = other
            raise DefiniteFailure("the view has stopped")
        return "done"

    assert repair.after_repair(context, job, ViewRequest("v"), act) == "done"
    assert said == ['view "v" is being rebuilt by the server']


@pytest.mark.parametrize("error", [UserError("no"), DefiniteFailure("the view has stopped")])
@pytest.mark.parametrize("fills", [False, True], ids=["as it was", "filled by the call itself"])
def test_other_errors_are_raised_once(error: HeadraceError, fills, context, source, commander):
    job, tries = Job(lambda _: None), []

    def act() -> None:
        tries.append(found(source).id)
        pause.check_not_live(context, job, found(source))
        if fills:
            job.view_id = tries[0]
            commander.execute("CALL headrace.resync_view('v')")
        raise error

    with pytest.raises(type(error), match=error.message):
        repair.after_repair(context, job, ViewRequest("v"), act)
    assert len(tries) == 1
