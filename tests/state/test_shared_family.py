"""Small views share a column family: their number does not affect the cost of a new view."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from rocksdict import Rdict

from headrace.state import formats, layout, rocks, warm_start
from headrace.state.files import write_run
from headrace.state.map import keygroups
from headrace.state.rocks import RocksDatabase
from headrace.state.warm_start import PackWriter
from tests.amounts import seeds
from tests.state.lists import listed_map

States = dict[str, dict[bytes, bytes]]
"""Physical keys and values by state."""
NAMES = ("a", "a.left", "b")


def some(rng: random.Random) -> States:
    """Return states of a view, one of which may be empty."""
    return {
        name: {
            key: rng.randbytes(rng.choice((0, 8, 200)))
            for key in keygroups.physical(
                [*{rng.randbytes(rng.choice((1, 9))) for _ in range(rng.choice((0, 3, 300)))}]
            )
        }
        for name in NAMES
    }


def staged(run: Path, states: States, *, packed: bool) -> list[Path]:
    """Write runs as a population leaves them."""
    pieces = {
        n: iter([tuple(map(list, zip(*sorted(s.items()), strict=True)))])
        for n, s in states.items()
        if s
    }
    if not packed:
        warm_start.of_run(run).unlink(missing_ok=True)
        return [run] if write_run(run, pieces) else []
    with PackWriter(warm_start.of_run(run)) as pack:
        return [run] if write_run(run, pieces, pack) else []


def dumped(database: RocksDatabase, view_id: int) -> States:
    return {name: dict(pairs) for name, pairs in database.view(view_id).dump().items()}


def present(states: States) -> States:
    return {name: pairs for name, pairs in states.items() if pairs}


def families(path: Path) -> int:
    return len(Rdict.list_cf(str(path)))


def test_no_view_adds_a_column_family(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    before = families(tmp_path / "db")
    rng = random.Random(1)
    made = {}
    for view_id in (*range(1, 60), *range(-60, 0)):
        made[view_id] = some(rng)
        database.ingest(view_id, staged(tmp_path / "0.sst", made[view_id], packed=True))
        assert dumped(database, view_id) == present(made[view_id])
    assert families(tmp_path / "db") == before
    assert database.views() == {i for i, states in made.items() if present(states)}
    database.close()


@pytest.mark.parametrize("seed", seeds(3, 40))
def test_views_do_not_touch_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any order of operations leaves each view with the states of a dictionary."""
    rng = random.Random(seed)
    monkeypatch.setattr(rocks, "_COPIED_BYTES", rng.choice((0, 4096, 1 << 20)))
    database = RocksDatabase(tmp_path / "db")
    known: dict[int, States] = {}
    ids = [1, 2, 10, 11, 100, -1, -10, -100]
    for step in range(40):
        view_id = rng.choice(ids)
        match rng.choice(("ingest", "ingest", "part", "drop", "write", "give", "clear", "reopen")):
            case "ingest" | "part" as how:
                states = some(rng)
                runs = staged(tmp_path / f"{step}.sst", states, packed=rng.random() < 0.7)
                kept = set(NAMES) if how == "ingest" else {"a", "b"}
                database.ingest(view_id, runs, None if how == "ingest" else kept.__contains__)
                known[view_id] = {n: s for n, s in states.items() if n in kept}
            case "drop":
                database.drop_view(view_id)
                known.pop(view_id, None)
            case "write":
                store = database.view(view_id)
                store.begin(1)
                key = rng.randbytes(3)
                listed_map(store, "c").put_many([key], [b"v"])
                store.prepare()
                store.commit(1)
                made = database.begin_checkpoint([(store, 1)], {})
                made.write(sync=rng.random() < 0.5)
                database.end_checkpoint(made)
                known.setdefault(view_id, {}).setdefault("c", {})[keygroups.physical([key])[0]] = (
                    b"v"
                )
            case "give":
                if view_id in known:
                    # A taker is always a new view.
                    ids.append(max(ids) + rng.choice((1, 9)))
                    database.hand_over(view_id, ids[-1], {})
                    known[ids[-1]] = known.pop(view_id)
            case "clear":
                if view_id in known:
                    database.view(view_id)
                    database.drop_states(view_id, {"b"}.__contains__, {})
                    known[view_id] = {n: s for n, s in known[view_id].items() if n == "b"}
            case "reopen":
                database.close()
                database = RocksDatabase(tmp_path / "db")
        assert {i: dumped(database, i) for i in ids} == {i: present(known.get(i, {})) for i in ids}
        assert {i for i in known if present(known[i])} <= database.views() <= known.keys(), step
    database.close()


def test_states_of_the_format_before_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its views has a separate column family."""
    monkeypatch.setattr(rocks, "_COPIED_BYTES", 0)
    database = RocksDatabase(tmp_path / "db")
    states = {"a": {b"xk": b"1"}}
    database.ingest(7, staged(tmp_path / "0.sst", states, packed=True))
    assert families(tmp_path / "db") == 3
    database.close()
    (tmp_path / "db" / "FORMAT").write_text("4\n")
    assert formats.later([tmp_path / "db"]) is None
    database = RocksDatabase(tmp_path / "db")
    assert (dumped(database, 7), database.views()) == (states, {7})
    assert (tmp_path / "db" / "FORMAT").read_text() == f"{layout.FORMAT}\n"
    database.drop_view(7)
    assert database.views() == set()
    database.close()


def test_a_damaged_pack_is_not_copied(tmp_path: Path) -> None:
    database = RocksDatabase(tmp_path / "db")
    states = {"a": {b"x%d" % i: b"1" for i in range(9)}, "b": {b"yk": b"2"}}
    runs = staged(tmp_path / "0.sst", states, packed=True)
    pack = warm_start.of_run(runs[0])
    data = bytearray(pack.read_bytes())
    at = data.index(b"yk")
    data[at] ^= 1
    pack.write_bytes(data)
    database.ingest(7, runs)
    assert dumped(database, 7) == states
    database.close()
