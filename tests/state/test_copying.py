"""Copies of a state database that another process writes: each is one of its checkpoints."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TransientError
from headrace.state import copying
from headrace.state.rocks import RocksDatabase
from tests.amounts import seeds
from tests.state.lists import listed_map
from tests.waiting import wait_until

VIEWS = (1, 2, 3)
MEMORY_BYTES = 8 << 20
"""So little that memtables are flushed all the time."""


def write(path: Path, seed: int, done: Any, stop: Any) -> None:
    """Write checkpoints, after each of which all keys have its number."""
    rng = random.Random(seed)
    database = RocksDatabase(path, memory_bytes=MEMORY_BYTES)
    stores = [database.view(view) for view in VIEWS]
    database.disk.own("v3")
    keys = [b"%d" % key for key in range(40)]
    for number in itertools.count(1):
        # Large ones are written as files that are ingested.
        size = rng.choice((10, 1000, 30_000))
        for store in stores:
            store.begin(number)
            listed_map(store, "a").put_many(keys, [b"%d " % number + bytes(size)] * len(keys))
            store.prepare()
            store.commit(number)
        made = database.begin_checkpoint(
            [(store, number) for store in stores], {b"number": b"%d" % number}
        )
        made.write(sync=False)
        database.end_checkpoint(made)
        done.value = number
        if stop.is_set():
            break
        database.regulate()
    database.close()


def numbers(database: RocksDatabase) -> set[int]:
    """Return the numbers that the keys have."""
    found = {int(database.get_meta(b"number") or b"0")}
    for view in VIEWS:
        for pairs in database.view(view).dump().values():
            assert len(pairs) == 40
            found |= {int(value.split()[0]) for _, value in pairs}
    return found


@pytest.mark.parametrize("seed", seeds(2, 20))
def test_a_copy_is_one_checkpoint(tmp_path: Path, seed: int) -> None:
    context = multiprocessing.get_context("spawn")
    done, stop = context.Value("q", 0), context.Event()
    writer = context.Process(target=write, args=(tmp_path / "db", seed, done, stop))
    writer.start()
    try:
        wait_until(lambda: done.value > 3, "it writes")
        seen = set()
        for _ in range(30):
            first = done.value
            copy = copying.open_copy(tmp_path / "db", tmp_path / "copy", MEMORY_BYTES, time.sleep)
            try:
                (number,) = numbers(copy)
            finally:
                copy.close()
            assert first <= number <= done.value + 1
            seen.add(number)
        assert len(seen) > 1
    finally:
        stop.set()
        writer.join()
    assert writer.exitcode == 0
    # A copy has no part in the original.
    whole = RocksDatabase(tmp_path / "db", memory_bytes=MEMORY_BYTES)
    assert numbers(whole) == {done.value}
    whole.close()


def test_files_that_cannot_be_linked_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    store.begin(1)
    listed_map(store, "a").put_many([b"k"], [b"v"])
    store.commit(1)
    made = database.begin_checkpoint([(store, 1)], {})
    made.write(sync=True)
    database.end_checkpoint(made)
    database.close()

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    copy = copying.open_copy(tmp_path / "db", tmp_path / "copy", MEMORY_BYTES, time.sleep)
    assert [len(pairs) for pairs in copy.view(1).dump().values()] == [1]
    copy.close()


def test_a_database_that_always_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RocksDatabase(tmp_path / "db").close()
    counts = itertools.count()
    monkeypatch.setattr(copying.files, "manifest", lambda _: ("MANIFEST-000001", next(counts)))
    monkeypatch.setattr(copying, "_beginning", lambda *_: b"")
    with pytest.raises(TransientError, match="change too fast"):
        copying.open_copy(tmp_path / "db", tmp_path / "copy", MEMORY_BYTES, lambda _: None)
