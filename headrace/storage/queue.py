"""A queue: the frames of one output, for all of its successors (A-4, A-5).

    base ≤ tail ≤ head ≤ front, offsets in bytes since the queue was made, which never wrap

A successor's *head* is what it reads next, its *tail* the first thing it would need again: what
came after the last txid that is durable in it.  What is before every tail goes (A-7).  A fan-out
writes once; a successor that is slow, gone for a while or set back is a pointer further back.

* Invariant 1: frames come out in the order they were put, once per successor, whole.
* Invariant 2: what somebody holds a batch of is not written again.
"""

from __future__ import annotations

import bisect
import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
import pyarrow as pa

from headrace.storage import frames
from headrace.storage.blocks import BlockFile
from headrace.storage.frames import Header, Kind
from headrace.storage.ring import Ring
from headrace.storage.schemas import Schemas
from headrace.storage.shelf import Damaged, Frame, Shelf


@dataclass(slots=True)
class _Successor:
    """How far one is."""

    tail: int
    head: int


class Queue:
    """One queue in a block file; safe between threads of one process.

    ``lock`` is that of the block file, which all its queues share.
    """

    def __init__(
        self,
        number: int,
        name: str,
        file: BlockFile,
        schemas: Schemas,
        lock: threading.RLock,
        hints: npt.NDArray[Any],
        found: Mapping[int, int] | None = None,
    ) -> None:
        """``hints``: three numbers that outlive the process: base, front, and txid of the base.

        ``found``: the blocks of a queue that an earlier process has left, by place in it.
        """
        self.number: Final = number
        self.name: Final = name
        self._schemas: Final = schemas
        self._lock: Final = lock
        self._hints: Final = hints
        self._ends: list[tuple[int, int]] = []
        """TimeEnds from the base on: txid, and where the next frame begins."""
        self._front = 0
        self._base = 0
        self._successors: dict[Hashable, _Successor] = {}
        self.written_bytes = 0
        """Bytes of frames put since it was opened (A-4: once, however many successors)."""
        self.rows = 0
        """Rows put since it was opened."""
        self.synced = 0
        """Up to where it is known to be on the disk."""
        self.lost = False
        """Whether what had been put before a kill was not all found again."""
        if found is None:
            hints[:] = 0
        self.ring: Final = Ring(number, file, found, int(hints[0]))
        self._shelf: Final = Shelf(self.ring, file, schemas)
        self._recover()

    # --- where things are

    @property
    def front(self) -> int:
        """Where the next frame is put."""
        return self._front

    @property
    def base(self) -> int:
        """The oldest tail: what is before it is gone."""
        return self._base

    @property
    def base_txid(self) -> int:
        """What came up to this txid is gone."""
        return int(self._hints[2])

    @property
    def last_txid(self) -> int:
        """The last txid that has ended in it, or that it began after."""
        return self._ends[-1][0] if self._ends else self.base_txid

    @property
    def queued_bytes(self) -> int:
        """Bytes between base and front."""
        return self._front - self._base

    @property
    def successors(self) -> dict[Hashable, tuple[int, int]]:
        """Tail and head of each successor."""
        with self._lock:
            return {name: (place.tail, place.head) for name, place in self._successors.items()}

    # --- successors

    def open(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Have a successor, which reads from the front on, or what came after ``after_txid``.

        What nobody else needs stays until one of them moves on: after a start all of them open
        it first.

        Raises:
            LookupError: that is not held (any more).
        """
        with self._lock:
            at = self._front if after_txid is None else self._after(after_txid)
            self._successors[successor] = _Successor(at, at)

    def leave(self, successor: Hashable) -> None:
        """A successor is gone; nothing is kept for it."""
        with self._lock:
            self._successors.pop(successor, None)
            self._move_base()

    def keep_after(self, successor: Hashable, txid: int) -> None:
        """Everything up to ``txid`` is durable in a successor: its tail moves (A-7)."""
        with self._lock:
            place = self._successors[successor]
            if txid > self.base_txid:
                place.tail = max(place.tail, self._after(txid))
                place.head = max(place.head, place.tail)
                self._move_base()

    def rewind(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Let a successor read again what it has read since its tail, or since a txid.

        Raises:
            LookupError: that is before its tail.
        """
        with self._lock:
            place = self._successors[successor]
            at = place.tail if after_txid is None else self._after(after_txid)
            if at < place.tail:
                message = f"what came after txid {after_txid} is not kept for {successor!r}"
                raise LookupError(message)
            place.head = at

    def begin_after(self, txid: int) -> None:
        """What comes in is after ``txid``, of which nothing is told; REQUIRES: it is empty."""
        with self._lock:
            self._hints[2] = txid

    def sent(self, txid: int) -> list[Frame]:
        """The frames of ``txid`` without its end; none if nothing was put for it.

        Raises:
            LookupError: it is not held any more.
            Damaged: one is not as it was written.
        """
        with self._lock:
            if txid <= self.base_txid:
                message = f'queue "{self.name}" does not hold txid {txid}'
                raise LookupError(message)
            at = bisect.bisect_left(self._ends, txid, key=_txid)
            if at == len(self._ends) or self._ends[at][0] != txid:
                return []
            begin = self._ends[at - 1][1] if at else self._base
            out = []
            while begin < self._ends[at][1]:
                frame = self._shelf.frame(begin)
                out.append(frame)
                begin = frame.end
            return out[:-1]

    def _after(self, txid: int) -> int:
        if txid < self.base_txid:
            message = f'queue "{self.name}" does not hold what came after txid {txid}'
            raise LookupError(message)
        at = bisect.bisect_right(self._ends, txid, key=_txid)
        return self._ends[at - 1][1] if at else self._base

    # --- putting

    def put(self, header: Header, batch: pa.RecordBatch | None = None) -> int:
        """Add a frame; returns where it stands.

        Raises:
            NoRoom: no block can be had; nothing was put.
            OSError: its schema cannot be written; nothing was put.
        """
        body, schema = None, 0
        if batch is not None:
            schema = self._schemas.number(batch.schema)
            body = memoryview(batch.serialize()).cast("B")
        with self._lock:
            length = 0 if body is None else len(body)
            need = frames.size(length)
            at = self.ring.room(self._front, need, self._pass_by())
            place = (at, at - self._front, schema)
            frames.write(self.ring.memory(at, need), header, place, body)
            self._front = at + need
            self._hints[1] = self._front
            self.written_bytes += need
            if header.kind is Kind.TIME_END:
                self._ends.append((header.txid, self._front))
            else:
                self.rows += header.rows
        return at

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is put inside is there whole, or, after an error, not at all."""
        with self._lock:
            front = self._front
            try:
                yield
            except BaseException:
                self._cut(front)
                raise

    def _cut(self, front: int) -> None:
        """What is from ``front`` on was never put; nobody has read it."""
        self._front = front
        self._hints[1] = front
        del self._ends[bisect.bisect_right(self._ends, front, key=_offset) :]
        self.ring.cut(front)

    # --- reading

    def ahead(self, successor: Hashable) -> int:
        """Bytes that a successor has not read yet."""
        with self._lock:
            return self._front - self._successors[successor].head

    def read(
        self, successor: Hashable, bytes_max: int | None = None, txid_max: int | None = None
    ) -> list[Frame]:
        """The next frames for a successor, whose head moves: as many as ``bytes_max`` allows.

        At least one, if there is one.  None of a txid after ``txid_max``.

        Raises:
            Damaged: one is not as it was written; the head stays before it.
        """
        out: list[Frame] = []
        with self._lock:
            place, taken = self._successors[successor], 0
            while place.head < self._front:
                try:
                    frame = self._shelf.frame(place.head)
                except Damaged:
                    if out:
                        break
                    raise
                taken += frame.header.size
                late = txid_max is not None and frame.header.txid > txid_max
                if late or (out and bytes_max is not None and taken > bytes_max):
                    break
                out.append(frame)
                place.head = frame.end
        return out

    # --- giving up

    def _move_base(self) -> None:
        tails = (place.tail for place in self._successors.values())
        self._base = max(self._base, min(tails, default=self._front))
        at = bisect.bisect_right(self._ends, self._base, key=_offset)
        if at:
            # First, for nobody may take a later base for an earlier one.
            self._hints[2] = self._ends[at - 1][0]
        self._hints[0] = self._base
        del self._ends[: bisect.bisect_left(self._ends, self._base, key=_offset)]
        self._pass_by()

    def _pass_by(self) -> int:
        """Where what is needed, or held, begins."""
        floor = self._shelf.held_from(self._base)
        self.ring.pass_by(floor)
        return floor

    def check(self) -> int:
        """Give blocks back when it is near empty; returns how many.  To be called now and then."""
        with self._lock:
            return self.ring.shrink(self._front - self._pass_by())

    def drop(self) -> bool:
        """It is gone, with all that it holds; False: not yet, for somebody holds a batch of it."""
        with self._lock:
            self._successors.clear()
            if self._shelf.held:
                return False
            self.ring.give_up()
            return True

    # --- after a kill

    def _recover(self) -> None:
        """Find what stood in it when its process ended: frames that are whole, without a gap."""
        at, told = self._base, self._front = int(self._hints[0]), int(self._hints[1])
        while at < told:
            header = self._shelf.following(at)
            if header is None:
                break
            if header.gap:
                self.ring.add_gap(at, header.offset)
            at = header.offset + header.size
            if header.kind is Kind.TIME_END:
                self._ends.append((header.txid, at))
        self.lost = at < told
        # A txid whose end did not come in is put again, from its beginning.
        self._cut(self._ends[-1][1] if self._ends else self._base)


def _txid(end: tuple[int, int]) -> int:
    return end[0]


def _offset(end: tuple[int, int]) -> int:
    return end[1]
