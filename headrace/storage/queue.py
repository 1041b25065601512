"""A queue: the frames of one output, for all of its successors (A-4, A-5).

        base ≤ tail ≤ head ≤ front, offsets in bytes since the queue was created, which never wrap

A successor's *head* is its next position to read.  Its *tail* is the first position that it may
need again: the end of the last txid durable in it.  Frames before every tail are removed (A-7).
A fan-out writes once; a successor that is slow, absent or rewound is a pointer further back.

* Invariant 1: frames are read whole, in the order of their puts, once per successor.
* Invariant 2: bytes of a batch that a reader holds are not overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from headrace.storage import frames
from headrace.storage.blocks import Extent, NoRoom, runs
from headrace.storage.ends import Ends
from headrace.storage.frame_cache import Damaged, Frame, FrameCache
from headrace.storage.frames import Header, Kind
from headrace.storage.pool import BufferPool
from headrace.storage.positions import BASE, EPOCH, FRONT, SINCE, TXID, Row
from headrace.storage.residency import Residency
from headrace.storage.ring import Ring
from headrace.storage.schemas import Schemas

_NOWHERE: Final = 1 << 62
"""An offset beyond the end of any queue."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a queue at one time."""

    rows: int
    bytes: int
    blocks: tuple[Extent, ...]
    """All its blocks, including the empty ones."""
    base_txid: int
    """The contents up to this txid are gone."""
    last_txid: int
    held_bytes: int
    """Bytes of frames that were read and are in use."""
    behind: dict[Hashable, tuple[int, int]]
    """For each successor: the last txid durable in it, and the bytes that came later."""


@dataclass(slots=True)
class _Successor:
    """The position of one successor."""

    tail: int
    head: int


class Syncer(Protocol):
    """The part of the storage that puts need; the caller holds the lock."""

    def begin_epochs(self) -> None:
        """Begin an epoch of each queue that has ``must_begin``; all that was put is synced before.

        Raises:
            OSError: the queues cannot be written now.
        """

    def release(self) -> bool:
        """Sync the bases; return whether a queue could release something that it could not before.

        Raises:
            OSError: they cannot be written now.
        """


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
        row: Row,
        syncer: Syncer,
        found: Mapping[int, int] | None = None,
    ) -> None:
        """Open a queue; the words of ``row`` outlive the process.

        ``found``: the blocks of a queue of an earlier process, by place in the queue.
        """
        self.number: Final = number
        self.name: Final = name
        self._schemas: Final = schemas
        self._lock: Final = pool.lock
        self._pool: Final = pool
        self._row: Final = row
        self._epoch = 0
        """Epoch of the next frames."""
        self._syncer: Final = syncer
        self.ends: Final = Ends(int(row[TXID]) if found is not None else 0)
        """The ends of its txids, with their commit times."""
        self.front = 0
        """Offset at which the next frame is put."""
        self.base = 0
        """The oldest tail; frames before it are gone."""
        self.synced_base = 0
        """The base that is known to be on the disk.  Blocks before it may be used again."""
        self.must_begin = True
        """Whether an epoch must begin before the next put, for frames may have been discarded."""
        self._least = _NOWHERE
        """The oldest tail when the base was last moved ..."""
        self._oldest = 0
        """... and a lower bound on the successors that are there."""
        self._schema: tuple[pa.Schema, int] | None = None
        """Schema of the last batch, and its number."""
        self._successors: dict[Hashable, _Successor] = {}
        self.written_bytes = 0
        """Bytes of frames put since it was opened (A-4: once, however many successors)."""
        self.rows = 0
        """Rows put since it was opened, plus the rows found then."""
        self.synced = 0
        """Offset up to which the frames are known to be on the disk."""
        self.lost = False
        """Whether some frames put before a kill were not found again."""
        if found is None:
            row[:] = 0
        self.read_at: int | None = None
        """End of the frame that was read last, by any successor; None: none was."""
        self.ring: Final = Ring(number, pool.file, found, int(row[BASE]))
        self.residency: Final = Residency(self.ring, pool.file)
        self.frame_cache: Final = FrameCache(self.ring, pool.file, schemas)
        self._recover()

    # --- where things are

    @property
    def base_txid(self) -> int:
        """The contents up to this txid are gone."""
        return self.ends.base_txid

    @property
    def last_txid(self) -> int:
        """The last txid that has ended in the queue, or after which the queue began."""
        return self.ends.last_txid

    @property
    def queued_bytes(self) -> int:
        """Bytes between base and front."""
        return self.front - self.base

    @property
    def resident_bytes(self) -> int:
        """Bytes between base and front that are, or may be, in memory."""
        with self._lock:
            return self.residency.bytes(self.base, self.front)

    @property
    def successors(self) -> dict[Hashable, tuple[int, int]]:
        """Tail and head of each successor."""
        with self._lock:
            return {name: (place.tail, place.head) for name, place in self._successors.items()}

    def contents(self) -> Contents:
        """Return the current contents, for status views."""
        with self._lock:
            self._pass_by()
            blocks = self.ring.blocks
            numbers = self.rows - self.ends.base_rows, self.queued_bytes
            more = self.base_txid, self.last_txid, self.frame_cache.held_bytes
            behind = {
                name: (self.ends.before(place.tail), self.front - place.tail)
                for name, place in self._successors.items()
            }
        return Contents(*numbers, tuple(runs(sorted(blocks))), *more, behind)

    # --- successors

    def open(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Add a successor, which reads from the front on, or after ``after_txid``.

        Frames that no other successor needs stay until a successor moves on; so after a start
        every successor opens the queue first.

        Raises:
            LookupError: the queue does not hold these frames (any more).
        """
        with self._lock:
            at = self.front if after_txid is None else self._after(after_txid)
            self._successors[successor] = _Successor(at, at)
            # The oldest tail is determined again when a successor moves.
            self._least = _NOWHERE

    def leave(self, successor: Hashable) -> None:
        """Remove a successor; no frames are kept for it any more."""
        with self._lock:
            self._successors.pop(successor, None)
            self._move_base()

    def keep_after(self, successor: Hashable, txid: int) -> None:
        """Move the tail of a successor, in which everything up to ``txid`` is durable (A-7)."""
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
            # This successor had the oldest tail.
            self._oldest -= 1
            if self._oldest <= 0 or before < self._least:
                self._move_base()

    def rewind(self, successor: Hashable, after_txid: int | None = None) -> None:
        """Move the head of a successor to just after a txid, or back to its tail.

        Raises:
            LookupError: that position is before its tail.
        """
        with self._lock:
            place = self._successors[successor]
            at = place.tail if after_txid is None else self._after(after_txid)
            if at < place.tail:
                message = f"the changes after txid {after_txid} are not stored for {successor!r}"
                raise LookupError(message)
            place.head = at

    def begin_after(self, txid: int) -> None:
        """Begin after ``txid``: discard all frames of later txids, as if they were never put.

        An empty queue gets ``txid`` as its base.  REQUIRES: the queue is empty, or holds ``txid``;
        none of these frames has been read.
        """
        with self._lock:
            if txid < self.last_txid:
                self._cut(self._after(txid), self.ends.rows_to(txid))
            elif txid > self.last_txid:
                self._row[TXID] = self.ends.base_txid = txid

    def sent(self, txid: int, after: int | None = None) -> list[Frame]:
        """Return the frames of ``txid`` without its end; none if nothing was put for it.

        ``after``: return those of all txids after this one, up to ``txid``.

        Raises:
            LookupError: the queue does not hold them any more, or some of them ended together with
                others.
            Damaged: one is not as it was written.
        """
        after = txid - 1 if after is None else after
        with self._lock:
            begin, end = self._after(after), self._after(txid)
            for at in (after, txid):
                if self.ends.around(at) != (at, at):
                    message = f'queue "{self.name}" does not hold the rows up to txid {at} alone'
                    raise LookupError(message)
            out = []
            while begin < end - frames.HEADER_BYTES:
                frame = self._frame(begin)
                begin = frame.end
                if frame.header.kind is not Kind.TIME_END:
                    out.append(frame)
            return out

    def _frame(self, at: int) -> Frame:
        """Return the frame at ``at``; if it is on the disk, load it with the following blocks."""
        if at < self.residency.left:
            self._pool.read(self, at)
        frame = self.frame_cache.kept.get(at) or self.frame_cache.frame(at)
        if at < self.residency.left and frame.end - at > self._pool.window_bytes:
            self._pool.read(self, at, frame.header.size)
        self.read_at = frame.end
        return frame

    def around(self, txid: int) -> tuple[int, int]:
        """Return the txid before and the last one of those that ended together around ``txid``."""
        with self._lock:
            return self.ends.around(txid)

    def _after(self, txid: int) -> int:
        if txid < self.base_txid:
            message = f'queue "{self.name}" does not contain the changes after txid {txid}'
            raise LookupError(message)
        at = self.ends.after(txid)
        return self.base if at is None else at

    # --- putting

    def put(self, header: Header, batch: pa.RecordBatch | None = None) -> int:
        """Add a frame; returns its offset.

        Raises:
            NoRoom: no block is available; nothing was put.
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
            if self.must_begin:
                self._syncer.begin_epochs()
            front = at = self.front
            if not self.ring.follows(front, need):
                at = self._room(need)
            frame = frames.made(header, (at, at - front, schema, self._epoch), body)
            self._pool.file.write(self.ring.where(at), *frame)
            self.front = self._row[FRONT] = at + need
            self.written_bytes += need
            if header.kind is Kind.TIME_END:
                self._end(header)
            else:
                self.rows += header.rows
        return at

    def _end(self, header: Header) -> None:
        """Note that a txid, or several, end at the front."""
        commit_us, log2_txids = header.commit_us, header.log2_txids
        self.ends.add(header.txid, self.front, self.rows, commit_us, log2_txids)

    def _room(self, need: int) -> int:
        try:
            return self.ring.room(self.front, need, self._pass_by())
        except NoRoom:
            if not self._syncer.release():
                raise
            return self.ring.room(self.front, need, self._pass_by())

    def begin_epoch(self, epoch: int) -> None:
        """Let the next frames have ``epoch``; REQUIRES: those that are here are synced."""
        # In this order: where the last frames end, the last epoch ends as well.
        self._row[SINCE] = self.front
        self._row[EPOCH] = self._epoch = epoch

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Make the puts within the context atomic: after an error none of them is there."""
        with self._lock:
            front, rows = self.front, self.rows
            try:
                yield
            except BaseException:
                self._cut(front, rows)
                raise

    def bytes_after(self, txid: int) -> int:
        """Return the bytes after ``txid``.

        Raises:
            LookupError: the queue does not hold them any more.
        """
        with self._lock:
            return self.front - self._after(txid)

    def _cut(self, front: int, rows: int) -> None:
        """Discard the frames from ``front`` on, which have not been read."""
        self.rows = rows
        self.must_begin = self.must_begin or front < self.front
        self.front = self._row[FRONT] = front
        # Other bytes will be written there: forget that these are synced, resident or decoded.
        self.synced = min(self.synced, front)
        self.residency.cut(front)
        self.frame_cache.cut(front)
        self.ends.cut(front)
        self.ring.cut(front)

    # --- reading

    def read(
        self, successor: Hashable, bytes_max: int | None = None, txid_max: int | None = None
    ) -> list[Frame]:
        """Read the next frames for a successor and move its head; up to ``bytes_max`` bytes.

        At least one frame, if there is one, but none of a txid after ``txid_max``.

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
        # First, so that a new base is never read together with the old txid.
        self._row[TXID] = self.ends.base_txid
        self._row[BASE] = self.base
        self._pass_by()

    def _pass_by(self) -> int:
        """Release the blocks before the first needed or held offset; returns that offset.

        Those from ``synced_base`` on stay: after a crash of the machine the queue begins there.
        """
        floor = min(self.frame_cache.held_from(self.base), self.synced_base)
        self.ring.pass_by(floor)
        return floor

    def note_base(self, base: int) -> None:
        """Take note that ``base``, which the queue had before a sync of its row, is on the disk."""
        with self._lock:
            self.synced_base = max(self.synced_base, base)
            self._pass_by()

    def check(self) -> int:
        """Release blocks when it is almost empty; returns how many.  To be called periodically."""
        with self._lock:
            return self.ring.shrink(self.front - self._pass_by())

    def drop(self) -> bool:
        """Drop the queue and its contents; returns False if a reader still holds a batch of it."""
        with self._lock:
            self._successors.clear()
            if self.frame_cache.held:
                return False
            self.ring.give_up()
            return True

    # --- after a kill

    def _recover(self) -> None:
        """Find the frames of the earlier process: those that are whole, without a gap."""
        at = self.base = self.front = int(self._row[BASE])
        told = int(self._row[FRONT])
        since, self._epoch = int(self._row[SINCE]), int(self._row[EPOCH])
        while at < told:
            header = self.frame_cache.following(at, self._epoch if at >= since else None)
            if header is None:
                break
            if header.gap:
                self.ring.add_gap(at, header.offset)
            self.front = at = header.offset + header.size
            if header.kind is Kind.TIME_END:
                self._end(header)
            else:
                self.rows += header.rows
        self.lost = at < told
        # A txid without an end is put again, from its beginning.
        if self.ends:
            self._cut(*self.ends.last)
        else:
            self._cut(self.base, 0)
