"""Handling of the client's messages, whole or streamed, up to the start of a call."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from headrace.errors import ProtocolError
from headrace.kernels import wire
from headrace.server import messages as m
from headrace.server import startup
from headrace.server.calling import Calling
from headrace.server.flow import Flow
from headrace.server.queries import Queries, dull
from headrace.server.states import SessionState

_READING: Final = (SessionState.LOGIN, SessionState.RELAY, SessionState.SKIP)
_Q, _P, _B, _E, _S, _X, _PASSWORD = b"QPBESXp"


class Incoming:
    """Reader of the bytes from the client."""

    def __init__(self, flow: Flow, queries: Queries, calling: Calling) -> None:
        self._flow = flow
        self._queries = queries
        self._calling = calling
        self._pass = 0
        """Bytes of a streamed message that are still to come."""
        self._plain = _plain(flow.rules.statement_bytes_max)

    def passes(self, data: bytes) -> bool:
        """Return whether to relay ``data`` unchanged without further work; if not, ``read`` it.

        This is the fast path for nearly all traffic: whole messages of plain types whose texts are
        dull, while nothing is remembered and nothing waits.
        """
        flow = self._flow
        if self._pass or not flow.quiet:
            return False
        if not flow.ours:
            return True
        kinds = wire.asks(data, self._plain, dull) if self._queries.plain else None
        if kinds is None:
            return False
        self._queries.relayed(kinds)
        return True

    def read(self) -> None:
        """Process the buffered bytes as far as possible now."""
        flow = self._flow
        while flow.client:
            before = (flow.state, len(flow.client), self._pass)
            if flow.state is SessionState.START:
                startup.read(flow)
            elif flow.state is SessionState.RELAY and not flow.ours:
                flow.to_source(flow.client)
                flow.client.clear()
            elif flow.state in _READING:
                self._read_messages()
            if before == (flow.state, len(flow.client), self._pass):
                return

    def _read_messages(self) -> None:
        """Relay messages; ``buffer[sent:at]`` has been inspected and is to be relayed."""
        flow = self._flow
        buffer = flow.client
        sent = at = 0
        while flow.state in _READING:
            if self._pass:
                part = min(self._pass, len(buffer) - at)
                self._pass -= part
                at += part
                if flow.state is SessionState.SKIP:
                    sent = at
                if part == 0:
                    break
                continue
            head = self._next_head(at)
            if head is None:
                break
            kind, total = head
            syncs = flow.pipeline.interrupts(kind)
            if syncs:
                flow.to_source(buffer[sent:at])
                flow.to_source(m.SYNC * syncs)
                sent = at
            if syncs is not None or not self._wanted(kind, total):
                if flow.state is SessionState.RELAY:
                    self._queries.skim(kind, bytes(buffer[at + 5 : at + 600]))
                self._pass = total
                continue
            if len(buffer) - at < total:
                break
            message = bytes(buffer[at : at + total])
            if not self._on_message(kind, message):
                flow.to_source(buffer[sent:at])
                sent = at + total
            at += total
            sent = self._flush_gated(kind, sent, at)
        flow.to_source(buffer[sent:at])
        del buffer[:at]
        if flow.state is SessionState.BARRIER:
            self._calling.begin()

    def _flush_gated(self, kind: int, sent: int, at: int) -> int:
        """Flush after an Execute that may begin a copy: the Sync that would do so is held back."""
        if kind != _E or not self._flow.pipeline.gated:
            return sent
        self._flow.to_source(self._flow.client[sent:at])
        self._flow.to_source(m.FLUSH)
        return at

    def _next_head(self, at: int) -> tuple[int, int] | None:
        """Return type and size of the client's message at ``at``; None: it has to wait."""
        flow = self._flow
        if flow.pipeline.gated or len(flow.client) - at < m.HEADER_BYTES:
            return None
        kind = flow.client[at]
        (length,) = struct.unpack_from("!i", flow.client, at + 1)
        m.check_length(kind, length)
        if flow.state is SessionState.LOGIN:
            if length > m.LOGIN_BYTES_MAX:
                raise ProtocolError("invalid message length")
            if kind not in (_PASSWORD, _X):
                # Sent too early: it waits until the source is ready for it.
                return None
        return kind, int(length) + 1

    def _wanted(self, kind: int, total: int) -> bool:
        """Return whether the message must be complete before it is relayed or dropped."""
        flow = self._flow
        if flow.state is SessionState.LOGIN:
            return kind == _PASSWORD and flow.login.answers_client
        if kind in (_S, _X) or kind == m.FLUSH[0]:
            return True
        if flow.state is SessionState.SKIP or total > flow.rules.statement_bytes_max:
            return False
        if flow.pipeline.ignoring or flow.pipeline.copying:
            return False
        if kind in (_B, _E):
            return self._queries.remembers
        return kind in (_Q, _P)

    def _on_message(self, kind: int, message: bytes) -> bool:
        """Act on a whole message; return whether it is to be relayed now."""
        flow = self._flow
        if flow.state is SessionState.LOGIN:
            startup.go_on(flow, flow.login.from_client(message[5:]))
            return False
        if flow.state is SessionState.SKIP:
            # After an error of a call, messages up to Sync are dropped.
            if kind != _S:
                return kind == _X
            flow.fire("sync")
        if kind == _S:
            self._queries.end_segment()
        return self._queries.read(kind, message)


@lru_cache
def _plain(statement_bytes_max: int) -> tuple[int, ...]:
    """Return the maximum length by message type (0: not plain), as ``wire.asks`` takes it."""
    most = [0] * 256
    for kind in b"QPBDECSH":
        most[kind] = m.length_max(kind)
    for kind in (_Q, _P):
        # (A length does not count the type.)
        most[kind] = statement_bytes_max - 1
    return tuple(most)
