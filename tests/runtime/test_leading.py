"""The common position of leading units: each unit is where it would be by itself, at every step."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from headrace.runtime.engine_state import EngineState
from headrace.runtime.leading import LeadingUnits
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.registry import Registry
from headrace.runtime.shared import Shared
from headrace.runtime.unit_index import UnitIndex
from headrace.runtime.views import Unit, View
from headrace.sql.progress import Progress
from headrace.sql.status import CursorState
from headrace.state.rocks import RocksStore
from tests.runtime.units import view

VIEWS = 8
FEEDS = {1: -64, 2: -64, 3: -128}
"""Subplan that a view reads."""
STEPS = 400


class Store(RocksStore):
    """A store without states, which only follows the protocol of txids."""

    def __init__(self, txid: int) -> None:
        self.last = self.durable = txid
        self.flying: list[int] = []

    def begin(self, txid: int) -> None:
        assert txid > max([self.last, *self.flying])
        self.flying.append(txid)

    def commit(self, txid: int) -> None:
        assert self.flying.pop(0) == txid
        self.last = txid

    def rollback(self, txid: int) -> int:
        assert txid > self.last, "what is committed stays"
        self.flying = [one for one in self.flying if one < txid]
        return txid - 1


@dataclass
class Alone:
    """Where a unit would be if it had its own position."""

    processed: int = 0
    committed: int = 0
    written: int = 0
    leads: bool = True


@dataclass
class Job:
    txid: int
    listed: list[int]
    changed: list[int]
    processed: list[int]
    """Units that have processed it, listed or not."""


@dataclass
class World:
    """Leading units, and the part of the engine that moves them."""

    random: random.Random
    alone: dict[int, Alone] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    tapped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        state = self.state = EngineState.__new__(EngineState)
        state.index = UnitIndex()
        state.views, state.subplans = Registry(state.index), Registry(state.index)
        state.position = state.taken = Position(0, 0)
        self.leading = LeadingUnits(state, self.tapped.__contains__)
        for number in sorted(set(FEEDS.values())):
            shared = Shared(number, view(1).plan, {}, 0, str(number))
            shared.restore(Store(0), StateMark(0, 0, 0))
            state.subplans[number] = shared
        for number in range(1, VIEWS + 1):
            made = view(number, mark=StateMark(0, 0, 0))
            made.feed_on({"s": FEEDS[number]} if number in FEEDS else {})
            made.restore(Store(0), StateMark(0, 0, 0))
            made.progress = Progress(number, 1, 0, 0)
            state.views[number] = made
        self.alone = {unit.id: Alone() for unit in state.units}

    def led(self, unit: Unit) -> bool:
        return any(self.alone[v.id].leads for v in self.state.views_of(unit))

    def batch(self) -> None:
        """Process a batch that concerns some units."""
        state, leading, txid = self.state, self.leading, self.state.taken.txid + 1
        leading.refresh()
        apart = leading.apart
        assert all(unit.processed == txid - 1 for unit in apart)
        leads = [unit for unit in state.units if self.led(unit)]
        concerned = [u for u in leads if self.random.random() < 0.2]
        woken = [unit for unit in concerned if unit.in_step]
        leading.wake(woken)
        for unit in concerned:
            unit.begin(txid)
        listed = [*apart, *woken]
        for unit in listed:
            unit.processed = txid
        leading.passed(txid)
        state.taken = Position(txid, txid * 10)
        for unit in leads:
            self.alone[unit.id].processed = txid
        ids = [unit.id for unit in concerned]
        self.jobs.append(Job(txid, [u.id for u in listed], ids, [u.id for u in leads]))

    def commit(self) -> None:
        """Take the answer of the oldest batch in flight."""
        if not self.jobs:
            return
        state, job = self.state, self.jobs.pop(0)
        moved = []
        for unit_id in job.processed:
            if self.alone[unit_id].processed >= job.txid:
                self.alone[unit_id].committed = job.txid
                if unit_id in job.changed or unit_id < 0:
                    self.alone[unit_id].written = job.txid
        for unit_id in job.listed:
            unit = state.unit(unit_id)
            if unit_id in job.changed and unit_id > 0 and unit.processed >= job.txid:
                unit.progress = Progress(unit_id, 1, job.txid, 0)
            if unit.processed < job.txid or unit.in_step:
                continue
            written = min(unit.written_txid(job.txid), job.txid)
            unit.commit(StateMark(job.txid, job.txid * 10, written))
            moved.append(unit)
        self.leading.committed(job.txid, job.txid * 10)
        state.position = Position(job.txid, job.txid * 10)
        self.leading.join(moved)

    def drain(self) -> None:
        while self.jobs:
            self.commit()

    def pause(self) -> None:
        """Stop a leading view, with the subplans that only this view needs."""
        self.drain()
        found = self.random.choice(list(self.state.views.values()))
        if self.alone[found.id].leads:
            found.reset()
            found.turn(CursorState.PAUSED)
            self.alone[found.id].leads = False

    def resume(self) -> None:
        """Let a view catch up, with the subplan that it needs, and lead."""
        self.drain()
        found = self.random.choice(list(self.state.views.values()))
        if self.alone[found.id].leads:
            return
        for unit in reversed(self.state.units_of(found)):
            for txid in range(unit.processed + 1, self.state.taken.txid + 1):
                unit.begin(txid)
                unit.processed = txid
                if isinstance(unit, View):
                    unit.progress = Progress(unit.id, 1, txid, 0)
                unit.commit(StateMark(txid, txid * 10, txid))
                self.alone[unit.id].written = txid
            self.alone[unit.id].processed = self.alone[unit.id].committed = unit.processed
        found.turn(CursorState.LEADING)
        self.alone[found.id].leads = True

    def tap(self) -> None:
        """Begin or end the capture of a view's changes."""
        self.drain()
        number = self.random.randint(1, VIEWS)
        if number in self.tapped:
            self.tapped.discard(number)
        else:
            self.state.views[number].leave_step()
            self.tapped.add(number)

    def rewind(self) -> None:
        """Give up what is in flight, and begin a new stream."""
        self.jobs.clear()
        for unit in self.state.units:
            unit.reset()
        self.leading.rewind()
        for one in self.alone.values():
            one.processed = one.committed
        self.state.taken = self.state.position

    def checkpoint(self) -> None:
        """Make all marks durable."""
        units = self.state.index.undurable
        moved = {unit.id for unit in self.state.units if unit.mark != unit.durable}
        assert {unit.id for unit in units} == moved
        for unit in units:
            unit.checkpointed(unit.mark)

    def check(self) -> None:
        state = self.state
        for unit in state.units:
            alone = self.alone[unit.id]
            found = (unit.processed, unit.mark.txid, unit.mark.lsn)
            assert found == (alone.processed, alone.committed, alone.committed * 10), unit.id
            if isinstance(unit, View):
                assert unit.mark.sink_txid == min(alone.written, alone.committed), unit.id
        at = state.position.txid
        behind = {unit.id for unit in state.views.values() if unit.mark.txid < at}
        assert {unit.id for unit in state.index.behind(at)} == behind
        assert self.known(state.index.in_step) | self.known(state.index.apart) == set(self.alone)
        assert not self.tapped & self.known(state.index.in_step)

    def known(self, units: Collection[Unit]) -> set[int]:
        return {unit.id for unit in units}


@pytest.mark.parametrize("seed", range(30))
def test_each_unit_is_where_it_would_be_by_itself(seed):
    world = World(random.Random(seed))
    shared = False
    for _ in range(STEPS):
        step = world.random.choices(
            ["batch", "commit", "drain", "pause", "resume", "tap", "rewind", "checkpoint"],
            [40, 40, 8, 2, 4, 2, 1, 4],
        )[0]
        getattr(world, step)()
        world.check()
        shared = shared or bool(world.state.index.in_step)
    assert shared, "some units were in step"
