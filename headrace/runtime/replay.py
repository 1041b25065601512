"""Position at which the stream must start again, and the cuts of the batches after it.

A recorded batch is cut the same way in each replay (T-11, T-26).  Records are durable with the next
checkpoint at the latest; a power failure may come before it.  Then the result tables are ahead of
the local state, and their progress rows say how far.  The lost batches become one that ends at a
table's position.  Its state is recomputed and its diffs are not written.  The result is exact: the
source's rows at a position determine state and table, however the batches before it were cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from headrace.errors import ContinuityLost
from headrace.forwarder.batcher import Backlog, Cut
from headrace.runtime import positions
from headrace.runtime.book import Book
from headrace.runtime.positions import BatchRecord, Position, StateMark
from headrace.types import format_lsn, parse_lsn

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """How recorded batches are replayed."""

    start: Position
    """Position after which the first of them begins."""
    backlog: Backlog | None
    """Batches retained locally, which come first."""
    cuts: list[Cut]
    """Batches that the source sends again."""
    stream_lsn: int
    """LSN at which the source begins."""

    @property
    def batches(self) -> int:
        """Number of batches to replay."""
        return len(self.cuts) + (self.backlog.left if self.backlog is not None else 0)


def plan(book: Book) -> Plan:
    """Return the recorded batches that a live view lacks, and where the stream must start.

    If no live view lacks recorded batches, the book's position moves over them.

    Raises:
        ContinuityLost: the source is at an earlier position, so it was restored.
    """
    _check_age(book)
    _find(book)
    ends = {txid: record.end_lsn for txid, record in book.records.items()}
    for view in book.views.values():
        progress = view.progress
        if view.owned and progress is not None and progress.txid > view.mark.txid:
            ends.setdefault(progress.txid, progress.lsn)
    live = [v.mark for v in book.views.values() if v.live]
    live += [p.mark for p in book.parts if p.first in book.views and book.views[p.first].live]
    last = max([book.position.txid, *ends])
    behind = [mark for mark in live if mark.txid < last]
    base = min((mark.txid for mark in behind), default=last)
    lsn = min(map(book.covered, behind), default=book.position.lsn)
    if not behind and last > book.position.txid:
        lsn = max(book.position.lsn, ends[last])
        book.position = Position(last, lsn)
    start = Position(base, lsn)
    _retain(book, base, last)
    retained = book.retained
    if not retained.exists or not (retained.local or retained.covers(base)):
        return Plan(start, None, _cuts(book, ends, start, last), lsn)
    # The source goes on at the end of the queue, even if live views are further.
    known = Position(retained.last, book.retained_lsn)
    cuts = _cuts(book, ends, known, last)
    if base >= known.txid:
        return Plan(known, None, cuts, known.lsn)
    return Plan(start, retained.backlog(base), cuts, known.lsn)


def _find(book: Book) -> None:
    """Restore records that were lost in a power failure, from the retained batches."""
    meta: positions.Meta = {}
    if book.retained.exists:
        for record in book.retained.records(book.records.last):
            book.records.record(meta, record)
    if meta:
        book.db.put_meta(meta, sync=False)


def _retain(book: Book, base: int, last: int) -> None:
    """Begin to retain batches from where a view or hold may need them, if that is configured."""
    retained = book.retained
    if not retained.local:
        return
    views = [*(view for view in book.views.values() if view.owned), *book.parts]
    # A hold whose changes are gone retains nothing.
    holds = [h for h in book.holds.jobs().values() if book.needs(h) >= book.confirmed]
    least = min([base, last, *(v.mark.txid for v in views), *(h.txid for h in holds)])
    durable = min([least, book.durable.txid, *(v.durable.txid for v in views)])
    if retained.covers(least) or (retained.covers(durable) and retained.last < least):
        return
    at = [book.covered(v.mark) for v in views if v.mark.txid == least]
    at += [h.lsn for h in holds if h.txid == least]
    retained.begin(book.db, least, min(at, default=book.covered(StateMark(least, 0, 0))))


def _check_age(book: Book) -> None:
    """Raise ContinuityLost if the source is behind the engine's position."""
    row = book.owner.conn.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    ours = book.position.lsn
    if parse_lsn(row[0]) < ours:
        raise ContinuityLost(
            "the source is older than the state of the views: it was restored",
            detail=f"It is at {row[0]}, the state at {format_lsn(ours)}.",
        )


def _cuts(book: Book, ends: Mapping[int, int], start: Position, last: int) -> list[Cut]:
    """Return the cuts after ``start``; a lost batch ends where the one before it does."""
    cuts = []
    meta: positions.Meta = {}
    end = start.lsn
    for txid in range(start.txid + 1, last + 1):
        begin, end = end, ends.get(txid, end)
        if txid not in book.records:
            book.records[txid] = BatchRecord(txid, begin, end, 0)
            positions.put_record(meta, book.records[txid])
        cuts.append(Cut(txid, end))
    book.records.last = max(book.records.last, last)
    if meta:
        _log.warning("records of batches were lost", batches=len(meta))
        book.db.put_meta(meta, sync=False)
    return cuts
