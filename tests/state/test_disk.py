"""A full disk: the checkpoint reports it, results stay right, and a later checkpoint succeeds."""

from __future__ import annotations

import contextlib

import pytest

from headrace.errors import TransientError
from headrace.state.rocks import RocksDatabase
from tests.disks import fill_up, small_disk
from tests.state.lists import listed_index, listed_map
from tests.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def disk(tmp_path):
    """Yield a file system of 48 MiB."""
    with small_disk(tmp_path / "disk", 48 * MIB) as path:
        yield path


def run(store, keys: list[bytes]) -> None:
    txid = store.txid + 1
    store.begin(txid)
    listed_map(store, "m").put_many(keys, [b"%d" % txid] * len(keys))
    listed_index(store, "i").add_many(keys, [b"r"] * len(keys), [1] * len(keys))
    store.prepare()
    store.commit(txid)


def attempt(database: RocksDatabase, store) -> None:
    made = database.begin_checkpoint([(store, store.txid)], {b"txid": b"%d" % store.txid})
    try:
        made.write(sync=True)
    finally:
        database.end_checkpoint(made)


def go_on(database: RocksDatabase, store, keys: list[bytes]) -> None:
    """Write small checkpoints, which still fit into the log's reserved space."""
    for _ in range(1000):
        run(store, keys)
        attempt(database, store)


@pytest.mark.parametrize(
    "count",
    [
        4000,
        # RocksDB checks only every few seconds whether there is room for its log again.
        pytest.param(500, marks=pytest.mark.slow),
    ],
)
def test_full_disk_is_noticed_and_made_up_for(disk, count) -> None:
    keys = [b"%08d" % i for i in range(count)]
    database = RocksDatabase(disk / "db")
    store = database.view(1)
    run(store, keys)
    attempt(database, store)
    filler = fill_up(disk)
    with pytest.raises(TransientError) as caught:
        go_on(database, store, keys)
    assert caught.value.code == "53100"
    assert "full" in caught.value.message
    failed = store.txid
    durable = int(database.get_meta(b"txid") or b"0")
    assert durable == failed - 1
    # Results stay right meanwhile, and txids go on.
    for _ in range(2):
        run(store, keys)
        now = b"%d" % store.txid
        assert listed_map(store, "m").get_many(keys) == [now] * count
        assert listed_index(store, "i").scan_many(keys)[2] == [store.txid] * count
        with pytest.raises(TransientError):
            attempt(database, store)
    filler.unlink()

    def written(store=store) -> bool:
        with contextlib.suppress(TransientError):
            attempt(database, store)
            return True
        return False

    wait_until(written, "there is room again")
    last = store.txid
    del store
    database.close()
    database = RocksDatabase(disk / "db")
    store = database.view(1, last)
    assert database.get_meta(b"txid") == b"%d" % last
    assert listed_map(store, "m").get_many(keys) == [b"%d" % last] * count
    assert listed_index(store, "i").scan_many(keys)[2] == [last] * count
    del store
    database.close()


@pytest.mark.parametrize("count", [4000, 500])
def test_killed_on_a_full_disk_keeps_the_last_checkpoint(disk, count) -> None:
    keys = [b"%08d" % i for i in range(count)]
    database = RocksDatabase(disk / "db")
    store = database.view(1)
    run(store, keys)
    attempt(database, store)
    filler = fill_up(disk)
    with pytest.raises(TransientError):
        go_on(database, store, keys)
    durable = int(database.get_meta(b"txid") or b"0")
    del store
    database.close()
    filler.unlink()
    database = RocksDatabase(disk / "db")
    store = database.view(1, durable)
    assert listed_map(store, "m").get_many(keys) == [b"%d" % durable] * count
    assert listed_index(store, "i").scan_many(keys)[2] == [durable] * count
    assert int(database.get_meta(b"txid") or b"0") == durable
    del store
    database.close()
