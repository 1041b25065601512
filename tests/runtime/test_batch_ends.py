"""Ends of lagging units' batches: each reader gets each row of a subplan once, after any failure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from headrace.forwarder.policy import CoalescedSize
from headrace.runtime.batch_ends import BatchEnds
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import StateMark
from headrace.runtime.registry import Registry
from headrace.runtime.shared import Shared
from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit, View
from headrace.sql.progress import Progress
from headrace.storage.manager import Storage
from tests.runtime.test_leading import Store
from tests.runtime.units import view

FEEDS = {
    -192: {"a": -64},
    1: {"a": -64},
    2: {"a": -64, "b": -128},
    3: {"b": -128, "c": -192},
    4: {"c": -192},
}
"""The subplans that each unit reads."""
SUBPLANS = (-64, -128, -192)
STEPS, END = 200, 600


@dataclass
class World:
    """Lagging units with real output queues; a row of a subplan is the txid that it comes from."""

    random: random.Random
    storage: Storage
    rows: dict[int, list[int]] = field(default_factory=dict)
    """By subplan: the txids that change it."""
    got: dict[int, list[int]] = field(default_factory=dict)
    """By unit: the rows in its states, of all that it reads."""
    kept: dict[int, list[int]] = field(default_factory=dict)
    """The same as of the last checkpoint."""
    together: int = 0
    """Batches of subplans with several txids."""

    def __post_init__(self) -> None:
        state = self.state = EngineState.__new__(EngineState)
        state.index = UnitIndex()
        state.views, state.subplans = Registry(state.index), Registry(state.index)
        state.suspects = SimpleNamespace(quiet=True)
        state.records = SimpleNamespace(time_of=lambda txid: txid)
        self.last = {unit_id: 0 for unit_id in (*SUBPLANS, *FEEDS)}
        begun = StateMark(self.random.choice([0, 5, 64, 100]), 0, 0)
        for number in SUBPLANS:
            shared = Shared(number, view(1).plan, {}, 0, str(number))
            shared.feed_on(FEEDS.get(number, {}))
            shared.restore(Store(begun.txid), begun)
            shared.open(self.storage, None)
            state.subplans[number] = shared
            share = self.random.choice([0.05, 0.5, 1.0])
            self.rows[number] = [t for t in range(END + 1) if self.random.random() < share]
        for number in FEEDS:
            if number > 0:
                made = view(number, mark=begun)
                made.feed_on(FEEDS[number])
                made.restore(Store(begun.txid), begun)
                made.progress = Progress(number, 1, begun.txid, 0)
                state.views[number] = made
        self.got = {unit.id: [] for unit in state.units}
        self.kept = {unit_id: [] for unit_id in self.got}
        self.begun = begun.txid
        cursors = SimpleNamespace(bounded=lambda at, end, size, remote: min(end, at + size))
        self.taps = SimpleNamespace(any=False)
        self.ends = BatchEnds(state, self.taps, cursors)

    def batch(self, reach: int = 0) -> bool:
        """Let some units that stand at one txid go on; return whether some could."""
        units = list(self.state.units)
        reach = reach or self.random.randint(self.begun, END)
        places = sorted({unit.processed for unit in units if unit.processed < reach})
        self.random.shuffle(places)
        for at in places:
            there = [u for u in units if u.processed == at and not self.ends.waits(u)]
            read = [self.state.subplans[f] for u in there for f in u.feeds.values()]
            if any(shared.processed < at for shared in read):
                there = []
            subplans = [unit for unit in there if isinstance(unit, Shared)]
            views = [unit for unit in there if isinstance(unit, View)]
            for some in [(views, []), ([], subplans)]:
                if not any(some) or (self.random.random() < 0.2 and reach < END):
                    continue
                below = {f for u in views for f in u.feeds.values()}
                if some[0] and any(self.state.subplans[f].processed == at for f in below):
                    continue  # these go ahead
                for unit in (*some[0], *some[1]):
                    unit.coalesced = CoalescedSize(self.random.choice([1, 7, 100, 1000, 1000]))
                end = self.ends.end(*some, reach, self.random.choice([reach, reach, at + 1]))
                if end is not None:
                    self.process([*some[0], *some[1]], at, end)
                    return True
        return False

    def process(self, units: list[Unit], at: int, end: int) -> None:
        sent: dict[int, list[int]] = {}
        for unit in sorted(units, key=lambda unit: SUBPLANS.index(unit.id) if unit.id < 0 else 9):
            if isinstance(unit, View):
                assert not at < unit.progress.txid < end, "an earlier run ended there"
            unit.begin(end)
            for feeder in unit.feeds.values():
                shared = self.state.subplans[feeder]
                assert feeder in sent or shared.processed >= end
                found = sent.get(feeder)
                if found is None:
                    found = [t for b in shared.sent(at + 1, end) for t in b["txid"].to_pylist()]
                assert found == [t for t in self.rows[feeder] if at < t <= end]
                self.got[unit.id] += found
            unit.processed = end
            if isinstance(unit, Shared):
                sent[unit.id] = [t for t in self.rows[unit.id] if at < t <= end]
                self.together += end > at + 1
                if sent[unit.id] or self.random.random() < 0.3:
                    diffs = pa.record_batch({"txid": pa.array(sent[unit.id], pa.int64())})
                    unit.send(at + 1, end, 0, 0, diffs)
        for unit in units:
            unit.commit(StateMark(end, 0, end))
            if isinstance(unit, View):
                unit.progress = Progress(unit.id, 1, end, 0)

    def checkpoint(self) -> None:
        """Make some units durable; a reader is never durable beyond what it reads."""
        left: set[int] = set()
        for shared in self.state.subplans.values():
            if self.random.random() < 0.3:
                left |= {shared.id, *self.state.all_readers(shared)}
        for unit in self.state.units:
            if unit.id not in left:
                unit.store.durable = unit.mark.txid
                unit.checkpointed(unit.mark)
                self.kept[unit.id] = list(self.got[unit.id])
        for shared in self.state.subplans.values():
            shared.keep_for({r.id: r.durable.txid for r in self.state.readers(shared)})

    def crash(self) -> None:
        """Go back to the checkpoint; the tables stay, and so does the output, as far as it may."""
        for unit in self.state.units:
            unit.restore(Store(unit.durable.txid), unit.durable)
            self.got[unit.id] = list(self.kept[unit.id])
        for shared in self.state.subplans.values():
            shared.open(self.storage, 0, shared.mark.txid)

    def fail(self) -> None:
        """Let one unit go back to its checkpoint, as after an error in a committed batch."""
        unit = self.random.choice(list(self.state.units))
        unit.restore(Store(unit.durable.txid), unit.durable)
        self.got[unit.id] = list(self.kept[unit.id])

    def lead(self) -> None:
        """Read each txid by itself, as views that lead do, unless that is forbidden."""
        for one in self.state.views.values():
            if self.state.must_coalesce(one):
                continue
            for feeder in one.feeds.values():
                shared = self.state.subplans[feeder]
                for txid in range(one.processed + 1, shared.processed + 1):
                    shared.sent(txid, txid)

    def capture(self) -> None:
        self.taps.any = self.random.random() < 0.2

    def suspect(self) -> None:
        self.state.suspects.quiet = self.random.random() < 0.8

    def await_output(self) -> None:
        for shared in self.state.subplans.values():
            shared.awaited = {"job": (9, shared.mark.txid)} if self.random.random() < 0.1 else {}


@pytest.mark.parametrize("seed", range(12))
def test_each_reader_gets_each_row_once(seed: int, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "queues", 1 << 26)
    try:
        world = World(random.Random(seed), storage)
        steps = ["batch", "checkpoint", "crash", "fail", "capture", "suspect", "await_output"]
        for step in world.random.choices([*steps, "lead"], [80, 6, 2, 2, 2, 2, 2, 4], k=STEPS):
            getattr(world, step)()
        world.taps.any, world.state.suspects.quiet = False, True
        while world.batch(END):
            pass
        for unit in world.state.units:
            assert unit.processed == END, f"unit {unit.id} is stuck"
            wanted = [t for f in unit.feeds.values() for t in world.rows[f] if t > world.begun]
            assert sorted(world.got[unit.id]) == sorted(wanted)
        assert world.together, "subplans have coalesced txids"
    finally:
        storage.close()
