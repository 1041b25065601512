"""Checkpoints, confirmation to the source, and removal of what is no longer needed.

* Invariant 1: nothing is confirmed, and no record forgotten, that a checkpoint on disk does not
  cover, with marks and position (rule 1: sink commit, checkpoint, confirmation, in this order).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import TransientError
from headrace.forwarder import policy
from headrace.forwarder.stream import Stream
from headrace.process import faults
from headrace.runtime import failover, positions
from headrace.runtime.checkpoints import Durable, Promise
from headrace.runtime.engine_state import EngineState
from headrace.runtime.positions import Position
from headrace.runtime.queue_priority import QueuePriorities
from headrace.runtime.replication_wait import Replication, ReplicationWait
from headrace.runtime.shared import Shared

_log = structlog.get_logger(__name__)

_CHECK_S: Final = 1.0


class Durability:
    """Checkpoints and confirmation of one engine; every method runs on its thread."""

    def __init__(self, state: EngineState, rest: Callable[[], None]) -> None:
        """Create it; ``rest`` returns when no thread works on units that lag."""
        self._state = state
        self._rest = rest
        self._waits_until = math.inf
        """When a checkpoint that waits for units that lag begins without them."""
        self.begins_at = 0.0
        """No checkpoint becomes due before this monotonic time, because commands wait."""
        self._prepared = False
        """Whether a checkpoint was begun beside the views before ``finish`` (``nearly_done``)."""
        self._confirm_at = 0.0
        self._check_at = 0.0
        self._asked = 0
        self.urgency: Final = QueuePriorities(state)
        self._standbys: Final = ReplicationWait(state)

    def step(self, stream: Stream) -> float:
        """Do what is due; return when to call again, on the monotonic clock."""
        self._confirm_if_due(stream)
        self._release()
        self.end()
        urgency_at = self.urgency.step()
        ahead = self._confirmable() > self._state.confirmed
        due = self._due(ahead=ahead)
        now = clock.monotonic()
        if due <= now and self._state.lagging.working:
            due = self._await_lagging(now)
        if due <= now:
            self.begin()
            due = self._due(ahead=ahead)
        if self._state.checkpoints.held:
            due = min(due, self._standbys.due)
        return min(due, self._confirm_at, urgency_at)

    def _await_lagging(self, now: float) -> float:
        """Let no further batch of units that lag begin; return when to begin without them."""
        self._state.lagging.awaited = True
        self._waits_until = min(self._waits_until, policy.leaves_out_at(now))
        return self._waits_until

    def end(self, *, wait: bool = False) -> None:
        """Handle a checkpoint that was written; ``wait`` until none is under way.

        It ends when no thread works on its units.
        """
        state = self._state
        if not state.checkpoints.units.isdisjoint(state.lagging.working):
            if not wait:
                return
            self._rest()
        what = state.checkpoints.end(state.db, wait=wait)
        if what is not None:
            self._take(what)

    def still(self) -> None:
        """Wait until no checkpoint is being written; give up one that waits for a standby."""
        self._state.checkpoints.give_up(self._state.db)
        self.end(wait=True)

    def finish(self) -> None:
        """Make all commits durable."""
        if self._begin_last():
            while self._state.checkpoints.held:
                self._pause()
                self._release(hurried=True)
            self.end(wait=True)

    def nearly_done(self) -> bool:
        """Return whether ``finish`` takes little time, while which all views wait.

        Otherwise begin a checkpoint beside the views; call it again in later cycles.
        """
        checkpoints = self._state.checkpoints
        if checkpoints.writing:
            self.begins_at = math.inf
            return False
        if not self._prepared and checkpoints.pending:
            self.begin()
            self._prepared = True
            return False
        self._prepared = False
        return True

    def last(self) -> None:
        """Make all commits durable as the engine ends, unless a standby lacks their result rows.

        If the source does not answer, that is not known.
        """
        checkpoints = self._state.checkpoints
        try:
            if not self._begin_last():
                return
            while checkpoints.held and not self._standbys.late(hurried=True):
                self._pause()
                self._release()
        except (TransientError, psycopg.Error) as error:
            _log.info("no last checkpoint", reason=str(error))
        checkpoints.give_up(self._state.db)
        self.end(wait=True)

    def _begin_last(self) -> bool:
        """Begin a checkpoint if any commit is in none; return whether it was needed."""
        self.still()
        needed = bool(self._state.checkpoints.pending)
        needed = needed or self._confirmable() > self._state.confirmed
        if needed:
            self.begin()
        return needed

    def _pause(self) -> None:
        clock.sleep(max(self._standbys.due - clock.monotonic(), 0.0))

    def _release(self, *, hurried: bool = False) -> None:
        """Write the checkpoint that waits for a standby, once that has all, or takes too long."""
        state = self._state
        if not state.checkpoints.held or clock.monotonic() < self._standbys.due:
            return
        found = self._standbys.poll(hurried=hurried)
        if found is Replication.BEHIND:
            return
        state.checkpoints.release(self._replicated(found))

    def trim(self, subplans: Iterable[Shared]) -> None:
        """Drop the output of these shared subplans that no reader needs any more."""
        jobs = self._state.holds.jobs()
        for shared in subplans:
            shared.awaited = {job: who for job, who in shared.awaited.items() if job in jobs}
            readers = dict(shared.awaited.values())
            readers |= {r.id: r.durable.txid for r in self._state.readers(shared)}
            shared.keep_for(readers)

    # --- what may be confirmed

    def _confirmable(self) -> int:
        """Return the LSN before which the stream is not needed once all is durable."""
        return max(
            self._state.holds.limit(self._needless(), self._state.needs), self._confirmed_soon
        )

    def _promise(self) -> int:
        """Return that LSN, which is about to be confirmed; a later hold begins there."""
        state = self._state
        position = Position(state.position.txid, self._needless())
        return state.holds.promise(position, self._confirmed_soon, state.needs)

    @property
    def _confirmed_soon(self) -> int:
        """Lower bound of the LSN to confirm: the server ignores lower ones; a pin below is lost."""
        return max(self._state.confirmed, self._state.checkpoints.confirming)

    def _needless(self) -> int:
        """Return the LSN before which no view needs the stream any more."""
        state = self._state
        # The retained batches may reach further than the committed ones.
        lsns = [state.needs(state.position)]
        left_out = self._left_out()
        # The checkpoint does not make the present marks of units that it leaves out durable.
        marks = [(unit, unit.durable) for unit in state.index.owned(left_out)]
        behind = state.index.behind(state.position.txid)
        marks += [(unit, unit.mark) for unit in behind if unit.id not in left_out]
        # Many units may have one mark.
        distinct = {(unit.staged, mark.txid, mark.lsn): mark for unit, mark in marks}
        for (staged, *_), mark in distinct.items():
            if staged:
                lsns.append(state.needs(Position(mark.txid, mark.lsn)))
            elif mark.txid < state.position.txid:
                lsns.append(state.needs(mark))
        return min(lsns)

    def _left_out(self) -> set[int]:
        """Return the units that a checkpoint would leave out now.

        These are units at work that lag, units on a lost worker, and their readers.  Readers of
        a part that is behind one also count: a reader is never durable beyond its feeds.
        """
        state = self._state
        if not (state.lagging.working or state.hosts):
            return set()
        away = state.index.elsewhere
        out = set(state.lagging.working) | {u.id for u in away if not u.reachable}
        for unit_id in list(out):
            shared = state.subplans.get(unit_id)
            if shared is not None:
                out |= state.all_readers(shared)
        for part in state.index.parts:
            if any(reader.mark.txid > part.mark.txid for reader in state.readers(part)):
                out |= state.all_readers(part)
        return out

    # --- checkpoints

    def _due(self, *, ahead: bool) -> float:
        state = self._state
        hosts = list(state.hosts.values())
        # The last check looks at all states, so only if it is needed.
        large = any(host.large for host in hosts) or (
            state.checkpoints.pending > 0 and state.db.checkpoint_due
        )
        crowded = self.urgency.crowded
        owed = state.lagging.awaited and not state.lagging.working
        due = state.checkpoints.due(ahead=ahead, large=large, crowded=crowded, owed=owed)
        return max(due, self.begins_at)

    def begin(self) -> None:
        """Begin a checkpoint of all commits; REQUIRES: none is under way."""
        # The rows of the marks that it has were written before this question.
        self._begin(self._standbys.begin())

    def _begin(self, standbys: Replication) -> None:
        faults.point(faults.BEFORE_CHECKPOINT)
        state = self._state
        left_out = self._left_out()
        units = [unit for unit in state.index.undurable if unit.id not in left_out]
        state.lagging.awaited, self._waits_until = bool(state.lagging.working), math.inf
        for host in state.hosts.values():
            host.large = False
        promise = Promise(state.position, self._promise())
        held = standbys is Replication.BEHIND
        meta = {} if held else self._replicated(standbys)
        state.retained.note(meta)  # it has everything promised, and is synced before
        positions.put_last_commit(meta, state.last_received)
        state.checkpoints.begin(state.db, state.queues, units, promise, meta, held=held)

    def _replicated(self, standbys: Replication) -> positions.Meta:
        """Return metadata for a checkpoint: whether it is on the standbys.

        If that is not known, forget before the checkpoint that the last one was.
        """
        meta: positions.Meta = {}
        if standbys is Replication.COMPLETE:
            failover.put_replicated(meta)
        else:
            failover.clear_replicated(self._state.db)
        return meta

    def _take(self, what: Durable) -> None:
        state = self._state
        for unit_id, mark in what.marks.items():
            unit = state.unit(unit_id)
            if unit is not None:
                unit.checkpointed(mark)
        for host in state.hosts.values():
            host.crowded = False
        # Readers' needs change if one has moved, or if a job that awaited output has ended.
        moved = {f for unit in map(state.unit, what.marks) if unit for f in unit.feeds.values()}
        read = (state.subplans.get(feeder) for feeder in moved)
        awaited = (shared for shared in state.subplans.values() if shared.awaited)
        self.trim({shared.id: shared for shared in (*read, *awaited) if shared}.values())
        self.urgency.maintain(moved=bool(what.marks))
        state.durable = what.position
        state.confirmed = max(state.confirmed, what.confirmed)
        self._forget()
        faults.point(faults.CHECKPOINT_WRITTEN)
        if state.stream is not None:
            self._confirm(state.stream)

    def _forget(self) -> None:
        """Forget batches that cannot be needed again, and all records but the last before them."""
        state = self._state
        # Owned views and parts: the source or the local queue has what they lack.
        needed = [*state.index.durable_txids, *state.holds.txids()]
        # Batches to be replayed for a view that has left meanwhile must be cut as before, too.
        least = min([state.durable.txid, state.taken.txid, *needed])
        meta: positions.Meta = {}
        state.records.trim(meta, least)
        if meta:
            state.db.put_meta(meta, sync=False)
        state.retained.keep_after(state.db, least)
        state.pipeline.durable(least)

    def _confirm_if_due(self, stream: Stream) -> None:
        state = self._state
        now = clock.monotonic()
        asked = stream.asked != self._asked
        if now < self._confirm_at and not asked:
            return
        self._asked = stream.asked
        self._confirm_at = now + state.settings.feedback_interval_ms / 1000
        self._confirm(stream)
        if not asked or stream.confirmed >= stream.received:
            return
        # A server that shuts down waits until everything is confirmed.
        if self._confirmable() > state.confirmed and not state.checkpoints.underway:
            self.begin()
        if now >= self._check_at:
            # If that is impossible (a hold, a blocked view), end the stream to let it go.  The
            # other connections are gone by then.
            self._check_at = now + _CHECK_S
            state.owner.conn.execute("SELECT 1")

    def _confirm(self, stream: Stream) -> None:
        """Confirm to the source what is durable."""
        confirmed = self._state.confirmed
        if confirmed > stream.confirmed:
            stream.confirm(confirmed)
            faults.point(faults.FEEDBACK_SENT)
