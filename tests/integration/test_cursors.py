"""Leaving and rejoining a commit group: the state that list_views() shows, with one event each way."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

import psycopg
import pytest

from headrace.sql.status import CursorState
from tests.compared import differs
from tests.integration.test_lost_workers import elsewhere
from tests.integration.test_metrics import page, value
from tests.integration.test_observed import row
from tests.integration.test_workers import place
from tests.waiting import wait_until

pytestmark = pytest.mark.engine_with(
    HEADRACE_LOCK_TIMEOUT_MS="300", HEADRACE_SINK_RETRY_MS="100", HEADRACE_HTTP="127.0.0.1:0"
)

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
CREATE FUNCTION gated(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
 'BEGIN IF x < 0 THEN PERFORM pg_advisory_xact_lock_shared(42); END IF; RETURN x; END';
"""
COUNTS = "SELECT g, count(*) AS n FROM items GROUP BY g"
GATED = "SELECT id, gated(id) AS x FROM items"
LEFT, JOINED = "view left its commit group", "view joined its commit group"


class Observed:
    """View ``moves``, and view ``stays`` of the same commit group, as users see them."""

    def __init__(self, engine, conn: psycopg.Connection) -> None:
        self._engine, self._conn = engine, conn
        # Each view leads a moment after it was created.
        for name in ("stays", "moves"):
            self.reaches(name, CursorState.LEADING)
        self._begun = len(self._lines())

    def _lines(self) -> list[dict[str, object]]:
        lines = [line for line in self._engine.log.splitlines() if line.startswith("{")]
        return [json.loads(line) for line in lines]

    def reaches(self, name: str, state: CursorState) -> None:
        """Wait until ``list_views()`` shows this state of a view, and view ``stays`` leads."""

        def shown() -> bool:
            # NULL: the worker was silent for some seconds, as it may be on a busy machine.
            if name != "stays":
                assert row(self._conn, "stays")["cursor"] in ("leading", None)
            return row(self._conn, name)["cursor"] == state

        wait_until(shown, lambda: f"{name} is {state}: {row(self._conn, name)}")

    def joins_after(self, state: CursorState, source: psycopg.Connection, query: str) -> None:
        """Check that view ``moves`` leads again, after one event with this state, and is right."""
        self.reaches("moves", CursorState.LEADING)

        def events() -> list[dict[str, object]]:
            found = self._lines()[self._begun :]
            return [e for e in found if e["event"] in (LEFT, JOINED)]

        wait_until(lambda: events()[-1:] and events()[-1]["event"] == JOINED, events)
        left, joined = events()
        assert (left["event"], left["view"], left["state"]) == (LEFT, "public.moves", state)
        assert left["reason"]
        assert (joined["event"], joined["view"]) == (JOINED, "public.moves")
        assert float(str(joined["after_s"])) >= 0
        for name, wanted in (("moves", query), ("stays", COUNTS)):
            self._conn.execute("CALL headrace.wait_for(%s)", (name,))
            assert differs(source, name, wanted) == []


@contextlib.contextmanager
def holding(engine, statement: str) -> Iterator[None]:
    with psycopg.connect(engine.source) as conn:
        conn.execute(statement)
        yield


@pytest.fixture
def observed(engine, commander) -> Callable[[str], Observed]:
    def create(query: str) -> Observed:
        for name, text in (("moves", query), ("stays", COUNTS)):
            commander.execute("CALL headrace.create_view(%s, %s)", (name, text))
        return Observed(engine, commander)

    return create


def test_a_view_is_paused_and_catches_up(engine, commander, source, observed):
    seen = observed(GATED)
    commander.execute("CALL headrace.pause_view('moves')")
    assert row(source, "moves")["cursor"] == "paused"
    told = wait_until(lambda: published(source), "it is published")
    assert told == [("moves", "paused")]
    # The view cannot read beyond the first of these batches before the test lets it.
    source.execute("INSERT INTO items VALUES (-1, 1)")
    for key in range(100, 120):
        source.execute("INSERT INTO items VALUES (%s, 1)", (key,))
    with holding(engine, "SELECT pg_advisory_lock(42)"):
        commander.execute("CALL headrace.resume_view('moves')")
        seen.reaches("moves", CursorState.CATCHING_UP)
        assert row(source, "moves")["status"] == "running"
        text = page(engine)
        for state in CursorState:
            at = value(text, "view_cursor", view="public.moves", state=state)
            assert at == (state == CursorState.CATCHING_UP)
    seen.joins_after(CursorState.PAUSED, source, GATED)
    wait_until(lambda: published(source) == [], "nothing is published of views that lead")


def published(source: psycopg.Connection) -> list[tuple[str, str]]:
    return source.execute(
        "SELECT v.view_name, h.what FROM headrace.held h JOIN headrace.views v ON v.id = h.view_id"
        " WHERE h.kind = 'cursor'"
    ).fetchall()


def test_a_result_table_is_locked(engine, source, observed):
    seen = observed(COUNTS)
    with holding(engine, "LOCK TABLE moves IN SHARE MODE"):
        source.execute("INSERT INTO items VALUES (100, 1)")
        seen.reaches("moves", CursorState.BLOCKED)
        assert row(source, "moves")["status"] == "sink_error"
    seen.joins_after(CursorState.BLOCKED, source, COUNTS)


def test_a_worker_is_lost(engine, commander, source, tmp_path):
    with elsewhere(engine, tmp_path, "w2") as [far]:
        place(commander, "moves", COUNTS, "w2", sharing=False)
        commander.execute("CALL headrace.create_view('stays', %s)", (COUNTS,))
        seen = Observed(engine, commander)
        far.die()
        seen.reaches("moves", CursorState.LOST)
        told = row(source, "moves")
        assert told["status"] == "sink_error"
        assert told["held_by"] == 'it waits for worker "w2"'
        source.execute("INSERT INTO items VALUES (100, 1)")
        far.start()
        seen.joins_after(CursorState.LOST, source, COUNTS)


def test_no_engine_works_on_a_view(engine, source, observed):
    observed(COUNTS)
    engine.kill9()
    wait_until(lambda: row(source, "moves")["status"] == "stopped", "the engine is gone")
    assert row(source, "moves")["cursor"] is None
    engine.start()
    wait_until(lambda: row(source, "moves")["cursor"] == "leading", "it leads again")
