"""A batch of views that lag: consecutive txids of the log (``catching_up.py``)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace import clock
from headrace.errors import HeadraceError, LimitExceeded, SessionsTerminated
from headrace.forwarder.batcher import Batch
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.columns import Types
from headrace.runtime.cursor import Cursor
from headrace.runtime.engine_state import EngineState
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import TableFacts
from headrace.runtime.worker_handles import RemoteBatch

_TURN_S: Final = 0.05
"""Time after which a turn begins no further step; commands wait for its end."""

Result = tuple[Outcome, Batch]


def part_of(views: Iterable[View], size: int, whole: Collection[str]) -> list[View]:
    """Return the first ``size`` of ``views``, and all of their commit groups.

    The unnamed group is divided unless it is in ``whole``: its views change together again once
    they lead.
    """
    out: list[View] = []
    begun: set[str] = set()
    for view in views:
        group = view.commit_group
        if len(out) >= size and group not in begun:
            continue
        out.append(view)
        if group or group in whole:
            begun.add(group)
    return out


def calendar_end(state: EngineState, views: Iterable[View], first: int, last: int) -> int:
    """Return the last txid up to ``last`` with which a batch from ``first`` on may end.

    It is the first one in which a value of the calendar changes, if there is any.
    """
    for view in views:
        if not view.temporal or last == first:
            continue
        with contextlib.suppress(HeadraceError):  # the batch meets the same error
            clocked, low = view.clocked(state.settings, state.evaluators), first
            if not clocked.changed(state.records.time_of(last)):
                continue
            while low < last:
                middle = (low + last) // 2
                if clocked.changed(state.records.time_of(middle)):
                    last = middle
                else:
                    low = middle + 1
    return last


@dataclass(frozen=True, slots=True)
class CoalescedBatch:
    """Consecutive txids, processed as their last one.

    Without views it may be several steps, each of which is processed alone.
    """

    first: int
    steps: Sequence[tuple[int, int]]
    """Last txid of each step, and its attempt."""
    views: list[View]
    needed: list[Shared]
    """Shared subplans that the views or these subplans read, each after those that it reads."""
    units: list[Unit]
    """Units that process it."""
    remote: RemoteBatch
    """The part of units on other workers."""
    cursor: Cursor
    target_s: float
    """The latency target of these views."""
    begun: float

    @property
    def last(self) -> int:
        """The last txid of all steps."""
        return self.steps[-1][0]

    def cancel(self, error: HeadraceError) -> None:
        """Let the work of units in this process end with ``error``; from another thread."""
        for unit in self.units:
            if unit.bound is not None and unit.bound.inside:
                unit.bound.cancel(error)

    def run(self, processor: Processor, types: Types, facts: TableFacts) -> list[Result]:
        """Process some of the steps, at least the first; on the thread of lagging views."""
        away = {unit.id for unit in self.remote.units}
        here = [view for view in self.views if view.id not in away]
        needed = [shared for shared in self.needed if shared.id not in away]
        done: list[Result] = []
        for last, attempt in self.steps:
            frames, batch = self.cursor.read(last, attempt, types, facts)
            outcome = self.remote.run(processor, here, frames, needed)
            done.append((outcome, batch))
            if outcome.failed or clock.monotonic() - self.begun > _TURN_S:
                break
        return done

    def take_fewer(self, outcome: Outcome) -> None:
        """Let views that exceeded a limit in a step of several txids go back, and take fewer.

        The limits are those of one transaction.  They are no longer among those that failed.
        """
        txids = outcome.frames.txid - self.first + 1
        for view in self.views if txids > 1 else ():
            error = outcome.failed.get(view.id)
            if not isinstance(error, LimitExceeded) or isinstance(error, SessionsTerminated):
                continue
            if outcome.failed.keys().isdisjoint(view.feeds.values()):
                del outcome.failed[view.id]
                view.reset()
                view.coalesced = view.coalesced.after_excess(txids)
