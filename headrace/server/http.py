"""The commander's HTTP port: gives ``console/`` its settings, health data and calls."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from headrace.config import Settings
from headrace.console.host_interface import HostInterface, ReportedData
from headrace.console.port import HttpPort
from headrace.server import tls
from headrace.server.commands import Commands
from headrace.server.context import CallContext
from headrace.server.procedures import Invocation


def http_port(
    settings: Settings, health: ReportedData, commands: Commands, version: str
) -> HttpPort:
    """Create the HTTP port, not yet listening.

    Raises:
        PrerequisiteError: certificate or token cannot be used.
    """

    async def ask(
        procedure: str,
        arguments: dict[str, Any],
        caller: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        report: Callable[[str], None] = lambda _: None,
        later: Callable[[BaseException | None], None] | None = None,
    ) -> list[dict[str, Any]]:
        context = CallContext(caller, dict(settings))
        found = await commands.run(Invocation(procedure, arguments), context, report, later)
        if found is None:
            return []
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

    outside = HostInterface(settings, health, ask, _tls(settings), version)
    return HttpPort(settings.http, outside)


def _tls(settings: Settings) -> ssl.SSLContext | None:
    context = tls.server_context(settings) if settings.http_tls else None
    if context is not None:
        context.set_alpn_protocols(["http/1.1"])
    return context
