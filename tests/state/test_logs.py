"""RocksDB's files besides the state: few, however many views were created and dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state import columns
from headrace.state.checkpoint import BATCH_PAIRS_MAX
from headrace.state.logs import LOGS_MAX
from headrace.state.rocks import RocksDatabase
from tests.runs import write_run
from tests.state.lists import listed_map
from tests.waiting import wait_until

ROUNDS = 3 * LOGS_MAX


def write(database: RocksDatabase, store, keys: list[bytes], meta) -> None:
    store.begin(store.txid + 1)
    listed_map(store, "m").put_many(keys, [b"%d" % (store.txid + 1)] * len(keys))
    store.prepare()
    store.commit(store.txid + 1)
    made = database.begin_checkpoint([(store, store.txid)], meta)
    made.write(sync=True)
    database.end_checkpoint(made)


def few_logs(database: RocksDatabase) -> None:
    # RocksDB flushes in the background.
    wait_until(lambda: count(database, "*.log") <= LOGS_MAX, "few logs are left")


def count(database: RocksDatabase, pattern: str) -> int:
    return len(list(database.disk.path.glob(pattern)))


def test_views_that_come_and_go_leave_no_logs(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    for view in range(1, ROUNDS + 1):
        run = tmp_path / f"{view}.sst"
        write_run(run, {"m": [(b"a", b"1")]})
        database.ingest(view, [run])
        store = database.view(view)
        write(database, store, [b"b"], {b"view/%d" % view: b"1"})
        database.drop_view(view)
        database.put_meta({b"view/%d" % view: None}, sync=False)
    few_logs(database)
    database.close()


def test_a_view_that_is_flushed_often_does_not_pile_up_the_logs_of_others(tmp_path: Path) -> None:
    """Each large checkpoint begins a log; other views' small changes are in all earlier logs."""
    database = RocksDatabase(tmp_path / "db")
    quiet, busy = database.view("quiet"), database.view("busy")
    write(database, quiet, [b"once"], {b"n": b"0"})
    many = [b"%06d" % i for i in range(BATCH_PAIRS_MAX + 1)]
    for number in range(ROUNDS):
        write(database, busy, many[:3], {b"n": b"%d" % number})
        write(database, busy, many, {b"n": b"%d" % number})
    write(database, quiet, [b"twice"], {b"n": b"last"})
    few_logs(database)
    quiet_txid, busy_txid = quiet.txid, busy.txid
    database.close()
    database = RocksDatabase(tmp_path / "db")
    assert database.get_meta(b"n") == b"last"
    found = listed_map(database.view("quiet", quiet_txid), "m")
    assert found.get_many([b"once", b"twice"]) == [b"1", b"2"]
    found = listed_map(database.view("busy", busy_txid), "m")
    assert found.get_many(many) == [b"%d" % busy_txid] * len(many)
    del found
    database.close()


def test_what_rocksdb_tells_of_itself_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new column family makes RocksDB's event log and its list of files longer."""
    monkeypatch.setattr(columns, "EVENTS_S_MAX", 1)
    monkeypatch.setattr(columns, "MANIFEST_BYTES_MAX", 4 * 1024)
    database = RocksDatabase(tmp_path / "db")
    seen: set[str] = set()
    rounds = 0

    def come_and_go() -> bool:
        nonlocal rounds
        database.disk.own(f"v{rounds}")
        store = database.view(rounds)
        write(database, store, [b"a"], {b"n": b"%d" % rounds})
        database.drop_view(rounds)
        rounds += 1
        seen.update(path.name for path in database.disk.path.glob("LOG*"))
        return len(seen) > columns.EVENTS_FILES_MAX + 1

    wait_until(come_and_go, "it has begun some files")
    assert count(database, "LOG*") <= columns.EVENTS_FILES_MAX
    manifests = [path.stat().st_size for path in database.disk.path.glob("MANIFEST-*")]
    assert len(manifests) <= 2
    assert max(manifests) < 2 * columns.MANIFEST_BYTES_MAX
    database.close()
    database = RocksDatabase(tmp_path / "db")
    assert database.get_meta(b"n") == b"%d" % (rounds - 1)
    database.close()
