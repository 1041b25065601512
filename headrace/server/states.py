"""States of a client session, and the transitions between them."""

from __future__ import annotations

import enum
from typing import Final


class SessionState(enum.Enum):
    """State of a client session."""

    START = enum.auto()
    TLS = enum.auto()
    LOGIN = enum.auto()
    RELAY = enum.auto()
    BARRIER = enum.auto()
    CONTEXT = enum.auto()
    RUNNING = enum.auto()
    SKIP = enum.auto()
    CLOSED = enum.auto()


# Trigger -> (state it occurs in -> next state). Any other combination is a bug.
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
