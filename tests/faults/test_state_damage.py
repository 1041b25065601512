"""H22: files of the state that are truncated, emptied, removed or have flipped bytes.

Opening them fails, or gives a complete earlier checkpoint; never a mixture.
"""

from __future__ import annotations

import json
import shutil

import pytest

from headrace.errors import ContinuityLost, HeadraceError, StateDamaged
from headrace.state.rocks import RocksDatabase
from tests.compared import differs, status_of
from tests.runtime.harness import Running, copy_state, create_view, settle, source_plan
from tests.state.lists import listed_index, listed_map
from tests.waiting import wait_until

ROUNDS = 4
KEYS = 400
QUERY = "SELECT * FROM items"
WAYS = [
    ("flip", 0.1),
    ("flip", 0.5),
    ("flip", 0.95),
    ("cut", 0.0),
    ("cut", 0.6),
    ("zero", 0.4),
    ("gone", 0.0),
]


def fill(path) -> None:
    """Write checkpoints of two states and metadata, some into files, some into the log."""
    database = RocksDatabase(path)
    store = database.view(1)
    for number in range(ROUNDS):
        stamp = str(number).encode()
        keys = [b"k%05d" % i for i in range(KEYS)]
        store.begin(number + 1)
        listed_map(store, "m").put_many(keys, [stamp] * KEYS)
        # Round n adds one row under every key: each key has n + 1 rows.
        listed_index(store, "i").add_many(keys, [stamp] * KEYS, [1] * KEYS)
        store.commit(number + 1)
        checkpoint = database.begin_checkpoint([(store, number + 1)], {b"stamp": stamp})
        checkpoint.write(sync=True)
        database.end_checkpoint(checkpoint)
        if number == 1:
            del store
            database.close()  # opening it again turns the log into files
            database = RocksDatabase(path)
            store = database.view(1, number + 1)
    del store
    database.close()


def read(path) -> int:
    """Return the number of the checkpoint found, after checking that it is complete; -1: none."""
    database = RocksDatabase(path)
    try:
        stamp = database.get_meta(b"stamp")
        store = database.view(1)
        keys = [b"k%05d" % i for i in range(KEYS)]
        values = listed_map(store, "m").get_many(keys)
        pairs = [p for part in listed_map(store, "m").scan() for p in zip(*part, strict=True)]
        positions, rows, weights = listed_index(store, "i").scan_many(keys)
        greatest = listed_index(store, "i").extreme_many(keys, last=True)
        least = listed_index(store, "i").extreme_many(keys, last=False)
        del store
    finally:
        database.close()
    if stamp is None:
        assert not pairs
        assert not rows
        return -1
    number = int(stamp)
    assert values == [stamp] * KEYS
    assert sorted(pairs) == [(key, stamp) for key in keys]
    every = [str(n).encode() for n in range(number + 1)]
    assert rows == every * KEYS
    assert positions == [i for i in range(KEYS) for _ in every]
    assert set(weights) == {1}
    assert greatest == [every[-1]] * KEYS
    assert least == [every[0]] * KEYS
    return number


def harm(path, how: str, place: float) -> None:
    data = bytearray(path.read_bytes())
    at = int(len(data) * place)
    match how:
        case "flip":
            data[at] ^= 0x5A
        case "cut":
            del data[at:]
        case "zero":
            data[at : at + 64] = bytes(len(data[at : at + 64]))
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data)


def test_no_damaged_file_is_ever_loaded(tmp_path):
    """Every file of a database, damaged in every way."""
    whole = tmp_path / "whole"
    fill(whole)
    assert read(whole) == ROUNDS - 1
    refused = 0
    for file in sorted(whole.iterdir()):
        for how, place in WAYS:
            if not file.stat().st_size and how != "gone":
                continue
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            harm(copy / file.name, how, place)
            try:
                found = read(copy)
            except StateDamaged:
                refused += 1
                continue
            # A crash may leave an earlier checkpoint too; its positions are as old as its data.
            earlier = file.suffix == ".log"
            assert found == ROUNDS - 1 or earlier, (file.name, how, place, found)
    assert refused > 20, "most of it must have been noticed"


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric);
CREATE TABLE others (LIKE items INCLUDING ALL);
INSERT INTO items SELECT i, 'n' || i, i FROM generate_series(1, 2000) i;
INSERT INTO others SELECT i, 'n' || i, i FROM generate_series(1, 200) i;
"""


def two_views(start, database, source) -> Running:
    running = start()
    create_view(running, database, "a", source_plan(source, "items"), QUERY)
    create_view(running, database, "b", source_plan(source, "others"), "SELECT * FROM others")
    source.execute("UPDATE items SET price = price + 1")
    source.execute("UPDATE others SET price = price + 1")
    settle(running, source, 60)
    # As the builder does after the view was adopted.
    shutil.rmtree(running.settings.staging_dir)
    return running


@pytest.mark.parametrize("file", ["CURRENT", "MANIFEST-*"])
def test_damaged_state_is_set_aside_and_the_views_say_so(start, database, source, file):
    running = two_views(start, database, source)
    running.stop()
    state = running.settings.state_dir
    (victim,) = state.glob(file)
    harm(victim, "cut", 0.5)
    before = source.execute("SELECT * FROM a ORDER BY id").fetchall()
    source.execute("DELETE FROM items WHERE id < 10")
    running = start()
    for name in ("a", "b"):
        status, code, message = status_of(source, name)
        assert (status, code) == ("error", StateDamaged.sqlstate)
        assert "damaged" in (message or "")
        assert "headrace.resync_view" in (message or "")
    assert state.with_name("state.damaged-1").is_dir()
    assert source.execute("SELECT * FROM a ORDER BY id").fetchall() == before
    # The name is free after a drop, and a new view is not disturbed by leftovers.
    create_view(running, database, "c", source_plan(source, "items"), QUERY)
    source.execute("UPDATE items SET price = 0 WHERE id % 2 = 0")
    settle(running, source, 60)
    assert differs(source, "c", QUERY) == []


def test_files_deleted_under_an_open_database(tmp_path):
    """Retrying cannot repair this error, so it is not treated as a full disk."""
    database = RocksDatabase(tmp_path / "db")
    store = database.view(1)
    shutil.rmtree(tmp_path / "db")

    def write() -> None:
        for number in range(1, 10):
            store.begin(number)
            listed_map(store, "m").put_many([b"k"], [b"v"])
            store.commit(number)
            checkpoint = database.begin_checkpoint([(store, number)], {b"n": b"1"})
            checkpoint.write(sync=True)
            database.end_checkpoint(checkpoint)

    with pytest.raises(StateDamaged):
        write()


def test_no_more_than_two_damaged_states_are_kept(start, source):
    for _ in range(4):
        running = start()
        running.stop()
        harm(running.settings.state_dir / "CURRENT", "cut", 0.5)
    start()
    aside = running.settings.state_dir.parent.glob("state.damaged-*")
    assert {path.name for path in aside} == {"state.damaged-3", "state.damaged-4"}


def test_damaged_block_stops_its_view_and_no_other(start, database, source):
    running = two_views(start, database, source)
    running.stop()
    start().stop()  # the log becomes files
    state = running.settings.state_dir
    files = {f: f.stat().st_size for f in state.glob("*.sst")}
    for path, size in files.items():
        if 2 * size > max(files.values()):
            harm(path, "flip", 0.3)  # the rows of the larger table, old and new
    running = start()
    source.execute("UPDATE items SET price = price + 1")
    source.execute("UPDATE others SET price = price + 1")
    wait_until(lambda: status_of(source, "a")[0] == "error", "the view is stopped")
    _, code, message = status_of(source, "a")
    assert code == StateDamaged.sqlstate, message
    settle(running, source, 60)
    assert status_of(source, "b")[0] == "running"
    assert differs(source, "b", "SELECT * FROM others") == []


def test_log_of_the_state_cut_while_stopped(start, database, source):
    """The state is older then: it catches up, or reports that the source lacks changes."""
    running = two_views(start, database, source)
    state = running.settings.state_dir
    image = state.with_name("image")
    copy_state(running, image)  # the files that kill -9 would leave
    running.stop()
    shutil.rmtree(state)
    image.rename(state)
    (log,) = [f for f in state.glob("*.log") if f.stat().st_size]
    harm(log, "cut", 0.6)
    source.execute("UPDATE items SET price = price * 2 WHERE id % 3 = 0")
    running = start()
    settle(running, source, 60)
    for name, query in (("a", QUERY), ("b", "SELECT * FROM others")):
        status, _, message = status_of(source, name)
        if status == "running":
            assert differs(source, name, query) == []
        else:
            assert status == "error"
            assert "headrace.resync_view" in (message or "")


def test_old_population_is_not_taken_for_lost_state(start, database, source):
    """A population staged long ago may outlive the state; it is too old to be adopted."""
    running = start()
    create_view(running, database, "a", source_plan(source, "items"), QUERY)
    source.execute("UPDATE items SET price = price + 1")
    settle(running, source, 60)
    running.stop()
    assert list(running.settings.staging_dir.glob("*/manifest.json"))
    shutil.rmtree(running.settings.state_dir)
    start()
    assert status_of(source, "a")[:2] == ("error", ContinuityLost.sqlstate)


@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_damaged_population_is_not_adopted(start, database, source, how):
    running = start()
    view_id = create_view(running, database, "a", source_plan(source, "items"), QUERY, adopt=False)
    running.stop()
    manifest = running.settings.staging_dir / str(view_id) / "manifest.json"
    assert json.loads(manifest.read_text())["runs"]
    harm(manifest, how, 0)
    start()
    status, code, message = status_of(source, "a")
    assert status == "error"
    assert code == StateDamaged.sqlstate, message


def test_errors_of_the_state_are_ours(tmp_path):
    """Callers need not know the exceptions of the RocksDB binding."""
    fill(tmp_path / "db")
    harm(tmp_path / "db" / "CURRENT", "flip", 0.2)
    with pytest.raises(HeadraceError, match="damaged"):
        RocksDatabase(tmp_path / "db")
