"""A worker is killed while a view reads the source again over a copied slot."""

from __future__ import annotations

import random
from functools import partial

from headrace.process import faults
from headrace.runtime.copied_stream import CopiedStream
from tests.compared import differs
from tests.runtime import test_sharing
from tests.runtime.harness import settle
from tests.runtime.test_sharing import change, create, killed
from tests.runtime.test_source_cursor import COPIES, COUNTS, QUICK, no_copy_is_left, resume
from tests.waiting import wait_until

TABLES = test_sharing.TABLES
BATCHES = 70
"""A view that lacks more batches than 64 catches up by itself after a restart."""


def test_kill_9_while_a_view_reads_the_source(source, database, start, monkeypatch):
    running = start(wal_retention="source")
    create(running, database, "quick", QUICK)
    counts = create(running, database, "counts", COUNTS)
    rng = random.Random(1)
    running.on(partial(running.engine.lifecycle.pause, counts))
    while running.book.taken.txid < BATCHES:
        change(source, rng)
        settle(running, source)
    running.stop()
    reach = CopiedStream.reach
    monkeypatch.setattr(CopiedStream, "reach", property(lambda _: 0))
    running = start(wal_retention="source")
    resume(running, counts)
    wait_until(lambda: source.execute(COPIES).fetchall(), "the slot is copied")
    running.stop()
    monkeypatch.setattr(CopiedStream, "reach", reach)
    at = running.book.taken.txid
    # The first two die as soon as the slot is copied; the others write batches before.
    fault = (faults.SLOT_COPIED, 1), (faults.SLOT_COPIED, 1), (faults.COMMIT_SENT, 1)
    for seed, (point, times) in enumerate((*fault, (faults.CHECKPOINT_WRITTEN, 2))):
        killed(running, source, f"{point}:kill:{times}", seed)
        no_copy_is_left(source)
    running = start(wal_retention="source")
    settle(running, source)
    assert running.book.taken.txid > at
    for name, query in (("quick", QUICK), ("counts", COUNTS)):
        assert differs(source, name, query) == [], name
    no_copy_is_left(source)
