"""Txids, checkpoints, spilling, loading and crashes in any order, against dictionaries."""

from __future__ import annotations

import copy
from collections import deque
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import BugError
from headrace.state import columns, regulator, rocks, warm_start
from headrace.state.map import keygroups
from headrace.state.memory import MemoryStore
from headrace.state.regulator import Load, Regulator, Spill
from headrace.state.rocks import RocksDatabase
from tests.amounts import examples
from tests.state.lists import listed_index, listed_map

KEYS = [b"a", b"b", b"\xff", b"c\x00", b"z", b"\xfe\xff"]
ROWS = [b"", b"a", b"ab", b"\xff\xff"]
GROUPS = sorted({key[0] for key in keygroups.physical(KEYS)})

Model = tuple[dict[bytes, bytes], dict[tuple[bytes, bytes], int]]


class Pair:
    """A database with one view, and its expected content: per txid, a pair of dictionaries."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = RocksDatabase(path)
        self.durable: tuple[int, Model] = (0, ({}, {}))
        self.committed = self.durable
        self.open()

    def populate(self, puts, adds) -> None:
        """Replace the state by a population's, with each pair in a separate piece."""
        values, weights = dict(puts), {(key, row): weight for key, row, weight in adds}
        made = MemoryStore()
        listed_map(made, "m").put_many([*values], [*values.values()])
        listed_index(made, "i").add_many(
            [key for key, _ in weights], [row for _, row in weights], [*weights.values()]
        )
        run = self.path.with_suffix(".sst")
        alone = {n: iter([([k], [v]) for k, v in p]) for n, p in made.dump().items() if p}
        with warm_start.PackWriter(warm_start.of_run(run)) as pack:
            rocks.write_run(run, alone, pack)
        self.database.ingest(1, [run])
        self.durable = (0, (values, weights))
        self.open()
        for job in self.database._regulator._work:
            self.regulator.add(job)
        assert self.regulator.busy

    def open(self) -> None:
        txid = self.durable[0]
        assert int(self.database.get_meta(b"txid") or b"0") == txid
        self.store = self.database.view(1, txid)
        self.map, self.index = listed_map(self.store, "m"), listed_index(self.store, "i")
        self.committed = self.durable
        self.in_flight: deque[tuple[int, Model]] = deque()
        self.checkpoint = None
        self.aside = self.durable
        self.jobs: list[Spill | Load] = []
        self.time = 0.0
        self.regulator = Regulator(1, lambda: self.time)
        self.txid = txid

    @property
    def now(self) -> Model:
        return self.in_flight[-1][1] if self.in_flight else self.committed[1]

    # --- operations

    def run(self, puts, adds) -> None:
        """Run one txid; several may be in flight."""
        if len(self.in_flight) == 4:
            return
        values, weights = copy.deepcopy(self.now)
        self.txid += 1
        self.store.begin(self.txid)
        self.map.put_many([k for k, _ in puts], [v for _, v in puts])
        for key, value in puts:
            values.pop(key, None)
            if value is not None:
                values[key] = value
        kept = []
        for key, row, weight in adds:
            weight = max(weight, -weights.get((key, row), 0))  # noqa: PLW2901
            kept.append((key, row, weight))
            weights[key, row] = weights.get((key, row), 0) + weight
            if not weights[key, row]:
                del weights[key, row]
        if kept:
            # Retractions first: weights are negative on the way.
            first, *rest = kept
            self.index.add_many([first[0]], [first[1]], [-5])
            self.index.add_many(*([one[i] for one in [first, *rest]] for i in range(3)))
            self.index.add_many([first[0]], [first[1]], [5])
        self.store.prepare()
        self.in_flight.append((self.txid, (values, weights)))

    def commit(self) -> None:
        if self.in_flight:
            self.committed = self.in_flight.popleft()
            self.store.commit(self.committed[0])

    def rollback(self, count: int) -> None:
        count = min(count, len(self.in_flight))
        if not count:
            return
        first = self.in_flight[-count][0]
        assert self.store.rollback(first) == first - 1
        for _ in range(count):
            self.in_flight.pop()
        self.txid = first - 1

    def begin(self) -> None:
        if self.checkpoint is None:
            self.aside = self.committed
            meta = {b"txid": b"%d" % self.aside[0]}
            self.checkpoint = self.database.begin_checkpoint([(self.store, self.aside[0])], meta)

    def write(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.write(sync=False)
            self.durable = self.aside

    def end(self) -> None:
        if self.checkpoint is not None:
            self.database.end_checkpoint(self.checkpoint)
            self.checkpoint = None

    def spill(self, group: int) -> None:
        for tier in self.store.tiers.values():
            if tier.resident[group]:
                self.jobs.append(Spill(tier, group))
                self.jobs[-1].step()

    def load(self, group: int) -> None:
        for tier in self.store.tiers.values():
            if not tier.resident[group] and not self.busy(tier, group):
                self.jobs.append(Load(tier, group))
                self.jobs[-1].step()

    def fill(self) -> None:
        """Load all of it at once, as after a start."""
        for tier in self.store.tiers.values():
            if tier.spilled == 256 and not any(self.busy(tier, group) for group in range(256)):
                self.jobs.append(Load(tier, 0, 255, unasked=True))
                self.jobs[-1].step()

    def busy(self, tier, group: int) -> bool:
        return any(
            job.tier is tier and group in (job.groups if isinstance(job, Load) else [job.group])
            for job in self.jobs
        )

    def regulate(self, budget: int) -> None:
        """Change the memory budget, and do some of the work that follows."""
        self.regulator.budget_bytes = budget
        self.time += 2
        self.regulator.step([*self.store.tiers.values()])

    def work(self) -> None:
        self.jobs = [job for job in self.jobs if not job.step()]

    def give_up(self) -> None:
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            self.jobs += job.give_up() if isinstance(job, Load) else [job]

    def crash(self) -> None:
        """Lose the memory; only written entries remain."""
        del self.map, self.index, self.store, self.jobs, self.regulator
        self.checkpoint = None
        self.database.close()
        self.database = RocksDatabase(self.path)
        self.open()

    # --- checks

    def check(self) -> None:
        values, weights = self.now
        assert self.map.get_many(KEYS) == [values.get(key) for key in KEYS]
        found = [p for part in self.map.scan() for p in zip(*part, strict=True)]
        assert dict(found) == values
        assert len(found) == len(values)
        rows = [
            (at, row, weights[key, row])
            for at, key in enumerate(KEYS)
            for row in ROWS
            if (key, row) in weights
        ]
        assert list(zip(*self.index.scan_many(KEYS), strict=True)) == rows
        pairs = [(key, row) for key in KEYS for row in ROWS]
        assert self.index.weight_many([k for k, _ in pairs], [r for _, r in pairs]) == [
            weights.get(pair, 0) for pair in pairs
        ]
        for last, choose in ((False, min), (True, max)):
            assert self.index.extreme_many(KEYS, last=last) == [
                choose((row for k, row in weights if k == key), default=None) for key in KEYS
            ]


puts = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.sampled_from(ROWS))), max_size=4
)
adds = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(ROWS), st.integers(-2, 3)), max_size=5
)
groups = st.sampled_from(GROUPS)
txids = (
    st.tuples(st.just("run"), puts, adds),
    st.tuples(st.just("run"), puts, adds),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("rollback"), st.integers(1, 3)),
    st.tuples(st.just("begin")),
    st.tuples(st.just("write")),
    st.tuples(st.just("end")),
    st.tuples(st.just("crash")),
)
steps = st.lists(
    st.one_of(
        *txids,
        st.tuples(st.just("spill"), groups),
        st.tuples(st.just("load"), groups),
        st.tuples(st.just("fill")),
        st.tuples(st.just("work")),
        st.tuples(st.just("give_up")),
    ),
    max_size=25,
)
full = ([(key, b"v") for key in KEYS], [(key, row, 2) for key in KEYS for row in ROWS])
stopped = [("run", *full), ("commit",), ("begin",), ("write",), ("end",), ("crash",)]
"""Operations that leave something to load."""
budgets = st.tuples(st.just("regulate"), st.sampled_from([1, 1000, 3000, 1 << 20]))
regulated = st.lists(st.one_of(*txids, budgets, budgets, budgets), max_size=40)


class Ticks:
    """A clock that advances a millisecond per read: a step of the regulator is two slices."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


@settings(
    examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(todo=steps)
def test_any_order_of_events_equals_dictionaries(tmp_path_factory, todo) -> None:
    play(tmp_path_factory, todo)


@settings(
    examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(todo=regulated)
def test_any_budget_and_any_restart_equal_dictionaries(tmp_path_factory, todo) -> None:
    """Entries that were loaded whole, in part, or not at all give the same answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regulator, "clock", Ticks())
        play(tmp_path_factory, todo)


@settings(
    examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(todo=regulated)
def test_a_population_that_goes_into_memory_equals_dictionaries(tmp_path_factory, todo) -> None:
    """Meanwhile it is written, checkpointed, abandoned for lack of room, and lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regulator, "clock", Ticks())
        play(tmp_path_factory, todo, [("populate", *full), ("regulate", 1 << 20)])


def play(tmp_path_factory, todo, begin=stopped) -> None:
    pair = Pair(tmp_path_factory.mktemp("tiers") / "db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_PAIRS_PER_FILL", 1)
        try:
            for name, *arguments in [*begin, *todo]:
                getattr(pair, name)(*arguments)
                pair.check()
            pair.crash()
            pair.check()
        finally:
            pair.database.close()


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path / "db")
    yield made
    made.database.close()


def test_txids_in_flight_read_each_other_and_roll_back_alone(pair) -> None:
    pair.run([(b"a", b"1")], [(b"b", b"a", 1)])
    pair.run([(b"a", None)], [(b"b", b"a", -1)])
    pair.run([(b"a", b"3")], [(b"b", b"ab", 2)])
    pair.check()
    pair.rollback(1)
    pair.check()
    pair.commit()
    pair.rollback(1)
    pair.check()
    assert pair.store.txid == 1


def test_a_negative_weight_stops_the_txid_before_the_sink(pair) -> None:
    pair.store.begin(1)
    pair.index.add_many([b"a", b"b"], [b"x", b"x"], [-1, 1])
    with pytest.raises(BugError, match="negative"):
        pair.store.prepare()
    pair.store.rollback(1)
    pair.store.begin(1)
    pair.store.prepare()


def test_txids_come_in_order(pair) -> None:
    pair.store.begin(5)
    with pytest.raises(BugError):
        pair.store.begin(5)
    pair.store.begin(6)
    with pytest.raises(BugError):
        pair.store.commit(6)
    pair.store.commit(5)
    with pytest.raises(BugError):
        pair.database.begin_checkpoint([(pair.store, 6)], {})
    with pytest.raises(BugError):
        pair.database.begin_checkpoint([(pair.store, 4)], {})
    # A view without changes in the last txids is checkpointed at the last of them.
    pair.store.commit(6)
    checkpoint = pair.database.begin_checkpoint([(pair.store, 9)], {})
    with pytest.raises(BugError, match="under way"):
        pair.database.begin_checkpoint([(pair.store, 9)], {})
    pair.database.end_checkpoint(checkpoint)


def test_a_committed_txid_goes_back_to_the_last_checkpoint(pair) -> None:
    pair.run([(b"a", b"1")], [(b"b", b"a", 1)])
    pair.commit()
    pair.begin()
    pair.write()
    pair.end()
    assert pair.store.rollback(2) == 1, "nothing is in flight"
    pair.run([(b"a", b"2")], [(b"b", b"a", 1)])
    pair.commit()
    pair.run([(b"a", b"3")], [(b"b", b"a", 1)])
    assert pair.store.rollback(2) == 1
    assert pair.map.get_many([b"a"]) == [b"1"]
    assert pair.index.weight_many([b"b"], [b"a"]) == [1]
    pair.store.begin(2)
    pair.map.put_many([b"a"], [b"4"])
    assert pair.store.rollback(1) == 1
    assert pair.map.get_many([b"a"]) == [b"1"]


def test_a_state_may_appear_while_txids_are_in_flight(pair) -> None:
    pair.store.begin(1)
    pair.store.begin(2)
    state = listed_map(pair.store, "late")
    state.put_many([b"k"], [b"2"])
    pair.store.rollback(2)
    assert state.get_many([b"k"]) == [None]
    state.put_many([b"k"], [b"1"])
    pair.store.commit(1)
    assert state.get_many([b"k"]) == [b"1"]


def test_a_new_store_of_a_view_replaces_the_old_one(pair) -> None:
    pair.run([(b"a", b"1")], [])
    pair.commit()
    pair.begin()
    with pytest.raises(BugError, match="under way"):
        pair.database.view(1)
    pair.write()
    pair.end()
    pair.run([(b"a", b"2")], [])
    pair.commit()
    newer = pair.database.view(1)
    with pytest.raises(BugError):
        pair.map.get_many([b"a"])
    assert listed_map(newer, "m").get_many([b"a"]) == [b"1"], "2 was in no checkpoint"
