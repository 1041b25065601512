"""The compiled state map against its readable reference: same answers, same allocations."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import threading

import pytest

from headrace.errors import BugError
from tests.state.lists import SkipList
from tests.state.reference_map import RESIDENT, Pairs, ReferenceSkipList

GROUPS = (0, 7, 255)


class Both:
    """Two maps with the same calls; their answers must be equal."""

    def __init__(
        self, rng: random.Random, *, txids: bool, keys: int = 12, slab_bytes: int = 4096
    ) -> None:
        self.rng = rng
        self.most = 8 if keys == 12 else 300
        self.fast = SkipList(txids=txids, slab_bytes=slab_bytes)
        self.slow = ReferenceSkipList(txids=txids)
        self.base: dict[bytes, bytes] = {}
        self.keys = [
            bytes((group,))
            + bytes(rng.choices(b"ab\x00\xff", k=rng.randint(0, 5 if keys == 12 else 9)))
            for group in GROUPS
            for _ in range(keys)
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
        for name in ("finished", "committed", "retired", "residency"):
            assert getattr(fast, name) == getattr(slow, name), name
        for key in self.keys:
            assert fast.chain(key) == slow.chain(key)
        assert sum(fast.group_bytes()) == fast.live_bytes <= fast.mapped_bytes
        assert self.group_requests()
        read = [
            [pair for page in one.items(Pairs(self.base)) for pair in zip(*page, strict=True)]
            for one in (fast, slow)
        ]
        assert read[0] == read[1]

    def some(self) -> list[bytes]:
        keys = self.rng.choices(self.keys, k=self.rng.randint(1, self.most))
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
            self.entries(snapshot)

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
        keys = [b"\x07w" + key for key in self.some()] + [b"\xffw" + k for k in self.some()]
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
        if self.slow.residency[group] == RESIDENT:
            self._spill(group)
            return
        self.begin_load(group)
        mine = sorted(key for key in self.base if key[:1] == bytes((group,)))
        half = len(mine) // 2
        self.load(mine[:half], [self.base[key] for key in mine[:half]])
        for _ in range(3):  # other things happen meanwhile
            getattr(self, self.rng.choice(("weigh", "write", "finish_one", "undo", "tidy")))()
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
        bounds = [p + self.rng.choice((b"", b"a", b"\x00", b"w\xff")) for p in prefixes]
        self.extreme_many(prefixes, bounds, True, bases)
        count = self.rng.choice((1, 2, 3, 100))
        found = [one.first_many(prefixes, bounds, count, bases) for one in (self.fast, self.slow)]
        assert found[0] == found[1]


def run(both: Both, weights: dict[str, int], steps: int, every: int = 1) -> None:
    names = both.rng.choices(list(weights), list(weights.values()), k=steps)
    for i, name in enumerate(names):
        getattr(both, name)()
        if i % every == 0:
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


@pytest.mark.parametrize("seed", range(2))
def test_large_batches_search_in_lanes(seed) -> None:
    both = Txids(random.Random(seed), txids=True, keys=400)
    run(both, TXIDS, 60, every=15)
    both.check()
    both = Counter(random.Random(seed), txids=False, keys=400)
    run(both, COUNTER, 40, every=10)
    both.check()


def test_a_checkpoint_reads_in_a_thread_while_txids_come_go_and_fail() -> None:
    """The checkpoint reads one committed txid, with any concurrent writes."""
    rng = random.Random(1)
    m = SkipList(txids=True, slab_bytes=4096)
    keys = sorted(rng.randbytes(rng.randint(1, 6)) for _ in range(3000))
    base: dict[bytes, bytes | None] = {}
    states: dict[int, dict[bytes, bytes | None]] = {0: {}}
    wrong: list[int] = []

    def checkpoint(snapshot: int) -> None:
        for some, values in m.changes(snapshot):
            base.update(zip(some, values, strict=True))
        mine = {key: value for key, value in base.items() if value is not None}
        if mine != states[snapshot - 1]:
            wrong.append(snapshot)

    flying: list[int] = []
    committed, thread, snapshot = 0, None, 0
    for _ in range(300):
        last = flying[-1] if flying else committed
        if len(flying) == 4 or (flying and rng.random() < 0.4):
            committed = flying.pop(0)
            m.commit(committed)
        if thread is not None and (not thread.is_alive() or rng.random() < 0.1):
            thread.join()
            m.retire(snapshot)
            thread = None
        if thread is None:
            snapshot = m.snapshot(committed)
            thread = threading.Thread(target=checkpoint, args=(snapshot,))
            thread.start()
        if flying and rng.random() < 0.1:
            last = flying[rng.randrange(len(flying))] - 1
            m.rollback(last + 1)
            flying = [txid for txid in flying if txid <= last]
        m.begin(last + 1)
        flying.append(last + 1)
        some = sorted(set(rng.choices(keys, k=400)))
        new = [rng.choice((None, rng.randbytes(rng.randint(0, 90)))) for _ in some]
        m.put_many(some, new)
        states[last + 1] = {**states[last], **dict(zip(some, new, strict=True))}
        states[last + 1] = {k: v for k, v in states[last + 1].items() if v is not None}
    assert thread is not None
    thread.join()
    m.retire(snapshot)
    assert wrong == []
    assert m.get_many(keys)[0] == [states[flying[-1]].get(key) for key in keys]
    m.rollback(committed + 1)
    assert m.get_many(keys)[0] == [states[committed].get(key) for key in keys]


@pytest.mark.parametrize("directory", [False, True])
def test_memory_is_given_back(tmp_path, directory) -> None:
    rng = random.Random(2)
    m = SkipList(txids=True, directory=str(tmp_path) if directory else None)
    keys = sorted(rng.randbytes(12) for _ in range(60_000))
    values = [rng.randbytes(rng.choice((8, 32, 300))) for _ in keys]
    m.begin(1)
    for at in range(0, len(keys), 6000):
        m.put_many(keys[at : at + 6000], values[at : at + 6000])
    m.commit(1)
    m.retire(m.snapshot(1))
    m.clean(1 << 30)
    full = m.mapped_bytes
    assert full < 1.25 * m.live_bytes
    for group in range(128):
        m.spill(group)
    # All but the memory from before groups had separate slabs.
    assert m.mapped_bytes < 0.5 * full + (9 << 20)
    for group in range(128):
        m.begin_load(group)
    half = sum(key[0] < 128 for key in keys)
    m.load(keys[:half], values[:half])
    for group in range(128):
        m.set_resident(group, True)
    assert m.get_many(keys) == (values, [])
    assert m.live_bytes < full
    for group in range(256):
        m.spill(group)
    assert (m.allocations, m.live_bytes, m.mapped_bytes) == (0, 0, 0)
    assert m.get_many(keys[:3]) == ([None] * 3, [0, 1, 2])


@pytest.mark.parametrize("slab_bytes", [4096, 65536])
def test_keys_and_values_may_be_large(slab_bytes) -> None:
    m = SkipList(txids=True, slab_bytes=slab_bytes)
    sizes = (0, 1, 1000, 1 << 12, 1 << 14, (1 << 14) + 1, 1 << 16, 3 << 20)
    keys = sorted(bytes((size % 251,)) * (size + 1) for size in sizes)
    for txid in (1, 2, 3):
        m.begin(txid)
        m.put_many(keys, [bytes((txid,)) * (size + txid) for size in sizes])
        assert m.get_many(keys)[0] == [bytes((txid,)) * (s + txid) for s in sizes]
    m.rollback(3)
    m.commit(1)
    m.commit(2)
    assert m.get_many(keys)[0] == [b"\x02" * (size + 2) for size in sizes]
    changed = {}
    for some, values in m.changes(m.snapshot(2)):
        changed.update(zip(some, values, strict=True))
    assert changed == dict(zip(keys, [b"\x02" * (s + 2) for s in sizes], strict=True))
    m.retire(3)
    m.clean(100)
    for key in keys:
        m.spill(key[0])
    assert (m.allocations, m.mapped_bytes) == (0, 0)


def test_weights() -> None:
    m = SkipList(txids=True)
    with pytest.raises(BugError):
        m.add_many([b"a"], [1], [], [])
    m.begin(1)
    assert m.add_many([b"a", b"b", b"a"], [1, -2, 1], [], []) == 1
    assert m.get_many([b"a", b"b"])[0] == [pack(2), pack(-2)]
    assert m.add_many([b"b", b"c"], [3, -1], [], []) == 0
    assert m.negatives == 1
    m.begin(2)
    assert m.add_many([b"c"], [1], [], []) == -1
    m.rollback(2)
    assert m.negatives == 1
    m.add_many([b"a"], [2**63 - 3], [], [])
    for delta, error in ((1, OverflowError), (2**63, OverflowError)):
        with pytest.raises(error):
            m.add_many([b"a"], [delta], [], [])
    assert m.get_many([b"a"])[0] == [pack(2**63 - 1)]
    m.put_many([b"t"], [b"text"])
    with pytest.raises(BugError):
        m.add_many([b"t"], [1], [], [])
    with pytest.raises(BugError):
        m.scan_many([b"t"], None)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda m: m.put_many([b"a"], []), ValueError),
        (lambda m: m.add_many([b"a"], [], [], []), ValueError),
        (lambda m: m.add_many([b"a"], [1], [1], [b"x" * 8]), ValueError),
        (lambda m: m.add_many([b"a"], [1], [0], []), ValueError),
        (lambda m: m.add_many([b"a"], [1], [-1], [None]), OverflowError),
        (lambda m: m.scan_many([b""], None), BugError),
        (lambda m: m.extreme_many([b""], [None], True, None), BugError),
        (lambda m: m.set_resident(256, True), ValueError),
        (lambda m: m.spill(-1), ValueError),
        (lambda m: m.begin(1), BugError),
        (lambda m: m.commit(2), BugError),
        (lambda m: m.retire(1), BugError),
        (lambda m: m.changes(1).__next__(), BugError),
        (lambda m: m.load([b"a"], [b"b"]), BugError),
        (lambda m: m.__init__(), BugError),
    ],
)
def test_a_wrong_call_changes_nothing(call, error) -> None:
    m = SkipList(txids=True)
    m.begin(1)
    m.put_many([b"b"], [pack(1)])
    with pytest.raises(error):
        call(m)
    assert (m.size, m.allocations, m.running) == (1, 2, [1])
    assert m.get_many([b"a", b"b"]) == ([None, pack(1)], [])


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the least byte string above every string that starts with ``prefix``."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def pack(weight: int) -> bytes:
    return struct.pack("<q", weight)


def test_out_of_memory_is_an_error_that_a_rollback_mends() -> None:
    program = """
import resource
from headrace.kernels import packed
from headrace.state.map.skipkeys import Keys
from headrace.state.map.skiplist import SkipList
m = SkipList(txids=True)
def put(keys, size):
    some, values = packed.pack(keys), packed.nullable([bytes(size)] * len(keys))
    made = Keys(some.data, some.bounds, physical=True)
    return made, values.data, values.bounds, values.valid
keys = [i.to_bytes(4, "big") for i in range(1000)]
large, middle, few = put(keys, 100_000), put(keys, 40_000), put(keys[:50], 8)
m.begin(1)
m.put_many(*put(keys[::2], 8))
m.commit(1)
before = m.allocations
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20),) * 2)
for txid, values in ((2, large), (2, middle)):
    m.begin(txid)
    try:
        m.put_many(*values)
    except MemoryError:
        print("full", m.allocations > before)
    m.rollback(txid)
    print(m.allocations == before, m.get_many(few[0])[2][:2].tolist() == [1, 0])
m.begin(3)
m.put_many(*few)
m.commit(3)
print(m.size)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == [*(["full True", "True True"] * 2), "525", ""]
