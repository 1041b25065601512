"""The interface that the commander gives to the HTTP port."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from headrace.config import Settings

Ask = Callable[[str, dict[str, Any], str], Awaitable[list[dict[str, Any]]]]
"""(procedure, arguments, caller) -> rows: makes a call as that role. Raises HeadraceError."""


METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of ``ReportedData.metrics``."""


class ReportedData(Protocol):
    """Health data that machines ask for."""

    async def ready(self) -> tuple[bool, str]:
        """Return whether the engine works, and if not, why."""

    async def metrics(self) -> str:
        """Return all samples in Prometheus' text format."""


@dataclass(frozen=True, slots=True)
class HostInterface:
    """Settings, data and calls of one commander."""

    settings: Settings
    health: ReportedData
    ask: Ask
    tls: ssl.SSLContext | None
    version: str
