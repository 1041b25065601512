"""The only clocks: durations are monotonic, and the time of day is never used for order."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

POSTGRES_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)

monotonic = time.monotonic
"""Seconds from an arbitrary start; never jumps (H40)."""

sleep = time.sleep
"""Do nothing for so many seconds."""


def now() -> datetime:
    """Time of day in UTC, for people to read."""
    return datetime.now(UTC)


def from_postgres(micros: int) -> datetime:
    """Time of day of ``micros`` since 2000-01-01 UTC, as replication messages carry it."""
    return POSTGRES_EPOCH + timedelta(microseconds=micros)


def text(micros: int) -> str:
    """Time of day of ``micros`` since 1970, as people read it."""
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(sep=" ", timespec="milliseconds")
