"""Sizes of states: exact in memory, otherwise approximate, and cheap to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state import sizes as measured
from headrace.state.rocks import RocksDatabase
from headrace.state.sizes import sizes
from tests.state.lists import listed_map
from tests.state.test_rocks import checkpoint

VALUE = b"x" * 20


def put(store, name: str, count: int) -> None:
    store.begin(store.txid + 1)
    listed_map(store, name).put_many([b"%08d" % i for i in range(count)], [VALUE] * count)
    store.prepare()
    store.commit(store.txid + 1)


def reopened(path: Path, database: RocksDatabase, store) -> tuple[RocksDatabase, object]:
    """Reopen as after a start: all is on disk, and nothing in memory."""
    checkpoint(database, [store], {}, sync=True)
    database.close()
    database = RocksDatabase(path)
    store = database.view(1)
    for name in ("few", "many"):
        listed_map(store, name)
    return database, store


def test_what_is_in_memory_is_counted(tmp_path):
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    put(store, "few", 300)
    store.begin(store.txid + 1)
    listed_map(store, "few").put_many([b"%08d" % i for i in range(50)], [None] * 50)
    found = sizes(store)["few"]
    assert (found.rows, found.exact) == (250, True)
    assert 250 * (len(VALUE) + 8) < found.bytes == store.memory_bytes
    database.close()


def test_what_is_on_disk_is_estimated(tmp_path, monkeypatch):
    path = tmp_path / "db"
    database = RocksDatabase(path)
    store = database.view(1)
    put(store, "few", 300)
    put(store, "many", 30_000)
    database, store = reopened(path, database, store)
    seen = []
    monkeypatch.setattr(measured, "PAIRS_MAX", 4_096)
    reading = type(store.tiers["many"].section.groups(0, 0)).read

    def read(self, *args):
        found = reading(self, *args)
        seen.append(len(found[0]))
        return found

    monkeypatch.setattr("headrace.state.columns.Groups.read", read)
    found = sizes(store)
    # A small state was read as a whole: key group, key and value.
    assert (found["few"].rows, found["few"].bytes) == (300, 300 * (1 + 8 + len(VALUE)))
    assert found["many"].rows == pytest.approx(30_000, rel=0.15)
    assert found["many"].bytes == pytest.approx(30_000 * 29, rel=0.15)
    assert not found["many"].exact
    assert sum(seen) <= 4_096, "it does not look at all of it"
    database.close()


def test_a_group_that_is_not_seen_to_its_end(tmp_path, monkeypatch):
    """The group's total is estimated from the files of the column family."""
    path = tmp_path / "db"
    database = RocksDatabase(path)
    store = database.view(1)
    put(store, "few", 1)
    put(store, "many", 40_000)
    database, store = reopened(path, database, store)
    monkeypatch.setattr(measured, "PAIRS_MAX", 64)
    assert sizes(store)["many"].rows == pytest.approx(40_000, rel=0.3)
    database.close()
