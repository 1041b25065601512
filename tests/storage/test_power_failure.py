"""The machine's power fails: of each sector written since the last sync, any version is left.

A test notes the files at a sync and later ones, and opens what each mixture of them leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.process import durable
from headrace.storage.blocks import NoRoom
from headrace.storage.frames import Header, Kind, size
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from tests.disks import path_of, synced

BLOCK = 4096
SECTOR = 512
FILES = ("blocks", "blocks.table", "positions", "schemas", "names")
Files = dict[str, bytes]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    """Yield queues of 64 small blocks."""
    made = opened(tmp_path / "queues")
    yield made
    made.close()


def opened(folder: Path) -> Storage:
    return Storage(folder, 64 * BLOCK, BLOCK)


def files(storage: Storage) -> Files:
    """Return the files as a reader sees them."""
    return {name: (storage.folder / name).read_bytes() for name in FILES}


def left(folder: Path, content: Files) -> Storage:
    """Open what a power failure has left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return opened(folder)


def mixtures(*versions: Files) -> Iterator[Files]:
    """Yield each mixture of whole files; the names are always synced."""
    for chosen in itertools.product(versions, repeat=len(FILES) - 1):
        yield {n: v[n] for n, v in zip(FILES, (*chosen, versions[-1]), strict=True)}


def put(queue: Queue, txid: int, value: int, rows: int = 100) -> None:
    batch = pa.record_batch({"a": pa.array(np.full(rows, value))})
    with queue.together():
        queue.put(Header(Kind.DIFFS, txid, 0, rows), batch)
        queue.put(Header(Kind.TIME_END, txid, 0, rows))


def values(queue: Queue, after: int) -> dict[int, int]:
    """Return the value of each txid after ``after``; all rows of a txid must have it."""
    out = {}
    for txid in range(after + 1, queue.last_txid + 1):
        for frame in queue.sent(txid):
            assert frame.batch is not None
            [value] = set(frame.batch.column(0).to_pylist())
            assert out.setdefault(txid, value) == value
    return out


def test_blocks_are_used_again_only_when_the_base_is_on_the_disk(
    storage: Storage, tmp_path: Path
) -> None:
    """All synced frames that are needed are there, in each mixture of files."""
    queue = storage.make("q")
    queue.open("s", 0)
    for txid in range(1, 31):
        put(queue, txid, txid)
    storage.sync()
    versions = [files(storage)]
    queue.keep_after("s", 25)
    versions.append(files(storage))
    for txid in range(31, 61):
        put(queue, txid, txid)
    versions.append(files(storage))
    for content in mixtures(*versions):
        again = left(tmp_path / "left", content)
        found = again.get("q")
        assert found is not None
        assert found.last_txid >= 30
        assert found.base_txid in (0, 25)
        assert values(found, 25) == {t: t for t in range(26, found.last_txid + 1)}
        found.open("s", 25)
        put(found, found.last_txid + 1, 7)
        again.close()
    storage.sync()
    count = queue.ring.count
    for txid in range(61, 70):
        put(queue, txid, txid)
    assert queue.ring.count == count, "the blocks before the base are used again"


def test_a_full_queue_makes_room_without_a_checkpoint(storage: Storage) -> None:
    """It syncs the bases of all queues instead of an error, as long as one has moved."""
    queue = storage.make("q")
    queue.open("s", 0)
    for txid in range(1, 400):
        put(queue, txid, txid)
        queue.keep_after("s", txid - 1)
    assert values(queue, 398) == {399: 399}
    assert queue.ring.count <= 64


def test_a_block_of_another_queue_has_no_frame(storage: Storage, tmp_path: Path) -> None:
    """A frame left in a block by a queue that was dropped has the right place and checksum."""
    queue = storage.make("a")
    queue.open("s", 0)
    put(queue, 1, 1)
    storage.sync()
    synced = files(storage)
    storage.drop("a")
    other = storage.make("b")
    put(other, 1, 2)
    now = files(storage)
    assert other.ring.where(0) == 0, "it has the block of the dropped queue"
    found = set()
    for content in mixtures(synced, now):
        content["names"] = now["names"]
        # Making a queue has synced these.
        for name in ("blocks.table", "positions"):
            content[name] = now[name]
        again = left(tmp_path / "left", content)
        left_over = again.get("b")
        assert left_over is not None
        found.add(tuple(values(left_over, 0).values()))
        again.close()
    assert found == {(), (2,)}


def test_the_number_of_a_dropped_queue_leads_to_none_of_its_frames(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has no trace of the dropped queue once the name of a new one is written."""
    on_disk: Files = {}
    fdatasync = os.fdatasync

    def sync(handle: int) -> None:
        fdatasync(handle)
        path = path_of(handle)
        on_disk[path.name] = path.read_bytes()

    monkeypatch.setattr(os, "fdatasync", sync)
    queue = storage.make("a")
    queue.open("s", 0)
    for txid in range(1, 20):
        put(queue, txid, 1)
    storage.sync()
    storage.drop("a")
    storage.make("b")
    again = left(tmp_path / "left", on_disk | {"names": (storage.folder / "names").read_bytes()})
    found = again.get("b")
    assert found is not None
    assert (found.last_txid, found.front) == (0, 0)
    again.close()


@pytest.mark.parametrize("failures", [2, 3])
def test_what_an_earlier_process_put_is_not_taken_for_what_was_put_since(
    storage: Storage, tmp_path: Path, failures: int
) -> None:
    """After a power failure txids are put again with other rows; then the power fails again."""
    queue = storage.make("q")
    queue.open("s", 0)
    put(queue, 1, 1)
    storage.sync()
    for txid in (2, 3, 4):
        put(queue, txid, 10)
    versions = [files(storage)]
    for n in range(1, failures):
        again = left(tmp_path / str(n), versions[-1])
        found = again.get("q")
        assert found is not None
        found.begin_after(1)
        for txid in (2, 3, 4):
            put(found, txid, 10 + n)
        versions.append(files(again))
        again.close()
    last = versions[-1]
    wanted = 10 + failures - 1
    for chosen in itertools.product(versions, repeat=4):
        # Every sector of the blocks may be of another time: here one for each txid.
        blocks = bytearray(last["blocks"])
        for n, version in enumerate(chosen):
            part = slice(n * SECTOR * 2, (n + 1) * SECTOR * 2)
            blocks[part] = version["blocks"][part]
        again = left(tmp_path / "left", last | {"blocks": bytes(blocks)})
        found = again.get("q")
        assert found is not None
        assert set(values(found, 1).values()) <= {wanted}
        if all(version is last for version in chosen):
            assert values(found, 1) == {2: wanted, 3: wanted, 4: wanted}
        again.close()


def test_a_txid_that_failed_in_part_is_no_part_of_the_next_attempt(
    storage: Storage, tmp_path: Path
) -> None:
    queue = storage.make("q")
    queue.open("s", 0)
    batches = [pa.record_batch({"a": pa.array(np.full(n, 1))}) for n in range(1, 200)]
    rows = next(b.num_rows for b in batches if size(b.serialize().size) == 2 * SECTOR)

    def attempt(value: int, *, fails: bool) -> None:
        with queue.together():
            for _ in range(2):
                batch = pa.record_batch({"a": pa.array(np.full(rows, value))})
                at = queue.put(Header(Kind.DIFFS, 1, 0, rows), batch)
                assert at % SECTOR == 0, "each frame may reach the disk without the other"
            if fails:
                raise OSError("for the test")
            queue.put(Header(Kind.TIME_END, 1, 0, 2 * rows))

    with pytest.raises(OSError, match="for the test"):
        attempt(5, fails=True)
    failed = files(storage)
    attempt(6, fails=False)
    now = files(storage)
    for at in range(0, 6 * SECTOR, 2 * SECTOR):
        blocks = bytearray(now["blocks"])
        blocks[at : at + 2 * SECTOR] = failed["blocks"][at : at + 2 * SECTOR]
        again = left(tmp_path / "left", now | {"blocks": bytes(blocks)})
        found = again.get("q")
        assert found is not None
        assert values(found, 0) in ({}, {1: 6})
        again.close()


def test_each_word_of_a_table_row_may_be_of_another_time(storage: Storage, tmp_path: Path) -> None:
    """A row may lie in two sectors; a block that changes its queue brings no place with it."""
    for name in ("other", "one"):
        queue = storage.make(name)
        queue.open("s", 0)
        for txid in range(1, 8):
            put(queue, txid, queue.number)
    one, other = queue, storage.queues[0]
    storage.sync()
    before = np.frombuffer(files(storage)["blocks.table"], np.uint64).reshape(-1, 3)
    one.keep_after("s", 7)
    storage.sync()
    for _ in range(8):
        one.check()
    with contextlib.suppress(NoRoom):
        for txid in range(8, 1000):
            put(other, txid, other.number)
    storage.sync()
    now, last = files(storage), other.last_txid
    after = np.frombuffer(now["blocks.table"], np.uint64).reshape(-1, 3)
    changed = [n for n in range(64) if before[n, 0] and after[n, 0] not in (0, before[n, 0])]
    assert changed, "a block has another queue now"
    for n, words in itertools.product(changed, itertools.product((False, True), repeat=2)):
        table = after.copy()
        for word, is_old in enumerate(words, 1):
            if is_old:
                table[n, word] = before[n, word]
        again = left(tmp_path / "left", now | {"blocks.table": table.tobytes()})
        found = again.get("other")
        assert found is not None
        assert found.last_txid == last or (found.last_txid >= 7 and table[n, 1] != after[n, 1])
        assert set(values(found, 0).values()) == {other.number}
        again.close()


def test_a_removed_schema_does_not_come_back(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end that a power failure has damaged is cut off on the disk before a schema is added."""
    queue = storage.make("q")
    for n in range(3):
        queue.put(Header(Kind.DIFFS, n + 1, 0, 1), pa.record_batch({f"c{n}": pa.array([n])}))
    data = bytearray(files(storage)["schemas"])
    data[len(data) // 2] ^= 1
    found = synced(monkeypatch)
    again = left(tmp_path / "left", files(storage) | {"schemas": bytes(data)})
    assert again.folder / "schemas" in found
    assert 0 < (again.folder / "schemas").stat().st_size < len(data) // 2
    again.close()


def test_a_new_folder_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries of all new folders are synced, so that no power failure takes the files away."""
    found = synced(monkeypatch)
    durable.make_folder(tmp_path / "a" / "b", 0o700)
    assert set(found) == {tmp_path, tmp_path / "a"}
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    found.clear()
    durable.make_folder(tmp_path / "a" / "b")
    assert found == []
    storage = opened(tmp_path / "a" / "b" / "queues")
    storage.make("q")
    storage.close()
    assert {tmp_path / "a" / "b", storage.folder} <= set(found)


def test_the_queues_of_an_earlier_version_are_found(storage: Storage, tmp_path: Path) -> None:
    """Its file of positions has other rows; its places and frames have no numbers of queues."""
    queue = storage.make("q")
    queue.begin_epoch(0)
    queue.open("s", 0)
    for txid in range(1, 31):
        put(queue, txid, txid)
    queue.keep_after("s", 9)
    content = files(storage)
    rows = np.frombuffer(content.pop("positions"), np.uint64).reshape(-1, 8)
    table = np.frombuffer(content["blocks.table"], np.uint64).copy().reshape(-1, 3)
    table[:, 1:] &= (1 << 48) - 1
    content |= {"fronts": rows[:, :3].tobytes(), "blocks.table": table.tobytes()}
    again = left(tmp_path / "left", content)
    found = again.get("q")
    assert found is not None
    assert (found.lost, found.base_txid, found.last_txid) == (False, 9, 30)
    assert values(found, 9) == {t: t for t in range(10, 31)}
    found.open("s", 9)
    put(found, 31, 31)
    assert not (again.folder / "fronts").exists()
    again.close()
    again = opened(again.folder)
    found = again.get("q")
    assert found is not None
    assert values(found, 9) == {t: t for t in range(10, 32)}
    again.close()
