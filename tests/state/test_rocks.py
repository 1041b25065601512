"""Guarantees of only the durable store: reopening, atomic checkpoints, runs, kill -9."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.errors import BugError, OtherFormat
from headrace.process import durable
from headrace.state import checkpoint as state_checkpoint
from headrace.state import formats
from headrace.state.columns import Family
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase
from tests.runs import write_run
from tests.state.lists import listed_index, listed_map


def fill(store, start: int, end: int) -> None:
    keys = [b"%06d" % i for i in range(start, end)]
    listed_map(store, "s").put_many(keys, keys)
    listed_index(store, "j.left").add_many([b"k"] * len(keys), keys, [1] * len(keys))


def fill_next(store, start: int, end: int) -> None:
    """Fill the store in its next txid."""
    store.begin(store.txid + 1)
    fill(store, start, end)
    store.prepare()
    store.commit(store.txid + 1)


def checkpoint(database: RocksDatabase, stores, meta, *, sync: bool = False) -> None:
    made = database.begin_checkpoint([(store, store.txid) for store in stores], meta)
    made.write(sync=sync)
    database.end_checkpoint(made)


def test_reopening_finds_the_last_checkpoint(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    one, two = database.view(1), database.view(2)
    fill_next(one, 0, 10)
    fill_next(two, 5, 8)
    checkpoint(database, [one, two], {b"view/1": b"7", b"view/2": b"7"}, sync=True)
    before = one.dump(), two.dump()
    fill_next(one, 20, 30)
    database.close()

    database = RocksDatabase(tmp_path / "db")
    assert (database.view(1).dump(), database.view(2).dump()) == before
    assert listed_map(database.view(1), "s").get_many([b"000003", b"000025"]) == [b"000003", None]
    assert database.scan_meta(b"view/") == [(b"view/1", b"7"), (b"view/2", b"7")]
    assert database.get_meta(b"view/3") is None
    database.close()


def test_a_store_that_cannot_be_checkpointed_leaves_the_others_alone(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    good, bad = database.view(1), database.view(2)
    fill_next(good, 0, 3)
    fill_next(bad, 0, 3)
    with pytest.raises(BugError):
        database.begin_checkpoint([(good, 1), (bad, 0)], {b"m": b"1"})
    assert good.dump() == {"s": [], "j.left": []}
    assert database.get_meta(b"m") is None
    checkpoint(database, [good, bad], {b"m": b"1"})
    assert [len(pairs) for pairs in good.dump().values()] == [3, 3]
    database.put_meta({b"m": None}, sync=False)
    assert database.get_meta(b"m") is None
    database.close()


def test_dropping_a_view_leaves_the_others(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    stores = [database.view(1), database.view(11)]
    for store in stores:
        fill_next(store, 0, 3)
    checkpoint(database, stores, {})
    kept = stores[1].dump()
    database.drop_view(1)
    database.drop_view(5)
    assert database.view(1).dump() == {}
    database.close()
    database = RocksDatabase(tmp_path / "db")
    assert database.view(1).dump() == {}
    assert database.view(11).dump() == kept
    database.close()


def test_states_are_dropped_with_a_note_and_the_others_stay(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    store, other = database.view(1), database.view(-64)
    for each in (store, other):
        fill_next(each, 0, 10)
    checkpoint(database, [store, other], {})
    fill_next(store, 10, 20)
    checkpoint(database, [store], {})
    before = store.dump()
    database.drop_states(1, lambda state: state == "s", {b"note": b"1"})
    assert store.dump() == {"s": before["s"]}
    fill_next(store, 20, 30)
    assert listed_map(store, "s").get_many([b"000015", b"000025"]) == [b"000015", b"000025"]
    keys = [b"%06d" % i for i in range(20, 30)]
    assert listed_index(store, "j.left").scan_many([b"k"])[1] == keys, "nothing of before"
    database.close()

    database = RocksDatabase(tmp_path / "db")
    assert database.get_meta(b"note") == b"1"
    assert database.views() == {1, -64}
    assert database.view(1).dump() == {"s": before["s"]}
    assert set(database.view(-64).dump()) == {"s", "j.left"}
    database.close()


def test_ingested_runs_equal_the_memory_store(tmp_path: Path) -> None:
    memory = MemoryStore()
    fill(memory, 0, 1000)
    dumped = memory.dump()
    # Two runs whose key ranges overlap, as two Spark partitions write them.
    runs = [tmp_path / f"{part}.sst" for part in range(2)]
    for part, path in enumerate(runs):
        assert write_run(path, {name: p[part::2] for name, p in dumped.items()})
    assert write_run(tmp_path / "none.sst", {"s": []}) == 0
    assert not (tmp_path / "none.sst").exists()
    database = RocksDatabase(tmp_path / "db")
    database.ingest(3, runs)
    assert database.view(3).dump() == dumped
    database.ingest(3, runs)
    assert database.view(3).dump() == dumped
    assert all(path.exists() for path in runs)
    store = database.view(3)
    fill_next(store, 1000, 1002)
    checkpoint(database, [store], {})
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
    listed_map(store, "s")
    with pytest.raises(BugError):
        listed_index(store, "s")
    database.close()


def test_a_checkpoint_is_written_while_txids_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(state_checkpoint, "BATCH_PAIRS_MAX", 1000)
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    state, index = listed_map(store, "s"), listed_index(store, "i")
    for txid in range(1, 13):
        store.begin(txid)
        # Small checkpoints are one batch, large ones go by files.
        keys = [b"%d" % i for i in range(20 if txid % 3 else 1100)]
        state.put_many(keys, [b"%d" % txid] * len(keys))
        old = index.scan_many([b"k"])[1]
        index.add_many([b"k"] * len(old), old, [-1] * len(old))
        index.add_many([b"k"], [b"%d" % txid], [1])
        store.prepare()
        store.commit(txid)
        made = database.begin_checkpoint([(store, txid)], {b"m": b"%d" % txid})
        thread = threading.Thread(target=made.write, kwargs={"sync": False})
        thread.start()
        for later in (txid + 1, txid + 2):
            store.begin(later)
            state.put_many([b"0", b"%d" % later], [b"later"] * 2)
            index.add_many([b"k"] * 2, [b"%d" % later, b"%d" % txid], [1, 0])
            assert state.get_many([b"0", b"1"]) == [b"later", b"%d" % txid]
        thread.join()
        assert made.written
        assert store.rollback(txid + 1) == txid
        assert state.get_many([b"0"]) == [b"%d" % txid]
        assert index.scan_many([b"k"]) == ([0], [b"%d" % txid], [1])
        database.end_checkpoint(made)
        database.regulate()
        assert index.scan_many([b"k"]) == ([0], [b"%d" % txid], [1])
    before = store.dump()
    assert len(before["s"]) == 1100
    del store, state, index
    database.close()
    database = RocksDatabase(tmp_path / "db")
    assert database.view(1, 12).dump() == before
    assert database.get_meta(b"m") == b"12"
    assert not (tmp_path / "db" / "checkpoint").exists()
    database.close()


def test_a_checkpoint_that_is_not_written_belongs_to_the_next(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    fill_next(store, 0, 5)
    database.end_checkpoint(database.begin_checkpoint([(store, 1)], {b"m": b"1"}))
    assert database.get_meta(b"m") is None
    assert store.dump()["s"] == []
    fill_next(store, 5, 8)
    checkpoint(database, [store], {b"m": b"2"}, sync=True)
    assert [len(pairs) for pairs in store.dump().values()] == [8, 8]
    database.put_meta({b"n": b"3"}, sync=True)
    assert database.scan_meta(b"") == [(b"m", b"2"), (b"n", b"3")]
    database.close()


def test_state_of_another_format_is_refused(tmp_path: Path) -> None:
    """A state of a later version is refused before anything is opened."""
    path = tmp_path / "db"
    assert formats.later([path]) is None
    database = RocksDatabase(path)
    fill_next(database.view(1), 0, 5)
    database.close()
    assert formats.later([path]) is None
    (path / "FORMAT").write_text("999\n")
    with pytest.raises(OtherFormat, match='format "999"'):
        RocksDatabase(path)
    later = formats.later([tmp_path / "none", path])
    assert later is not None
    assert later.code == "55000"
    # The first version wrote no such file.
    (path / "FORMAT").unlink()
    with pytest.raises(OtherFormat, match='format "1"'):
        RocksDatabase(path)
    assert formats.later([path]) is None


@pytest.mark.parametrize("large", [False, True])
def test_a_large_checkpoint_killed_anywhere_counts_wholly_or_not_at_all(
    tmp_path: Path, monkeypatch, large
) -> None:
    """Every call into RocksDB and the file system by a checkpoint is a place to die."""
    count = 1100 if large else 10
    monkeypatch.setattr(state_checkpoint, "BATCH_PAIRS_MAX", 1000)
    deaths = 0
    for place in range(100):
        path = tmp_path / f"db{place}"
        database = RocksDatabase(path)
        store = database.view(1)
        fill_next(store, 0, 10)
        checkpoint(database, [store], {b"m": b"1"})
        fill_next(store, 5, 5 + count)
        store.begin(3)
        listed_map(store, "s").put_many([b"000001"], [None])
        store.commit(3)
        whole = {1: 10, 3: 5 + count - 1}
        made = database.begin_checkpoint([(store, 3)], {b"m": b"3"})
        calls = iter(range(1000))

        def dying(real, calls=calls, place=place):
            def call(*args, **kwargs):
                if next(calls) == place:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(database.disk, "write", dying(database.disk.write))
            patch.setattr(Family, "ingest", dying(Family.ingest))
            patch.setattr(Family, "flush_soon", dying(Family.flush_soon))
            patch.setattr(durable, "sync", dying(durable.sync))
            patch.setattr("shutil.rmtree", dying(shutil.rmtree))
            patch.setattr("os.link", dying(os.link))
            try:
                made.write(sync=True)
            except Killed:
                deaths += 1
                died = True
            else:
                died = False
        del store
        database.close()
        database = RocksDatabase(path)
        txid = int(database.get_meta(b"m") or b"0")
        pairs = database.view(1, txid).dump()
        assert len(pairs["s"]) == whole[txid]
        assert len(pairs["j.left"]) == (10 if txid == 1 else 5 + count)
        assert not (path / "checkpoint").exists()
        database.close()
        if not died:
            assert txid == 3
            break
    assert deaths > (8 if large else 1)


class Killed(BaseException):
    """A kill that no code catches."""


_WRITER = """
import sys
from pathlib import Path
from headrace.state import checkpoint as state_checkpoint
from headrace.state.rocks import RocksDatabase
from tests.state.lists import listed_index, listed_map
state_checkpoint.BATCH_PAIRS_MAX = 1000
database = RocksDatabase(Path(sys.argv[1]))
last = int(database.get_meta(b"txid") or b"0")
stores = [database.view(1, last), database.view(2, last)]
while True:
    last += 1
    for store in stores:
        store.begin(last)
        keys = [b"%06d" % i for i in range(last, last + 50 + 1100 * (last % 3 == 0))]
        listed_map(store, "s").put_many(keys, [b"%d" % last] * len(keys))
        listed_index(store, "i").add_many([b"k"] * 2, [b"t", b"%d" % last], [1, 1])
        store.commit(last)
    pairs = [(store, last) for store in stores]
    checkpoint = database.begin_checkpoint(pairs, {b"txid": b"%d" % last})
    checkpoint.write(sync=False)
    database.end_checkpoint(checkpoint)
    sys.stdout.write("%d\\n" % last)
    sys.stdout.flush()
"""


def test_kill_9_keeps_the_last_checkpoint_whole(tmp_path: Path) -> None:
    path = tmp_path / "db"
    reported = 0
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _ in range(4 + 2 * round_number):
            reported = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        reported = max([reported, *map(int, child.stdout.read().split("\n")[:-1])])
        child.wait()
        database = RocksDatabase(path)
        stored = int(database.get_meta(b"txid") or b"0")
        assert stored >= reported
        for view in (1, 2):
            store = database.view(view)
            assert listed_map(store, "s").get_many([b"%06d" % stored]) == [b"%d" % stored]
            last = stored + 49 + 1100 * (stored % 3 == 0)
            found = listed_map(store, "s").get_many([b"%06d" % last, b"%06d" % (stored + 1150)])
            assert found == [b"%d" % stored, None]
            index = listed_index(store, "i")
            assert index.weight_many([b"k"], [b"t"]) == [stored]
            assert len(index.scan_many([b"k"])[0]) == stored + 1
        del store, index
        database.close()


def test_states_are_handed_over_with_what_is_written(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    one, other = database.view(1), database.view(2)
    fill_next(one, 0, 10)
    fill_next(other, 0, 3)
    checkpoint(database, [one, other], {})
    had = one.dump()
    database.hand_over(1, -64, {b"m": b"1"})
    assert database.view(-64, 1).dump() == had
    assert database.view(1, 1).dump() == {}
    database.close()

    database = RocksDatabase(tmp_path / "db")
    assert database.get_meta(b"m") == b"1"
    assert database.views() == {-64, 2}
    taker, giver = database.view(-64, 1), database.view(1, 1)
    assert (taker.dump(), giver.dump()) == (had, {})
    # Each view continues separately.
    fill_next(taker, 10, 12)
    fill_next(giver, 20, 21)
    checkpoint(database, [taker, giver], {})
    assert (len(taker.dump()["s"]), len(giver.dump()["s"])) == (12, 1)
    # The giver is removed, also on a repeated drop; the taker has all.
    for _ in range(2):
        database.drop_view(1)
        assert database.views() == {-64, 2}
    assert len(database.view(-64, 2).dump()["s"]) == 12
    database.drop_view(-64)
    assert database.views() == {2}
    database.close()

    database = RocksDatabase(tmp_path / "db")
    assert database.views() == {2}
    assert database.view(-64).dump() == {}
    database.close()
