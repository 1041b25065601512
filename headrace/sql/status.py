"""Which status a view has, and a command; and what may follow on which."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Final


class Status(StrEnum):
    """Of a view."""

    PENDING = auto()
    POPULATING = auto()
    RUNNING = auto()
    PAUSED = auto()
    ERROR = auto()
    """It has stopped, until it is filled anew."""
    SINK_ERROR = auto()
    """Its table cannot be written just now; all else is kept."""


_LEFT: Final = frozenset({Status.RUNNING, Status.PAUSED, Status.ERROR, Status.SINK_ERROR})
TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    Status.PENDING: frozenset({Status.POPULATING}),
    Status.POPULATING: frozenset({Status.RUNNING}),
    # Running from anywhere: filled anew.  The same again: for another reason.
    Status.RUNNING: _LEFT,
    Status.PAUSED: _LEFT,
    Status.SINK_ERROR: _LEFT,
    Status.ERROR: frozenset({Status.RUNNING, Status.ERROR}),
}
"""Status -> what it may become."""
BORN: Final = Status.POPULATING
"""What a new view is."""
UNFINISHED: Final = (Status.PENDING, Status.POPULATING)
"""There is no table yet."""
OWNED: Final = (Status.RUNNING, Status.SINK_ERROR, Status.PAUSED)
"""The source must keep what the view has not processed yet."""


SHOWN: Final = (*Status, "starting", "stopped")
"""What ``list_views()`` says: the last two nobody writes (``view_states.sql``)."""


def ways_to(to: Status) -> list[Status]:
    """What may become ``to``."""
    return [before for before, after in TRANSITIONS.items() if to in after]


class CommandStatus(StrEnum):
    """Of a call that came by the command table."""

    PENDING = auto()
    RUNNING = auto()
    DONE = auto()
    FAILED = auto()
