"""Queues on a full disk: error 53100, no loss, no half-written txids, and they go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.storage.blocks import BLOCK_BYTES, BlockFile, Extent, NoRoom
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from tests.disks import fill_up, free_bytes, small_disk

MB = 1_048_576
ROWS = 4_000
"""Rows of a frame: a quarter of a block."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 8 MiB."""
    with small_disk(tmp_path / "disk", 8 * MB) as path:
        yield path


def put(queue: Queue, txid: int) -> None:
    batch = pa.record_batch({"a": pa.array([txid] * ROWS, pa.int64())})
    with queue.together():
        queue.put(Header(Kind.DIFFS, txid, 0, ROWS), batch)
        queue.put(Header(Kind.TIME_END, txid, 0, ROWS))


def fill(queue: Queue, txid: int) -> int:
    """Put txids from ``txid`` on until there is no room; return the first that was not put."""
    while True:
        try:
            put(queue, txid)
        except NoRoom as error:
            if error.code != "53100":
                raise
            return txid
        txid += 1


def values(queue: Queue, successor: str) -> list[int]:
    """Read the frames of a queue and return the single value that each holds."""
    out = []
    for frame in queue.read(successor):
        if frame.batch is not None:
            [value] = frame.batch.column(0).unique().to_pylist()
            assert len(frame.batch) == ROWS
            out.append(value)
    return out


def test_what_was_half_taken_is_given_back(disk: Path) -> None:
    """There is room for only the first of two runs of eight blocks."""
    file = BlockFile(disk / "queues", 14)
    [first] = file.take(4, 1)
    file.take(4, 2)
    file.give(range(*first))
    file.trim()
    filler = fill_up(disk, 6 * BLOCK_BYTES)
    room, size = free_bytes(disk), (disk / "queues").stat().st_size
    with pytest.raises(NoRoom) as caught:
        file.take(8, 3)
    assert caught.value.code == "53100"
    assert "No space left on device" in caught.value.detail
    assert (free_bytes(disk), (disk / "queues").stat().st_size) == (room, size)
    assert (file.free, file.backed, file.owned(3)) == ([first], 4, [])
    # The available part is reserved all the same, and the rest when there is room.
    assert file.take(2, 3) == [Extent(0, 2)]
    filler.unlink()
    assert file.take(8, 3) == [Extent(2, 2), Extent(8, 6)]
    for block in file.owned(3):
        file.memory(block * BLOCK_BYTES, BLOCK_BYTES)[:] = bytes([block]) * BLOCK_BYTES
    for block in file.owned(3):
        assert bytes(file.memory(block * BLOCK_BYTES, BLOCK_BYTES)) == bytes([block]) * BLOCK_BYTES
    file.close()


def test_a_queue_goes_on_when_there_is_room_on_the_disk(disk: Path) -> None:
    """All its rows are there, also for the next process, and frames that were read make room."""
    storage = Storage(disk / "queues", 64 * MB)
    queue = storage.make("q")
    queue.open("s")
    filler = fill_up(disk, 3 * MB)
    before = fill(queue, 1)
    assert queue.last_txid == before - 1 > 20
    assert values(queue, "s") == list(range(1, before))
    # All of it was used: the rest is too small for a doubling.
    assert free_bytes(disk) < BLOCK_BYTES
    assert fill(queue, before) == before
    # The space of the other files is free again: the queue grows.
    filler.unlink()
    after = fill(queue, before)
    assert after > before
    storage.sync()
    # Frames that all successors have read make room as well.
    queue.keep_after("s", before - 1)
    more = fill(queue, after)
    assert more > after
    storage.sync()
    storage.close()
    again = Storage(disk / "queues", 64 * MB)
    found = again.get("q")
    assert found is not None
    assert not found.lost
    found.open("s", before - 1)
    assert values(found, "s") == list(range(before, more))
    again.close()
