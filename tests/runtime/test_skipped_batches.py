"""Batches without rows for a worker are not sent to it: no view waits, and none misses anything."""

from __future__ import annotations

import random
from functools import partial

import pytest

from headrace.network.link import FlightLink
from headrace.network.messages import BeginBatch
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import locked
from tests.runtime.harness import check, settings_for, settle
from tests.runtime.hosted import hosting, reached
from tests.runtime.test_sharing import SUMS, change, create
from tests.runtime.test_worker_handles import placed

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
