"""The only clocks: durations are monotonic; the time of day never decides an order."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

monotonic = time.monotonic
"""Seconds from an arbitrary start; never jumps (H40)."""

sleep = time.sleep
"""Block the thread for the given number of seconds."""


def now() -> datetime:
    """Return the time of day in UTC, for people to read."""
    return datetime.now(UTC)


def from_postgres(micros: int) -> datetime:
    """Convert microseconds since 2000-01-01 UTC, as replication messages carry them."""
    return POSTGRES_EPOCH + timedelta(microseconds=micros)


def text(micros: int) -> str:
    """Format microseconds since 1970 as an ISO time in UTC."""
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(sep=" ", timespec="milliseconds")
