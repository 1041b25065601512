"""What the HTTP port is given by the commander: it knows no more of it."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.config import Settings

Ask = Callable[[str, dict[str, Any], str], Awaitable[list[dict[str, Any]]]]
"""(procedure, arguments, caller) -> rows: a call as that role makes it.  Raises HeadraceError."""


METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The type of what ``Told.metrics`` answers."""


class Told(Protocol):
    """What machines ask."""

    async def ready(self) -> tuple[bool, str]:
        """Whether the engine works, and if not, why."""

    async def metrics(self) -> str:
        """All samples in Prometheus' text format."""


@dataclass(frozen=True, slots=True)
class Outside:
    """Of one commander."""

    settings: Settings
    health: Told
    ask: Ask
    tls: ssl.SSLContext | None
    version: str
