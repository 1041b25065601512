"""The compiled state map against its readable reference: same answers, same allocations."""

from __future__ import annotations

import random

import pytest

from headrace.errors import BugError
from headrace.kernels.skiplist import SkipList
from headrace.state.layout import prefix_end
from tests.state.reference_map import RESIDENT, Pairs, ReferenceSkipList

GROUPS = (0, 7, 255)


class Both:
    """Two maps that are told the same; what one answers the other must answer too."""

    def __init__(
        self, rng: random.Random, *, txids: bool, slab_bytes: int = 4096
    ) -> None:
        self.rng = rng
        self.fast = SkipList(txids=txids, slab_bytes=slab_bytes)
        self.slow = ReferenceSkipList(txids=txids)
        self.base: dict[bytes, bytes] = {}
        self.deleted = 0
        self.keys = [
            bytes((group,)) + bytes(rng.choices(b"ab\x00\xff", k=rng.randint(0, 5)))
            for group in GROUPS
            for _ in range(12)
        ]

    def __getattr__(self, name: str):
        def both(*arguments):
            answers = []
            for one in (self.fast, self.slow):
                try:
                    answer = getattr(one, name)(*arguments)
                    answers.append(list(answer) if name in LISTS else answer)
                except BugError as error:
                    answers.append(str(error))
            assert answers[0] == answers[1], (name, arguments)
            return answers[0]

        return both

    def check(self) -> None:
        fast, slow = self.fast, self.slow
        for name in ("total", "size", "allocations", "negatives", "running", "version"):
            assert getattr(fast, name) == getattr(slow, name), name
        for name in ("finished", "committed", "retired", "residence"):
            assert getattr(fast, name) == getattr(slow, name), name
        for key in self.keys:
            assert fast.chain(key) == slow.chain(key)
        assert sum(fast.group_bytes()) == fast.live_bytes <= fast.mapped_bytes
        assert self.group_requests()
        read = [
            [
                pair
                for page in one.items(Pairs(self.base))
                for pair in zip(*page, strict=True)
            ]
            for one in (fast, slow)
        ]
        assert read[0] == read[1]

    def some(self, most: int = 8) -> list[bytes]:
        keys = self.rng.choices(self.keys, k=self.rng.randint(1, most))
        return sorted(keys) if self.rng.random() < 0.7 else keys

    def value(self) -> bytes | None:
        if self.rng.random() < 0.3:
            return None
        return self.rng.randbytes(self.rng.choice((0, 1, 8, 30, 300, 5000)))

    def get(self) -> None:
        keys = self.some()
        self.get_many(keys)
        self.missing(keys)


LISTS = ("entries", "changes")


class Counter(Both):
    """Counter mode: snapshots by number."""

    def write(self) -> None:
        keys = self.some()
        self.put_many(keys, [self.value() for _ in keys])

    def take(self) -> None:
        if len(self.slow.snapshots) < 4:
            self.snapshot()

    def see(self) -> None:
        for snapshot in self.slow.snapshots:
            self.read_many(self.some(), snapshot)
            self.snapshot_size(snapshot)

    def iterate(self) -> None:
        if self.slow.snapshots:
            self.entries(self.rng.choice(list(self.slow.snapshots)))

    def end(self) -> None:
        self.release(self.rng.choice([*self.slow.snapshots, 10**9]))

    def finish(self) -> None:
        for snapshot in list(self.slow.snapshots):
            self.release(snapshot)
        self.put_many(self.keys, [None] * len(self.keys))


class Txids(Both):
    """Txid mode over a base, weights under half of the keys."""

    def weigh(self) -> None:
        keys = [b"\x07w" + key for key in self.some()] + [
            b"\xffw" + k for k in self.some()
        ]
        missing = self.missing(keys)
        stored = [self.base.get(keys[i]) for i in missing]
        self.add_many(keys, [self.rng.randint(-2, 2) for _ in keys], missing, stored)

    def write(self) -> None:
        keys = self.some()
        self.put_many(keys, [self.value() for _ in keys])

    def start(self) -> None:
        self.begin(self.slow.version + self.rng.choice((1, 1, 1, 2, 0)))

    def finish_one(self) -> None:
        self.commit(min(self.slow.in_flight, default=1))

    def undo(self) -> None:
        self.rollback(self.rng.choice([*self.slow.in_flight, self.slow.version + 1]))

    def take(self) -> None:
        self.snapshot(self.slow.committed)

    def write_out(self) -> None:
        for snapshot in list(self.slow.snapshots):
            changed = {}
            for keys, values in self.changes(snapshot):
                changed.update(zip(keys, values, strict=True))
            if self.rng.random() < 0.3:
                self.release(snapshot)
                continue
            self.base.update(changed)
            self.base = {k: v for k, v in self.base.items() if v is not None}
            self.retire(snapshot)

    def tidy(self) -> None:
        self.clean(self.rng.choice((0, 1, 5, 1000)))

    def move(self) -> None:
        group = self.rng.choice(GROUPS)
        if self.slow.residence[group] == RESIDENT:
            self._spill(group)
            return
        self.begin_load(group)
        mine = sorted(key for key in self.base if key[:1] == bytes((group,)))
        half = len(mine) // 2
        self.load(mine[:half], [self.base[key] for key in mine[:half]])
        for _ in range(3):  # other things happen meanwhile
            getattr(
                self, self.rng.choice(("weigh", "write", "finish_one", "undo", "tidy"))
            )()
        self.load(mine[half:], [self.base[key] for key in mine[half:]])
        self.set_resident(group, True)

    def _spill(self, group: int) -> None:
        limit = self.rng.choice((1, 3, 1000))
        start: bytes | None = None
        while True:
            before = self.fast.live_bytes
            freed, after = self.fast.spill(group, start, limit)
            assert freed == before - self.fast.live_bytes
            assert after == self.slow.spill(group, start, limit)[1]
            start = after
            if start is None:
                return

    def look(self) -> None:
        prefixes = [b"\x07w\x07", b"\xffw\xff", b"\x07w", b"\x07w\x07a"]
        self.rng.shuffle(prefixes)
        bases = Pairs({k: v for k, v in self.base.items() if k[1:2] == b"w"})
        found = [one.scan_many(prefixes, bases) for one in (self.fast, self.slow)]
        assert found[0] == found[1]
        ends = [prefix_end(prefix) for prefix in prefixes]
        for last in (False, True):
            self.extreme_many(prefixes, ends, last, bases)


def run(both: Both, weights: dict[str, int], steps: int) -> None:
    for name in both.rng.choices(list(weights), list(weights.values()), k=steps):
        getattr(both, name)()
        both.check()


COUNTER = {"write": 6, "get": 2, "take": 3, "see": 1, "iterate": 4, "end": 4}
TXIDS = {
    **{"start": 6, "write": 5, "weigh": 5, "finish_one": 5, "undo": 1, "take": 2},
    **{"write_out": 2, "tidy": 1, "move": 2, "look": 2, "get": 2},
}


@pytest.mark.parametrize("seed", range(25))
def test_counter_mode_equals_the_reference(seed) -> None:
    both = Counter(random.Random(seed), txids=False)
    run(both, COUNTER, 60)
    both.finish()
    both.check()
    assert (both.fast.allocations, both.fast.mapped_bytes) == (0, 0)


@pytest.mark.parametrize("seed", range(25))
def test_txid_mode_equals_the_reference(seed) -> None:
    both = Txids(random.Random(seed), txids=True)
    run(both, TXIDS, 60)
    both.rollback(both.slow.committed + 1)
    both.write_out()
    both.take()
    both.retire(both.slow.committed + 1)
    both.clean(1 << 30)
    for group in GROUPS:
        both._spill(group)
    both.check()
    assert (both.fast.allocations, both.fast.mapped_bytes) == (0, 0)
