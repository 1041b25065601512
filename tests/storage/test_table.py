"""The shared table, and memory by its priorities (A-15 … A-24, A-37); the seed's examples."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import clock
from headrace.storage import frames
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.storage.table import SharedTable, Standing
from tests.waiting import wait_until

BLOCK = 4096

Opened = Callable[..., Storage]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Yield a function that makes queues with a number of blocks in memory at most."""
    made: list[Storage] = []

    def open_(memory: int, blocks: int = 256) -> Storage:
        made.append(Storage(tmp_path / f"{len(made)}", blocks * BLOCK, BLOCK, memory * BLOCK))
        return made[-1]

    yield open_
    for storage in made:
        storage.close()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Set the monotonic clock, in seconds."""
    time = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    return time


def rows(block: int, size: int = BLOCK - frames.HEADER_BYTES) -> pa.RecordBatch:
    """Return a batch whose frame has ``size`` bytes: with its TimeEnd, a block."""
    for count in range(size // 8, 0, -1):
        batch = pa.record_batch({"a": pa.array([block] * count, pa.int64())})
        if frames.size(len(batch.serialize())) == size:
            return batch
    raise AssertionError(size)


def filled(storage: Storage, name: str, blocks: int, priority: float) -> Queue:
    """Make a queue of ``blocks`` full blocks, all durable, that ``s`` has not read."""
    queue = storage.make(name)
    queue.open("s")
    for block in range(blocks):
        put(queue, block)
    assert queue.queued_bytes == blocks * BLOCK
    storage.sync()
    storage.pool.table.prioritise(name, "s", priority)
    return queue


def put(queue: Queue, block: int) -> None:
    """Put rows that fill a block, as a txid; the first one is txid 1."""
    batch = rows(block)
    queue.put(Header(Kind.DIFFS, block + 1, 0, batch.num_rows), batch)
    queue.put(Header(Kind.TIME_END, block + 1, 0, batch.num_rows))


def read(queue: Queue, block: int) -> None:
    """Read a block as ``s`` and check its content."""
    queue.rewind("s", block)
    diffs, end = queue.read("s", BLOCK)
    assert diffs.batch is not None
    assert set(diffs.batch.column(0).to_pylist()) == {block}
    assert end.header.txid == block + 1


def out(storage: Storage, *queues: Queue) -> None:
    """Evict queues from memory."""
    for queue in queues:
        storage.pool.spill(queue, queue.queued_bytes)
        assert queue.resident_bytes == 0


def percent(storage: Storage) -> dict[str, int]:
    """Return the percentage of each queue that is in memory, by the table."""
    storage.maintain()
    return {queue: row.resident_pct for (queue, _), row in storage.pool.table.rows().items()}


def test_a17_a_row_for_each_successor_of_each_queue(opened: Opened) -> None:
    """Both sides write it: residency changes with maintenance; another reader is another row."""
    storage = opened(4)
    queue = filled(storage, "a", 2, 7.5)
    filled(storage, "b", 1, 1)
    storage.maintain()
    table = storage.pool.table
    assert table.rows() == {("a", "s"): Standing(7.5, 100), ("b", "s"): Standing(1, 100)}
    storage.pool.spill(queue, BLOCK)
    queue.open("late", 0)
    storage.maintain()
    assert table.rows()["a", "s"] == Standing(7.5, 50)
    assert table.rows()["a", "late"] == Standing(0, 50)
    # A queue's priority is the highest of its successors'.
    table.prioritise("a", "late", 9)
    assert table.priority("a") == 9
    queue.leave("late")
    storage.drop("b")
    storage.maintain()
    assert table.rows() == {("a", "s"): Standing(7.5, 50)}


def test_a17_a_successor_runs_exactly_during_the_call() -> None:
    """A successor that is new to the storage manager runs as well, and one that fails."""
    table = SharedTable()
    table.follow("q", ["s"], 100)

    def call() -> None:
        with table.running("q", ["s", "new"]):
            table.follow("q", ["s"], 100)
            running = {name for (_, name), row in table.rows().items() if row.running}
            assert running == {"s", "new"}
            with table.running("q", ["s"]):
                pass
            assert table.is_running("q")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call()
    assert not table.is_running("q")
    table.follow("q", ["s"], 100)
    assert table.rows() == {("q", "s"): Standing()}


def test_a18_residency_is_what_is_in_memory(opened: Opened) -> None:
    """The kernel reports the same residency, after any evictions and reads."""
    storage = opened(8)
    queue = filled(storage, "q", 6, 1)
    out(storage, queue)
    parts = list(queue.ring.extents(0, queue.front))
    for block in (0, 1, 4):
        read(queue, block)
        wait_until(
            lambda: storage.file.resident(parts) == queue.resident_bytes,
            lambda: f"{storage.file.resident(parts)} bytes are in memory",
        )
        assert 0 < queue.resident_bytes < queue.queued_bytes
    assert percent(storage) == {"q": 100 * queue.resident_bytes // queue.queued_bytes}


@pytest.mark.parametrize("requested", [True, False], ids=["requested", "written"])
def test_a19_what_could_not_leave_at_once_leaves_later(
    requested: bool, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk still brings requested blocks, or the kernel is not done with written pages."""
    storage = opened(16)
    queue = filled(storage, "q", 8, 1)
    parts = list(queue.ring.extents(0, queue.front))
    if requested:
        out(storage, queue)
        queue.residency.load(queue.residency.missing(0, 8), clock.monotonic())
        wait_until(lambda: storage.file.resident(parts) == 8 * BLOCK, "it has come")
    with monkeypatch.context() as patched:
        # Linux does not evict pages that are being written.
        patched.setattr(storage.file, "evict", lambda run: None)
        out(storage, queue)
        assert storage.pool.leave_again()
    assert storage.file.resident(parts) == 8 * BLOCK
    wait_until(lambda: not storage.pool.leave_again(), "nothing comes any more")
    assert storage.file.resident(parts) == 0


def test_a21_nothing_comes_that_is_not_asked_for(opened: Opened) -> None:
    """The system reads one page where one is touched, without read-ahead."""
    storage = opened(16)
    queue = filled(storage, "q", 8, 1)
    parts = list(queue.ring.extents(0, queue.front))
    out(storage, queue)
    assert bytes(storage.file.memory(parts[0].start * BLOCK, 1))
    assert storage.file.resident(parts) == BLOCK


def test_a19_the_least_urgent_block_leaves(opened: Opened) -> None:
    """Three frames: A(p1) has two, B(p5) one; C(p9) is read block by block."""
    storage = opened(3)
    c = filled(storage, "C", 2, 9)
    out(storage, c)
    filled(storage, "A", 2, 1)
    filled(storage, "B", 1, 5)
    assert percent(storage) == {"A": 100, "B": 100, "C": 0}
    read(c, 0)
    assert percent(storage) == {"A": 50, "B": 100, "C": 50}
    read(c, 1)
    assert percent(storage) == {"A": 0, "B": 100, "C": 100}


def test_a19_within_a_queue_what_is_read_last_leaves_first(opened: Opened) -> None:
    """Blocks that all successors have passed leave first, then those furthest ahead."""
    storage = opened(0)
    queue = filled(storage, "q", 8, 1)
    queue.open("late", 0)
    queue.rewind("s", 5)
    queue.rewind("late", 2)
    left: list[int] = []
    for _ in range(8):
        storage.pool.spill(queue, BLOCK)
        left += [place for place in queue.residency.missing(0, 8).tolist() if place not in left]
    assert left == [0, 1, 4, 7, 3, 6, 2, 5]


def test_a16_who_leaves_is_told_by_priority_and_not_by_use(opened: Opened) -> None:
    """A block that a patient reader has just read leaves before one of an urgent reader."""
    storage = opened(2)
    third = filled(storage, "third", 1, 5)
    out(storage, third)
    filled(storage, "urgent", 1, 9)
    patient = filled(storage, "patient", 1, 1)
    for _ in range(3):
        read(patient, 0)
    assert percent(storage) == {"third": 0, "urgent": 100, "patient": 100}
    read(third, 0)
    assert percent(storage) == {"third": 100, "urgent": 100, "patient": 0}


def test_a23_what_is_urgent_changes_and_memory_follows(opened: Opened) -> None:
    """The same, with the priorities of A and B exchanged meanwhile."""
    storage = opened(3)
    c = filled(storage, "C", 2, 9)
    out(storage, c)
    filled(storage, "A", 2, 1)
    filled(storage, "B", 1, 5)
    storage.pool.table.prioritise("A", "s", 5)
    storage.pool.table.prioritise("B", "s", 1)
    read(c, 0)
    assert percent(storage) == {"A": 100, "B": 0, "C": 50}


def test_a19_only_who_is_at_work_takes_from_the_more_urgent(opened: Opened) -> None:
    """A reader first evicts blocks that it has read; read-ahead evicts none of the more urgent."""
    storage = opened(2)
    low = filled(storage, "low", 3, 1)
    out(storage, low)
    filled(storage, "high", 2, 9)
    assert not storage.pool.upgrade()
    assert percent(storage) == {"high": 100, "low": 0}
    read(low, 0)
    assert percent(storage) == {"high": 50, "low": 33}
    read(low, 1)
    assert percent(storage) == {"high": 50, "low": 33}


def test_a37_what_is_at_work_is_pinned(opened: Opened) -> None:
    """B is evicted instead of A; when all are at work none is, and a read block is added."""
    storage = opened(3)
    table = storage.pool.table
    c = filled(storage, "C", 3, 9)
    out(storage, c)
    filled(storage, "A", 2, 1)
    filled(storage, "B", 1, 5)
    with table.running("A", ["s"]):
        read(c, 0)
        assert percent(storage) == {"A": 100, "B": 0, "C": 33}
        with table.running("C", ["s"]):
            read(c, 1)
            # C evicts its own block, which it has read, and none of another working reader.
            assert percent(storage) == {"A": 100, "B": 0, "C": 33}
            assert storage.pool.overdrawn == 0
            held = c.read("s", BLOCK)
            read(c, 0)
            assert (storage.pool.overdrawn, storage.pool.used_bytes) == (1, 4 * BLOCK)
            del held
    storage.maintain()
    assert storage.pool.used_bytes <= 3 * BLOCK


def test_a20_an_idle_tick_reads_ahead_for_the_more_urgent(opened: Opened, now: list[float]) -> None:
    """One exchange of a block of A for one of C; none while A is at work."""
    storage = opened(1)
    c = filled(storage, "C", 1, 9)
    out(storage, c)
    filled(storage, "A", 1, 1)
    with storage.pool.table.running("A", ["s"]):
        assert not storage.pool.upgrade()
        assert percent(storage) == {"A": 100, "C": 0}
    assert storage.pool.upgrade()
    assert percent(storage) == {"A": 0, "C": 100}
    now[0] += 1
    assert not storage.pool.upgrade()
    assert storage.pool.upgrades == 1


def test_a21_what_is_read_next_by_the_most_urgent_is_in_memory(
    opened: Opened, now: list[float]
) -> None:
    """Several queues share the memory, and reading ahead stops when it is full."""
    storage = opened(10)
    names = {"low": 1, "middle": 5, "high": 9}
    queues = {name: filled(storage, name, 6, p) for name, p in names.items()}
    out(storage, *queues.values())
    queues["high"].rewind("s", 2)
    for _ in range(20):
        now[0] += 1
        if not storage.pool.upgrade():
            break
    assert 2 <= storage.pool.upgrades < 20
    # 80 % of the memory: blocks behind the head are read last, by a rewound reader.
    assert percent(storage) == {"low": 0, "middle": 66, "high": 66}
    assert not len(queues["high"].residency.missing(2 * BLOCK, 4))
    assert not len(queues["middle"].residency.missing(0, 4))


@pytest.mark.parametrize("swing", [(10, 11), (11, 10)])
def test_a24_priorities_that_swing_a_little_move_nothing(
    opened: Opened, now: list[float], swing: tuple[int, int]
) -> None:
    """One frame, and a thousand ticks of 10 and 11 in turn."""
    storage = opened(1)
    c = filled(storage, "C", 1, 10)
    out(storage, c)
    filled(storage, "A", 1, 10)
    for tick in range(1000):
        storage.pool.table.prioritise("A", "s", swing[tick % 2])
        storage.pool.table.prioritise("C", "s", swing[1 - tick % 2])
        storage.pool.upgrade()
        storage.maintain()
        now[0] += 1
    assert storage.pool.upgrades <= 1


def test_a24_priorities_that_swing_much_move_little(opened: Opened, now: list[float]) -> None:
    """Priorities alternate between 10 and 20 each millisecond: a loaded block stays for 100 ms."""
    storage = opened(1)
    c = filled(storage, "C", 1, 10)
    out(storage, c)
    filled(storage, "A", 1, 10)
    upgraded = []
    for tick in range(1000):
        for name, turn in (("A", 0), ("C", 1)):
            storage.pool.table.prioritise(name, "s", 20 if tick % 2 == turn else 10)
        if storage.pool.upgrade():
            upgraded.append(now[0])
        now[0] += 0.001
    assert 5 <= len(upgraded) == storage.pool.upgrades <= 10
    gaps = [later - before for before, later in itertools.pairwise(upgraded)]
    assert min(gaps) >= 0.1


def test_a24_what_is_read_ahead_is_not_driven_out_by_what_is_written(
    opened: Opened, now: list[float]
) -> None:
    """One queue is larger than memory, and grows: no block is read ahead."""
    storage = opened(8)
    queue = filled(storage, "q", 40, 1)
    for block in range(40, 100):
        put(queue, block)
        storage.sync()
        storage.maintain()
        storage.pool.upgrade()
        now[0] += 1
    assert storage.file.reads == 0


def test_a22_a_run_of_blocks_is_one_call(opened: Opened) -> None:
    """Eight adjacent blocks take one call, and eight separate ones take eight."""
    for apart, calls in ((False, 1), (True, 8)):
        storage = opened(0, 17)
        if apart:
            others = [run.start for _ in range(17) for run in storage.file.take(1, 99)]
            storage.file.give(others[::2])
        queue = filled(storage, "q", 8, 1)
        assert queue.ring.contiguous == (not apart)
        assert storage.pool.statistics()["writes"] == calls
        storage.pool.spill(queue, queue.queued_bytes)
        assert storage.pool.statistics()["evictions"] == calls
        assert storage.pool.window_bytes >= 8 * BLOCK
        for block in range(8):
            read(queue, block)
        assert storage.pool.statistics()["reads"] == calls


def test_a22_what_is_larger_than_what_is_read_ahead_is_counted(opened: Opened) -> None:
    """A frame of several blocks comes whole, and evicts as many."""
    storage = opened(8)
    queue = storage.make("q")
    queue.open("s")
    batch = pa.record_batch({"a": pa.array(range(6 * BLOCK // 8), pa.int64())})
    for txid in range(1, 5):
        queue.put(Header(Kind.DIFFS, txid, 0, batch.num_rows), batch)
        queue.put(Header(Kind.TIME_END, txid, 0, batch.num_rows))
    storage.sync()
    storage.maintain()
    for txid in range(1, 5):
        (frame,) = queue.sent(txid)
        begin, end = frame.header.offset, frame.end
        assert end - begin > 6 * BLOCK
        del frame
        assert storage.pool.used_bytes <= 8 * BLOCK
        assert not len(queue.residency.missing(begin, -(-end // BLOCK) - begin // BLOCK))


def test_a_block_that_is_new_takes_no_memory_before_it_is_written(opened: Opened) -> None:
    storage = opened(0)
    taken = storage.file.take(8, 1)
    assert storage.file.resident(taken) == 0


def test_a_frame_that_is_written_in_pieces_is_whole(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may write less than requested: with gigabytes it does."""
    storage = opened(0)
    write = os.pwritev

    def little(file: int, parts: list[memoryview], at: int) -> int:
        return write(file, [memoryview(parts[0])[:100]], at)

    monkeypatch.setattr(os, "pwritev", little)
    queue = filled(storage, "q", 4, 1)
    for block in range(4):
        read(queue, block)
