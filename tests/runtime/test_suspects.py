"""Views that were worked on when workers died, in an engine that starts again."""

from __future__ import annotations

import msgspec
import psycopg
import pytest

from headrace.runtime.crash_attribution import LOADING
from tests.compared import differs
from tests.runtime.harness import create_view, settle, source_plan
from tests.waiting import wait_until

QUERY = "SELECT id, word FROM words"


@pytest.fixture(autouse=True)
def words(source: psycopg.Connection) -> None:
    source.execute("CREATE TABLE words (id int PRIMARY KEY, word text)")


def test_a_view_that_lags_does_not_wait_for_a_suspect_until_a_commit(source, database, start):
    """The suspect has loaded by then, and in a quiet database no commit says so."""
    running = start()
    leading, lagging = (
        create_view(running, database, name, source_plan(source, "words"), QUERY)
        for name in ("a", "b")
    )
    running.on(lambda: running.engine.lifecycle.pause(lagging))
    source.execute("INSERT INTO words VALUES (1, 'one')")
    settle(running, source)
    running.stop()
    found = {"suspects": {leading: {"txid": LOADING, "deaths": 2}}, "guilty": []}
    (running.settings.run_dir / "worker.deaths").write_bytes(msgspec.json.encode(found))
    running = start()
    assert running.book.suspects.repeated == [leading]
    running.on(lambda: running.engine.lifecycle.resume(lagging))
    wait_until(lambda: not differs(source, "b", QUERY), "it catches up")
    assert running.book.suspects.quiet
