"""``reload()`` and SIGHUP: change settings while the server runs, all of them or none.

The file is read again; environment variables and flags are unchanged and take precedence.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from headrace import events
from headrace.config import Settings
from headrace.errors import HeadraceError
from headrace.server import tls
from headrace.server.port import Port
from headrace.server.upstream import SourceAddress

CHANGEABLE: Final = frozenset(
    {
        *("log_level", "tls_cert", "tls_key", "tls_required"),
        *("connections_max", "login_timeout_ms", "logins_per_address_max", "client_timeout_ms"),
        *("statement_bytes_max", "commands_per_role_max"),
    }
)
"""Settings that ``reload()`` applies; existing sessions feel only the limits of all sessions."""

_log = structlog.get_logger(__name__)


class Reload:
    """Applies changed settings."""

    def __init__(
        self,
        loaded: Settings,
        again: Callable[[], Settings],
        port: Port,
        limit: Callable[[int], None],
        tell: Callable[[str], Awaitable[list[str]]],
    ) -> None:
        """Take ``loaded``, the settings as they were read, and ``again``, which rereads them.

        ``limit`` takes ``commands_per_role_max``; ``tell`` sets the log level of the other
        processes, and returns the names of those that could not be told.
        """
        self._loaded = loaded
        self._again = again
        self._port = port
        self._limit = limit
        self._tell = tell
        self._turn = asyncio.Lock()

    async def after_signal(self) -> None:
        """Apply the changes; log an error, as a signal has no answer."""
        try:
            await self()
        except HeadraceError as error:
            _log.warning("settings not reloaded", reason=error.what, detail=error.detail)

    async def __call__(self) -> list[str]:
        """Read the settings again and apply the changes; return messages about them.

        Raises:
            UserError: the file is wrong; nothing is changed.
            PrerequisiteError: certificate or key cannot be used; nothing is changed.
        """
        async with self._turn:
            return await self._apply(self._again())

    async def _apply(self, new: Settings) -> list[str]:
        changed = {
            f.name: getattr(new, f.name)
            for f in dataclasses.fields(Settings)
            if getattr(new, f.name) != getattr(self._loaded, f.name)
        }
        taken = {name: value for name, value in changed.items() if name in CHANGEABLE}
        settings = self._port.settings.replace(**taken)
        context = tls.server_context(settings)
        binding = tls.own_binding(settings)
        target = self._port.target
        if context is not None:
            address = SourceAddress.of(settings.source)
            target = await tls.checked(settings, address, self._port.roles)
        # From here on nothing can fail.
        self._port.reconfigure(settings, target, context, binding)
        self._limit(settings.commands_per_role_max)
        self._loaded = self._loaded.replace(**taken)
        told = [f'setting "{name}" is now {_shown(value)}' for name, value in taken.items()]
        if "log_level" in taken:
            events.set_level(settings.log_level)
            told += [
                f"the log level of {name} could not be changed; the change takes effect at its"
                f" next start"
                for name in await self._tell(settings.log_level)
            ]
        told += [
            f'setting "{name}" has changed; the change takes effect at the next start of Headrace'
            for name in sorted(changed.keys() - taken.keys())
        ]
        _log.info("settings reloaded", changed=sorted(changed))
        return told or ["no setting has changed"]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'
