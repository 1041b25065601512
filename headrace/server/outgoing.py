"""Handling of the source's messages: relayed, and read to track the answers still owed."""

from __future__ import annotations

import struct
from typing import Final

from headrace.errors import ProtocolError
from headrace.kernels import wire
from headrace.server import messages as m
from headrace.server import startup
from headrace.server.actions import Ready
from headrace.server.calling import Calling
from headrace.server.flow import Flow
from headrace.server.queries import Queries
from headrace.server.states import SessionState

_CONTEXT_BYTES_MAX: Final = 1_048_576
_AUTH, _ERROR, _READY, _SETTING, _KEY = b"REZSK"
_UNASKED: Final = frozenset(b"DdcNAS")
"""Messages of the source that answer nothing: rows, data, notices, notifications, settings."""
_PASSED_BY: Final = wire.kinds(b"DdcNA")
"""Those of them that are skipped without inspection while a session is relayed."""
_AT_ANY_TIME: Final = frozenset(b"NAS")


class Outgoing:
    """Reader of the bytes from the source."""

    def __init__(self, flow: Flow, queries: Queries, calling: Calling) -> None:
        self._flow = flow
        self._queries = queries
        self._calling = calling
        self._pass = 0
        """Bytes of a streamed message that are still to come."""
        self._sent = self._at = 0
        """Numbers of buffered bytes that are relayed, and inspected."""
        self._error_seen = False
        """Whether an error came since the last ReadyForQuery."""

    def passes(self, data: bytes) -> bool:
        """Return whether to relay ``data`` unchanged without further work; if not, ``read`` it."""
        flow = self._flow
        if self._pass or self._error_seen or not flow.quiet:
            return False
        return not flow.ours or (self._queries.plain and flow.pipeline.answered(data))

    def read(self) -> None:
        """Process the buffered bytes as far as possible now."""
        flow = self._flow
        buffer = flow.source
        if flow.state is SessionState.RELAY and not flow.ours:
            flow.to_client(buffer)
            buffer.clear()
            return
        self._sent = self._at = 0
        try:
            while flow.state is not SessionState.CLOSED and self._go_on():
                pass
        finally:
            if flow.state is not SessionState.CLOSED:
                self._flush()
                del buffer[: self._at]

    def _go_on(self) -> bool:
        """Process a message, or a part of one; return False if none can be processed now."""
        flow, buffer = self._flow, self._flow.source
        if self._pass:
            part = min(self._pass, len(buffer) - self._at)
            self._pass -= part
            self._at += part
            return part > 0
        if flow.state is SessionState.RELAY:
            at = wire.pass_by(buffer, self._at, _PASSED_BY)
            self._at = min(at, len(buffer))
            self._pass = at - self._at
        if len(buffer) - self._at < m.HEADER_BYTES:
            return False
        kind = buffer[self._at]
        (length,) = struct.unpack_from("!i", buffer, self._at + 1)
        if length < 4:
            raise ProtocolError("invalid message length")
        total = length + 1
        if not self._wanted(kind, total):
            self._on_passing(kind)
            self._pass = total
            return True
        if len(buffer) - self._at < total:
            return False
        if flow.state is not SessionState.RELAY:
            # Relay earlier messages before anything that this one leads to.
            self._flush()
        message = bytes(buffer[self._at : self._at + total])
        shown = self._on_message(kind, message)
        if flow.state is not SessionState.CLOSED:
            if shown is not message:
                self._flush()
                flow.to_client(shown)
                self._sent += total
            self._at += total
        return True

    def _flush(self) -> None:
        """Relay the inspected bytes to the client."""
        self._flow.to_client(self._flow.source[self._sent : self._at])
        self._sent = self._at

    def _wanted(self, kind: int, total: int) -> bool:
        """Return whether a message of the source is read whole; the rest are streamed."""
        state = self._flow.state
        if state is SessionState.CONTEXT and kind not in _AT_ANY_TIME and kind != _ERROR:
            if total > _CONTEXT_BYTES_MAX:
                raise ProtocolError("unexpected answer to the context query")
            return True
        if state is SessionState.LOGIN and kind in (_AUTH, _KEY):
            if total > m.LOGIN_BYTES_MAX:
                raise ProtocolError("invalid message length")
            return True
        if kind == _READY:
            if total != len(m.ready_for_query(b"I")):
                raise ProtocolError("invalid message length")
            return True
        if kind not in (_ERROR, _SETTING):
            return False
        return total <= self._flow.rules.statement_bytes_max

    def _on_passing(self, kind: int) -> None:
        """Track a message of the source that is relayed unread."""
        if kind in _UNASKED or self._flow.state is SessionState.LOGIN:
            return
        if kind == _ERROR:
            self._on_error()
        else:
            self._flow.pipeline.answers(kind)
        self._calling.check()

    def _on_message(self, kind: int, message: bytes) -> bytes:
        """Act on a message of the source; return the bytes for the client instead of it."""
        flow = self._flow
        if kind == _READY:
            return self._on_ready(message)
        if kind == _ERROR:
            self._on_error()
            self._calling.check()
            return message
        if kind == _SETTING:
            reader = m.Reader(message[5:])
            name = reader.cstring().decode("utf-8", "replace")
            flow.setting(name, reader.cstring().decode("utf-8", "replace"))
        elif flow.state is SessionState.CONTEXT:
            self._calling.on_context(kind, message, failed=self._error_seen)
            return b""
        elif kind == _KEY:
            flow.key = message[5:]
        elif kind == _AUTH:
            startup.go_on(flow, flow.login.from_source(message[5:]))
            return b""
        return message

    def _on_error(self) -> None:
        self._error_seen = True
        self._flow.to_source(m.SYNC * self._flow.pipeline.fails())
        self._queries.refuse()

    def _on_ready(self, message: bytes) -> bytes:
        flow, status = self._flow, message[5:6]
        failed, self._error_seen = self._error_seen, False
        if flow.state is SessionState.LOGIN:
            flow.pipeline.status = status
            flow.fire("ready")
            flow.act(Ready(flow.key))
            return message
        if flow.state is SessionState.CONTEXT:
            return self._calling.on_context_ready(message, failed=failed)
        if flow.keeping_alive:
            flow.pipeline.ready(status)
            self._calling.on_kept_alive()
            return b""
        flow.pipeline.ready(status)
        if flow.pipeline.settled:
            self._queries.confirm(idle=status == b"I")
        if flow.state is SessionState.BARRIER:
            return self._calling.on_ready(message, failed=failed)
        return message
