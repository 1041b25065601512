"""Checkpoints wait until the result rows that they rely on are on the standbys.

After the promotion of a standby, a result table may lack its last commits.  The engine can write
rows again that its state does not have yet, but cannot take them out of a state on disk.  So a
checkpoint is written only when every standby has what the sink wrote before (``postgres/standbys``
says which standbys count).  Usually that takes no longer than the write itself.

A standby that lags holds up a checkpoint for a few seconds at most.  Then the checkpoint is written
without proof, and a promotion at that moment may cost views a refill.
"""

from __future__ import annotations

import enum
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import TransientError
from headrace.postgres import standbys
from headrace.runtime import failover
from headrace.runtime.engine_state import EngineState

_log = structlog.get_logger(__name__)

_WAIT_S: Final = 5.0
"""Seconds that a checkpoint waits for a standby that lags."""
_HURRIED_S: Final = 1.0
"""The same of a checkpoint that a caller waits for."""
_POLL_S: Final = 0.01


class Proof(enum.Enum):
    """What is known of the standbys."""

    NONE = enum.auto()
    """There is no standby, or none that could be asked or waited for."""
    WAITING = enum.auto()
    """A standby lacks rows."""
    FULL = enum.auto()
    """Every standby has all rows."""


class StandbyWaits:
    """The wait of one engine's current checkpoint; its thread calls every method."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._target = 0
        self._began = 0.0
        self._poll_at = 0.0
        self._lagging = False
        """Whether the last wait was given up."""
        self._known = False
        """Whether there was a standby when the source was last asked."""

    @property
    def due(self) -> float:
        """When to call ``look`` again, on the monotonic clock."""
        return self._poll_at

    def begin(self) -> Proof:
        """Note how far the standbys must come for the checkpoint that begins now.

        Raises:
            TransientError: there is no connection, and there was a standby.
            psycopg.Error: it is lost, and there was a standby.
        """
        try:
            found = standbys.reached(self._state.owner.conn)
        except (TransientError, psycopg.Error):
            if self._known or failover.proved(self._state.db):
                raise
            return Proof.NONE
        self._target, self._began = found.written, clock.monotonic()
        return self._judge(found)

    def look(self, *, hurried: bool = False) -> Proof:
        """Return what is known now; NONE: the wait took too long (``hurried``: sooner).

        Raises:
            TransientError: there is no connection.
            psycopg.Error: it is lost.
        """
        found = self._judge(standbys.reached(self._state.owner.conn))
        if found is not Proof.WAITING or not self.late(hurried=hurried):
            return found
        if not self._lagging:
            _log.warning("a standby lags, and no checkpoint waits for it any more")
        self._lagging = True
        return Proof.NONE

    def late(self, *, hurried: bool) -> bool:
        """Return whether the wait has taken too long."""
        return clock.monotonic() >= self._began + (_HURRIED_S if hurried else _WAIT_S)

    def _judge(self, found: standbys.Reached) -> Proof:
        self._poll_at = clock.monotonic() + _POLL_S
        self._known = found.standbys is not None
        if found.standbys is None:
            return Proof.NONE
        if found.standbys < self._target:
            return Proof.WAITING
        self._lagging = False
        return Proof.FULL
