"""The machine's power fails: a folder has the entries of its last sync, or any later ones.

RocksDB syncs its own entries.  Each test makes copies of a state database at every sync, without
one of the entries that Headrace has made and not synced, and opens the copies.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headrace.state import checkpoint as state_checkpoint
from headrace.state import files
from headrace.state.rocks import RocksDatabase
from tests.disks import path_of, synced
from tests.state.lists import listed_map

OURS = ("FORMAT", "MANIFEST.length", "checkpoint")


def entries(path: Path) -> set[str]:
    return {found.name for found in path.iterdir()}


class Folder:
    """The folder of a database, and its states after a power failure."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.synced: dict[str, set[str]] = {}
        """Entries of each folder that are on the disk."""
        self.left: list[tuple[str, Path]] = []
        """Copies, each with the sync before which the power failed."""
        fsync = os.fsync

        def sync(handle: int) -> None:
            path = path_of(handle)
            self.fail(path.name)
            fsync(handle)
            if path.is_dir():
                self.synced[str(path)] = entries(path)

        monkeypatch.setattr(os, "fsync", sync)

    def fail(self, before: str) -> None:
        """Copy the database for each entry that may be missing, and with all of them."""
        fresh = set(OURS) - self.synced.get(str(self.path), set())
        for missing in (None, *sorted(fresh & entries(self.path))):
            copy = self.path.parent / f"left {len(self.left)}"
            ignored = shutil.ignore_patterns("LOCK", *([missing] if missing else []))
            shutil.copytree(self.path, copy, ignore=ignored)
            self.left.append((f"{missing} is missing before the sync of {before}", copy))


def fill(database: RocksDatabase, txid: int, count: int) -> None:
    store = database.view(1, txid - 1)
    keys = [b"%06d" % n for n in range(count)]
    store.begin(txid)
    listed_map(store, "s").put_many(keys, [b"%d" % txid] * count)
    store.prepare()
    store.commit(txid)
    made = database.begin_checkpoint([(store, txid)], {b"m": b"%d" % txid})
    made.write(sync=True)
    database.end_checkpoint(made)


def test_each_entry_of_a_large_checkpoint_is_on_the_disk_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint is durable before the folder with its files is."""
    monkeypatch.setattr(state_checkpoint, "BATCH_PAIRS_MAX", 100)
    path = tmp_path / "db"
    database = RocksDatabase(path)
    fill(database, 1, 10)
    with monkeypatch.context() as patch:
        folder = Folder(path, patch)
        folder.synced[str(path)] = entries(path)
        fill(database, 2, 1000)
    database.close()
    txids = set()
    for when, copy in folder.left:
        again = RocksDatabase(copy)
        txid = int(again.get_meta(b"m") or b"0")
        pairs = again.view(1, txid).dump()["s"]
        assert len(pairs) == {1: 10, 2: 1000}[txid], when
        assert {value for _, value in pairs} == {b"%d" % txid}, when
        txids.add(txid)
        again.close()
    assert txids == {1, 2}


def test_a_new_database_is_known_by_its_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB makes a database only after the entry of the format is on the disk."""
    with monkeypatch.context() as patch:
        folder = Folder(tmp_path / "new" / "db", patch)
        folder.path.mkdir(parents=True)
        database = RocksDatabase(folder.path)
        folder.fail("the next checkpoint")
        fill(database, 1, 10)
        folder.fail("the end")
    database.close()
    assert folder.left
    for when, copy in folder.left:
        again = RocksDatabase(copy)  # raises OtherFormat for one without a format
        assert again.get_meta(b"m") in (None, b"1"), when
        again.close()


def test_the_note_about_a_manifest_comes_after_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB begins a manifest at any time; the note of another one would mean damage."""
    path = tmp_path / "db"
    database = RocksDatabase(path)
    fill(database, 1, 10)
    database.close()
    order = synced(monkeypatch)
    name = (path / "CURRENT").read_text().strip()
    size = (path / name).stat().st_size
    noted = files.note_manifest(path, None)
    assert noted == (name, size)
    assert [found.name for found in order] == [name, "db", "MANIFEST.length.new"]
    order.clear()
    files.note_manifest(path, (name, size - 1))
    assert [found.name for found in order] == [name, "MANIFEST.length.new"]


def test_a_damaged_database_that_was_set_aside_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = synced(monkeypatch)
    (tmp_path / "db").mkdir()
    files.set_aside(tmp_path / "db")
    assert found == [tmp_path]
    assert [path.name for path in tmp_path.iterdir()] == ["db.damaged-1"]
