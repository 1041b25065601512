"""Check that the TLS of the port's two sides can work together; else the port does not start.

If a client asked for TLS, its data must not go to the source in the clear.  And a login that cannot
succeed must not make the client try again without TLS (libpq's ``prefer`` does).
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import ssl
from pathlib import Path
from typing import Final

import structlog

from headrace.config import Settings, address
from headrace.errors import PrerequisiteError
from headrace.process import secret_files
from headrace.server.roles import Roles
from headrace.server.scram import end_point
from headrace.server.upstream import ALPN, SourceAddress

_END: Final = "-----END CERTIFICATE-----"
_log = structlog.get_logger(__name__)


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context for clients; None: TLS is not configured.

    Raises:
        PrerequisiteError: the certificate or key cannot be used, or other users may read the key.
    """
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN])
    try:
        secret_files.check(Path(settings.tls_key), "key")
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise PrerequisiteError(
            f'could not load certificate "{settings.tls_cert}": {error}',
            hint="Settings tls_cert and tls_key name files in PEM format.",
        ) from error
    return context


def own_binding(settings: Settings) -> bytes:
    """Return the channel binding data of our certificate (the first of its file)."""
    if not settings.tls_cert:
        return b""
    text = Path(settings.tls_cert).read_text()
    first = text[text.index("-----BEGIN") : text.index(_END) + len(_END)]
    return end_point(ssl.PEM_cert_to_DER_cert(first))


async def checked(settings: Settings, target: SourceAddress, roles: Roles) -> SourceAddress:
    """Return ``target`` pinned: the source must go on to speak TLS, if it does now.

    Raises:
        PrerequisiteError: 55000, the configuration cannot work.
        TransientError: the source cannot be reached.
    """
    _warn(settings)
    transport, tls = await target.open(asyncio.Protocol())
    peer = transport.get_extra_info("peername")
    source = transport.get_extra_info("ssl_object")
    binding = end_point(source.getpeercert(binary_form=True) or b"") if tls else b""
    transport.close()
    pinned = dataclasses.replace(target, pinned=tls)
    if not settings.tls_cert:
        return pinned
    if not tls:
        if target.sslmode != "disable" and not _local(peer):
            raise PrerequisiteError(
                "clients would use TLS to Headrace, but Headrace would send clear text to the"
                " source",
                hint="Enable ssl on the source. If the network between is safe, set"
                " sslmode=disable in the source's DSN instead.",
            )
        return pinned
    own = own_binding(settings)
    if (not own or own != binding) and await roles.verifier("") is None:
        raise PrerequisiteError(
            "clients could not log in with SCRAM over TLS",
            detail="Their proofs are bound to the certificate that they see, which is"
            " not the source's, and the stored verifiers may not be read.",
            hint="GRANT SELECT (rolname, rolpassword) ON pg_catalog.pg_authid to"
            " Headrace's role, or give tls_cert and tls_key the source's certificate.",
        )
    return pinned


def _warn(settings: Settings) -> None:
    host, _ = address(settings.listen)
    if settings.allow_trust and not _local((host,)):
        _log.warning(
            "port lets in without a password",
            setting="allow_trust",
            listen=settings.listen,
        )


def _local(peer: object) -> bool:
    """Return whether an address is this computer's own."""
    if not isinstance(peer, tuple) or not peer:
        return True  # a Unix socket
    try:
        return ipaddress.ip_address(str(peer[0]).partition("%")[0]).is_loopback
    except ValueError:
        return str(peer[0]) == "localhost"
