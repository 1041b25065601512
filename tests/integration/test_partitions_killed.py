"""Partitions that come and go while processes die; views share, or are on other workers."""

from __future__ import annotations

import contextlib
import os
import random
import signal

import psycopg
import pytest

from tests.amounts import seeds
from tests.integration.test_partitions import (
    FILL,
    MORE,
    OTHER,
    QUERIES,
    REFUSED,
    REST,
    ROOT,
    SHARED,
    Views,
    place,
    step,
    stopped,
)
from tests.integration.test_workers import listed
from tests.waiting import wait_until

MAIN = "headrace.runtime.worker"


@pytest.mark.parametrize(
    ("point", "where"),
    [
        pytest.param("cp26", "alone", marks=pytest.mark.slow),
        pytest.param("cp26b", "alone", marks=pytest.mark.slow),
        pytest.param("cp26", "shared", marks=pytest.mark.slow),
        ("cp26b", "shared"),
        pytest.param("cp26", "elsewhere", marks=pytest.mark.slow),
        pytest.param("cp26b", "elsewhere", marks=pytest.mark.slow),
    ],
)
def test_killed_while_it_follows(start_engine, database, tmp_path, point, where):
    """After a restart the worker reads the new partition, or populates the view with its rows."""
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        views = Views(commander, source, "t")
        views.run(ROOT + OTHER + MORE + FILL)
        if where == "alone":
            views.create({name: QUERIES[name] for name in ("rows", "sums", "twice")})
        elif where == "shared":
            views.create({name: SHARED[name] for name in ("rows", "sums", "over")}, "{}")
            wait_until(views.share, "all share")
        else:
            place(views)
        for number, action in enumerate(
            ("CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)", "DROP TABLE {t}_2")
        ):
            (traps / f"{point}.sprung").unlink(missing_ok=True)
            (traps / point).write_text("kill:1")
            views.run(action)
            wait_until((traps / f"{point}.sprung").exists, "it was killed")
            if number == 0:
                views.run("INSERT INTO {t} (id, k, v) VALUES (1, 20, 5), (2, 1, 50)")
                views.come_right()
                views.run("DELETE FROM {t} WHERE k = 20")
                views.come_right()
        views.run("UPDATE {t} SET v = v + 1")
        views.come_right()
        if point == "cp26b":
            assert views.now() == views.ids


@pytest.mark.slow
def test_killed_when_the_last_rows_of_a_partition_are_gone_from_memory_only(start_engine, database):
    """The state on disk still has those rows, and their removal is repeated."""
    engine = start_engine(
        database, HEADRACE_CHECKPOINT_INTERVAL_MS="5000", HEADRACE_CHECKPOINT_TXIDS="100000"
    )
    with psycopg.connect(engine.source, autocommit=True) as source:
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            views = Views(commander, source, "t")
            views.run(ROOT + OTHER + MORE + FILL)
            views.create({name: QUERIES[name] for name in ("rows", "sums")})
        views.run("INSERT INTO {t} (id, k, v) VALUES (1, 10, 5), (2, 11, 50), (3, 12, 7)")
        views.are_right()
        # The state on disk has these rows from now on.
        engine.stop()
        engine.start()
        views.run("DELETE FROM {t} WHERE k >= 10")
        views.are_right()
        views.run("DROP TABLE {t}_1")
        wait_until(lambda: views.read("0"), "the views read one partition")
        engine.kill9()
        engine.start()
        assert views.now() == views.ids
        views.run(MORE)
        wait_until(lambda: views.read("0", "1"), "the views read two partitions")
        views.run("INSERT INTO {t} (id, k, v) VALUES (1, 10, 1), (100, 1, 1)")
        views.are_right()
        assert views.now() == views.ids


@pytest.mark.slow
@pytest.mark.parametrize("silent", [True, False])
def test_a_worker_that_is_away_hears_of_it_when_it_is_back(start_engine, database, silent):
    """The worker is lost before the partition comes, or seems alive until its rows come."""
    engine = start_engine(database)
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        views = Views(commander, source, "t")
        views.run(ROOT + OTHER + MORE + FILL)
        place(views)
        views.create({"here": SHARED["pairs"]}, "{}")
        elsewhere = ("rows", "sums", "paired", "both", "nested")
        pid = listed(commander)["w1"][1]
        os.kill(pid, signal.SIGSTOP)
        try:
            if silent:
                views.run("UPDATE {t} SET v = v + 1")
                views.are_right(*elsewhere)
            new = "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)"
            views.run(new)
            wait_until(lambda: views.read("0", "1", "2"), "all have it in their plans")
            views.run(
                "INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 5, i FROM generate_series(1, 9) i"
            )
            views.are_right(*elsewhere)
        finally:
            os.kill(pid, signal.SIGCONT)
        views.come_right()
        views.run("UPDATE {t} SET v = v + 1, k = 3 WHERE k = 21; DELETE FROM {t} WHERE k = 22")
        views.come_right()
        assert views.now() == views.ids


@pytest.mark.parametrize("seed", seeds(1, 6, quick=0))
def test_any_history_amid_deaths(start_engine, database, seed):
    rng = random.Random(seed)
    engine = start_engine(database)
    with (
        psycopg.connect(engine.source, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as commander,
    ):
        views = Views(commander, source, "t")
        views.run(ROOT + OTHER + rng.choice((REST, MORE, "")) + FILL)
        place(views)
        views.create({"shared": SHARED["rows"], "more": SHARED["sums"]}, "{}")
        for _ in range(40):
            with contextlib.suppress(*REFUSED):
                views.run(step(rng))
            if rng.random() < 0.15:
                wait_until(lambda: not stopped(views), "they run")
            if rng.random() < 0.1:
                victim = rng.choice(("main", "w1", "w2"))
                pid = engine.child(MAIN) if victim == "main" else listed(commander)[victim][1]
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)
        views.come_right()
        views.run("UPDATE {t} SET v = v + 1; DELETE FROM {t} WHERE id % 5 = 1")
        views.come_right()
        for view in views.queries:
            found = commander.execute("SELECT * FROM headrace.verify_view(%s)", (view,))
            assert found.fetchall() == []
