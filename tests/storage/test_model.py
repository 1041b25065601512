"""Random use of queues against a model that keeps all frames (A-5)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.storage.blocks import NoRoom
from headrace.storage.frame_cache import Frame
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue

BLOCK = 4096
BLOCKS_MAX = 64
MEMORY = 12 * BLOCK


@dataclass
class Model:
    """The expected content of a queue."""

    put: list[tuple[int, list[int] | None]] = field(default_factory=list)
    """Txid and rows; None for its end."""
    read: dict[str, int] = field(default_factory=dict)
    """Number of frames that each successor has read."""
    durable: dict[str, int] = field(default_factory=dict)


def content(frame: Frame) -> tuple[int, list[int] | None]:
    """Return the txid and the rows of a frame."""
    rows = None if frame.batch is None else frame.batch.column(0).to_pylist()
    return frame.header.txid, rows


class Play:
    """One run: random steps on three queues, and now and then another process."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.storage = self.opened()
        self.models: dict[str, Model] = {}
        self.txid = 0
        self.held: list[tuple[Frame, tuple[int, list[int] | None]]] = []

    def opened(self) -> Storage:
        return Storage(self.folder, BLOCKS_MAX * BLOCK, BLOCK, MEMORY)

    def pick(self) -> tuple[Queue, Model]:
        """Pick one of the queues, and make it if it does not exist."""
        name = self.random.choice(["a", "b", "c"])
        queue = self.storage.get(name)
        if queue is None:
            queue, self.models[name] = self.storage.make(name), Model()
            for successor in ("s", "t"):
                queue.open(successor)
                self.models[name].read[successor] = self.models[name].durable[successor] = 0
        return queue, self.models[name]

    def put(self) -> None:
        """Put a txid: some rows, and its end."""
        queue, model = self.pick()
        self.txid += 1
        pieces: list[tuple[int, list[int] | None]] = []
        for _ in range(self.random.choice([0, 1, 1, 3])):
            count = self.random.choice([1, 1, 5, 60, 700, 2000])
            pieces.append((self.txid, [self.random.getrandbits(60) for _ in range(count)]))
        pieces.append((self.txid, None))
        try:
            with queue.together():
                for txid, rows in pieces:
                    if rows is None:
                        queue.put(Header(Kind.TIME_END, txid, 0, 0))
                        continue
                    batch = pa.record_batch({"a": pa.array(rows, pa.int64())})
                    queue.put(Header(Kind.DIFFS, txid, 0, len(rows)), batch)
            model.put += pieces
        except NoRoom:
            self.free()

    def read(self) -> None:
        """Read some frames in order; hold some of them for a while."""
        queue, model = self.pick()
        name = self.random.choice("st")
        for frame in queue.read(name, self.random.choice([1, 3000, None])):
            assert content(frame) == model.put[model.read[name]]
            model.read[name] += 1
            if self.random.random() < 0.1:
                self.held.append((frame, content(frame)))

    def settle(self, part: float = 0.5) -> None:
        """Make durable some of the txids that a successor has read."""
        queue, model = self.pick()
        name = self.random.choice("st")
        done = [t for t, rows in model.put[: model.read[name]] if rows is None]
        if done:
            txid = done[int((len(done) - 1) * max(part, self.random.random()))]
            model.durable[name] = max(model.durable[name], txid)
            queue.keep_after(name, txid)

    def rewind(self) -> None:
        """Rewind a successor, which reads again all that is not durable in it."""
        queue, model = self.pick()
        name = self.random.choice("st")
        queue.rewind(name)
        model.read[name] = self.place(model, name)

    def place(self, model: Model, name: str) -> int:
        """Return the index of a successor's tail in the model."""
        last = model.durable[name]
        return next((i + 1 for i, p in enumerate(model.put) if p == (last, None)), 0)

    def let_go(self) -> None:
        """Check that the held frames are unchanged, and release them."""
        for frame, was in self.held:
            assert content(frame) == was
        self.held.clear()

    def check(self) -> None:
        """Check that the pointers are in order."""
        queue, _ = self.pick()
        queue.check()
        tails = queue.successors
        assert queue.base == min(tail for tail, _ in tails.values()) or queue.base == 0
        assert all(queue.base <= t <= h <= queue.front for t, h in tails.values())

    def maintain(self) -> None:
        """Evict durable frames where memory is too full."""
        if synced := self.random.random() < 0.8:
            self.storage.sync()
        for queue in self.storage.queues:
            for name in "st":
                priority = self.random.choice([0, 1, 1.1, 2, 9])
                self.storage.pool.table.prioritise(queue.name, name, priority)
        self.storage.maintain()
        self.count()
        if synced and not self.held:
            # Except for blocks that are being written.
            assert self.storage.pool.used_bytes <= MEMORY + 2 * BLOCK * len(self.storage.queues)
        used = self.storage.pool.used_bytes
        while self.storage.pool.upgrade():
            self.count()
        # Reading ahead does not fill the memory.
        assert self.storage.pool.used_bytes <= max(used, MEMORY)

    def count(self) -> None:
        """Compare resident bytes with the missing blocks of each queue."""
        for queue in self.storage.queues:
            gone = queue.residency.missing(queue.base, queue.ring.count * 2)
            bounds = ((max(p * BLOCK, queue.base), (p + 1) * BLOCK) for p in gone.tolist())
            left = sum(end - begin for begin, end in bounds)
            assert queue.resident_bytes == queue.queued_bytes - left
            assert not len(gone) or queue.residency.left >= (int(gone[-1]) + 1) * BLOCK

    def free(self) -> None:
        """Make room: all successors read all frames and make them durable."""
        self.let_go()
        for name, model in self.models.items():
            queue = self.storage.get(name)
            assert queue is not None
            for successor in "st":
                for frame in queue.read(successor):
                    assert content(frame) == model.put[model.read[successor]]
                    model.read[successor] += 1
            done = [t for t, rows in model.put if rows is None]
            for successor in "st":
                if done:
                    model.durable[successor] = done[-1]
                    queue.keep_after(successor, done[-1])
            for _ in range(8):
                queue.check()

    def kill(self) -> None:
        """Reopen as another process: all frames are there, and the tails are unchanged."""
        self.let_go()
        self.storage.close()
        self.storage = self.opened()
        for name, model in self.models.items():
            queue = self.storage.get(name)
            assert queue is not None
            assert not queue.lost
            for successor in "st":
                queue.open(successor, model.durable[successor])
                model.read[successor] = self.place(model, successor)

    def run(self, steps: int) -> None:
        verbs = [self.put] * 6 + [self.read] * 6 + [self.settle] * 4
        verbs += [self.check] * 2 + [self.rewind, self.let_go, self.maintain]
        for step in range(steps):
            if step % 400 == 399:
                self.kill()
            else:
                self.random.choice(verbs)()
        blocks = [b for q in self.storage.queues for b in self.storage.file.owned(q.number)]
        self.storage.close()
        free = [b for r in self.storage.file.free for b in range(r.start, sum(r))]
        assert len(set(blocks)) == len(blocks)
        assert not set(blocks) & set(free)


@pytest.mark.parametrize("seed", range(4))
def test_a5_every_successor_reads_what_was_put(tmp_path: Path, seed: int) -> None:
    """Frames come in order, once, and whole, with any operations in between."""
    Play(tmp_path / "queues", seed).run(1500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 60))
def test_a5_every_successor_reads_what_was_put_at_length(tmp_path: Path, seed: int) -> None:
    Play(tmp_path / "queues", seed).run(4000)
