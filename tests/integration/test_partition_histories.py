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
