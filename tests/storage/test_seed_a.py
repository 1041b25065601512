"""Purpose of queues: they hold all that is in flight, however much, at any operator."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.storage.blocks import BLOCK_BYTES
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue

POOL = 4
"""Blocks that may be in memory."""
LONG = 64
ROWS = BLOCK_BYTES // 8 - 256
"""Rows of a frame that leaves little of a block."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """Yield queues with four blocks in memory at most."""
    made = Storage(tmp_path / "queues", 256 * BLOCK_BYTES, memory_bytes=POOL * BLOCK_BYTES)
    yield made
    made.close()


def put(queue: Queue, txid: int, rows: int = ROWS) -> None:
    batch = pa.record_batch({"a": pa.array(np.arange(txid, txid + rows))})
    with queue.together():
        queue.put(Header(Kind.DIFFS, txid, 0, rows), batch)
        queue.put(Header(Kind.TIME_END, txid, 0, rows))


def taken(queue: Queue, successor: str, count: int | None = None) -> list[int]:
    """Read a successor's next txids, check their rows, and return the txids."""
    out = []
    for frame in queue.read(successor, count):
        if frame.batch is not None:
            txid, rows = frame.header.txid, frame.header.rows
            assert frame.batch.column(0).equals(pa.array(np.arange(txid, txid + rows)))
            out.append(txid)
    return out


def test_a1_all_that_is_in_flight_is_kept(storage: Storage) -> None:
    """With any lag, each successor gets every txid once, and nothing is left at the end."""
    rng = random.Random(1)
    queue = storage.make("q")
    got: dict[str, list[int]] = {name: [] for name in ("quick", "slow", "late")}
    for name in got:
        queue.open(name)
    last = 300
    for txid in range(1, last + 1):
        put(queue, txid, rng.randrange(1, 2_000))
        for name, chance in (("quick", 0.9), ("slow", 0.2)):
            if rng.random() < chance:
                got[name] += taken(queue, name, rng.choice((None, 4_096)))
                if got[name]:
                    queue.keep_after(name, got[name][-1])
        if rng.random() < 0.1:
            storage.sync()
        storage.maintain()
    assert queue.base == 0
    for name, found in got.items():
        assert found + taken(queue, name) == list(range(1, last + 1)), name
        queue.keep_after(name, last)
    assert queue.queued_bytes == 0


def test_a3_any_queue_may_grow(storage: Storage) -> None:
    """The backlog moves from queue to queue: full queues grow, and drained ones release blocks."""
    rng = random.Random(3)
    queues = [storage.make(f"q{n}") for n in range(6)]
    waiting: list[deque[int]] = [deque() for _ in queues]
    for queue in queues:
        queue.open("s")
    txid, most = 0, [0] * len(queues)
    for round_number in range(18):
        slow = round_number % len(queues)
        for _ in range(60):
            txid += 1
            for n, queue in enumerate(queues):
                put(queue, txid, rng.randrange(100, 6_000))
                waiting[n].append(txid)
                if n != slow:
                    assert taken(queue, "s") == list(waiting[n])
                    waiting[n].clear()
                    queue.keep_after("s", txid)
                most[n] = max(most[n], queue.ring.count)
            storage.release()
            storage.maintain()
        counts = [queue.ring.count for queue in queues]
        assert counts[slow] >= 8
        assert all(count <= 2 for n, count in enumerate(counts) if n not in (slow, slow - 1)), (
            counts
        )
    assert min(most) >= 8
    for n, queue in enumerate(queues):
        assert taken(queue, "s") == list(waiting[n])
        queue.keep_after("s", txid)
        storage.release()
        for _ in range(12):
            queue.check()
        assert queue.ring.count == 1
    storage.maintain()
    storage.file.trim()
    assert storage.file.backed == len(queues)


def test_a9_a_queue_is_longer_than_memory(storage: Storage) -> None:
    """With 64 blocks, of which four fit in memory, all is read in order, and no more stay there.

    The kernel's own read-ahead does not count (A-22 covers its eviction).
    """
    queue = storage.make("q")
    queue.open("s")
    for txid in range(1, LONG + 1):
        put(queue, txid)
        storage.sync()
        storage.maintain()
        assert queue.resident_bytes <= POOL * BLOCK_BYTES
    assert queue.ring.count >= LONG
    found: list[int] = []
    while part := taken(queue, "s", BLOCK_BYTES):
        found += part
        storage.maintain()
        assert queue.resident_bytes <= POOL * BLOCK_BYTES
    assert found == list(range(1, LONG + 1))
