"""Where a client session can be, and what leads from one state to the next."""

from __future__ import annotations

import enum
from typing import Final


class SessionState(enum.Enum):
    """Where the session is."""

    START = enum.auto()
    TLS = enum.auto()
    NAMED = enum.auto()
    """Whether the name of the admin database is a database's is being asked."""
    LOGIN = enum.auto()
    RELAY = enum.auto()
    BARRIER = enum.auto()
    CONTEXT = enum.auto()
    RUNNING = enum.auto()
    SKIP = enum.auto()
    ADMIN = enum.auto()
    ORDERED = enum.auto()
    """A command of the admin database is carried out."""
    CLOSED = enum.auto()


# What happened -> (state it happens in -> next state).  Anything else is a bug, not input.
TRANSITIONS: Final[dict[str, dict[SessionState, SessionState]]] = {
    "tls_requested": {SessionState.START: SessionState.TLS},
    "tls_ready": {SessionState.TLS: SessionState.START},
    "named": {SessionState.START: SessionState.NAMED},
    "startup": {SessionState.START: SessionState.LOGIN, SessionState.NAMED: SessionState.LOGIN},
    "admitted": {SessionState.LOGIN: SessionState.ADMIN},
    "ordered": {SessionState.ADMIN: SessionState.ORDERED},
    "carried_out": {SessionState.ORDERED: SessionState.ADMIN},
    "ready": {SessionState.LOGIN: SessionState.RELAY},
    "ours": {SessionState.RELAY: SessionState.BARRIER},
    "not_ours": {
        SessionState.BARRIER: SessionState.RELAY,
        SessionState.CONTEXT: SessionState.RELAY,
    },
    "idle": {SessionState.BARRIER: SessionState.CONTEXT},
    "answered": {SessionState.CONTEXT: SessionState.RUNNING},
    "finished": {SessionState.RUNNING: SessionState.RELAY},
    "refused": {SessionState.CONTEXT: SessionState.RELAY},
    "failed": {
        SessionState.RUNNING: SessionState.SKIP,
        SessionState.CONTEXT: SessionState.SKIP,
        SessionState.BARRIER: SessionState.SKIP,
    },
    "sync": {SessionState.SKIP: SessionState.RELAY},
}
