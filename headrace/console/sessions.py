"""Console sessions and login attempts: state machines without sockets and clocks.

A cookie is 256 random bits; only its SHA-256 is kept.  A session ends after ``IDLE_S`` without use,
in any case after ``AGE_S``, and when its identity has too many of them.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import deque
from dataclasses import dataclass
from typing import Final

IDLE_S: Final = 3_600.0
AGE_S: Final = 12 * 3_600.0
SESSIONS_MAX: Final = 128
PER_IDENTITY_MAX: Final = 16
_KEYS_MAX: Final = 4_096


@dataclass(slots=True)
class WebSession:
    """One login."""

    identity: str
    begun: float
    seen: float
    open: bool = True


class Sessions:
    """All open sessions; the caller passes the time."""

    def __init__(self) -> None:
        self._all: dict[bytes, WebSession] = {}

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, identity: str, now: float) -> str | None:
        """Begin a session and return its cookie; None: ``SESSIONS_MAX`` are open."""
        self.expire(now)
        own = [key for key, s in self._all.items() if s.identity == identity]
        if len(own) >= PER_IDENTITY_MAX:
            self._end(min(own, key=lambda key: self._all[key].seen))
        if len(self._all) >= SESSIONS_MAX:
            return None
        cookie = secrets.token_urlsafe(32)
        self._all[_digest(cookie)] = WebSession(identity, now, now)
        return cookie

    def find(self, cookie: str, now: float) -> WebSession | None:
        """Return the session of a cookie, and record that it is used."""
        session = self._all.get(_digest(cookie))
        if session is None or self._over(session, now):
            return None
        session.seen = now
        return session

    def end(self, cookie: str) -> None:
        """End the session of a cookie."""
        self._end(_digest(cookie))

    def end_all(self, identity: str) -> None:
        """Log an identity out everywhere."""
        for key in [key for key, s in self._all.items() if s.identity == identity]:
            self._end(key)

    def expire(self, now: float) -> None:
        """End the sessions that have expired."""
        for key in [key for key, s in self._all.items() if self._over(s, now)]:
            self._end(key)

    def identities(self) -> set[str]:
        """Return the identities that have a session."""
        return {s.identity for s in self._all.values()}

    def _end(self, key: bytes) -> None:
        session = self._all.pop(key, None)
        if session is not None:
            session.open = False

    @staticmethod
    def _over(session: WebSession, now: float) -> bool:
        return now - session.seen > IDLE_S or now - session.begun > AGE_S


class Attempts:
    """Logins by key (an address, a name): limited per minute, successful ones not counted."""

    WINDOW_S: Final = 60.0

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[str, deque[float]] = {}

    def wait_s(self, key: str, now: float) -> int:
        """Return the whole seconds until another one may be made; 0: now."""
        made = self._recent(key, now)
        return math.ceil(made[-self._most] + self.WINDOW_S - now) if len(made) >= self._most else 0

    def begin(self, key: str, now: float) -> None:
        """Count a login from its start, so that concurrent ones count as well."""
        if key not in self._made and len(self._made) >= _KEYS_MAX:
            self._made.pop(next(iter(self._made)))
        made = self._recent(key, now)
        made.append(now)
        self._made[key] = made

    def succeeded(self, key: str) -> None:
        """Remove the last login from the count, because it succeeded."""
        if made := self._made.get(key):
            made.pop()
        if not self._made.get(key):
            self._made.pop(key, None)

    def _recent(self, key: str, now: float) -> deque[float]:
        made = self._made.get(key, deque())
        while made and now - made[0] >= self.WINDOW_S:
            made.popleft()
        return made


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
