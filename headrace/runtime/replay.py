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

import structlog

from headrace.errors import ContinuityLost
from headrace.forwarder.batcher import Cut
from headrace.runtime import positions
from headrace.runtime.book import Book
from headrace.runtime.positions import BatchRecord, Position
from headrace.types import format_lsn, parse_lsn

_log = structlog.get_logger(__name__)


def plan(book: Book) -> tuple[list[Cut], Position]:
    """Recorded batches that some live view lacks, and where the stream must start.

    The book's position moves over recorded batches that nobody lacks.

    Raises:
        ContinuityLost: the source has not come so far: it was restored.
    """
    _check_age(book)
    ends = {txid: record.end_lsn for txid, record in book.records.items()}
    for view in book.views.values():
        progress = view.progress
        if view.owned and progress is not None and progress.txid > view.mark.txid:
            ends.setdefault(progress.txid, progress.lsn)
    live = [v.mark for v in book.views.values() if v.live]
    last = max([book.position.txid, *ends])
    behind = [mark for mark in live if mark.txid < last]
    base = min((mark.txid for mark in behind), default=last)
    lsn = min(map(book.covered, behind), default=book.position.lsn)
    if not behind and last > book.position.txid:
        lsn = max(book.position.lsn, ends[last])
        book.position = Position(last, lsn)
    start = Position(base, lsn)
    return _cuts(book, ends, start, last), start


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
