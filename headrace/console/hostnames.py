"""Check the Host header, so that a web page cannot reach this port by DNS rebinding.

The owner of a domain can point its name at this computer. A browser then sends the requests of the
owner's page here, and lets the page read the answers. Such a request carries the owner's domain in
its Host header.

The check accepts addresses, names that cannot be registered in the public DNS, the name of this
computer, and the names of the setting ``http_hosts``. Over TLS the browser checks the certificate
instead.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

_HEADER: Final = re.compile(rb"(?P<name>\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+)(?::[0-9]{0,5})?")
_PRIVATE: Final = (".localhost", ".internal")
"""Top-level domains that are reserved for private use."""


class Hostnames:
    """The names under which this port may be addressed."""

    def __init__(self, listen: str, configured: str, *, tls: bool) -> None:
        """Take ``listen``, the host of the address, and ``configured``, comma-separated names."""
        given = [name.strip().lower() for name in configured.split(",")]
        self._names = {listen.lower(), socket.gethostname().lower(), *filter(None, given)}
        self._tls = tls

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
        """Return the HTTP status with which to refuse a request; None: the header is good.

        HTTP/1.0 may leave the header out. Browsers always send it.
        """
        found = [value for name, value in headers if name == b"host"]
        if not found:
            return None
        match = _HEADER.fullmatch(found[0])
        if len(found) > 1 or match is None:
            return 400
        name = match["name"].decode().lower()
        return None if self._tls or self._accepts(name) else 421

    def _accepts(self, name: str) -> bool:
        private = "." not in name or name.endswith(_PRIVATE)
        return private or name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
