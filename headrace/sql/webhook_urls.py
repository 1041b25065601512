"""Addresses of webhooks: their form, and whether setting ``webhook_hosts`` allows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from headrace.errors import UserError

_PORTS: Final = {"http": 80, "https": 443}
_URL_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """A parsed URL; ``path`` includes the query."""

    tls: bool
    host: str
    port: int
    path: str

    @property
    def place(self) -> str:
        """Host and port, as they may be logged: the rest of a URL may be a secret."""
        return f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        """Value of the header ``Host``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"
        )


def parse(text: str) -> WebhookUrl:
    """Parse the URL of a webhook.

    Raises:
        UserError: 22023, it is not a URL of http or https, or contains a user or password.
    """
    # A blank or control character would let the URL add headers to the request.
    plain = len(text) <= _URL_MAX and text.isascii() and text.isprintable() and " " not in text
    try:
        parts = urlsplit(text if plain else "")
        port = parts.port
    except ValueError:
        raise _misfit() from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.fragment or "@" in parts.netloc:
        raise _misfit()
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    default = _PORTS[parts.scheme]
    return WebhookUrl(parts.scheme == "https", parts.hostname, port or default, path)


def _misfit() -> UserError:
    return UserError(
        'option "webhook" must be a URL of http or https',
        detail=f"It has at most {_URL_MAX} printable ASCII characters, and no user or password.",
        hint='Write for example {"webhook": "https://hooks.example.com/stock"}.',
    )


def is_allowed(url: WebhookUrl, hosts: str) -> bool:
    """Return whether ``webhook_hosts`` names the host and port of ``url``."""
    return any(_matches(url, *entry) for entry in entries(hosts))


def entries(hosts: str) -> Sequence[tuple[str, int | None]]:
    """Return the (host, port) that ``webhook_hosts`` names.

    Port None: that of http or https; 0: any.
    """
    out: list[tuple[str, int | None]] = []
    for entry in filter(None, (word.strip().lower() for word in hosts.split(","))):
        host, colon, port = entry.rpartition(":")
        known = port == "*" or port.isdecimal()
        if colon and known and (":" not in host or host.startswith("[")):
            out.append((host.strip("[]"), 0 if port == "*" else int(port)))
        else:
            out.append((entry.strip("[]"), None))
    return out


def _matches(url: WebhookUrl, host: str, port: int | None) -> bool:
    usual = _PORTS["https" if url.tls else "http"]
    if port != 0 and url.port != (usual if port is None else port):
        return False
    return url.host.endswith(host[1:]) if host.startswith("*.") else url.host == host


def check_allowed(url: WebhookUrl, hosts: str) -> None:
    """Raise UserError (55000) unless ``webhook_hosts`` allows ``url``."""
    if is_allowed(url, hosts):
        return
    raise UserError(
        f'webhooks to "{url.place}" are not allowed',
        detail="The server sends only to hosts that its setting webhook_hosts names"
        + ("." if entries(hosts) else ", and it names none."),
        hint=f"Have the setting webhook_hosts include {url.host_header}.",
        sqlstate="55000",
    )
