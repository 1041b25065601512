"""Entries loaded by a population equal the same entries written one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BugError
from headrace.kernels import packed
from headrace.state.memory import MemoryStore
from headrace.state.rocks import RocksDatabase
from tests.runs import write_run
from tests.state.lists import listed_index, listed_map

KEYS = st.binary(min_size=1, max_size=3).map(lambda key: key.replace(b"\0", b"\1") + b"\0")
MAPS = st.dictionaries(KEYS, st.binary(max_size=4))
ROWS = st.lists(st.tuples(KEYS, st.binary(max_size=2), st.integers(1, 3)))


def load_map(state, entries) -> None:
    state.load(packed.pack([*entries]), packed.pack([*entries.values()]))


def load_index(state, rows) -> None:
    keys, found, weights = ([row[i] for row in rows] for i in range(3))
    state.load(packed.pack(keys), packed.pack(found), np.array(weights, np.int64))


@given(MAPS, st.booleans())
def test_a_map_is_as_if_put(entries, read_first):
    loaded, put = MemoryStore(undo=False), MemoryStore(undo=False)
    half = dict(list(entries.items())[: len(entries) // 2])
    load_map(listed_map(loaded, "m"), half)
    if read_first:
        assert listed_map(loaded, "m").get_many([*entries]) == [half.get(key) for key in entries]
    load_map(listed_map(loaded, "m"), {k: v for k, v in entries.items() if k not in half})
    listed_map(put, "m").put_many([*entries], [*entries.values()])
    assert loaded.dump() == put.dump()
    assert listed_map(loaded, "m").get_many([*entries]) == [*entries.values()]
    assert loaded.dump() == put.dump()


@given(ROWS, ROWS, st.booleans())
def test_an_index_is_as_if_added(first, second, read_first):
    loaded, added = MemoryStore(undo=False), MemoryStore(undo=False)
    listed_index(added, "i")
    load_index(listed_index(loaded, "i"), first)
    if read_first:
        listed_index(loaded, "i").scan_many([key for key, _, _ in first])
    load_index(listed_index(loaded, "i"), second)
    for key, row, weight in first + second:
        listed_index(added, "i").add_many([key], [row], [weight])
    assert loaded.dump() == added.dump()
    keys = sorted({key for key, _, _ in first + second})
    assert listed_index(loaded, "i").scan_many(keys) == listed_index(added, "i").scan_many(keys)


def test_rows_that_cancel_each_other_are_not_written():
    store = MemoryStore(undo=False)
    load_index(listed_index(store, "i"), [(b"a\0", b"x", 1), (b"a\0", b"x", -1), (b"b\0", b"y", 2)])
    added = MemoryStore(undo=False)
    listed_index(added, "i").add_many([b"b\0"], [b"y"], [2])
    assert store.dump() == added.dump()


def test_a_negative_weight_is_not_written():
    store = MemoryStore(undo=False)
    load_index(listed_index(store, "i"), [(b"a\0", b"x", -1)])
    with pytest.raises(BugError, match="negative weight"):
        store.dump()


@pytest.mark.parametrize("read", [True, False])
def test_a_key_is_not_loaded_twice(read):
    store = MemoryStore(undo=False)
    load_map(listed_map(store, "m"), {b"a": b"1"})
    load_map(listed_map(store, "m"), {b"a": b"1"})
    with pytest.raises(BugError, match="loaded twice"):
        _ = listed_map(store, "m").get_many([b"b"]) if read else store.dump()


def test_the_database_loads_likewise(tmp_path):
    database = RocksDatabase(tmp_path / "db")
    states = database.view(1)
    states.begin(1)
    load_map(listed_map(states, "m"), {b"a": b"1"})
    assert listed_map(states, "m").get_many([b"a", b"b"]) == [b"1", None]
    with pytest.raises(BugError, match="loaded twice"):
        load_map(listed_map(states, "m"), {b"a": b"1"})
    load_index(listed_index(states, "i"), [(b"a\0", b"x", 1), (b"a\0", b"x", 2)])
    assert listed_index(states, "i").scan_many([b"a\0"]) == ([0], [b"x"], [3])
    database.close()


def test_runs_hold_what_dump_shows(tmp_path):
    rows = [(i.to_bytes(3, "big"), b"row %d" % (i % 7), 1 + i % 2) for i in range(10_000)]
    store = MemoryStore(undo=False)
    load_map(listed_map(store, "m"), {key: row for key, row, _ in rows})
    load_index(listed_index(store, "i"), rows)
    dumped = store.dump()
    assert len(dumped["m"]) == len(dumped["i"]) == 10_000
    assert write_run(tmp_path / "0.sst", dumped) == 20_000
    database = RocksDatabase(tmp_path / "db")
    database.ingest(1, [tmp_path / "0.sst"])
    assert database.view(1).dump() == dumped
    database.close()


def test_what_was_loaded_before_a_checkpoint_survives_a_rollback():
    store = MemoryStore()
    load_map(listed_map(store, "m"), {b"a": b"1"})
    load_index(listed_index(store, "i"), [(b"a\0", b"x", 1)])
    before = store.dump()
    store.checkpoint()
    listed_map(store, "m").put_many([b"a"], [None])
    listed_index(store, "i").add_many([b"a\0"], [b"x"], [-1])
    store.rollback()
    assert store.dump() == before != {"i": [], "m": []}
