"""A queue: the frames of one output, for all of its successors (A-4, A-5).

    base ≤ tail ≤ head ≤ front, offsets in bytes since the queue was made, which never wrap

A successor's *head* is what it reads next, its *tail* the first thing it would need again: what
came after the last txid that is durable in it.  What is before every tail goes (A-7).  A fan-out
writes once; a successor that is slow, gone for a while or set back is a pointer further back.

* Invariant 1: frames come out in the order they were put, once per successor, whole.
* Invariant 2: what somebody holds a batch of is not written again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
import pyarrow as pa

from headrace.storage import frames
from headrace.storage.blocks import Extent, runs
from headrace.storage.ends import Ends
from headrace.storage.frames import Header, Kind
from headrace.storage.pool import BufferPool
from headrace.storage.residence import Residence
from headrace.storage.ring import Ring
from headrace.storage.schemas import Schemas
from headrace.storage.shelf import Damaged, Frame, Shelf

_NOWHERE: Final = 1 << 62
"""Behind whatever there may be."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a queue holds at a moment."""

    rows: int
    bytes: int
    blocks: tuple[Extent, ...]
    """All that it has, also those that hold nothing."""
    base_txid: int
    """What came up to it is gone."""
    last_txid: int
    held_bytes: int
    """Of what was read and is in use."""
    behind: dict[Hashable, tuple[int, int]]
    """Of each successor: the last txid that is durable in it, and the bytes that came later."""


@dataclass(slots=True)
class _Successor:
    """How far one is."""

    tail: int
    head: int


class Queue:
    """One queue in a block file; safe between threads of one process.

    Its lock is that of the block file, which all its queues share.
    """

    def __init__(
        self,
        number: int,
        name: str,
        pool: BufferPool,
        schemas: Schemas,
        hints: npt.NDArray[Any],
        found: Mapping[int, int] | None = None,
    ) -> None:
        """``hints``: three numbers that outlive the process: base, front, and txid of the base.

        ``found``: the blocks of a queue that an earlier process has left, by place in it.
        """
        self.number: Final = number
        self.name: Final = name
        self._schemas: Final = schemas
        self._lock: Final = pool.lock
        self._pool: Final = pool
        self._hints: Final = hints
        self.ends: Final = Ends(int(hints[2]) if found is not None else 0)
        """Where txids end in it, and when they were committed."""
        self.front = 0
        """Where the next frame is put."""
        self.base = 0
        """The oldest tail: what is before it is gone."""
        self._least = _NOWHERE
        """The oldest tail, when the base was moved last ..."""
        self._oldest = 0
        """... and how many successors have had it since, at least."""
        self._schema: tuple[pa.Schema, int] | None = None
        """Of the last batch, and its number."""
        self._successors: dict[Hashable, _Successor] = {}
        self.written_bytes = 0
        """Bytes of frames put since it was opened (A-4: once, however many successors)."""
        self.rows = 0
        """Rows put since it was opened, and those that it held then."""
        self.synced = 0
        """Up to where it is known to be on the disk."""
        self.lost = False
        """Whether what had been put before a kill was not all found again."""
        if found is None:
            hints[:] = 0
        self.read_at: int | None = None
        """Behind what was read last, by whomever; None: nothing was."""
        self.ring: Final = Ring(number, pool.file, found, int(hints[0]))
        self.residence: Final = Residence(self.ring, pool.file)
        self.shelf: Final = Shelf(self.ring, pool.file, schemas)
        self._recover()

    # --- where things are

    @property
    def base_txid(self) -> int:
        """What came up to this txid is gone."""
        return self.ends.base_txid

    @property
    def last_txid(self) -> int:
        """The last txid that has ended in it, or that it began after."""
        return self.ends.last_txid

    @property
    def queued_bytes(self) -> int:
        """Bytes between base and front."""
        return self.front - self.base

    @property
    def resident_bytes(self) -> int:
        """Bytes between base and front that are in memory, or may be."""
        with self._lock:
            return self.residence.bytes(self.base, self.front)

    @property
    def successors(self) -> dict[Hashable, tuple[int, int]]:
        """Tail and head of each successor."""
        with self._lock:
            return {name: (place.tail, place.head) for name, place in self._successors.items()}

    def contents(self) -> Contents:
        """What it holds now; for whoever wants to know."""
        with self._lock:
            self._pass_by()
            blocks = self.ring.blocks
            numbers = self.rows - self.ends.base_rows, self.queued_bytes
            more = self.base_txid, self.last_txid, self.shelf.held_bytes
            behind = {
                name: (self.ends.before(place.tail), self.front - place.tail)
                for name, place in self._successors.items()
            }
        return Contents(*numbers, tuple(runs(sorted(blocks))), *more, behind)

    # --- successors

    def open(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Have a successor, which reads from the front on, or what came after ``after_txid``.

        What nobody else needs stays until one of them moves on: after a start all of them open
        it first.

        Raises:
            LookupError: that is not held (any more).
        """
        with self._lock:
            at = self.front if after_txid is None else self._after(after_txid)
            self._successors[successor] = _Successor(at, at)
            # Where the oldest is, is looked at again when one of them moves.
            self._least = _NOWHERE

    def leave(self, successor: Hashable) -> None:
        """A successor is gone; nothing is kept for it."""
        with self._lock:
            self._successors.pop(successor, None)
            self._move_base()

    def keep_after(self, successor: Hashable, txid: int) -> None:
        """Everything up to ``txid`` is durable in a successor: its tail moves (A-7)."""
        with self._lock:
            place = self._successors[successor]
            if txid <= self.ends.base_txid:
                return
            before, at = place.tail, self._after(txid)
            if at <= before:
                return
            place.tail = at
            if place.head < at:
                place.head = at
            if before > self._least:
                return
            # It was one of the oldest.
            self._oldest -= 1
            if self._oldest <= 0 or before < self._least:
                self._move_base()

    def rewind(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Let a successor read on behind a txid, or again what it has read since its tail.

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
        """What comes in is after ``txid``: what stands here of later ones was never put.

        An empty one is told nothing of ``txid``.  REQUIRES: it is empty, or holds ``txid``; nobody
        has read what goes.
        """
        with self._lock:
            if txid < self.last_txid:
                self._cut(self._after(txid), self.ends.rows_to(txid))
            elif txid > self.last_txid:
                self._hints[2] = self.ends.base_txid = txid

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
            span = self.ends.span(txid)
            if span is None:
                return []
            begin, end = (self.base if span[0] is None else span[0]), span[1]
            out = []
            while begin < end - frames.HEADER_BYTES:
                frame = self._frame(begin)
                begin = frame.end
                if frame.header.kind is not Kind.TIME_END:
                    out.append(frame)
            return out

    def _frame(self, at: int) -> Frame:
        """The frame that comes at ``at``; where that is on the disk, with what comes behind."""
        if at < self.residence.left:
            self._pool.read(self, at)
        frame = self.shelf.kept.get(at) or self.shelf.frame(at)
        if at < self.residence.left and frame.end - at > self._pool.window_bytes:
            self._pool.read(self, at, frame.header.size)
        self.read_at = frame.end
        return frame

    def _after(self, txid: int) -> int:
        if txid < self.base_txid:
            message = f'queue "{self.name}" does not hold what came after txid {txid}'
            raise LookupError(message)
        at = self.ends.after(txid)
        return self.base if at is None else at

    # --- putting

    def put(self, header: Header, batch: pa.RecordBatch | None = None) -> int:
        """Add a frame; returns where it stands.

        Raises:
            NoRoom: no block can be had; nothing was put.
            OSError: its schema cannot be written; nothing was put.
        """
        body, schema, need = None, 0, frames.HEADER_BYTES
        if batch is not None:
            if self._schema is None or not batch.schema.equals(self._schema[0], True):
                self._schema = batch.schema, self._schemas.number(batch.schema)
            schema = self._schema[1]
            body = memoryview(batch.serialize()).cast("B")
            need = frames.size(len(body))
        with self._lock:
            front = at = self.front
            if not self.ring.follows(front, need):
                at = self.ring.room(front, need, self._pass_by())
            frame = frames.made(header, (at, at - front, schema), body)
            self._pool.file.write(self.ring.where(at), *frame)
            self.front = self._hints[1] = at + need
            self.written_bytes += need
            if header.kind is Kind.TIME_END:
                self.ends.add(header.txid, self.front, self.rows, header.commit_us)
            else:
                self.rows += header.rows
        return at

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is put inside is there whole, or, after an error, not at all."""
        with self._lock:
            front, rows = self.front, self.rows
            try:
                yield
            except BaseException:
                self._cut(front, rows)
                raise

    def bytes_after(self, txid: int) -> int:
        """Bytes that came after ``txid``.

        Raises:
            LookupError: that is not held any more.
        """
        with self._lock:
            return self.front - self._after(txid)

    def _cut(self, front: int, rows: int) -> None:
        """What is from ``front`` on was never put; nobody has read it."""
        self.rows = rows
        self.front = self._hints[1] = front
        # What comes there is other bytes: not on the disk, not in memory, not known.
        self.synced = min(self.synced, front)
        self.residence.cut(front)
        self.shelf.cut(front)
        self.ends.cut(front)
        self.ring.cut(front)

    # --- reading

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
            head, front = place.head, self.front
            while head < front:
                try:
                    frame = self._frame(head)
                except Damaged:
                    if out:
                        break
                    raise
                if txid_max is not None and frame.header.txid > txid_max:
                    break
                if bytes_max is not None:
                    taken += frame.header.size
                    if out and taken > bytes_max:
                        break
                out.append(frame)
                head = place.head = frame.end
                if bytes_max is not None and taken >= bytes_max:
                    break
        return out

    # --- giving up

    def _move_base(self) -> None:
        tails = [place.tail for place in self._successors.values()]
        self._least = min(tails) if tails else _NOWHERE
        self._oldest = tails.count(self._least)
        self.base = max(self.base, min(self._least, self.front))
        self.ends.forget(self.base)
        # First, for nobody may take a later base for an earlier one.
        self._hints[2] = self.ends.base_txid
        self._hints[0] = self.base
        self._pass_by()

    def _pass_by(self) -> int:
        """Where what is needed, or held, begins."""
        floor = self.shelf.held_from(self.base)
        self.ring.pass_by(floor)
        return floor

    def check(self) -> int:
        """Give blocks back when it is near empty; returns how many.  To be called now and then."""
        with self._lock:
            return self.ring.shrink(self.front - self._pass_by())

    def drop(self) -> bool:
        """It is gone, with all that it holds; False: not yet, for somebody holds a batch of it."""
        with self._lock:
            self._successors.clear()
            if self.shelf.held:
                return False
            self.ring.give_up()
            return True

    # --- after a kill

    def _recover(self) -> None:
        """Find what stood in it when its process ended: frames that are whole, without a gap."""
        at = self.base = self.front = int(self._hints[0])
        told = int(self._hints[1])
        while at < told:
            header = self.shelf.following(at)
            if header is None:
                break
            if header.gap:
                self.ring.add_gap(at, header.offset)
            self.front = at = header.offset + header.size
            if header.kind is Kind.TIME_END:
                self.ends.add(header.txid, self.front, self.rows, header.commit_us)
            else:
                self.rows += header.rows
        self.lost = at < told
        # A txid whose end did not come in is put again, from its beginning.
        if self.ends:
            self._cut(*self.ends.last)
        else:
            self._cut(self.base, 0)
