"""A batch of views that lag: consecutive txids of the log (``catching_up.py``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.errors import HeadraceError, LimitExceeded, SessionsTerminated
from headrace.forwarder.batcher import Batch
from headrace.runtime.batches import Outcome, Processor
from headrace.runtime.columns import Types
from headrace.runtime.cursor import Cursor
from headrace.runtime.shared import Shared
from headrace.runtime.views import Unit, View
from headrace.runtime.watch import TableFacts
from headrace.runtime.worker_handles import RemoteBatch

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


@dataclass(frozen=True, slots=True)
class CoalescedBatch:
    """Consecutive txids, processed as their last one."""

    first: int
    last: int
    attempt: int
    views: list[View]
    needed: list[Shared]
    """Shared subplans that the views or these subplans read, each after those that it reads."""
    units: list[Unit]
    """Units that process it, subplans first, each after those that it reads."""
    remote: RemoteBatch
    """The part of units on other workers."""
    cursor: Cursor
    target_s: float
    """The latency target of these views."""
    begun: float

    def cancel(self, error: HeadraceError) -> None:
        """Let the work of units in this process end with ``error``; from another thread."""
        for unit in self.units:
            if unit.bound is not None and unit.bound.inside:
                unit.bound.cancel(error)

    def run(self, processor: Processor, types: Types, facts: TableFacts) -> Result:
        """Process it; on the thread of lagging views."""
        away = {unit.id for unit in self.remote.units}
        here = [view for view in self.views if view.id not in away]
        needed = [shared for shared in self.needed if shared.id not in away]
        frames, batch = self.cursor.read(self.last, self.attempt, types, facts)
        return self.remote.run(processor, here, frames, needed), batch

    def take_fewer(self, outcome: Outcome) -> None:
        """Let units that exceeded a limit in several txids go back, and take fewer.

        The limits are those of one transaction.  They are no longer among those that failed, nor
        are units that lack their output.
        """
        excused: set[int] = set()
        txids = self.last - self.first + 1
        for unit in self.units if txids > 1 else ():
            error, fed = outcome.failed.get(unit.id), unit.feeds.values()
            exceeded = isinstance(error, LimitExceeded) and not isinstance(
                error, SessionsTerminated
            )
            if excused.isdisjoint(fed):
                if not exceeded or not outcome.failed.keys().isdisjoint(fed):
                    continue
                unit.coalesced = unit.coalesced.after_excess(txids)
            excused.add(unit.id)
            outcome.failed.pop(unit.id, None)
            unit.reset()
