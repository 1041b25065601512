"""Queues in mapped blocks: Aurora's requirements (docs/behaviours.md)."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.storage.blocks import BLOCK_BYTES, NoRoom
from headrace.storage.frame_cache import Damaged
from headrace.storage.frames import HEADER_BYTES, Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue

PER_BLOCK = BLOCK_BYTES // HEADER_BYTES
"""Frames without a body that fill a block."""
_SMALL_BLOCK = 4_096
"""Bytes of a block that few frames fill."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """Yield queues of 256 blocks at most."""
    made = Storage(tmp_path / "queues", 256 * BLOCK_BYTES)
    yield made
    made.close()


def ends(queue: Queue, first: int, count: int) -> None:
    """Put frames of the minimum size."""
    for txid in range(first, first + count):
        queue.put(Header(Kind.TIME_END, txid, 0, 0))


def diffs(queue: Queue, txid: int, values: list[int]) -> None:
    batch = pa.record_batch({"a": pa.array(values, pa.int64())})
    queue.put(Header(Kind.DIFFS, txid, 0, len(values)), batch)


def txids(queue: Queue, successor: str, count: int | None = None) -> list[int]:
    """Read on; ``count`` frames of the least size, or all."""
    read = queue.read(successor, None if count is None else count * HEADER_BYTES)
    return [frame.header.txid for frame in read]


def test_a4_a5_a6_a8_pointers_of_two_successors(storage: Storage) -> None:
    """b1 keeps three that it has read, b2 five; frames that both have passed are removed."""
    queue = storage.make("q")
    for name in ("b1", "b2"):
        queue.open(name)
    ends(queue, 1, 10)

    def process(name: str, count: int, window: int) -> None:
        read = txids(queue, name, count)
        queue.keep_after(name, read[-1] - window)

    def places(name: str) -> tuple[int, ...]:
        return tuple(offset // HEADER_BYTES for offset in queue.successors[name])

    process("b1", 8, 3)
    process("b2", 6, 5)
    assert (places("b1"), places("b2")) == ((5, 8), (1, 6))
    assert queue.base // HEADER_BYTES == 1
    assert queue.queued_bytes // HEADER_BYTES == 9
    process("b2", 4, 5)
    assert places("b2") == (5, 10)
    assert queue.queued_bytes // HEADER_BYTES == 5
    queue.rewind("b1")
    assert txids(queue, "b1", 3) == [6, 7, 8]
    queue.rewind("b2")
    assert txids(queue, "b2") == [6, 7, 8, 9, 10]


def test_a4_a_fan_out_is_written_once(storage: Storage) -> None:
    """Three successors read frames that are stored once."""
    queue = storage.make("q")
    names = ("x", "y", "z")
    for name in names:
        queue.open(name)
    for txid in range(1, 1001):
        diffs(queue, txid, [txid])
    once = queue.written_bytes
    assert once == queue.front
    for name in names:
        found = [f.batch.column(0)[0].as_py() for f in queue.read(name) if f.batch is not None]
        assert found == list(range(1, 1001))
    assert queue.written_bytes == once


def test_a7_what_one_successor_needs_stays(storage: Storage) -> None:
    """A successor that never moves retains all frames, and the queue grows."""
    queue = storage.make("q")
    queue.open("quick")
    queue.open("slow")
    ends(queue, 1, 3 * PER_BLOCK)
    txids(queue, "quick")
    queue.keep_after("quick", 3 * PER_BLOCK)
    assert queue.base == 0
    assert queue.ring.count == 4
    assert txids(queue, "slow") == list(range(1, 3 * PER_BLOCK + 1))


def test_a10_blocks(tmp_path: Path) -> None:
    """128 KiB by default; of whole pages."""
    assert BLOCK_BYTES >= 131_072
    with pytest.raises(ValueError, match="no multiple"):
        Storage(tmp_path / "odd", 1 << 20, 5000)


def test_a11_a12_one_block_in_a_circle(storage: Storage) -> None:
    """A queue that does not overflow stays in the block that it began with."""
    queue = storage.make("q")
    queue.open("s")
    assert queue.ring.count == 1
    ends(queue, 1, PER_BLOCK)
    assert txids(queue, "s", 1000) == list(range(1, 1001))
    queue.keep_after("s", 1000)
    storage.sync()
    ends(queue, PER_BLOCK + 1, 1000)
    assert queue.ring.count == 1
    assert txids(queue, "s") == list(range(1001, PER_BLOCK + 1001))


def test_a13_overflow_doubles(storage: Storage) -> None:
    """One frame more than a block holds takes a second one, then four."""
    queue = storage.make("q")
    queue.open("s")
    ends(queue, 1, PER_BLOCK + 1)
    assert (queue.ring.count, queue.ring.capacity) == (2, 2 * BLOCK_BYTES)
    assert queue.ring.contiguous
    ends(queue, PER_BLOCK + 2, PER_BLOCK)
    assert queue.ring.count == 4
    assert txids(queue, "s") == list(range(1, 2 * PER_BLOCK + 2))


def test_a13_blocks_that_follow_each_other_first(tmp_path: Path) -> None:
    """Of free runs of 1, 1 and 2 blocks the last is taken; of single blocks as many as needed."""
    storage = Storage(tmp_path / "queues", 9 * BLOCK_BYTES)
    for number in range(9):
        storage.make(f"q{number}")
    for gone in (1, 3, 5, 6):
        storage.drop(f"q{gone}")
    assert [tuple(run) for run in storage.file.free] == [(1, 1), (3, 1), (5, 2)]
    assert [tuple(run) for run in storage.file.take(2, 99)] == [(5, 2)]
    queue = storage.get("q0")
    assert queue is not None
    queue.open("s")
    ends(queue, 1, PER_BLOCK + 1)
    assert (queue.ring.count, queue.ring.contiguous) == (2, True)
    ends(queue, PER_BLOCK + 2, PER_BLOCK)
    assert (queue.ring.count, queue.ring.contiguous) == (3, False)
    with pytest.raises(NoRoom):
        ends(queue, 2 * PER_BLOCK + 2, PER_BLOCK)
    assert txids(queue, "s") == list(range(1, 3 * PER_BLOCK + 1))


def test_a13_a_batch_that_is_held_stays_as_it_is(storage: Storage) -> None:
    """Growth, shrinking and reuse leave batches unchanged while they are read."""
    queue = storage.make("q")
    queue.open("s")
    diffs(queue, 1, list(range(1000)))
    (frame,) = queue.read("s")
    held = frame.batch
    assert held is not None
    del frame
    for txid in range(2, 2000):
        diffs(queue, txid, [-1] * 1000)
        queue.put(Header(Kind.TIME_END, txid, 0, 1000))
        queue.read("s")
        queue.keep_after("s", txid)
        if txid % 50 == 0:
            storage.sync()
        queue.check()
    storage.sync()
    assert held.column(0).to_pylist() == list(range(1000))
    grown = queue.ring.count
    del held
    gc.collect()
    for _ in range(20):
        queue.check()
    assert queue.ring.count == 1 < grown


def test_a14_underflow_gives_back(storage: Storage) -> None:
    """A queue that is nearly empty at two checks releases half of its blocks; one block stays."""
    queue = storage.make("q")
    queue.open("s")
    ends(queue, 1, 4 * PER_BLOCK)
    assert queue.ring.count == 4
    left = int(0.24 * 4 * PER_BLOCK)
    txids(queue, "s")
    queue.keep_after("s", 4 * PER_BLOCK - left)
    storage.sync()
    assert [queue.check(), queue.check()] == [0, 2]
    assert queue.ring.count == 2
    queue.keep_after("s", 4 * PER_BLOCK)
    storage.sync()
    for _ in range(8):
        queue.check()
    assert queue.ring.count == 1
    before = storage.file.backed
    assert storage.file.trim() == before - storage.file.backed == 3


def test_a14_a_queue_at_its_edge_does_not_oscillate(storage: Storage) -> None:
    """A queue that moves by one frame around the limit grows only once."""
    queue = storage.make("q")
    queue.open("s")
    ends(queue, 1, PER_BLOCK)
    sizes = set()
    for txid in range(PER_BLOCK + 1, PER_BLOCK + 1001):
        ends(queue, txid, 1)
        queue.check()
        txids(queue, "s", 1)
        queue.keep_after("s", txid - PER_BLOCK)
        queue.check()
        sizes.add(queue.ring.count)
    assert sizes == {2}


def test_frames_larger_than_a_block_lie_in_one_piece(storage: Storage) -> None:
    """3.2 blocks take a run of four; a frame that does not fit begins in the next block."""
    queue = storage.make("q")
    queue.open("s")
    diffs(queue, 1, [7])
    large = list(range(int(3.2 * BLOCK_BYTES / 8)))
    diffs(queue, 2, large)
    diffs(queue, 3, [8])
    one, two, three = queue.read("s")
    assert one.batch is not None
    assert two.batch is not None
    assert three.batch is not None
    assert two.batch.column(0).to_pylist() == large
    assert [len(queue.ring.extents(f.header.offset, f.end)) for f in (one, two, three)] == [1, 1, 1]
    assert (one.batch.column(0)[0].as_py(), three.batch.column(0)[0].as_py()) == (7, 8)


def test_reading_copies_nothing(storage: Storage) -> None:
    """A column that was read lies in the mapping, however large it is."""
    queue = storage.make("q")
    queue.open("s")
    diffs(queue, 1, list(range(10_000)))
    before = pa.total_allocated_bytes()
    (frame,) = queue.read("s")
    assert frame.batch is not None
    assert pa.total_allocated_bytes() - before < 10_000
    assert frame.batch.column(0)[9_999].as_py() == 9_999


def reopened(storage: Storage) -> Storage:
    """Reopen the queues as another process does, without any hand-over."""
    storage.close()
    return Storage(storage.folder, 256 * BLOCK_BYTES)


def test_a_killed_process_loses_nothing(storage: Storage) -> None:
    """All frames from the base on are there for the next process."""
    queue = storage.make("q")
    queue.open("s")
    for txid in range(1, 3000):
        diffs(queue, txid, [txid])
        ends(queue, txid, 1)
    queue.keep_after("s", 1000)
    after = reopened(storage).get("q")
    assert after is not None
    assert (after.front, after.last_txid, after.lost) == (queue.front, 2999, False)
    after.open("s", after_txid=1500)
    found = [f.batch.column(0)[0].as_py() for f in after.read("s") if f.batch is not None]
    assert found == list(range(1501, 3000))
    after.open("t", after_txid=1000)
    with pytest.raises(LookupError):
        after.open("u", after_txid=900)
    ends(after, 3000, 1)
    assert after.read("s")[-1].header.txid == 3000


@pytest.mark.parametrize("where", [0, 0.5, 0.999])
def test_a_flipped_bit_is_noticed(storage: Storage, where: float) -> None:
    """A reader and the next process detect it: they get the frames before it, and an error."""
    queue = storage.make("q")
    queue.open("s")
    for txid in range(1, 101):
        diffs(queue, txid, list(range(50)))
        ends(queue, txid, 1)
    at = int(where * queue.front)
    (run,) = queue.ring.extents(at, at + 1)
    memory = storage.file.memory(run.start * BLOCK_BYTES + at % BLOCK_BYTES, 1)
    memory[0] ^= 4
    good = len(queue.read("s")) if where else 0
    assert queue.successors["s"][1] < queue.front
    with pytest.raises(Damaged):
        queue.read("s")
    after = reopened(storage).get("q")
    assert after is not None
    assert after.lost
    after.open("s", after_txid=after.last_txid)
    assert after.last_txid == good // 2


def test_a_queue_that_was_dropped_leaves_nothing(storage: Storage) -> None:
    """The queue's blocks and its name are free, also for the next process."""
    storage.make("a")
    ends(storage.make("b"), 1, 5 * PER_BLOCK)
    storage.drop("b")
    after = reopened(storage)
    assert [queue.name for queue in after.queues] == ["a"]
    assert sum(run.size for run in after.file.free) + 1 == storage.file.rows["queue"].argmin()
    assert after.file.backed == 1


def test_no_frame_is_left_out_for_a_damaged_one(storage: Storage) -> None:
    """The next process does not continue in the block behind the damaged one."""
    queue = storage.make("q")
    queue.open("s")
    for txid in range(1, 1001):
        diffs(queue, txid, list(range(100)))
        ends(queue, txid, 1)
    assert queue.ring.count > 2
    storage.file.memory(BLOCK_BYTES // 2, 1)[0] ^= 1
    after = reopened(storage).get("q")
    assert after is not None
    assert after.lost
    assert after.front <= BLOCK_BYTES // 2


def test_a_txid_is_there_whole_or_not_at_all(storage: Storage) -> None:
    """An error in the middle of a txid removes its frames, and so does a kill."""
    queue = storage.make("q")
    queue.open("s")
    diffs(queue, 1, [1])
    ends(queue, 1, 1)

    def fail() -> None:
        with queue.together():
            diffs(queue, 2, list(range(3 * BLOCK_BYTES // 8)))
            raise NoRoom("full")

    front = queue.front
    with pytest.raises(NoRoom):
        fail()
    assert queue.front == front
    with queue.together():
        diffs(queue, 2, [2])
        ends(queue, 2, 1)
    diffs(queue, 3, [3])  # killed before its end
    after = reopened(storage).get("q")
    assert after is not None
    assert not after.lost
    after.open("s", 0)
    assert [frame.header.txid for frame in after.read("s")] == [1, 1, 2, 2]
    ends(after, 3, 1)
    assert after.sent(3) == []


def test_what_was_sent_at_a_txid(storage: Storage) -> None:
    """A reader may ask by txid again; a removed txid is distinct from one without rows."""
    queue = storage.make("q")
    queue.begin_after(6)
    queue.open("s", 6)
    for txid in (7, 9):
        diffs(queue, txid, [txid])
        diffs(queue, txid, [txid + 100])
        ends(queue, txid, 1)

    def values(txid: int) -> list[int]:
        return [f.batch.column(0)[0].as_py() for f in queue.sent(txid) if f.batch is not None]

    assert [values(txid) for txid in (7, 8, 9, 10)] == [[7, 107], [], [9, 109], []]
    queue.keep_after("s", 8)
    assert values(9) == [9, 109]
    for gone in (6, 7):
        with pytest.raises(LookupError):
            queue.sent(gone)


def test_txids_that_ended_together_are_read_together(storage: Storage) -> None:
    """The rows of one of them cannot be read alone, now or after a restart."""
    queue = storage.make("q")
    queue.begin_after(7)
    queue.open("s", 7)
    for txid, log2_txids in ((8, 0), (12, 2), (20, 3), (21, 0)):
        diffs(queue, txid, [txid])
        queue.put(Header(Kind.TIME_END, txid, 0, 1, log2_txids=log2_txids))
    after = reopened(storage).get("q")
    for one in filter(None, (queue, after)):
        assert one.ends.last_together == 20
        around = {txid: one.around(txid) for txid in (7, 8, 9, 12, 13, 19, 20, 21, 22)}
        assert around == {
            **{txid: (txid, txid) for txid in (7, 8, 12, 20, 21, 22)},
            **{9: (8, 12), 13: (12, 20), 19: (12, 20)},
        }
        frames = one.sent(21, after=8)
        assert [f.batch.column(0)[0].as_py() for f in frames if f.batch is not None] == [12, 20, 21]
        for last, first in ((12, 9), (10, 8), (20, 13), (10, 9)):
            with pytest.raises(LookupError, match="alone"):
                one.sent(last, after=first)
    assert after is not None
    after.begin_after(12)
    assert after.ends.last_together == 12


def test_a_successor_may_be_durable_at_a_txid_that_brought_nothing(storage: Storage) -> None:
    """The successor's next frame is the one after the last earlier txid with rows."""
    queue = storage.make("q")
    queue.begin_after(4)
    for txid in (5, 9):
        diffs(queue, txid, [txid])
        ends(queue, txid, 1)
    for after, found in ((4, [5, 5, 9, 9]), (7, [9, 9]), (9, []), (12, [])):
        queue.open(after, after)
        assert [frame.header.txid for frame in queue.read(after)] == found
    with pytest.raises(LookupError):
        queue.open("early", 3)


def test_what_is_taken_back_is_neither_known_nor_durable(storage: Storage) -> None:
    """Other frames replace it."""
    queue = storage.make("q")
    queue.open("s")
    for txid in (1, 2, 3):
        diffs(queue, txid, [txid] * 1000)
        ends(queue, txid, 1)
    storage.sync()
    assert queue.synced == queue.front
    seen = [f.batch.column(0)[0].as_py() for f in queue.sent(2) if f.batch is not None]
    assert seen == [2]
    gc.collect()
    queue.begin_after(1)
    left = queue.front
    assert (queue.last_txid, queue.contents().rows, queue.synced) == (1, 1000, left)
    diffs(queue, 2, [20] * 1000)
    ends(queue, 2, 1)
    assert queue.synced < queue.front
    (frame,) = queue.sent(2)
    assert frame.batch is not None
    assert frame.batch.column(0).to_pylist() == [20] * 1000
    assert (queue.contents().rows, queue.bytes_after(1)) == (2000, queue.front - left)


@pytest.mark.parametrize("seed", range(20))
def test_what_was_discarded_stays_so_after_any_number_of_restarts(tmp_path: Path, seed) -> None:
    """A larger frame may begin in the next block, and leave a discarded one before it."""
    rng = random.Random(seed)
    storage = Storage(tmp_path, 256 * BLOCK_BYTES, _SMALL_BLOCK)
    queue = storage.make("q")
    wanted: dict[int, list[int]] = {}
    for _ in range(8):
        for txid in range(queue.last_txid + 1, queue.last_txid + rng.randint(2, 12)):
            wanted[txid] = [rng.randrange(9)] * rng.choice((1, 40, 150, 300))
            diffs(queue, txid, wanted[txid])
            ends(queue, txid, 1)
            # It takes blocks between, so that no frame lies across two.
            other = storage.get("other") or storage.make("other")
            diffs(other, other.last_txid + 1, [0] * 300)
            ends(other, other.last_txid + 1, 1)
        if rng.random() < 0.7:
            last = rng.randrange(queue.last_txid)
            queue.begin_after(last)
            wanted = {txid: values for txid, values in wanted.items() if txid <= last}
        if rng.random() < 0.7:
            storage.close()
            storage = Storage(tmp_path, 256 * BLOCK_BYTES, _SMALL_BLOCK)
            found = storage.get("q")
            assert found is not None
            assert not found.lost
            queue = found
        shown = {
            txid: [f.batch.column(0).to_pylist() for f in queue.sent(txid) if f.batch is not None]
            for txid in wanted
        }
        assert shown == {txid: [values] for txid, values in wanted.items()}
        assert queue.last_txid == max(wanted, default=0)
    storage.close()


def test_a_dropped_queue_waits_for_who_reads_it(storage: Storage) -> None:
    """The queue's blocks are not reused while a reader holds a batch in them."""
    queue = storage.make("q")
    queue.open("s")
    diffs(queue, 1, [5] * 1000)
    (frame,) = queue.read("s")
    storage.drop("q")
    other = storage.make("other")
    diffs(other, 1, [6] * 1000)
    assert frame.batch is not None
    assert frame.batch.column(0).to_pylist() == [5] * 1000
    del frame
    storage.maintain()
    assert storage.file.owned(1) == []


def test_a4_successors_that_keep_pace_share_what_was_decoded(storage: Storage) -> None:
    """A frame is checked and decoded for the first of them; a late one decodes it again."""
    queue = storage.make("q")
    for name in ("x", "y", "late"):
        queue.open(name)
    for txid in range(1, 201):
        diffs(queue, txid, [txid])
        ends(queue, txid, 1)
        first, second = queue.read("x"), queue.read("y")
        assert all(one is other for one, other in zip(first, second, strict=True))
    # A cached frame would hide this damage.
    storage.file.memory(HEADER_BYTES, 1)[0] ^= 1
    with pytest.raises(Damaged):
        queue.read("late")


def test_what_is_passed_is_held_by_nobody(storage: Storage) -> None:
    """The cache of read frames holds no block once all successors are beyond it."""
    queue = storage.make("q")
    queue.open("s")
    for txid in range(1, 500):
        diffs(queue, txid, [txid] * 4000)
        ends(queue, txid, 1)
        assert len(queue.read("s")) == 2
        queue.keep_after("s", txid)
    storage.sync()
    for _ in range(16):
        queue.check()
    assert queue.ring.count == 1


def test_queued_rows(storage: Storage) -> None:
    """The rows between base and front; found again after a kill, without those taken back."""
    queue = storage.make("q")
    queue.open("s")

    def fail() -> None:
        with queue.together():
            diffs(queue, 9, [0] * 5)
            raise NoRoom("full")

    for txid, count in ((1, 3), (2, 4), (3, 10)):
        diffs(queue, txid, [txid] * count)
        ends(queue, txid, 1)
    with pytest.raises(NoRoom):
        fail()
    assert queue.contents().rows == 17
    queue.keep_after("s", 2)
    assert queue.contents().rows == 10
    diffs(queue, 4, [4])  # killed before its end
    after = reopened(storage).get("q")
    assert after is not None
    assert after.contents().rows == 10
    after.open("s", 3)
    after.keep_after("s", 3)
    ends(after, 4, 1)
    after.keep_after("s", 4)
    assert after.contents().rows == 0


def test_a7_a_successor_that_opens_again_keeps_nothing_back(storage: Storage) -> None:
    """The base moves with the oldest tail of any successor, and with no other tail."""
    queue = storage.make("q")
    for name in ("a", "b", "c"):
        queue.open(name)
    ends(queue, 1, 10)
    queue.keep_after("a", 4)
    queue.keep_after("b", 5)
    assert queue.base_txid == 0
    queue.keep_after("c", 3)
    assert queue.base_txid == 3
    queue.open("c", after_txid=8)
    queue.keep_after("b", 7)
    assert queue.base_txid == 4
    queue.keep_after("a", 7)
    assert queue.base_txid == 7
    queue.open("b", after_txid=9)
    queue.keep_after("a", 8)
    queue.keep_after("a", 9)
    assert queue.base_txid == 8
    queue.leave("c")
    assert queue.base_txid == 9


MEMORY = 8 * BLOCK_BYTES


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Storage]:
    """Yield queues with eight blocks in memory at most."""
    made = Storage(tmp_path / "queues", 256 * BLOCK_BYTES, memory_bytes=MEMORY)
    yield made
    made.close()


def fill(queue: Queue, first: int, count: int) -> None:
    """Put txids of half a block each."""
    for txid in range(first, first + count):
        diffs(queue, txid, [txid] * (BLOCK_BYTES // 16 - 64))
        ends(queue, txid, 1)


def sent(queue: Queue, txid: int) -> list[int]:
    """Return the distinct values of a txid, sorted."""
    (frame,) = queue.sent(txid)
    assert frame.batch is not None
    return sorted(set(frame.batch.column(0).to_pylist()))


def test_a22_what_is_too_much_for_memory_is_on_the_disk(small: Storage) -> None:
    """Durable frames leave memory, those that are read last first; also during a read."""
    queue = small.make("q")
    queue.open("late")
    fill(queue, 1, 200)
    assert queue.ring.count > 90
    small.maintain()
    assert queue.resident_bytes == queue.queued_bytes  # nothing was durable
    small.sync()
    small.maintain()
    assert queue.resident_bytes <= 0.8 * MEMORY
    used = queue.ring.extents(queue.base, queue.front)
    assert small.file.resident(used) <= 0.8 * MEMORY + 2 * BLOCK_BYTES
    reads = small.file.reads
    for txid in range(1, 201):
        assert sent(queue, txid) == [txid]
        assert queue.resident_bytes <= MEMORY
    # Each time a quarter of the memory.
    assert small.file.reads - reads <= queue.ring.count / 2
    assert small.pool.overdrawn == 0
    small.maintain()
    queue.keep_after("late", 200)
    assert queue.resident_bytes == 0


def test_a24_what_fits_into_memory_stays_there(small: Storage) -> None:
    """The largest queue leaves it first, and only by the excess."""
    large, other = small.make("large"), small.make("other")
    for queue in (large, other):
        queue.open("late")
    fill(large, 1, 8)
    fill(other, 1, 6)
    small.sync()
    small.maintain()
    assert [q.resident_bytes for q in (large, other)] == [q.queued_bytes for q in (large, other)]
    fill(large, 9, 8)
    small.sync()
    small.maintain()
    assert large.resident_bytes < large.queued_bytes
    assert other.resident_bytes == other.queued_bytes


def test_a37_what_somebody_holds_is_not_left_to_the_disk(small: Storage) -> None:
    """All other blocks are; it stays in memory until it is released."""
    queue = small.make("q")
    queue.open("late")
    fill(queue, 1, 60)
    small.sync()
    (held,) = queue.sent(41)
    begin, end = held.header.offset, held.end
    small.maintain()
    assert queue.resident_bytes <= 0.8 * MEMORY
    small.pool.spill(queue, queue.queued_bytes)
    blocks = -(-end // BLOCK_BYTES) - begin // BLOCK_BYTES
    unfinished = queue.front % BLOCK_BYTES
    assert queue.resident_bytes == blocks * BLOCK_BYTES + unfinished
    assert small.file.resident(queue.ring.extents(begin, end)) == blocks * BLOCK_BYTES
    del held
    small.pool.spill(queue, queue.queued_bytes)
    assert queue.resident_bytes == unfinished


def test_what_comes_back_from_the_disk_is_checked(small: Storage) -> None:
    """Frames that were read before they left memory are checked again."""
    queue = small.make("q")
    queue.open("late")
    fill(queue, 1, 60)
    small.sync()
    assert sent(queue, 21) == [21]
    small.maintain()
    (run,) = queue.ring.extents(10 * BLOCK_BYTES, 10 * BLOCK_BYTES + 1)
    small.file.memory(run.start * BLOCK_BYTES + 4096, 1)[0] ^= 1
    with pytest.raises(Damaged):
        sent(queue, 21)
    assert sent(queue, 20) == [20]


def test_file_of_schemas_that_ends_with_zeros(tmp_path):
    """After a power failure, the end of a file may be zeros that were never written."""
    made = Storage(tmp_path / "queues", 256 * BLOCK_BYTES)
    made.make("q").put(Header(Kind.DIFFS, 1, 0, 1), pa.record_batch({"a": pa.array([1])}))
    made.close()
    with (tmp_path / "queues" / "schemas").open("ab") as file:
        file.write(bytes(100))
    again = Storage(tmp_path / "queues", 256 * BLOCK_BYTES)
    assert len(again._schemas) == 1
    again.close()
