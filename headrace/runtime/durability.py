"""What is durable, and so may be confirmed to the source and forgotten here.

* Invariant 1: nothing is confirmed, and no record forgotten, that a checkpoint on disk does not
  cover, with marks and position (rule 1: sink commit, checkpoint, confirming, in this order).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace import clock
from headrace.process import faults
from headrace.runtime import positions
from headrace.runtime.checkpoints import Durable
from headrace.runtime.positions import Position

if TYPE_CHECKING:
    from headrace.forwarder.stream import Stream
    from headrace.runtime.engine import Engine

_CHECK_S: Final = 1.0


class Durability:
    """Checkpoints and confirming of one engine; every method runs on its thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.position = Position(0, 0)
        """What a crash leaves of the engine's position."""
        self._confirm_at = 0.0
        self._check_at = 0.0
        self._asked = 0

    def step(self, stream: Stream) -> float:
        """Do what is due; returns when to come by again, on the monotonic clock."""
        engine = self._engine
        self._confirm_if_due(stream)
        self.end()
        ahead = engine.confirmable() > engine.confirmed
        due = self._due(ahead=ahead)
        if due <= clock.monotonic():
            self._begin()
            due = self._due(ahead=ahead)
        return min(due, self._confirm_at)

    def end(self, *, wait: bool = False) -> None:
        """Take note of a checkpoint that was written; ``wait`` until none is under way."""
        engine = self._engine
        what = engine.checkpoints.end(engine.db, wait=wait)
        if what is not None:
            self._take(what)

    def finish(self) -> None:
        """Make everything that is committed durable; the engine ends."""
        engine = self._engine
        self.end(wait=True)
        if engine.checkpoints.pending or engine.confirmable() > engine.confirmed:
            self._begin()
            self.end(wait=True)

    def _due(self, *, ahead: bool) -> float:
        engine = self._engine
        return engine.checkpoints.due(ahead=ahead, large=engine.db.checkpoint_due)

    def _begin(self) -> None:
        """Begin a checkpoint of everything that is committed."""
        faults.point(faults.BEFORE_CHECKPOINT)
        engine = self._engine
        owned = [view for view in engine.views.values() if view.owned]
        engine.checkpoints.begin(
            engine.db,
            [*owned, *engine.sharing.subplans.values()],
            engine.position,
            engine.promise(),
        )

    def _take(self, what: Durable) -> None:
        engine = self._engine
        for unit_id, mark in what.marks.items():
            unit = engine.sharing.unit(unit_id)
            if unit is not None:
                unit.checkpointed(mark)
        engine.sharing.trim()
        self.position = what.position
        engine.confirmed = max(engine.confirmed, what.confirmed)
        self._trim()
        faults.point(faults.CHECKPOINT_WRITTEN)
        if engine.stream is not None:
            self._confirm(engine.stream)

    def _trim(self) -> None:
        """Forget records that nobody can ask for: all but the last before the least state."""
        engine = self._engine
        needed = [view.durable.txid for view in engine.views.values() if view.owned]
        needed += engine.holds.txids()
        least = min([self.position.txid, *needed])
        meta: positions.Meta = {}
        engine.records.trim(meta, least)
        if meta:
            engine.db.put_meta(meta, sync=False)
        engine.pipeline.durable(least)

    def _confirm_if_due(self, stream: Stream) -> None:
        engine = self._engine
        now = clock.monotonic()
        asked = stream.asked != self._asked
        if now < self._confirm_at and not asked:
            return
        self._asked = stream.asked
        self._confirm_at = now + engine.settings.feedback_interval_ms / 1000
        self._confirm(stream)
        if not asked or stream.confirmed >= stream.received:
            return
        # A server that stops waits for us to confirm everything.
        if engine.confirmable() > engine.confirmed and not engine.checkpoints.underway:
            self._begin()
        if now >= self._check_at:
            # If we cannot (a hold, a blocked view), ending the stream lets it go.  Its other
            # connections are gone then.
            self._check_at = now + _CHECK_S
            engine.owner.conn.execute("SELECT 1")

    def _confirm(self, stream: Stream) -> None:
        """Tell the source what is durable."""
        confirmed = self._engine.confirmed
        if confirmed > stream.confirmed:
            stream.confirm(confirmed)
            faults.point(faults.FEEDBACK_SENT)
