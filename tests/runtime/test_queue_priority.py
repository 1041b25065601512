"""The scheduler's side of the shared table: urgent and working readers (A-17, A-37, A-42)."""

from __future__ import annotations

import random
from collections.abc import Callable

import psycopg
import pytest

from headrace.forwarder import policy
from headrace.runtime.shared import Shared
from headrace.storage.table import Standing
from tests.runtime import test_sharing
from tests.runtime.harness import check, settle
from tests.runtime.test_sharing import MOST, ROWS, SUMS, change, create, joined
from tests.waiting import wait_until

TABLES = test_sharing.TABLES
BLOCK = 4096
NOW_US = (
    "SELECT (extract(epoch FROM clock_timestamp() - timestamptz '2000-01-01Z') * 1000000)::int8"
)


def standing(running, shared: Shared) -> dict[int, Standing]:
    """Rewrite a queue's rows of the shared table on the engine's thread, and return them."""
    running.engine.durability.urgency.write()
    rows = running.book.queues.pool.table.rows()
    return {reader: row for (queue, reader), row in rows.items() if queue == shared.queue_name}


def late(running, source, shared: Shared, blocks: int) -> None:
    """Change rows until ``blocks`` blocks of a queue are on the disk."""
    rng = random.Random(7)

    def full() -> bool:
        change(source, rng, 5)
        settle(running, source)
        running.on(running.engine.durability.finish)
        queue = shared.output
        return running.on(lambda: queue.queued_bytes - queue.resident_bytes) > blocks * BLOCK

    wait_until(full, "it is on the disk")


def spied(monkeypatch, look: Callable[[int], None]) -> None:
    """Call ``look`` with the last txid whenever the output of a subplan is read."""
    sent = Shared.sent

    def spy(shared: Shared, first: int, txid: int):
        look(txid)
        return sent(shared, first, txid)

    monkeypatch.setattr(Shared, "sent", spy)


def test_a17_who_stands_still_is_not_urgent_and_who_catches_up_is(
    source, database, start, monkeypatch
):
    running = start(queue_block_bytes=BLOCK, queue_memory_bytes=8 * BLOCK)
    one = create(running, database, "one", ROWS)
    two = create(running, database, "two", SUMS)
    [shared] = joined(running)
    table = running.book.queues.pool.table
    running.on(lambda: running.engine.lifecycle.pause(one))
    begun = source.execute(NOW_US).fetchone()[0]
    late(running, source, shared, 20)
    ended = source.execute(NOW_US).fetchone()[0]
    paused = running.on(lambda: standing(running, shared))
    assert [paused[reader].priority for reader in (one, two)] == [0, 0]
    assert paused[one].resident_pct < 50
    seen = []

    def look(txid: int) -> None:
        view = running.book.views[one]
        at_once = standing(running, shared)
        view.allow(500)
        patient = standing(running, shared)
        view.allow(0)
        oldest = shared.output.ends.commit_after(txid - 1)
        seen.append((at_once[one], patient[one], at_once[two], oldest))

    spied(monkeypatch, look)
    monkeypatch.setattr(policy, "COALESCED_TXIDS", 1)
    running.on(lambda: running.engine.lifecycle.resume(one))
    change(source, random.Random(1), 5)
    check(running, source, one=ROWS, two=SUMS)
    assert len(seen) > 10
    commits = [oldest for *_, oldest in seen]
    assert commits == sorted(commits)
    assert begun <= commits[0] <= ended
    assert seen[0][0].priority > 200
    for own, patient, other, _ in seen:
        # The called view runs; the other one has read the frame long ago, and nothing waits for it.
        assert own.running
        assert not other.running
        assert own.priority >= 100
        # A view with ten times the latency is a tenth as late by its own measure.
        assert round((own.priority - 100) / 10, 3) == round(patient.priority - 100, 3)
    assert not any(row.running for row in table.rows().values())
    arrived = running.on(lambda: standing(running, shared))
    assert [arrived[reader].priority for reader in (one, two)] == [0, 0]


def test_a39_who_may_be_late_the_least_is_the_most_urgent(source, database, start, monkeypatch):
    """Two views lack the same txids."""
    running = start(queue_block_bytes=BLOCK, queue_memory_bytes=8 * BLOCK)
    one = create(running, database, "one", ROWS)
    two = create(running, database, "two", SUMS)
    create(running, database, "three", MOST)
    [shared] = joined(running)
    for view in (one, two):
        running.on(lambda v=view: running.engine.lifecycle.pause(v))
    late(running, source, shared, 10)
    seen = []

    def look(txid: int) -> None:
        rows = standing(running, shared)
        seen.append((rows[one].priority, rows[two].priority))

    def resume() -> None:
        running.book.views[one].allow(50)
        running.book.views[two].allow(1000)
        for view in (one, two):
            running.engine.lifecycle.resume(view)

    spied(monkeypatch, look)
    running.on(resume)
    check(running, source, one=ROWS, two=SUMS, three=MOST)
    assert seen[0][0] > seen[0][1] > 100


def test_a24_memory_holds_while_nothing_is_committed(source, database, start):
    """A blocked sink causes no checkpoint, and yet the queues leave memory."""
    memory = 8 * BLOCK
    running = start(queue_block_bytes=BLOCK, queue_memory_bytes=memory, lock_timeout_ms=60_000)
    create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    joined(running)
    settle(running, source)
    running.on(running.engine.durability.finish)
    pool, storage = running.book.queues.pool, running.book.queues
    with psycopg.connect(database) as conn:
        conn.execute("LOCK TABLE one IN ACCESS EXCLUSIVE MODE")
        source.execute(
            "INSERT INTO orders SELECT i, 1 + i % 20, i FROM generate_series(1000, 6000) i"
        )
        wait_until(
            lambda: sum(queue.queued_bytes for queue in storage.queues) > 2 * memory,
            "the subplan has sent it",
        )
        wait_until(lambda: pool.used_bytes <= memory, lambda: f"{pool.used_bytes} bytes are used")
    check(running, source, one=ROWS, two=SUMS)


@pytest.mark.slow
def test_a21_the_memory_holds_while_a_late_view_reads(source, database, start, monkeypatch):
    """The view reads in large pieces, which evict only the frames that it has read."""
    memory = 8 * BLOCK
    running = start(queue_block_bytes=BLOCK, queue_memory_bytes=memory)
    one = create(running, database, "one", ROWS)
    create(running, database, "two", SUMS)
    [shared] = joined(running)
    running.on(lambda: running.engine.lifecycle.pause(one))
    late(running, source, shared, 40)
    used = []
    monkeypatch.setattr(policy, "COALESCED_TXIDS", 1)
    spied(monkeypatch, lambda _: used.append(running.book.queues.pool.used_bytes))
    running.on(lambda: running.engine.lifecycle.resume(one))
    check(running, source, one=ROWS, two=SUMS)
    pool = running.book.queues.pool
    # Blocks being written are not subtracted: they cannot be evicted before they are synced.
    assert max(used) <= memory + 2 * BLOCK
    assert pool.file.reads <= pool.file.evictions + 40


def test_a40_what_nobody_else_reads_is_handed_over(source, database, start):
    """A view that runs next as the only reader gets rows without a frame.

    With a second reader, a frame is written.
    """
    running = start()
    create(running, database, "one", ROWS)
    rng = random.Random(3)
    change(source, rng, 5)
    check(running, source, one=ROWS)
    log = running.book.retained.queue
    assert running.book.queues.queues == [log]
    create(running, database, "two", SUMS)
    [shared] = joined(running)
    change(source, rng, 5)
    check(running, source, one=ROWS, two=SUMS)
    assert running.book.queues.queues == [log, shared.output]
    assert shared.output.written_bytes
