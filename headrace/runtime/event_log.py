"""A bounded log of recent events, reported when an invariant breaks."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

from headrace import clock

_EVENTS_MAX: Final = 200


class EventLog:
    """Recent events of the engine or of one view; names and numbers, never row values."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, str, dict[str, Any]]] = deque(maxlen=_EVENTS_MAX)
        self._lock = threading.Lock()

    def add(self, event: str, **fields: Any) -> None:
        """Append an event."""
        with self._lock:
            self._events.append((clock.monotonic(), event, fields))

    def lines(self) -> list[str]:
        """Return the events in order, each with its time in seconds relative to the last one."""
        with self._lock:
            events = list(self._events)
        if not events:
            return []
        last = events[-1][0]
        return [
            f"{at - last:+.3f} {event} " + " ".join(f"{k}={v}" for k, v in fields.items())
            for at, event, fields in events
        ]
