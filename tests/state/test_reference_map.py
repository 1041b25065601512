"""The reference of the state map against a still simpler model: one dictionary per txid.

The statements of seed F have their tests in test_seed_f.py, on the reference and on the kernel.
"""

from __future__ import annotations

import random
import struct

import pytest

from tests.state.reference_map import RESIDENT, Pairs, ReferenceSkipList

GROUPS = (7, 200)
STEPS = {
    "write": 6,
    "begin": 6,
    "commit": 4,
    "rollback": 2,
    "take": 2,
    "end": 2,
    "clean": 2,
    "move": 2,
}


class Run:
    """A map, its base, and their expected content together."""

    def __init__(self) -> None:
        self.map = ReferenceSkipList(txids=True)
        self.base: dict[bytes, bytes] = {}
        self.states: dict[int, dict[bytes, int]] = {0: {}}  # contents at a txid's end
        self.flying: list[int] = []
        self.committed = 0
        self.snapshot = 0

    @property
    def last(self) -> int:
        return self.flying[-1] if self.flying else self.committed

    def begin(self, _) -> None:
        txid = self.last + 1
        self.map.begin(txid)
        self.states[txid] = dict(self.states[self.last])
        self.flying.append(txid)

    def write(self, diffs) -> None:
        if not self.flying:
            return
        wanted = [key for key, _ in diffs]
        missing = self.map.missing(wanted)
        stored = [self.base.get(wanted[i]) for i in missing]
        self.map.add_many(wanted, [d for _, d in diffs], missing, stored)
        state = self.states[self.last]
        for key, delta in diffs:
            weight = state.pop(key, 0) + delta
            if weight:
                state[key] = weight

    def commit(self, _) -> None:
        if self.flying:
            self.committed = self.flying.pop(0)
            self.map.commit(self.committed)

    def rollback(self, at) -> None:
        if self.flying:
            first = self.flying[min(at, len(self.flying) - 1)]
            self.map.rollback(first)
            self.flying = [txid for txid in self.flying if txid < first]

    def take(self, _) -> None:
        if not self.snapshot:
            self.snapshot = self.map.snapshot(self.committed)

    def end(self, durable) -> None:
        if not self.snapshot:
            return
        if durable:
            for keys, values in self.map.changes(self.snapshot):
                self.base.update(zip(keys, values, strict=True))
            self.base = {k: v for k, v in self.base.items() if v is not None}
            assert self.base == packed(self.states[self.snapshot - 1])
            self.map.retire(self.snapshot)
        else:
            self.map.release(self.snapshot)
        self.snapshot = 0

    def clean(self, limit) -> None:
        self.map.clean(limit)

    def move(self, group) -> None:
        if self.map.residency[group] == RESIDENT:
            self.map.spill(group)
            return
        self.map.begin_load(group)
        mine = sorted(key for key in self.base if key[0] == group)
        self.map.load(mine, [self.base[key] for key in mine])
        self.map.set_resident(group, True)

    def check(self) -> None:
        found: dict[bytes, bytes] = {}
        for keys, values in self.map.items(Pairs(self.base)):
            found.update(zip(keys, values, strict=True))
        assert found == packed(self.states[self.last])
        assert list(found) == sorted(found)


def packed(state: dict[bytes, int]) -> dict[bytes, bytes]:
    return {key: struct.pack("<q", weight) for key, weight in state.items()}


def argument(rng: random.Random, name: str):
    """Return the argument of a step: a small value, often the same."""
    keys = [bytes((group, k)) for group in GROUPS for k in range(4)]
    return {
        "write": [(rng.choice(keys), rng.randint(-2, 2)) for _ in range(rng.choice((1, 5)))],
        "rollback": rng.randint(0, 3),
        "end": rng.random() < 0.7,
        "clean": rng.randint(0, 5),
        "move": rng.choice(GROUPS),
    }.get(name)


@pytest.mark.parametrize("seed", range(40))
def test_equals_one_dictionary_per_txid(seed) -> None:
    rng = random.Random(seed)
    run = Run()
    for name in rng.choices(list(STEPS), list(STEPS.values()), k=250):
        getattr(run, name)(argument(rng, name))
        run.check()
    run.rollback(0)
    run.end(False)
    run.take(None)
    run.end(True)
    run.clean(1 << 30)
    for group in GROUPS:
        run.map.spill(group)
    assert run.map.allocations == 0
