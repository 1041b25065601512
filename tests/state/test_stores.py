"""The state contract: one suite for memory and RocksDB, against plain dictionaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import BugError
from headrace.state import layout
from headrace.state.map import keygroups
from headrace.state.memory import MemoryStore
from headrace.state.regulator import Load, Spill
from headrace.state.rocks import RocksDatabase
from tests.amounts import examples
from tests.state.lists import listed_index, listed_map

KEYS = [b"a", b"b", b"\xff", b"\xfe\xff", b"c\x00", b"z"]
ROWS = [b"", b"\x00", b"a", b"ab", b"\xff\xff", b"q"]
_views = itertools.count()


class Memory:
    def __init__(self) -> None:
        self.store = MemoryStore()

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def rollback(self) -> None:
        self.store.rollback()

    def dump(self):
        return self.store.dump()

    def drop(self) -> None:
        pass


class Rocks:
    """A store between checkpoints: one txid is in flight at any time."""

    def __init__(self, database: RocksDatabase) -> None:
        self.database = database
        self.view_id = next(_views)
        self.store = database.view(self.view_id)
        self.txid = 1
        self.store.begin(1)

    def checkpoint(self) -> None:
        self.store.prepare()
        self.store.commit(self.txid)
        checkpoint = self.database.begin_checkpoint([(self.store, self.txid)], {})
        checkpoint.write(sync=False)
        self.database.end_checkpoint(checkpoint)
        self.settle()
        self.txid += 1
        self.store.begin(self.txid)

    def rollback(self) -> None:
        assert self.store.rollback(self.txid) == self.txid - 1
        self.store.begin(self.txid)

    def settle(self) -> None:
        """Do the work of a regulator between txids."""

    def dump(self):
        return self.store.dump()

    def drop(self) -> None:
        self.database.drop_view(self.view_id)


class Spilled(Rocks):
    """Reads from RocksDB all that is in a checkpoint."""

    def settle(self) -> None:
        for tier in self.store.tiers.values():
            for group in range(256):
                if tier.resident[group]:
                    finish(Spill(tier, group))
            while tier.cleaning:
                tier.clean(10)
            assert tier.map.total == 0


class Loaded(Rocks):
    """Loads and spills groups at every checkpoint."""

    def settle(self) -> None:
        for tier in self.store.tiers.values():
            for group in range(self.txid % 2, 256, 3):
                if tier.resident[group]:
                    finish(Spill(tier, group))
            for group in range(self.txid % 4, 256, 4):
                if not tier.resident[group]:
                    finish(Load(tier, group))


def finish(job: Spill | Load) -> None:
    while not job.step():
        pass


Make = Callable[[], Memory | Rocks]
KINDS = {"rocks": Rocks, "spilled": Spilled, "loaded": Loaded}


@pytest.fixture(params=["memory", *KINDS], scope="module")
def make(request, tmp_path_factory) -> Iterator[Make]:
    if request.param == "memory":
        yield Memory
        return
    path: Path = tmp_path_factory.mktemp("state")
    database = RocksDatabase(path)
    yield lambda: KINDS[request.param](database)
    database.close()


def physical(entries) -> layout.Pairs:
    """Return pairs as on disk, from (key, row, value)."""
    prefixes = keygroups.physical([key for key, _, _ in entries])
    return sorted(
        (prefix + row, value) for prefix, (_, row, value) in zip(prefixes, entries, strict=True)
    )


def scanned(state) -> dict[bytes, bytes]:
    """Return a whole map; its order is that of the physical keys."""
    pairs = [p for part in state.scan() for p in zip(*part, strict=True)]
    keys = keygroups.physical([key for key, _ in pairs])
    assert keys == sorted(set(keys))
    return dict(pairs)


def test_map_gets_what_was_put(make: Make) -> None:
    held = make()
    state = listed_map(held.store, "m")
    state.put_many([b"b", b"a", b"b"], [b"1", b"2", b"3"])
    assert state.get_many([b"a", b"b", b"c", b"a"]) == [b"2", b"3", None, b"2"]
    held.checkpoint()
    state.put_many([b"a", b"c"], [None, b""])
    assert state.get_many([b"a", b"b", b"c"]) == [None, b"3", b""]
    assert scanned(state) == {b"b": b"3", b"c": b""}
    held.checkpoint()
    assert held.dump() == {"m": physical([(b"b", b"", b"3"), (b"c", b"", b"")])}


def test_a_map_can_be_emptied_while_it_is_scanned(make: Make) -> None:
    held = make()
    state = listed_map(held.store, "m")
    keys = [b"%05d" % i for i in range(10_000)]
    state.put_many(keys[::2], keys[::2])
    held.checkpoint()
    state.put_many(keys[1::2], keys[1::2])
    seen: list[bytes] = []
    for chunk, values in state.scan():
        assert chunk == values
        assert len(chunk) <= 8192
        seen.extend(chunk)
        state.put_many(chunk, [None] * len(chunk))
    assert sorted(seen) == keys
    assert list(state.scan()) == []
    held.checkpoint()
    assert held.dump() == {"m": []}


def test_index_adds_weights_and_forgets_zeros(make: Make) -> None:
    held = make()
    state = listed_index(held.store, "i")
    state.add_many([b"k", b"k", b"l"], [b"b", b"a", b"a"], [1, 2, 3])
    assert state.scan_many([b"l", b"x", b"k"]) == ([0, 2, 2], [b"a", b"a", b"b"], [3, 2, 1])
    held.checkpoint()
    state.add_many([b"k", b"k", b"l"], [b"a", b"c", b"a"], [-2, 1, -1])
    assert state.scan_many([b"k", b"l"]) == ([0, 0, 1], [b"b", b"c", b"a"], [1, 1, 2])
    assert state.weight_many([b"k", b"k", b"l", b"x"], [b"a", b"c", b"a", b"a"]) == [0, 1, 2, 0]
    held.checkpoint()
    one, two = layout.encode_weight(1), layout.encode_weight(2)
    assert held.dump() == {"i": physical([(b"k", b"b", one), (b"k", b"c", one), (b"l", b"a", two)])}


def test_extremes_skip_rows_whose_net_weight_is_zero(make: Make) -> None:
    held = make()
    state = listed_index(held.store, "i")
    # The key of all ones has no string above it; its neighbours must not leak in.
    for key in (b"\xff", b"\xfe\xff", b"m"):
        state.add_many([key] * 3, [b"a", b"b", b"c"], [1, 1, 1])
    held.checkpoint()
    keys = [b"\xff", b"\xfe\xff", b"m", b"n"]
    assert state.extreme_many(keys, last=False) == [b"a", b"a", b"a", None]
    assert state.extreme_many(keys, last=True) == [b"c", b"c", b"c", None]
    state.add_many([b"m", b"m", b"\xff"], [b"a", b"c", b"c"], [-1, -1, -1])
    state.add_many([b"m", b"m"], [b"B", b"bb"], [1, 1])
    assert state.extreme_many(keys, last=False) == [b"a", b"a", b"B", None]
    assert state.extreme_many(keys, last=True) == [b"b", b"c", b"bb", None]
    state.add_many([b"m", b"m", b"m"], [b"B", b"bb", b"b"], [-1, -1, -1])
    assert state.extreme_many([b"m"], last=False) == [None]
    assert state.extreme_many([b"m"], last=True) == [None]


def test_large_keys_are_read_page_by_page_while_they_change(make: Make) -> None:
    state = listed_index(make().store, "i")
    rows = [b"%05d" % i for i in range(3000)]
    state.add_many([b"k"] * 3000, rows, [1] * 3000)
    assert state.first_many([b"k"], 3, [b"02000"])[1] == rows[2000:2003]
    state.add_many([b"k", b"k"], [b"02000", b"02001x"], [-1, 2])
    assert state.first_many([b"k"], 3, [b"02000"]) == (
        [0, 0, 0],
        [b"02001", b"02001x", b"02002"],
        [1, 2, 1],
    )
    assert state.first_many([b"k"], 9, [b"02999"])[1] == rows[2999:]
    assert state.first_many([b"k"], 10**6) == state.scan_many([b"k"])
    assert state.first_many([], 3) == ([], [], [])


def test_the_empty_key_holds_every_row(make: Make) -> None:
    state = listed_index(make().store, "i")
    state.add_many([b"", b""], [b"y", b"x"], [1, 1])
    assert state.scan_many([b""]) == ([0, 0], [b"x", b"y"], [1, 1])
    assert state.extreme_many([b""], last=True) == [b"y"]


def test_negative_weight_is_a_bug_at_the_checkpoint_only(make: Make) -> None:
    held = make()
    state = listed_index(held.store, "i")
    state.add_many([b"k"], [b"a"], [-1])
    state.add_many([b"k"], [b"a"], [1])
    held.checkpoint()
    state.add_many([b"k", b"l"], [b"a", b"b"], [-1, 1])
    with pytest.raises(BugError):
        held.checkpoint()
    held.rollback()
    held.checkpoint()
    assert held.dump() == {"i": []}


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.lists(
                st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.sampled_from(ROWS))),
                max_size=5,
            ),
        ),
        st.tuples(
            st.just("add"),
            st.lists(
                st.tuples(st.sampled_from(KEYS), st.sampled_from(ROWS), st.integers(-2, 3)),
                max_size=6,
            ),
        ),
        st.tuples(st.just("checkpoint"), st.just([])),
        st.tuples(st.just("rollback"), st.just([])),
    ),
    max_size=12,
)


@settings(examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(todo=operations)
def test_any_sequence_equals_dictionaries(make: Make, todo) -> None:
    held = make()
    entries, index = listed_map(held.store, "m"), listed_index(held.store, "i")
    now: tuple[dict, dict] = ({}, {})
    saved: tuple[dict, dict] = ({}, {})
    for kind, items in todo:
        if kind == "put":
            entries.put_many([k for k, _ in items], [v for _, v in items])
            for key, value in items:
                now[0].pop(key, None)
                if value is not None:
                    now[0][key] = value
        elif kind == "add":
            # As in a consistent stream, no weight ends below zero.
            done = []
            for key, row, weight in items:
                weight = max(weight, -now[1].get((key, row), 0))  # noqa: PLW2901
                done.append((key, row, weight))
                now[1][key, row] = now[1].get((key, row), 0) + weight
                if not now[1][key, row]:
                    del now[1][key, row]
            index.add_many(*([item[i] for item in done] for i in range(3)))
        elif kind == "checkpoint":
            held.checkpoint()
            saved = (dict(now[0]), dict(now[1]))
        else:
            held.rollback()
            now = (dict(saved[0]), dict(saved[1]))
        check(entries, index, *now)
    held.checkpoint()
    assert held.dump() == {
        "i": physical([(*k, layout.encode_weight(w)) for k, w in now[1].items()]),
        "m": physical([(k, b"", v) for k, v in now[0].items()]),
    }
    held.drop()


def check(entries, index, values: dict, weights: dict) -> None:
    assert entries.get_many(KEYS) == [values.get(key) for key in KEYS]
    assert scanned(entries) == values
    rows = [
        (at, row, weights[key, row])
        for at, key in enumerate(KEYS)
        for row in sorted(ROWS)
        if (key, row) in weights
    ]
    assert list(zip(*index.scan_many(KEYS), strict=True)) == rows
    pairs = [(key, row) for key in KEYS for row in ROWS]
    assert index.weight_many([k for k, _ in pairs], [r for _, r in pairs]) == [
        weights.get(pair, 0) for pair in pairs
    ]
    for count, start in ((1, b""), (2, b"a"), (9, b"\x00")):
        assert list(zip(*index.first_many(KEYS, count, [start] * len(KEYS)), strict=True)) == [
            entry
            for at in range(len(KEYS))
            for entry in [e for e in rows if e[0] == at and e[1] >= start][:count]
        ]
        assert index.before_many(KEYS, [start] * len(KEYS)) == [
            max((r for k, r in weights if k == key and r < start), default=None) for key in KEYS
        ]
    assert list(zip(*index.first_many(KEYS, 99), strict=True)) == rows
    for last, choose in ((False, min), (True, max)):
        assert index.extreme_many(KEYS, last=last) == [
            choose((row for k, row in weights if k == key), default=None) for key in KEYS
        ]
