"""Where a client session can be, and what leads from one state to the next."""

from __future__ import annotations

import enum
from typing import Final


class SessionState(enum.Enum):
    """Where the session is."""

    START = enum.auto()
    TLS = enum.auto()
    LOGIN = enum.auto()
    RELAY = enum.auto()
    BARRIER = enum.auto()
    CONTEXT = enum.auto()
    RUNNING = enum.auto()
    SKIP = enum.auto()
    CLOSED = enum.auto()


# What happened -> (state it happens in -> next state).  Anything else is a bug, not input.
TRANSITIONS: Final[dict[str, dict[SessionState, SessionState]]] = {
    "tls_requested": {SessionState.START: SessionState.TLS},
    "tls_ready": {SessionState.TLS: SessionState.START},
    "startup": {SessionState.START: SessionState.LOGIN},
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
