"""The interface that the commander gives to the HTTP port."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from headrace.config import Settings

METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of ``ReportedData.metrics``."""


def _no_report(_: str) -> None:
    pass


class Ask(Protocol):
    """Makes a call as a role, with the settings of its session."""

    async def __call__(
        self,
        procedure: str,
        arguments: dict[str, Any],
        caller: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        report: Callable[[str], None] = _no_report,
        later: Callable[[BaseException | None], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the rows; ``report`` takes the notices.

        ``later`` takes the outcome of a view that is created without waiting.

        Raises:
            HeadraceError: the call failed.
        """


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Processor time and memory that a process has used until now."""

    name: str
    pid: int
    cpu_s: float
    memory_bytes: int


class ReportedData(Protocol):
    """Health data that machines ask for, and the console's curves."""

    def usage(self) -> list[ProcessUsage]:
        """Return the usage of each process of the engine on this computer."""

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
