"""Position at which the stream must start again, and the cuts of the batches after it.

A recorded batch is cut the same way in each replay (T-11, T-26).  Records are durable with the next
checkpoint at the latest; a power failure may come before it.  Then the result tables are ahead of
the local state, and their progress rows say how far.  The lost batches become one that ends at a
table's position.  Its state is recomputed and its diffs are not written.  The result is exact: the
source's rows at a position determine state and table, however the batches before it were cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from headrace.errors import ContinuityLost
from headrace.forwarder.batcher import Backlog, Cut
from headrace.runtime import positions
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import BatchRecord, Position, StateMark
from headrace.runtime.views import Unit, View
from headrace.types import format_lsn, parse_lsn

_log = structlog.get_logger(__name__)

_NEAR_TXIDS: Final = 64
"""Batches that a view may lack and lead at once, while the other views wait for it."""
_NEAR_BYTES: Final = 1 << 20
"""Bytes of these batches, likewise."""
_NEAR_WAL_BYTES: Final = 16 << 20
"""Bytes of WAL with these batches, if the log does not have them; other changes are included."""


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


def plan(state: EngineState) -> Plan:
    """Return the recorded batches that a live view lacks, and where the stream must start.

    Views that are further back than the position read the batches that they lack by themselves.
    If no live view lacks a recorded batch, the position moves past all of them.

    Raises:
        ContinuityLost: the source is at an earlier position, so it was restored.
    """
    _check_age(state)
    _find(state)
    ends = {txid: record.end_lsn for txid, record in state.records.items()}
    for view in state.views.values():
        progress = view.progress
        if view.owned and progress is not None and progress.txid > view.mark.txid:
            ends.setdefault(progress.txid, progress.lsn)
    views = [view for view in state.views.values() if view.live]
    live = _marks(state, views)
    last = max([state.position.txid, *ends])
    lagging = {view.id for view in views if _lags(state, view)}
    _retain(state, min([last, *(mark.txid for mark in live)]), last, lagging)
    if lagging:
        live = _marks(state, [view for view in views if view.id not in lagging])
        live.append(StateMark(state.position.txid, state.position.lsn, 0))
    behind = [mark for mark in live if mark.txid < last]
    base = min((mark.txid for mark in behind), default=last)
    lsn = min(map(state.covered, behind), default=state.position.lsn)
    if not behind and last > state.position.txid:
        lsn = max(state.position.lsn, ends[last])
        state.position = Position(last, lsn)
    start = Position(base, lsn)
    retained = state.retained
    if not retained.exists or not (retained.local or retained.covers(base)):
        return Plan(start, None, _cuts(state, ends, start, last), lsn)
    # The source goes on at the end of the queue, even if live views are further.
    known = Position(retained.last, state.intake_log_lsn)
    cuts = _cuts(state, ends, known, last)
    if base >= known.txid:
        return Plan(known, None, cuts, known.lsn)
    return Plan(start, retained.backlog(base), cuts, known.lsn)


def _marks(state: EngineState, views: Iterable[View]) -> list[StateMark]:
    """Return the marks of views, and of their parts on other workers."""
    return [unit.mark for view in views for unit in (view, *state.parts_of(view))]


def _lags(state: EngineState, view: View) -> bool:
    """Return whether a view is so far behind the position that it catches up by itself.

    A view that led has a table that is further than its state, or a state that is a few batches
    behind, because a checkpoint left it out.  It leads again, so that it agrees with the others.
    """
    position, least = state.position, state.least(view)
    if not state.can_lag(view, position.txid):
        return False
    if state.must_coalesce(view):
        return True
    if view.progress is not None and view.progress.txid >= position.txid:
        return False
    lacks = position.txid - least
    retained = state.retained
    if not retained.covers(least):
        lsn = min(state.covered(unit.mark) for unit in state.units_of(view))
        return lacks > _NEAR_TXIDS or position.lsn - lsn > _NEAR_WAL_BYTES
    size = retained.bytes_after(least) - retained.bytes_after(position.txid)
    return lacks > _NEAR_TXIDS or size > _NEAR_BYTES


def _find(state: EngineState) -> None:
    """Restore records that were lost in a power failure, from the retained batches."""
    meta: positions.Meta = {}
    if state.retained.exists:
        for record in state.retained.records(state.records.last):
            state.records.record(meta, record)
    if meta:
        state.db.put_meta(meta, sync=False)


def _retain(state: EngineState, base: int, last: int, lagging: Collection[int]) -> None:
    """Begin to retain batches from where a view or hold may need them, if that is configured.

    Views in ``lagging`` read from the source what the log lacks.
    """
    retained = state.retained
    if not retained.local:
        return
    owned = [view for view in state.views.values() if view.owned]
    views: list[Unit] = [
        *(v for v in owned if v.id not in lagging or retained.covers(v.mark.txid)),
        *(p for p in state.parts if p.first not in lagging or retained.covers(p.mark.txid)),
    ]
    # A hold whose changes are gone retains nothing.
    holds = [h for h in state.holds.jobs().values() if state.needs(h) >= state.confirmed]
    least = min([base, last, *(v.mark.txid for v in views), *(h.txid for h in holds)])
    durable = min([least, state.durable.txid, *(v.durable.txid for v in views)])
    if retained.covers(least) or (retained.covers(durable) and retained.last < least):
        return
    at = [state.covered(v.mark) for v in views if v.mark.txid == least]
    at += [h.lsn for h in holds if h.txid == least]
    retained.begin(state.db, least, min(at, default=state.covered(StateMark(least, 0, 0))))


def _check_age(state: EngineState) -> None:
    """Raise ContinuityLost if the source is behind the engine's position."""
    row = state.owner.conn.execute("SELECT pg_catalog.pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None, "a SELECT without FROM has one row"
    ours = state.position.lsn
    if parse_lsn(row[0]) < ours:
        raise ContinuityLost(
            "the source is older than the state of the views: it was restored",
            detail=f"It is at {row[0]}, the state at {format_lsn(ours)}.",
        )


def _cuts(state: EngineState, ends: Mapping[int, int], start: Position, last: int) -> list[Cut]:
    """Return the cuts after ``start``; a lost batch ends where the one before it does."""
    cuts = []
    meta: positions.Meta = {}
    end = start.lsn
    for txid in range(start.txid + 1, last + 1):
        begin, end = end, ends.get(txid, end)
        if txid not in state.records:
            state.records[txid] = BatchRecord(txid, begin, end, 0)
            positions.put_record(meta, state.records[txid])
        cuts.append(Cut(txid, end))
    state.records.last = max(state.records.last, last)
    if meta:
        _log.warning("records of batches were lost", batches=len(meta))
        state.db.put_meta(meta, sync=False)
    return cuts
