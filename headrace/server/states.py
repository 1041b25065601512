"""Where a client session can be, and what leads from one state to the next."""

from __future__ import annotations

import enum
from typing import Final


class State(enum.Enum):
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
TRANSITIONS: Final[dict[str, dict[State, State]]] = {
    "tls_requested": {State.START: State.TLS},
    "tls_ready": {State.TLS: State.START},
    "startup": {State.START: State.LOGIN},
    "ready": {State.LOGIN: State.RELAY},
    "ours": {State.RELAY: State.BARRIER},
    "not_ours": {State.BARRIER: State.RELAY, State.CONTEXT: State.RELAY},
    "idle": {State.BARRIER: State.CONTEXT},
    "answered": {State.CONTEXT: State.RUNNING},
    "finished": {State.RUNNING: State.RELAY},
    "refused": {State.CONTEXT: State.RELAY},
    "failed": {
        State.RUNNING: State.SKIP,
        State.CONTEXT: State.SKIP,
        State.BARRIER: State.SKIP,
    },
    "sync": {State.SKIP: State.RELAY},
}
