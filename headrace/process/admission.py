"""Connections before they are sessions: how many may wait, and how often their errors are logged.

A connection that has not logged in is cheap to make and easy to forget.  Each address may have a
few of them, the oldest makes room for a new one, and their errors share a line of the log.  The
port for clients, the HTTP port and the port of a worker use this module.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from headrace import clock

_KEEPALIVE_IDLE_S: Final = 60
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_COUNT: Final = 6
_QUIET_S: Final = 10.0
_KINDS_MAX: Final = 50

_log = structlog.get_logger(__name__)


def tune(sock: Any, timeout_ms: int) -> None:
    """Enable TCP keepalive, so that a vanished peer is detected, where the system supports it."""
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        interval = _KEEPALIVE_INTERVAL_S
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
        if timeout_ms:
            option = socket.TCP_USER_TIMEOUT
            sock.setsockopt(socket.IPPROTO_TCP, option, timeout_ms)


class Visitor(Protocol):
    """A client that has not logged in."""

    def close(self) -> None:
        """Close the connection."""


class Admission:
    """The connections that have not logged in, oldest first.

    REQUIRES: one thread at a time.
    """

    def __init__(self, per_address: int, total: int) -> None:
        self._per_address = per_address
        self._total = total
        self._all: dict[Visitor, str] = {}
        self._of: dict[str, dict[Visitor, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, visitor: Visitor, address: str) -> bool:
        """Admit a visitor; return whether an older one was closed to make room."""
        key = network(address)
        self._all[visitor] = key
        same = self._of.setdefault(key, {})
        same[visitor] = None
        oldest: Visitor | None = None
        if len(same) > self._per_address:
            oldest = next(iter(same))
        elif len(self._all) > self._total:
            oldest = next(iter(self._all))
        if oldest is None:
            return False
        self.leave(oldest)
        oldest.close()
        return True

    def limit(self, per_address: int, total: int) -> None:
        """Set the limits for visitors admitted from now on."""
        self._per_address, self._total = per_address, total

    def leave(self, visitor: Visitor) -> None:
        """Remove a visitor that has logged in or disconnected."""
        key = self._all.pop(visitor, None)
        if key is not None:
            same = self._of[key]
            del same[visitor]
            if not same:
                del self._of[key]


def network(address: str) -> str:
    """Return the key by which addresses are counted: for IPv6 the /64, which one client owns."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))


class Noise:
    """Rate-limited log of client errors: one line of each kind in ten seconds, with a count."""

    def __init__(self, now: Callable[[], float] = clock.monotonic) -> None:
        self._clock = now
        self._kinds: dict[str, tuple[float, int]] = {}

    def tell(self, event: str, **fields: Any) -> None:
        """Log or count ``event``, a literal, because ``tests/test_events.py`` reads these calls."""
        now = self._clock()
        since, count = self._kinds.get(event, (float("-inf"), 0))
        if now - since < _QUIET_S:
            self._kinds[event] = since, count + 1
            return
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[event] = now, 0
        if count:
            fields["more_before"] = count
        _log.info(event, **fields)

    def on_exception(self, _loop: Any, context: dict[str, Any]) -> None:
        """Handle asyncio's exceptions: socket errors are ordinary, all others are bugs."""
        error = context.get("exception")
        if isinstance(error, OSError):
            self.tell("socket failed", reason=str(error) or type(error).__name__)
        else:
            _log.error("unhandled", message=context.get("message"), exc_info=error)
