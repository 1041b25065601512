"""Batches without rows for a worker are not sent to it: no view waits, and none misses anything."""

from __future__ import annotations

import random
import threading
from functools import partial

import pytest

from headrace.network.link import FlightLink
from headrace.network.messages import BeginBatch, StageDone
from headrace.network.port import FlightSession
from headrace.sql.status import CursorState
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import locked
from tests.runtime.harness import check, settings_for, settle
from tests.runtime.hosted import hosting, reached
from tests.runtime.test_sharing import SUMS, change, create
from tests.runtime.test_worker_handles import placed
from tests.waiting import PATIENCE_S, wait_until

TABLES = test_sharing.TABLES + "CREATE TABLE notes (id int PRIMARY KEY, tag text);"
TAGS = "SELECT tag, count(*) AS c FROM notes GROUP BY tag"
CLOCK = "SELECT id FROM notes WHERE now() > '2020-01-01'"


def note(source, rng: random.Random) -> None:
    source.execute(
        "INSERT INTO notes VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET tag = excluded.tag",
        (rng.randint(1, 9), f"t{rng.randint(1, 4)}"),
    )


@pytest.fixture
def begun(monkeypatch) -> list[BeginBatch]:
    """Record the batches that are begun on workers."""
    found: list[BeginBatch] = []
    send = FlightLink.send

    def recorded(link: FlightLink, word, batch=None, *, lagging: bool = False) -> None:
        if isinstance(word, BeginBatch):
            found.append(word)
        send(link, word, batch, lagging=lagging)

    monkeypatch.setattr(FlightLink, "send", recorded)
    return found


def test_a_worker_gets_only_batches_with_rows_for_it(source, database, start, begun):
    running, rng = start(), random.Random(1)
    with hosting(running.settings, "w1"):
        view = placed(running, source, database, "sums", SUMS)
        create(running, database, "tags", TAGS)
        change(source, rng)
        settle(running, source)
        begun.clear()
        for _ in range(5):
            note(source, rng)
            settle(running, source)
        assert begun == []
        assert running.book.views[view].processed == running.book.taken.txid
        change(source, rng)
        check(running, source, sums=SUMS, tags=TAGS)
        [batch, *_] = begun
        assert batch.last[view] < batch.first - 1, "it says what the worker had before"
        running.stop()


def test_a_view_that_reads_the_clock_gets_each_batch(source, database, start, begun):
    running, rng = start(), random.Random(2)
    with hosting(running.settings, "w1"):
        view = placed(running, source, database, "late", CLOCK)
        create(running, database, "sums", SUMS)
        begun.clear()
        change(source, rng)
        settle(running, source)
        assert [view] in [units for batch in begun for units in batch.stages]
        running.stop()


def test_a_batch_is_answered_only_when_nothing_is_left_to_do(source, database, start, monkeypatch):
    """The coordinator's next message may reach another thread of the worker at once.

    So a thread that stands still right after an answer of a lagging unit changes nothing.
    """
    running, rng = start(), random.Random(4)
    send, stands = FlightSession.send, threading.Event()

    def slow(session: FlightSession, word, batch=None) -> None:
        send(session, word, batch)
        if session.lagging and isinstance(word, StageDone):
            stands.wait(PATIENCE_S)

    monkeypatch.setattr(FlightSession, "send", slow)
    with hosting(running.settings, "w1"):
        view = placed(running, source, database, "sums", SUMS)
        running.on(partial(running.engine.lifecycle.pause, view))
        change(source, rng)
        unit = running.book.views[view]
        wait_until(lambda: running.book.taken.txid > unit.processed, "the view lags")
        running.on(partial(running.engine.lifecycle.resume, view))
        wait_until(lambda: unit.cursor == CursorState.LEADING, "the view leads")
        change(source, rng)
        try:
            check(running, source, sums=SUMS)
        finally:
            stands.set()
        assert unit.message is None
        running.stop()


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 21))]
)
def test_nothing_is_missed_after_batches_that_were_not_sent(
    source, database, start, tmp_path, seed
):
    rng = random.Random(seed)
    with hosted.process(settings_for(database, tmp_path / "data"), "w1") as worker:
        running = start()
        worker.wait()
        view = placed(running, source, database, "sums", SUMS)
        create(running, database, "tags", TAGS)

        def killed() -> None:
            worker.kill()
            note(source, rng)
            worker.start()

        def paused() -> None:
            running.on(partial(running.engine.lifecycle.pause, view))
            note(source, rng)
            change(source, rng, rng.randint(0, 2))
            settle(running, source)
            running.on(partial(running.engine.lifecycle.resume, view))

        def blocked() -> None:
            with locked(source.info.dsn, rng.choice(("sums", "tags"))):
                change(source, rng)
                note(source, rng)

        def restarted() -> None:
            nonlocal running
            running.stop()
            running = start()

        troubles = (
            killed,
            paused,
            blocked,
            restarted,
            lambda: running.on(running.engine.rewind_soon),
            lambda: running.on(running.engine.durability.finish),
            lambda: settle(running, source),
        )
        for _ in range(25):
            for _ in range(rng.randint(0, 3)):
                rng.choice((note, note, change))(source, rng)
            rng.choice(troubles)()
        reached(running, view)
        check(running, source, sums=SUMS, tags=TAGS)
        running.stop()
