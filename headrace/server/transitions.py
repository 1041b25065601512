"""When an assertion is violated, and when no longer: a state machine without clock and database.

It gets the changes of the assertion's rows, txid by txid, and counts them.  An assertion is
violated from the txid after which there are rows to the one after which there are none.

* A violation that is over before its ``due_at`` is not reported (option ``grace``).
* A population may set the view back to an earlier position, from which it catches up.  Changes
  before the last judged position are counted, but not judged again: their contents were judged
  before.  If the rows differ after that, because the population has repaired them, ``settle`` says
  it once the view is known to have everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from headrace.sql.violations import AssertionState, BatchMark, PendingViolation, RowsChange


@dataclass(frozen=True, slots=True)
class Violated:
    """A violation is to be reported."""

    what: PendingViolation


@dataclass(frozen=True, slots=True)
class Resolved:
    """The reported violation is over."""

    mark: BatchMark


Event = Violated | Resolved


@dataclass(frozen=True, slots=True)
class Fill:
    """Contents that a population has left; its change has the txid of the mark."""

    mark: BatchMark
    due_at: datetime
    rows: int


def advance(
    state: AssertionState, changes: Sequence[RowsChange], fill: Fill | None, *, hidden: bool
) -> list[Event]:
    """Count and judge ``changes``, in their order; return the events to be reported.

    ``fill``: contents after its txid, which replace the count; None: they are counted already, or
    there are more changes before it.
    ``hidden``: whether nothing may be judged.
    """
    events: list[Event] = []
    for change in changes:
        if fill is not None and change.mark.txid > fill.mark.txid:
            events += _filled(state, fill, hidden=hidden)
            fill = None
        if fill is not None and change.mark.txid == fill.mark.txid:
            continue  # the difference that the population has made
        state.txid, state.count = change.mark.txid, state.count + change.net
        events += _judged(state, change.mark, change.due_at, hidden=hidden)
    return events if fill is None else events + _filled(state, fill, hidden=hidden)


def _filled(state: AssertionState, fill: Fill, *, hidden: bool) -> list[Event]:
    state.txid, state.count = fill.mark.txid, fill.rows
    return _judged(state, fill.mark, fill.due_at, hidden=hidden)


def _judged(
    state: AssertionState, mark: BatchMark, due_at: datetime, *, hidden: bool
) -> list[Event]:
    if state.lsn is not None and mark.lsn < state.lsn:
        return []
    state.lsn = mark.lsn
    if hidden or state.count < 0:
        return []
    if state.count == 0:
        return _emptied(state, mark)
    if state.pending is None and not state.open:
        state.since = mark.at
        state.pending = PendingViolation(mark, due_at, state.count)
    return _due(state, mark.at)


def settle(state: AssertionState, at: datetime, *, hidden: bool) -> list[Event]:
    """Judge the rows without a change; return the events to be reported.

    REQUIRES: everything that was committed up to ``at`` is counted.
    """
    if hidden or state.count < 0:
        return []
    unknown = BatchMark(state.txid, state.lsn or 0, at, at)
    if state.count == 0:
        if not state.open:
            # It is not known when a pending violation was over.
            state.since = at if state.pending is not None else state.since
            state.pending = None
        return _emptied(state, unknown)
    if state.pending is None and not state.open:
        state.since = at
        state.pending = PendingViolation(unknown, at, state.count)
    return _due(state, at)


def _due(state: AssertionState, at: datetime) -> list[Event]:
    """Report the pending violation, if it has lasted."""
    what = state.pending
    if what is None or at < what.due_at:
        return []
    state.pending, state.open = None, True
    return [Violated(what)]


def _emptied(state: AssertionState, mark: BatchMark) -> list[Event]:
    if not state.open and state.pending is None:
        return []
    events = _due(state, mark.at)
    state.since = mark.at
    state.pending = None
    if not state.open:
        return []
    state.open = False
    return [*events, Resolved(mark)]
