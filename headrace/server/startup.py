"""Start of a session: encryption requests, cancel requests, and the choice of the database."""

from __future__ import annotations

from typing import Final

from headrace.errors import ProtocolError
from headrace.server import messages as m
from headrace.server.actions import Cancel, Close, Connect, StartTls, Verify
from headrace.server.flow import Flow
from headrace.server.login import Step

_HANDSHAKE: Final = 0x16
"""First byte of a TLS handshake, and of no startup packet."""
_ROLE_BYTES_MAX: Final = 63


def read(flow: Flow) -> None:
    """Process the client's first packet, or the next one after an encryption request."""
    if flow.client[0] == _HANDSHAKE and flow.rules.tls and not flow.tls_on:
        flow.fire("tls_requested")
        flow.act(StartTls(bytes(flow.client)))
        flow.client.clear()
        return
    packet = m.read_startup(flow.client)
    if packet is None:
        return
    del flow.client[: len(packet.packet)]
    if packet.code == m.SSL_CODE and flow.rules.tls and not flow.tls_on:
        if flow.client:
            # Bytes sent before the handshake could come from an attacker (CVE-2021-23214).
            raise ProtocolError("received unencrypted data after SSL request")
        flow.fire("tls_requested")
        flow.act(StartTls())
    elif packet.code in (m.SSL_CODE, m.GSS_CODE):
        flow.to_client(b"N")
    elif packet.code == m.CANCEL_CODE:
        flow.close(Cancel(packet.packet[8:], packet.packet), Close())
    elif packet.code >> 16 == 3:
        _begin(flow, packet)
    else:
        raise ProtocolError(
            f"unsupported frontend protocol {packet.code >> 16}.{packet.code & 0xFFFF}"
        )


def _begin(flow: Flow, packet: m.StartupPacket) -> None:
    """Process a StartupMessage: decide where the session goes."""
    if flow.rules.tls_required and not flow.tls_on:
        flow.die("connections must use TLS here", "28000")
        return
    parameters = packet.parameters
    # Truncated like by the source, whose names have at most 63 bytes.
    name = parameters.get("user", "").encode()[:_ROLE_BYTES_MAX]
    flow.user = name.decode("utf-8", "ignore")
    flow.database = parameters.get("database") or parameters.get("user", "")
    flow.application = parameters.get("application_name", "")
    # Other databases have no engine; a replication session runs no statements.
    flow.ours = flow.database == flow.rules.database and "replication" not in parameters
    if flow.rules.full():
        flow.die("sorry, too many clients already", "53300")
        return
    flow.fire("startup")
    flow.act(Connect())
    flow.to_source(packet.packet)


def go_on(flow: Flow, step: Step) -> None:
    """Carry out a step of the login."""
    flow.to_client(step.client)
    flow.to_source(step.server)
    if step.asks_verifier:
        flow.act(Verify(flow.user))
