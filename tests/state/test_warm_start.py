"""Warm-start snapshots: a new view begins in memory, and the run decides about its content."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from headrace.errors import BugError, StateDamaged
from headrace.kernels import buffers, packed
from headrace.state import columns, rocks, warm_start
from headrace.state.files import write_run
from headrace.state.map import keygroups
from headrace.state.rocks import RocksDatabase
from headrace.state.warm_start import Pack, PackWriter
from tests.state.lists import SkipList, listed_map
from tests.state.reference_map import ReferenceSkipList

COUNT = 6000


def entries(count: int = COUNT) -> list[tuple[bytes, bytes]]:
    """Return pairs by physical key; some keys and values are empty or long."""
    rng = random.Random(7)
    keys = {b"", *(rng.randbytes(rng.choice((1, 8, 40))) for _ in range(count - 1))}
    return sorted(
        (key, rng.randbytes(rng.choice((0, 8, 300)))) for key in keygroups.physical([*keys])
    )


def written(run: Path, states: dict[str, list[tuple[bytes, bytes]]], each: int = 500) -> Path:
    pieces = {
        name: iter(
            [tuple(map(list, zip(*pairs[i : i + each]))) for i in range(0, len(pairs), each)]  # noqa: B905
        )
        for name, pairs in states.items()
    }
    with PackWriter(warm_start.of_run(run)) as pack:
        write_run(run, pieces, pack)
    return run


def found(state) -> list[tuple[bytes, bytes]]:
    return [pair for part in state.scan() for pair in zip(*part, strict=True)]


def logical(pairs: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(key[1:], value) for key, value in pairs]


def read_all(path: Path) -> None:
    read = Pack(path).pairs("m")
    into = SkipList()
    for group in range(256):
        into.set_resident(group, False)
        into.begin_load(group)
    try:
        while read.fill(into) is not None:
            pass
    finally:
        read.close()


def fail(path: Path) -> None:
    with PackWriter(path) as pack:
        pack.add("m", [b"a"], [b"1"])
        raise ZeroDivisionError


@pytest.fixture
def database(tmp_path):
    made = RocksDatabase(tmp_path / "db")
    yield made
    made.close()


@pytest.fixture
def unread(monkeypatch):
    """Forbid reads of key groups from RocksDB."""

    def refuse(*_) -> None:
        raise AssertionError("groups are read from RocksDB")

    monkeypatch.setattr(columns.Groups, "read", refuse)


def test_a_new_view_goes_into_memory_without_rocksdb(database, tmp_path, unread) -> None:
    pairs = entries()
    run = written(tmp_path / "0.sst", {"m": pairs, "n": pairs[:100]})
    database.ingest(1, [run])
    store = database.view(1, 7)
    state, other = listed_map(store, "m"), listed_map(store, "n")
    warm_start.of_run(run).unlink()  # as the builder does, once the view is taken
    while database.regulate():
        pass
    for tier, count in zip(store.listed(), (len(pairs), 100), strict=True):
        assert (tier.spilled, tier.map.total) == (0, count)
    keys = [key for key, _ in logical(pairs)]
    assert state.get_many(keys) == [value for _, value in pairs]
    assert (found(state), found(other)) == (logical(pairs), logical(pairs[:100]))


def test_what_a_checkpoint_has_changed_does_not_come_back(database, tmp_path) -> None:
    """The checkpoint came before the first piece was loaded; the snapshot does not have it."""
    pairs = entries()
    database.ingest(1, [written(tmp_path / "0.sst", {"m": pairs})])
    store = database.view(1, 7)
    store.begin(8)
    listed_map(store, "m").put_many([key for key, _ in logical(pairs)], [None] * len(pairs))
    store.commit(8)
    made = database.begin_checkpoint([(store, 8)], {})
    made.write(sync=False)
    database.end_checkpoint(made)
    for _ in range(2):
        while database.regulate(1.0):
            pass
        assert found(listed_map(store, "m")) == []
        assert store.tiers["m"].map.size == 0
        store = database.view(1, 8)


def test_a_run_of_several_has_no_say(database, tmp_path) -> None:
    """A snapshot of only a part of a state would hide the rest."""
    pairs = entries()
    runs = [written(tmp_path / f"{n}.sst", {"m": pairs[n::2]}) for n in range(2)]
    warm_start.of_run(runs[1]).unlink()
    database.ingest(1, runs)
    state = listed_map(database.view(1, 7), "m")
    while database.regulate(1.0):
        pass
    assert found(state) == logical(pairs)


@pytest.mark.parametrize("state", ["m", "n"])
def test_what_is_not_kept_does_not_come_back(database, tmp_path, state) -> None:
    pairs = entries(500)
    run = written(tmp_path / "0.sst", {"m": pairs, "n": pairs[:100]})
    database.ingest(1, [run], lambda name: name == state)
    store = database.view(1, 7)
    both = {name: listed_map(store, name) for name in ("m", "n")}
    while database.regulate(1.0):
        pass
    kept = {"m": pairs, "n": pairs[:100]}[state]
    assert {name: found(one) for name, one in both.items() if found(one)} == {state: logical(kept)}


def test_any_flipped_byte_or_cut_is_noticed(database, tmp_path) -> None:
    """The answers then come from RocksDB, as if there were no snapshot."""
    rng = random.Random(3)
    pairs = entries(400)
    run = written(tmp_path / "0.sst", {"m": pairs}, each=40)
    whole = warm_start.of_run(run).read_bytes()
    damaged = []
    for number in range(120):
        # Every other one in the index, which is at the end.
        at = rng.randrange(len(whole) - 300 if number % 2 else 0, len(whole))
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    damaged += [whole[:n] for n in (0, 1, 19, len(whole) // 2, len(whole) - 1)]
    for data in damaged:
        warm_start.of_run(run).write_bytes(data)
        with pytest.raises(StateDamaged):
            read_all(warm_start.of_run(run))
    for data in damaged[:5] + damaged[-5:]:
        warm_start.of_run(run).write_bytes(data)
        database.ingest(1, [run])
        store = database.view(1, 7)
        state = listed_map(store, "m")
        while database.regulate(1.0):
            pass
        state.get_many([b"x"])
        assert found(state) == logical(pairs)


def test_a_pack_whose_writing_failed_is_none(tmp_path) -> None:
    path = tmp_path / "0.pack"
    with pytest.raises(ZeroDivisionError):
        fail(path)
    with pytest.raises(StateDamaged):
        Pack(path)


def test_what_does_not_fit_stays_on_disk(tmp_path) -> None:
    """A state larger than the memory is loaded as far as there is room, and answers anyway."""
    pairs = [(key, b"v" * 300) for key, _ in entries(30_000)]
    run = written(tmp_path / "0.sst", {"m": pairs}, each=100)
    database = RocksDatabase(tmp_path / "db", memory_bytes=4 << 20)
    database.ingest(1, [run])
    store = database.view(1, 7)
    state = listed_map(store, "m")
    peak = 0
    while database.regulate():
        peak = max(peak, database.memory_bytes)
    budget = database.memory()["states"][1]
    assert peak < 0.6 * budget < len(pairs) * 300
    assert 0 < store.tiers["m"].spilled < 256
    assert found(state) == logical(pairs)
    database.close()


@pytest.mark.parametrize("kind", [SkipList, ReferenceSkipList], ids=["compiled", "reference"])
def test_packed_strings_load_as_lists_do(kind) -> None:
    pairs = entries(300)
    keys, values = ([pair[i] for pair in pairs] for i in range(2))
    maps = [kind(txids=True), kind(txids=True)]
    for one in maps:
        for group in range(256):
            one.set_resident(group, False)
        one.begin(1)
        one.put_many(keys[::7], [None] * len(keys[::7]))
        one.put_many(keys[3::7], [b"newer"] * len(keys[3::7]))
        for group in range(256):
            one.begin_load(group)
    maps[0].load(keys, values)
    buffered = [
        buffers.view(b) for p in map(packed.pack, (keys, values)) for b in (p.data, p.bounds)
    ]
    maps[1].load_packed(*buffered)
    assert [maps[0].chain(key) for key in keys] == [maps[1].chain(key) for key in keys]
    for wrong in ([0], [0, 1, len(buffered[0]) + 1], [0, -1, 1], [0, 2, 1]):
        bounds = buffers.view(buffers.np.array(wrong, buffers.np.int64))
        with pytest.raises(ValueError):  # noqa: PT011
            maps[1].load_packed(buffered[0], bounds, *buffered[2:])
    maps[1].set_resident(keys[0][0], True)
    with pytest.raises(BugError):
        maps[1].load_packed(*buffered)


@pytest.mark.parametrize("linked", [True, False])
def test_a_large_run_is_not_copied_where_it_can_be_linked(
    database, tmp_path, monkeypatch, linked
) -> None:
    monkeypatch.setattr(rocks, "_COPIED_BYTES", 0)
    run, pairs = tmp_path / "0.sst", entries(500)
    written(run, {"m": pairs})
    run.with_suffix(".link").write_bytes(b"what a crash has left")
    if not linked:

        def another_disk(*_) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", another_disk)
    content = run.read_bytes()
    for _ in range(2):
        database.ingest(1, [run])
        assert run.stat().st_nlink == 1 + linked
        assert [file.suffix for file in sorted(tmp_path.glob("0.*"))] == [".pack", ".sst"]
        assert found(listed_map(database.view(1), "m")) == logical(pairs)
    # Over existing entries RocksDB gives the file a sequence number, which it must not contain.
    database.disk.place("v1").family.ingest(run)
    assert run.read_bytes() == content
