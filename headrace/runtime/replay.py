"""Where the stream must start again, and how the batches from there on were cut.

A batch that was recorded is cut the same way in each replay (T-11, T-26).  Records are durable
with the next checkpoint at the latest; the power of the machine may go before.  Then the result
tables are ahead of everything here, and their progress rows say how far: the lost batches become
one that ends where a table stands.  Its state is computed anew and its diffs are not written, and
that is exact, since state and table at a position are what the source's rows there make them,
however the way to it was divided.
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
    """How the recorded batches come again."""

    start: Position
    """The first of them comes after this."""
    backlog: Backlog | None
    """Those that are kept on our side, which come first."""
    cuts: list[Cut]
    """Those that the source sends again."""
    stream_lsn: int
    """Where it begins."""

    @property
    def batches(self) -> int:
        """How many come again."""
        return len(self.cuts) + (self.backlog.left if self.backlog is not None else 0)


def plan(book: Book) -> Plan:
    """Recorded batches that some live view lacks, and where the stream must start.

    The book's position moves over recorded batches that nobody lacks.

    Raises:
        ContinuityLost: the source has not come so far: it was restored.
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
    # The source goes on where the queue ends, be it before what live views have: it is for all.
    known = Position(retained.last, book.retained_lsn)
    cuts = _cuts(book, ends, known, last)
    if base >= known.txid:
        return Plan(known, None, cuts, known.lsn)
    return Plan(start, retained.backlog(base), cuts, known.lsn)


def _find(book: Book) -> None:
    """Records that the power of the machine has taken, of batches that are kept."""
    meta: positions.Meta = {}
    if book.retained.exists:
        for record in book.retained.records(book.records.last):
            book.records.record(meta, record)
    if meta:
        book.db.put_meta(meta, sync=False)


def _retain(book: Book, base: int, last: int) -> None:
    """Have batches kept on our side from where somebody may need them on, if they should be."""
    retained = book.retained
    if not retained.local:
        return
    views = [*(view for view in book.views.values() if view.owned), *book.parts]
    # A hold that is in vain (what it needs is gone) keeps nothing.
    holds = [h for h in book.holds.jobs().values() if book.needs(h) >= book.confirmed]
    least = min([base, last, *(v.mark.txid for v in views), *(h.txid for h in holds)])
    durable = min([least, book.durable.txid, *(v.durable.txid for v in views)])
    if retained.covers(least) or (retained.covers(durable) and retained.last < least):
        return
    at = [book.covered(v.mark) for v in views if v.mark.txid == least]
    at += [h.lsn for h in holds if h.txid == least]
    retained.begin(book.db, least, min(at, default=book.covered(StateMark(least, 0, 0))))


def _check_age(book: Book) -> None:
    """Nobody would be told of what a source writes where it has once been."""
    row = book.owner.conn.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    ours = book.position.lsn
    if parse_lsn(row[0]) < ours:
        raise ContinuityLost(
            "the source is older than the state of the views: it was restored",
            detail=f"It is at {row[0]}, the state at {format_lsn(ours)}.",
        )


def _cuts(book: Book, ends: Mapping[int, int], start: Position, last: int) -> list[Cut]:
    """The batches after ``start``, all recorded; a lost one ends where the one before does."""
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
