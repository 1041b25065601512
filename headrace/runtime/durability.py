"""Checkpoints, confirmation to the source, and removal of what is no longer needed.

* Invariant 1: nothing is confirmed, and no record forgotten, that a checkpoint on disk does not
  cover, with marks and position (rule 1: sink commit, checkpoint, confirmation, in this order).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace import clock
from headrace.forwarder.stream import Stream
from headrace.process import faults
from headrace.runtime import positions
from headrace.runtime.book import Book
from headrace.runtime.checkpoints import Durable, Promise
from headrace.runtime.positions import Position
from headrace.runtime.shared import Shared
from headrace.runtime.urgency import Urgency

_CHECK_S: Final = 1.0


class Durability:
    """Checkpoints and confirmation of one engine; every method runs on its thread."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._confirm_at = 0.0
        self._check_at = 0.0
        self._asked = 0
        self.urgency: Final = Urgency(book)

    def step(self, stream: Stream) -> float:
        """Do what is due; return when to call again, on the monotonic clock."""
        self._confirm_if_due(stream)
        self.end()
        urgency_at = self.urgency.step()
        ahead = self._confirmable() > self._book.confirmed
        due = self._due(ahead=ahead)
        if due <= clock.monotonic():
            self.begin()
            due = self._due(ahead=ahead)
        return min(due, self._confirm_at, urgency_at)

    def end(self, *, wait: bool = False) -> None:
        """Handle a checkpoint that was written; ``wait`` until none is under way."""
        what = self._book.checkpoints.end(self._book.db, wait=wait)
        if what is not None:
            self._take(what)

    def still(self) -> None:
        """Wait until no checkpoint is being written."""
        self.end(wait=True)

    def finish(self) -> None:
        """Make all commits durable."""
        self.end(wait=True)
        if self._book.checkpoints.pending or self._confirmable() > self._book.confirmed:
            self.begin()
            self.end(wait=True)

    def trim(self, subplans: Iterable[Shared]) -> None:
        """Drop the output of these shared subplans that no reader needs any more."""
        jobs = self._book.holds.jobs()
        for shared in subplans:
            shared.awaited = {job: who for job, who in shared.awaited.items() if job in jobs}
            readers = dict(shared.awaited.values())
            readers |= {r.id: r.durable.txid for r in self._book.readers(shared)}
            shared.keep_for(readers)

    # --- what may be confirmed

    def _confirmable(self) -> int:
        """Return the LSN before which the stream is not needed once all is durable."""
        return max(self._book.holds.limit(self._needless(), self._book.needs), self._confirmed_soon)

    def _promise(self) -> int:
        """Return that LSN, which is about to be confirmed; a later hold begins there."""
        book = self._book
        position = Position(book.position.txid, self._needless())
        return book.holds.promise(position, self._confirmed_soon, book.needs)

    @property
    def _confirmed_soon(self) -> int:
        """Lower bound of the LSN to confirm: the server ignores lower ones; a hold below is lost."""
        return max(self._book.confirmed, self._book.checkpoints.confirming)

    def _needless(self) -> int:
        """Return the LSN before which no view needs the stream any more."""
        book = self._book
        # The retained batches may reach further than the committed ones.
        lsns = [book.needs(book.position)]
        left_out = self._left_out()
        # The checkpoint does not make the present marks of units that it leaves out durable.
        marks = [(unit, unit.durable) for unit in book.index.owned(left_out)]
        behind = book.index.behind(book.position.txid)
        marks += [(unit, unit.mark) for unit in behind if unit.id not in left_out]
        for unit, mark in marks:
            if unit.staged:
                lsns.append(book.needs(Position(mark.txid, mark.lsn)))
            elif mark.txid < book.position.txid:
                lsns.append(book.needs(mark))
        return min(lsns)

    def _left_out(self) -> set[int]:
        """Return the units that a checkpoint would leave out now.

        These are units at work in the side lane, units on a lost worker, and their readers.  Views
        with a part that is behind them also count: a reader is never durable beyond its feeds.
        """
        book = self._book
        if not (book.side.working or book.hosts):
            return set()
        away = book.index.elsewhere
        out = set(book.side.working) | {u.id for u in away if not u.reachable}
        for unit_id in list(out):
            shared = book.subplans.get(unit_id)
            if shared is not None:
                out |= book.all_readers(shared)
        for part in book.index.parts:
            view = book.views.get(part.first)
            if view is not None and view.mark.txid > part.mark.txid:
                out.add(view.id)
        return out

    # --- checkpoints

    def _due(self, *, ahead: bool) -> float:
        book = self._book
        hosts = list(book.hosts.values())
        # The last check looks at all states, so only if it is needed.
        large = any(host.large for host in hosts) or (
            book.checkpoints.pending > 0 and book.db.checkpoint_due
        )
        crowded = self.urgency.crowded
        owed = book.side.left_out and not book.side.working
        return book.checkpoints.due(ahead=ahead, large=large, crowded=crowded, owed=owed)

    def begin(self) -> None:
        """Begin a checkpoint of all commits; REQUIRES: none is under way."""
        faults.point(faults.BEFORE_CHECKPOINT)
        book = self._book
        left_out = self._left_out()
        units = [unit for unit in book.index.undurable if unit.id not in left_out]
        book.side.left_out = bool(book.side.working)
        for host in book.hosts.values():
            host.large = False
        meta: positions.Meta = {}
        promise = self._promise()
        book.retained.note(meta)  # it has everything promised, and is synced before
        book.checkpoints.begin(book.db, book.queues, units, Promise(book.position, promise), meta)

    def _take(self, what: Durable) -> None:
        book = self._book
        for unit_id, mark in what.marks.items():
            unit = book.unit(unit_id)
            if unit is not None:
                unit.checkpointed(mark)
        for host in book.hosts.values():
            host.crowded = False
        # Readers' needs change if one has moved, or if a job that awaited output has ended.
        moved = {f for unit in map(book.unit, what.marks) if unit for f in unit.feeds.values()}
        read = (book.subplans.get(feeder) for feeder in moved)
        awaited = (shared for shared in book.subplans.values() if shared.awaited)
        self.trim({shared.id: shared for shared in (*read, *awaited) if shared}.values())
        self.urgency.tend(moved=bool(what.marks))
        book.durable = what.position
        book.confirmed = max(book.confirmed, what.confirmed)
        self._forget()
        faults.point(faults.CHECKPOINT_WRITTEN)
        if book.stream is not None:
            self._confirm(book.stream)

    def _forget(self) -> None:
        """Forget batches that cannot be needed again, and all records but the last before them."""
        book = self._book
        # Owned views and parts: the source or the local queue has what they lack.
        needed = [*book.index.durable_txids, *book.holds.txids()]
        # Batches to be replayed for a view that has left meanwhile must be cut as before, too.
        least = min([book.durable.txid, book.taken.txid, *needed])
        meta: positions.Meta = {}
        book.records.trim(meta, least)
        if meta:
            book.db.put_meta(meta, sync=False)
        book.retained.keep_after(book.db, least)
        book.pipeline.durable(least)

    def _confirm_if_due(self, stream: Stream) -> None:
        book = self._book
        now = clock.monotonic()
        asked = stream.asked != self._asked
        if now < self._confirm_at and not asked:
            return
        self._asked = stream.asked
        self._confirm_at = now + book.settings.feedback_interval_ms / 1000
        self._confirm(stream)
        if not asked or stream.confirmed >= stream.received:
            return
        # A server that shuts down waits until everything is confirmed.
        if self._confirmable() > book.confirmed and not book.checkpoints.underway:
            self.begin()
        if now >= self._check_at:
            # If that is impossible (a hold, a blocked view), end the stream to let it go.  The
            # other connections are gone by then.
            self._check_at = now + _CHECK_S
            book.owner.conn.execute("SELECT 1")

    def _confirm(self, stream: Stream) -> None:
        """Confirm to the source what is durable."""
        confirmed = self._book.confirmed
        if confirmed > stream.confirmed:
            stream.confirm(confirmed)
            faults.point(faults.FEEDBACK_SENT)
