"""What only the durable store promises: reopening, atomic checkpoints, runs, kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.errors import BugError
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase, write_run


def fill(store, start: int, end: int) -> None:
    keys = [b"%06d" % i for i in range(start, end)]
    store.map("s").put_many(keys, keys)
    store.index("j.left").add_many([b"k"] * len(keys), keys, [1] * len(keys))


def test_reopening_finds_the_last_checkpoint(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    one, two = database.view(1), database.view(2)
    fill(one, 0, 10)
    fill(two, 5, 8)
    database.checkpoint([one, two], {b"view/1": b"7", b"view/2": b"7"}, sync=True)
    before = one.dump(), two.dump()
    fill(one, 20, 30)
    database.close()

    database = RocksDatabase(tmp_path / "db")
    assert (database.view(1).dump(), database.view(2).dump()) == before
    assert database.view(1).map("s").get_many([b"000003", b"000025"]) == [
        b"000003",
        None,
    ]
    assert database.scan_meta(b"view/") == [(b"view/1", b"7"), (b"view/2", b"7")]
    assert database.get_meta(b"view/3") is None
    database.close()


def test_a_failing_view_stores_nothing_of_the_others(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    good, bad = database.view(1), database.view(2)
    fill(good, 0, 3)
    bad.index("i").add_many([b"k"], [b"r"], [-1])
    with pytest.raises(BugError):
        database.checkpoint([good, bad], {b"m": b"1"}, sync=False)
    assert good.dump() == {"s": [], "j.left": []}
    assert database.get_meta(b"m") is None
    # The writes are still pending; what is at fault can be left out.
    bad.rollback()
    database.checkpoint([good, bad], {b"m": b"1"}, sync=False)
    assert [len(pairs) for pairs in good.dump().values()] == [3, 3]
    database.checkpoint([], {b"m": None}, sync=False)
    assert database.get_meta(b"m") is None
    database.close()


def test_dropping_a_view_leaves_the_others(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    stores = [database.view(1), database.view(11)]
    for store in stores:
        fill(store, 0, 3)
    database.checkpoint(stores, {}, sync=False)
    kept = stores[1].dump()
    database.drop_view(1)
    database.drop_view(5)
    assert database.view(1).dump() == {}
    database.close()
    database = RocksDatabase(tmp_path / "db")
    assert database.view(1).dump() == {}
    assert database.view(11).dump() == kept
    database.close()


def test_ingested_runs_equal_the_memory_store(tmp_path: Path) -> None:
    memory = MemoryStore()
    fill(memory, 0, 1000)
    memory.map("empty")
    dumped = memory.dump()
    runs: dict[str, list[Path]] = {}
    for name, pairs in dumped.items():
        # Two runs whose key ranges overlap, as two Spark partitions write them.
        for part in range(2):
            path = tmp_path / f"{name}.{part}.sst"
            if write_run(path, pairs[part::2]):
                runs.setdefault(name, []).append(path)
            else:
                runs.setdefault(name, [])
    database = RocksDatabase(tmp_path / "db")
    database.ingest(3, runs)
    assert database.view(3).dump() == dumped
    database.ingest(3, runs)
    assert database.view(3).dump() == dumped
    assert all(path.exists() for paths in runs.values() for path in paths)
    store = database.view(3)
    fill(store, 1000, 1002)
    database.checkpoint([store], {}, sync=False)
    fill(memory, 1000, 1002)
    assert store.dump() == memory.dump()
    database.close()


def test_a_second_process_is_told_off(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    with pytest.raises(OSError, match="cannot open"):
        RocksDatabase(tmp_path / "db")
    database.close()
    RocksDatabase(tmp_path / "db").close()


def test_one_state_has_one_shape(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    store.map("s")
    with pytest.raises(BugError):
        store.index("s")
    database.close()


def run_txid(store, txid: int) -> None:
    """Txid n puts (k, n) and moves the one row of the index from n - 1 to n."""
    store.begin(txid)
    store.map("s").put_many([b"k", b"%06d" % txid], [b"%d" % txid] * 2)
    index = store.index("i")
    rows = index.scan_many([b"k"])[1]
    index.add_many([b"k"] * len(rows), rows, [-1] * len(rows))
    index.add_many([b"k"], [b"%d" % txid], [1])
    store.prepare()


def shows(store, txid: int) -> None:
    value = b"%d" % txid
    assert store.map("s").get_many([b"k", b"%06d" % txid]) == [value, value]
    assert store.map("s").get_many([b"%06d" % (txid + 1)]) == [None]
    assert store.index("i").scan_many([b"k"]) == ([0], [value], [1])
    assert store.index("i").extreme_many([b"k"], last=True) == [value]
    assert store.index("i").weight_many([b"k"] * 2, [value, b"0"]) == [1, 0]


def test_txids_go_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    for txid in range(1, 40):
        run_txid(store, txid)
        store.commit(txid)
        checkpoint = database.begin_checkpoint([(store, txid)], {b"m": b"%d" % txid})
        thread = threading.Thread(target=checkpoint.write, kwargs={"sync": False})
        thread.start()
        run_txid(store, txid + 1)
        shows(store, txid + 1)
        thread.join()
        shows(store, txid + 1)
        assert store.rollback(txid + 1) == txid
        shows(store, txid)
        database.end_checkpoint(checkpoint)
        shows(store, txid)
    del store
    database.close()
    database = RocksDatabase(tmp_path / "db")
    shows(database.view(1, 39), 39)
    assert database.get_meta(b"m") == b"39"
    database.close()


def test_a_checkpoint_that_is_not_written_leaves_all_as_it_was(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    run_txid(store, 1)
    store.commit(1)
    database.end_checkpoint(database.begin_checkpoint([(store, 1)], {b"m": b"1"}))
    run_txid(store, 2)
    store.commit(2)
    shows(store, 2)
    assert database.get_meta(b"m") is None
    checkpoint = database.begin_checkpoint([(store, 2)], {b"m": b"2"})
    checkpoint.write(sync=True)
    database.end_checkpoint(checkpoint)
    database.put_meta({b"n": b"3"}, sync=True)
    assert store.rollback(3) == 2
    shows(store, 2)
    assert database.scan_meta(b"") == [(b"m", b"2"), (b"n", b"3")]
    database.close()


_WRITER = """
import sys
from pathlib import Path
from headrace.state.rocks import RocksDatabase
database = RocksDatabase(Path(sys.argv[1]))
stores = [database.view(1), database.view(2)]
last = int(database.get_meta(b"txid") or b"0")
while True:
    last += 1
    for store in stores:
        keys = [b"%06d" % i for i in range(last, last + 50)]
        store.map("s").put_many(keys, [b"%d" % last] * 50)
        store.index("i").add_many([b"k"] * 2, [b"t", b"%d" % last], [1, 1])
    database.checkpoint(stores, {b"txid": b"%d" % last}, sync=False)
    sys.stdout.write("%d\\n" % last)
    sys.stdout.flush()
"""


def test_kill_9_keeps_the_last_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "db"
    reported = 0
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for _ in range(5 + 3 * round_number):
            reported = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        reported = max([reported, *map(int, child.stdout.read().split("\n")[:-1])])
        child.wait()
        database = RocksDatabase(path)
        stored = int(database.get_meta(b"txid") or b"0")
        assert stored >= reported
        for view in (1, 2):
            store = database.view(view)
            assert store.map("s").get_many([b"%06d" % stored]) == [b"%d" % stored]
            assert store.map("s").get_many([b"%06d" % (stored + 50)]) == [None]
            index = store.index("i")
            assert index.weight_many([b"k"], [b"t"]) == [stored]
            assert len(index.scan_many([b"k"])[0]) == stored + 1
        del store, index
        database.close()
