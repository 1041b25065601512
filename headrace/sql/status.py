"""Statuses of views and of commands, and the states of the views' cursors."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Final


class Status(StrEnum):
    """Status of a view."""

    PENDING = auto()
    POPULATING = auto()
    RUNNING = auto()
    PAUSED = auto()
    ERROR = auto()
    """Stopped until it is populated again."""
    SINK_ERROR = auto()
    """Its table cannot be written now; its state is kept."""


_LEFT: Final = frozenset({Status.RUNNING, Status.PAUSED, Status.ERROR, Status.SINK_ERROR})
TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.PENDING: frozenset({Status.POPULATING}),
    Status.POPULATING: frozenset({Status.RUNNING}),
    # To running from any: populated again.  To the same: for another reason.
    Status.RUNNING: _LEFT,
    Status.PAUSED: _LEFT,
    Status.SINK_ERROR: _LEFT,
    Status.ERROR: frozenset({Status.RUNNING, Status.ERROR}),
}
"""Status -> statuses that may follow it."""
BORN: Final = Status.POPULATING
"""Status of a new view."""
UNFINISHED: Final = (Status.PENDING, Status.POPULATING)
"""Statuses of views that have no table yet."""
OWNED: Final = (Status.RUNNING, Status.SINK_ERROR, Status.PAUSED)
"""Statuses for which the source must keep the WAL that the view has not processed.  A view can be
planned over views with these: it reads their queries."""


SHOWN: Final = (*Status, "starting", "stopped")
"""Statuses in ``list_views()``; the last two are derived, not stored (``view_states.sql``)."""


class CursorState(StrEnum):
    """State of the cursor of a view that is populated and has not stopped."""

    LEADING = auto()
    """It processes each batch together with the other views of its commit group."""
    CATCHING_UP = auto()
    """It processes batches from further back, or will do so at once."""
    BLOCKED = auto()
    """Its batches cannot be written or computed now, for example because its table is locked."""
    PAUSED = auto()
    """A user has paused it."""
    LOST = auto()
    """A worker that has its states is out of reach."""

    @property
    def status(self) -> Status:
        """The status of such a view."""
        return _STATUSES[self]


_STATUSES: Final = {
    CursorState.LEADING: Status.RUNNING,
    CursorState.CATCHING_UP: Status.RUNNING,
    CursorState.BLOCKED: Status.SINK_ERROR,
    CursorState.LOST: Status.SINK_ERROR,
    CursorState.PAUSED: Status.PAUSED,
}


def ways_to(to: Status) -> list[Status]:
    """Return the statuses that may become ``to``."""
    return [before for before, after in TRANSITIONS.items() if to in after]


class CommandStatus(StrEnum):
    """Status of a call that came by the command table."""

    PENDING = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()
