"""Checkpoints wait until the result rows that they rely on are on the standbys.

After the promotion of a standby, a result table may lack its last commits.  The engine can repeat a
write that its state does not include, but it cannot remove a change from a state on disk.  So a
checkpoint is written only when every standby has all that the sink wrote before it
(``postgres/standbys.py`` says which standbys count).  Usually that takes a few milliseconds.

A standby that lags delays a checkpoint by a few seconds at most.  Then the checkpoint is written
anyway, and later ones do not wait for that standby until it has caught up.  Its promotion may cost
some views a refill.
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
"""The same for a checkpoint that a caller waits for."""
_POLL_S: Final = 0.01


class Replication(enum.Enum):
    """State of the standbys, compared with a checkpoint."""

    UNKNOWN = enum.auto()
    """There is no standby, or none that could be asked or waited for."""
    BEHIND = enum.auto()
    """A standby lacks rows."""
    COMPLETE = enum.auto()
    """Every standby has all rows."""


class ReplicationWait:
    """The wait of one engine's current checkpoint; its thread calls every method."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._target = 0
        self._began = 0.0
        self._poll_at = 0.0
        self._lagging: set[str] = set()
        """Standbys that are not waited for, because they have lagged for too long."""
        self._known = False
        """Whether there was a standby when the source was last asked."""

    @property
    def due(self) -> float:
        """When to call ``poll`` again, on the monotonic clock."""
        return self._poll_at

    def begin(self) -> Replication:
        """Note how far the standbys must come for the checkpoint that begins now.

        Raises:
            TransientError: there is no connection, and there was a standby.
            psycopg.Error: the connection is lost, and there was a standby.
        """
        try:
            found = standbys.progress(self._state.owner.conn)
        except (TransientError, psycopg.Error):
            if self._known or failover.is_replicated(self._state.db):
                raise
            return Replication.UNKNOWN
        self._target, self._began = found.written, clock.monotonic()
        return self._compare(found)

    def poll(self, *, hurried: bool = False) -> Replication:
        """Return the state now; UNKNOWN if the wait takes too long (``hurried``: sooner).

        Raises:
            TransientError: there is no connection.
            psycopg.Error: the connection is lost.
        """
        found = standbys.progress(self._state.owner.conn)
        state = self._compare(found)
        if state is not Replication.BEHIND or not self.late(hurried=hurried):
            return state
        behind = found.behind(self._target)
        if not hurried:
            self._lagging |= behind
        _log.warning("checkpoint not replicated", slots=sorted(behind))
        return Replication.UNKNOWN

    def late(self, *, hurried: bool) -> bool:
        """Return whether the wait has taken too long."""
        return clock.monotonic() >= self._began + (_HURRIED_S if hurried else _WAIT_S)

    def _compare(self, found: standbys.ReplicationProgress) -> Replication:
        self._poll_at = clock.monotonic() + _POLL_S
        self._known = bool(found.standbys)
        behind = found.behind(self._target)
        self._lagging &= behind
        if not found.standbys or (behind and behind <= self._lagging):
            return Replication.UNKNOWN
        return Replication.BEHIND if behind else Replication.COMPLETE
