"""One client session as a pure state machine: bytes and answers in, actions out; no sockets.

The commander relays every byte between a client and the source Postgres.  It reads along,
and steps in at two places: a Query that is one statement of ours, and the Execute of a
portal of such a statement.  (Parse, Bind and Describe of it are relayed like any other: the
procedures exist in the database, so Postgres itself resolves types, defaults and errors.)
It then makes sure that the upstream session is idle (state BARRIER), reads that session's
role and settings by an injected query whose answers the client never sees (CONTEXT), and
hands the call out (RUNNING).  What cannot be handled exactly is relayed: the procedure in
the database reaches the engine through the command table, or Postgres says what is wrong.

    START ──startup──▶ LOGIN ──ready──▶ RELAY ◀──────────────────────────────┐
      │ ▲                               │  ▲ └─ours─▶ BARRIER ─idle─▶ CONTEXT ┤ refused
      ▼ │                               │  └──not_ours──┘              │     │
      TLS                             SKIP ◀──failed─────────────── RUNNING ─┘ finished

Invariant 1: while the state is BARRIER, CONTEXT or RUNNING no client message is relayed.
Invariant 2: what the client gets is the upstream's bytes at message boundaries, in order.
Invariant 3: a message is buffered only up to a limit; longer ones are streamed unread.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from headrace.errors import ProtocolError
from headrace.server import messages as m
from headrace.server.context import CONTEXT_QUERY, Context, read_context
from headrace.server.procedures import (
    ALONE_HINT,
    PLANNED,
    SELECTED,
    Given,
    Invocation,
    bind,
)
from headrace.server.statements import Statement, contains_call, mentions_us, parse


class State(enum.Enum):
    """Where the session is."""

    START = enum.auto()
    TLS = enum.auto()
    LOGIN = enum.auto()
    RELAY = enum.auto()
    BARRIER = enum.auto()
    CONTEXT = enum.auto()
    RUNNING = enum.auto()
    SKIP = enum.auto()
    CLOSED = enum.auto()


# What happened -> (state it happens in -> next state).  Anything else is a bug, not input.
TRANSITIONS: Final[dict[str, dict[State, State]]] = {
    "tls_requested": {State.START: State.TLS},
    "tls_ready": {State.TLS: State.START},
    "startup": {State.START: State.LOGIN},
    "ready": {State.LOGIN: State.RELAY},
    "ours": {State.RELAY: State.BARRIER},
    "not_ours": {State.BARRIER: State.RELAY, State.CONTEXT: State.RELAY},
    "idle": {State.BARRIER: State.CONTEXT},
    "answered": {State.CONTEXT: State.RUNNING},
    "finished": {State.RUNNING: State.RELAY},
    "refused": {State.CONTEXT: State.RELAY},
    "failed": {
        State.RUNNING: State.SKIP,
        State.CONTEXT: State.SKIP,
        State.BARRIER: State.SKIP,
    },
    "sync": {State.SKIP: State.RELAY},
}


# --- actions


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send to the client."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ToServer:
    """Send to the source (after connecting, if that is still under way)."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the source for this session."""


@dataclass(frozen=True, slots=True)
class StartTls:
    """Begin TLS with the client; answer with ``tls_started``."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel request for the session of ``key``; ``packet`` is for the source."""

    key: bytes
    packet: bytes


@dataclass(frozen=True, slots=True)
class Ready:
    """The client has logged in; ``key`` is what its cancel requests carry."""

    key: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Carry out the call; then ``finish`` or ``fail`` the session."""

    invocation: Invocation
    context: Context


@dataclass(frozen=True, slots=True)
class Close:
    """Close both connections, after what was sent before."""


Action = ToClient | ToServer | Connect | StartTls | Cancel | Ready | Run | Close

_READING: Final = (State.LOGIN, State.RELAY, State.SKIP)
_CONTEXT_NAME: Final = b"__headrace_context"
_STATEMENTS_MAX: Final = 1_000

_Q, _P, _B, _E, _C, _S, _F, _X = b"QPBECSFX"
_COPY_END: Final = frozenset(b"cf")
_COPY_MARK: Final = "c"
_OUR_SYNC: Final = "B"
_AUTH: Final = ord("R")
_LOOKED_AT: Final = frozenset(b"ZKSEG")
_ANSWERS: Final = frozenset(b"12DC3")


@dataclass(frozen=True, slots=True)
class _Pending:
    """The call that waits for the barrier or the context."""

    invocation: Invocation
    text: str
    message: bytes
    extended: bool
    formats: tuple[int, ...] = ()
    """Result formats of Bind."""


@dataclass(frozen=True, slots=True)
class _Translation:
    """Error codes of the upstream, and the fields that replace such an error."""

    codes: frozenset[str]
    fields: dict[str, str]


class Session:
    """The state machine; every method returns the actions to carry out, in order."""

    def __init__(
        self,
        *,
        database: str,
        tls: bool = False,
        full: bool = False,
        statement_bytes_max: int = 1_048_576,
    ) -> None:
        """``database``: the source's; ``tls``: it can be offered; ``full``: refuse."""
        self.state = State.START
        self.key = b""
        self.user = ""
        self._ours = False
        self.upstream_tls = False
        self.challenge_required = False
        self._database = database
        self._tls_offered = tls
        self._tls_on = False
        self._full = full
        self._statement_bytes_max = statement_bytes_max
        self._parameters = {
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
        }
        self._challenged = False
        self._actions: list[Action] = []
        # From the client.
        self._in = bytearray()
        self._in_pass = 0
        self._statements: dict[bytes, tuple[Statement, tuple[int, ...]]] = {}
        self._new_statements: list[bytes] = []
        self._portals: dict[bytes, tuple[Statement, list[Given], tuple[int, ...]]] = {}
        self._executes = 0
        # What the upstream still owes: Q, S, F for a ReadyForQuery, c for the end of a COPY.
        self._owed: deque[str] = deque()
        self._copying = False
        # From the source.
        self._out = bytearray()
        self._out_pass = 0
        self._status = b"I"
        self._error_seen = False
        self._translation: _Translation | None = None
        # A call of ours.
        self._pending: _Pending | None = None
        self._context: Context | None = None
        self._context_begun = False

    # --- what the listener tells

    def receive_client(self, data: bytes) -> list[Action]:
        """Bytes from the client."""
        if self.state is State.CLOSED:
            return []
        self._in += data
        return self._guarded()

    def receive_server(self, data: bytes) -> list[Action]:
        """Bytes from the source."""
        if self.state is State.CLOSED:
            return []
        self._out += data
        try:
            self._read_server()
        except (ProtocolError, struct.error) as error:
            return self._die(f"invalid message from the source: {error}", "08P01")
        return self._guarded()

    def tls_started(self) -> list[Action]:
        """The TLS handshake with the client is done."""
        self._fire("tls_ready")
        self._tls_on = True
        return self._guarded()

    def server_lost(self, fields: dict[str, str]) -> list[Action]:
        """The source cannot be reached; the client is told why (before login only)."""
        if self.state is State.CLOSED:
            return []
        return self._die(fields["M"], fields["C"], fields)

    def notice(self, text: str) -> list[Action]:
        """Tell the client something about the running call."""
        if self.state is not State.RUNNING:
            return []
        return [ToClient(m.notice_response(text, encoding=self._encoding))]

    def finish(self, found: m.ResultSet | None) -> list[Action]:
        """The running call is done; ``found`` are its rows, if it has any."""
        if self.state is not State.RUNNING:
            return []
        pending = self._pending
        assert pending is not None, "a running call is pending"
        out = b""
        if found is not None:
            if not pending.extended:
                out += m.row_description(found.columns)
            out += m.data_rows(found, pending.formats, self._encoding)
        tag = "CALL"
        if found is not None and pending.invocation.procedure in SELECTED:
            tag = f"SELECT {len(found.rows)}"
        out += m.command_complete(tag)
        if not pending.extended:
            out += m.ready_for_query(self._status)
        self._send_client(out)
        self._pending = None
        self._fire("finished")
        return self._guarded()

    def fail(self, fields: dict[str, str]) -> list[Action]:
        """The running call failed with these fields (position relative to the query)."""
        if self.state is not State.RUNNING:
            return []
        pending = self._pending
        assert pending is not None, "a running call is pending"
        shown = pending.invocation.error_fields(fields)
        self._send_client(m.error_response(shown, encoding=self._encoding))
        self._pending = None
        if pending.extended:
            self._fire("failed")
        else:
            self._send_client(m.ready_for_query(self._status))
            self._fire("finished")
        return self._guarded()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the client that wait for a running call."""
        return len(self._in)

    # --- plumbing

    @property
    def _encoding(self) -> str:
        name = self._parameters["client_encoding"]
        return m.python_encoding(name) or "utf-8"

    def _fire(self, trigger: str) -> None:
        following = TRANSITIONS[trigger].get(self.state)
        assert following is not None, f"{trigger} cannot happen in {self.state}"
        self.state = following

    def _take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def _guarded(self) -> list[Action]:
        """Go on with the client's bytes; malformed ones end the session, nothing else."""
        try:
            self._read_client()
        except (ProtocolError, struct.error) as error:
            return self._die(str(error), "08P01")
        return self._take()

    def _die(
        self, text: str, code: str, fields: dict[str, str] | None = None
    ) -> list[Action]:
        self._send_client(
            m.error_response(
                fields or {"C": code, "M": text},
                severity="FATAL",
                encoding=self._encoding,
            )
        )
        self.state = State.CLOSED
        self._in.clear()
        self._out.clear()
        self._actions.append(Close())
        return self._take()

    def _send_client(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._actions.append(ToClient(bytes(data)))

    def _send_server(self, data: bytes | bytearray | memoryview) -> None:
        if data:
            self._actions.append(ToServer(bytes(data)))

    # --- from the client

    def _read_client(self) -> None:
        while self._in:
            before = (self.state, len(self._in), self._in_pass)
            if self.state is State.START:
                self._read_startup()
            elif self.state in _READING:
                self._read_messages()
            if before == (self.state, len(self._in), self._in_pass):
                return

    def _read_startup(self) -> None:
        packet = m.read_startup(self._in)
        if packet is None:
            return
        del self._in[: len(packet.packet)]
        if packet.code == m.SSL_CODE and self._tls_offered and not self._tls_on:
            if self._in:
                # Bytes sent before the handshake could come from anybody (CVE-2021-23214).
                raise ProtocolError("received unencrypted data after SSL request")
            self._fire("tls_requested")
            self._actions.append(StartTls())
        elif packet.code in (m.SSL_CODE, m.GSS_CODE):
            self._send_client(b"N")
        elif packet.code == m.CANCEL_CODE:
            self._actions += [Cancel(packet.packet[8:], packet.packet), Close()]
            self.state = State.CLOSED
            self._in.clear()
        elif packet.code >> 16 == 3 and self._full:
            self._actions = self._die("sorry, too many clients already", "53300")
        elif packet.code >> 16 == 3:
            self._fire("startup")
            parameters = packet.parameters
            self.user = parameters.get("user", "")
            database = parameters.get("database") or self.user
            # Another database has no engine; a replication session runs no statements.
            self._ours = database == self._database and "replication" not in parameters
            self._owed.append("Q")
            self._actions.append(Connect())
            self._send_server(packet.packet)
        else:
            raise ProtocolError(
                f"unsupported frontend protocol {packet.code >> 16}.{packet.code & 0xFFFF}"
            )

    def _read_messages(self) -> None:
        """Relay whole messages and parts of streamed ones, up to where a call begins.

        ``buffer[sent:at]`` has been looked at and is to be relayed.
        """
        buffer = self._in
        sent = at = 0
        while self.state in _READING:
            if self._in_pass:
                part = min(self._in_pass, len(buffer) - at)
                if part == 0:
                    break
                self._in_pass -= part
                at += part
                if self.state is State.SKIP:
                    sent = at
                continue
            if len(buffer) - at < m.HEADER_BYTES:
                break
            kind = buffer[at]
            (length,) = struct.unpack_from("!i", buffer, at + 1)
            m.check_length(kind, length)
            if self.state is State.LOGIN and length > m.LOGIN_BYTES_MAX:
                raise ProtocolError("invalid message length")
            total = length + 1
            if not self._wanted(kind, total):
                if self.state is State.RELAY:
                    self._on_streamed(kind)
                self._in_pass = total
                continue
            if len(buffer) - at < total:
                break
            relay = self._on_client_message(kind, bytes(buffer[at : at + total]))
            if not relay:
                self._send_server(buffer[sent:at])
                sent = at + total
            at += total
        self._send_server(buffer[sent:at])
        del buffer[:at]
        if self.state is State.BARRIER:
            self._begin_barrier()

    def _wanted(self, kind: int, total: int) -> bool:
        """Whether the message must be seen whole before it is relayed or dropped."""
        if self.state is State.LOGIN:
            return False
        if kind in (_S, _X):
            return True
        if total > self._statement_bytes_max:
            return False
        if kind in (_B, _E):
            return bool(self._statements)
        return self._ours and kind in (_Q, _P)

    def _on_streamed(self, kind: int) -> None:
        """Bookkeeping for a message that is relayed unread."""
        if kind in (_Q, _F):
            self._owed.append(chr(kind))
        elif kind == _E:
            self._executes += 1
        elif kind in _COPY_END:
            self._owed.append(_COPY_MARK)
            self._copying = False
        elif kind == _P:
            # Too long to look into: whatever name it has, it is not a statement of ours.
            self._statements.clear()
        elif kind == _B:
            self._portals.clear()

    def _on_client_message(self, kind: int, message: bytes) -> bool:
        """Act on a whole message; returns whether it is to be relayed now."""
        if self.state is State.SKIP:
            return self._on_skipped(kind)
        if kind == _S:
            if not self._copying:
                # (During COPY FROM STDIN the server ignores Sync.)
                self._owed.append("S")
            self._end_segment()
        elif kind == _Q:
            return self._on_query(message)
        elif kind == _P:
            self._on_parse(message)
        elif kind == _B:
            self._on_bind(message)
        elif kind == _E:
            return self._on_execute(message)
        return True

    def _on_skipped(self, kind: int) -> bool:
        """After an error of ours everything up to Sync is dropped."""
        if kind == _X:
            return True
        if kind != _S:
            return False
        self._fire("sync")
        self._owed.append("S")
        self._end_segment()
        return True

    def _end_segment(self) -> None:
        self._executes = 0
        self._portals.clear()

    def _on_query(self, message: bytes) -> bool:
        self._end_segment()
        text = self._decode(message[5:].rstrip(b"\x00"))
        if text is not None and mentions_us(text):
            statement = parse(text, standard_strings=self._standard_strings)
            invocation = bind(statement, (), self._encoding) if statement else None
            if invocation:
                self._pending = _Pending(invocation, text, message, extended=False)
                self._fire("ours")
                return False
            self._translate(text)
        self._forget_renamed(text)
        self._owed.append("Q")
        return True

    def _on_parse(self, message: bytes) -> None:
        parsed = m.read_parse(message[5:])
        self._statements.pop(parsed.name, None)
        text = self._decode(parsed.query)
        self._forget_renamed(text)
        if text is None or not mentions_us(text):
            return
        statement = parse(text, standard_strings=self._standard_strings)
        if statement and len(self._statements) < _STATEMENTS_MAX:
            self._statements[parsed.name] = (statement, parsed.oids)
            self._new_statements.append(parsed.name)
        self._translate(text)

    def _on_bind(self, message: bytes) -> None:
        bound = m.read_bind(message[5:])
        self._portals.pop(bound.portal, None)
        found = self._statements.get(bound.statement)
        if found:
            statement, oids = found
            given = [
                Given(f, data, oids[i] if i < len(oids) else 0)
                for i, (f, data) in enumerate(bound.parameters)
            ]
            self._portals[bound.portal] = (statement, given, bound.result_formats)

    def _on_execute(self, message: bytes) -> bool:
        portal = self._portals.get(m.Reader(message[5:]).cstring())
        self._executes += 1
        # After another Execute the same transaction may hold changes: Postgres decides.
        if portal is None or self._executes > 1:
            return True
        statement, given, formats = portal
        invocation = bind(statement, given, self._encoding)
        if invocation is None:
            return True
        self._pending = _Pending(
            invocation, statement.text, message, extended=True, formats=formats
        )
        self._fire("ours")
        return False

    def _decode(self, data: bytes) -> str | None:
        encoding = m.python_encoding(self._parameters["client_encoding"])
        if encoding is None:
            return None
        try:
            return data.decode(encoding)
        except UnicodeDecodeError:
            return None

    @property
    def _standard_strings(self) -> bool:
        return self._parameters["standard_conforming_strings"] == "on"

    def _forget_renamed(self, text: str | None) -> None:
        """SQL that may redefine a prepared name: ours are then left to the database."""
        if self._statements and text is not None:
            low = text.lower()
            if any(w in low for w in ("prepare", "deallocate", "discard")):
                self._statements.clear()

    def _translate(self, text: str) -> None:
        """Say it in our words when the database refuses a call that is relayed."""
        name = contains_call(text, standard_strings=self._standard_strings)
        if name is None:
            return
        if name in PLANNED:
            fields = {
                "C": "0A000",
                "M": f"procedure headrace.{name} is not supported yet",
                "H": "It is planned for a later version.",
            }
            self._translation = _Translation(frozenset(("42883", "2D000")), fields)
            return
        fields = {
            "C": "25001",
            "M": f"CALL headrace.{name} cannot run inside a transaction block",
            "H": ALONE_HINT,
        }
        self._translation = _Translation(frozenset(("2D000",)), fields)

    # --- a call of ours

    def _begin_barrier(self) -> None:
        pending = self._pending
        assert pending is not None, "a barrier is there for a call"
        if pending.extended:
            # Ends the implicit transaction that Parse and Bind began; the client never
            # sees this ReadyForQuery, its own Sync brings it another.
            self._owed.append(_OUR_SYNC)
            self._send_server(m.SYNC)
        self._check_barrier()

    def _check_barrier(self) -> None:
        """Go on with the pending call once the upstream owes nothing."""
        if self._owed:
            return
        if self._status != b"I":
            # In a transaction block: Postgres refuses it, in its own state.
            self._relay_pending()
            return
        self._fire("idle")
        self._context = None
        self._context_begun = False
        self._send_server(m.extended_query(_CONTEXT_NAME, CONTEXT_QUERY.encode()))

    def _relay_pending(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None, "there is a call to relay"
        self._fire("not_ours")
        self._translate(pending.text)
        if not pending.extended:
            self._owed.append("Q")
        self._send_server(pending.message)

    # --- from the source

    def _read_server(self) -> None:
        buffer = self._out
        sent = at = 0
        while True:
            if self._out_pass:
                part = min(self._out_pass, len(buffer) - at)
                if part == 0:
                    break
                self._out_pass -= part
                at += part
                continue
            if len(buffer) - at < m.HEADER_BYTES:
                break
            kind = buffer[at]
            (length,) = struct.unpack_from("!i", buffer, at + 1)
            if length < 4:
                raise ProtocolError("invalid message length")
            total = length + 1
            if not self._reads(kind, total):
                self._out_pass = total
                continue
            if len(buffer) - at < total:
                break
            self._send_client(buffer[sent:at])
            shown = self._on_server_message(kind, bytes(buffer[at : at + total]))
            at += total
            sent = at
            self._send_client(shown)
            if self.state is State.CLOSED:
                return
        self._send_client(buffer[sent:at])
        del buffer[:at]

    def _reads(self, kind: int, total: int) -> bool:
        """Whether a message of the source is looked at; others are streamed."""
        if self.state is State.CONTEXT and kind in _ANSWERS:
            return True
        if kind == _AUTH:
            return self.state is State.LOGIN
        return kind in _LOOKED_AT and total <= self._statement_bytes_max

    def _on_server_message(self, kind: int, message: bytes) -> bytes:
        """Act on a message of the source; returns what the client gets instead of it."""
        match chr(kind):
            case "Z":
                return self._on_ready(message)
            case "E":
                return self._on_error(message)
            case "S":
                reader = m.Reader(message[5:])
                name, value = reader.cstring().decode(), reader.cstring()
                self._parameters[name] = value.decode("utf-8", "replace")
            case "K":
                self.key = message[5:]
            case "G":
                self._on_copy_in()
            case "R":
                return self._on_authentication(message)
            case answer if self.state is State.CONTEXT:
                self._context_begun = True
                if answer == "D":
                    row = m.read_data_row(message[5:])
                    self._context = read_context(row, self._encoding)
                return b""
        return message

    def _on_authentication(self, message: bytes) -> bytes:
        body = message[5:]
        (code,) = struct.unpack_from("!i", body)
        if code:
            self._challenged = True
        elif self.challenge_required and not self._challenged:
            text = (
                "the source database trusts this computer, which must not include you"
            )
            fields = {
                "C": "28000",
                "M": text,
                "H": "Let pg_hba.conf of the source ask for a password.",
            }
            self._actions += self._die(text, "28000", fields)
            return b""
        if self.upstream_tls:
            return m.message(b"R", m.without_channel_binding(body))
        return message

    def _on_copy_in(self) -> None:
        """COPY FROM STDIN began: the Syncs sent since then are ignored by the server."""
        kept: deque[str] = deque()
        if self._owed and self._owed[0] == "Q":
            kept.append(self._owed.popleft())
        while self._owed and self._owed[0] == "S":
            self._owed.popleft()
        self._copying = _COPY_MARK not in self._owed
        self._owed = kept + self._owed

    def _on_error(self, message: bytes) -> bytes:
        self._error_seen = True
        self._copying = False
        for name in self._new_statements:
            self._statements.pop(name, None)
        self._new_statements.clear()
        if self._translation:
            fields = m.read_report(message[5:])
            if fields.get("C") in self._translation.codes:
                shown = self._translation.fields
                return m.error_response(shown, encoding=self._encoding)
        return message

    def _on_ready(self, message: bytes) -> bytes:
        if self.state is State.CONTEXT and (self._context_begun or self._error_seen):
            return self._on_context_ready(message)
        self._status = message[5:6]
        failed, self._error_seen = self._error_seen, False
        self._translation = None
        self._new_statements.clear()
        self._strip_copy_marks()
        answered = self._owed.popleft() if self._owed else ""
        self._strip_copy_marks()
        if self.state is State.LOGIN:
            self._fire("ready")
            self._actions.append(Ready(self.key))
        if self.state is not State.BARRIER:
            return message
        # What was answered before goes out before anything the barrier leads to.
        if answered != _OUR_SYNC:
            self._send_client(message)
            self._check_barrier()
        elif failed:
            self._pending = None
            self._fire("failed")
        else:
            self._check_barrier()
        return b""

    def _on_context_ready(self, message: bytes) -> bytes:
        self._error_seen = False
        self._status = message[5:6]
        pending = self._pending
        assert pending is not None, "the context is read for a call"
        if self._context is not None:
            self._fire("answered")
            self._actions.append(Run(pending.invocation, self._context))
            return b""
        # The client has already been sent the error.
        self._pending = None
        if pending.extended:
            self._fire("failed")
            return b""
        self._fire("refused")
        return message

    def _strip_copy_marks(self) -> None:
        while self._owed and self._owed[0] == _COPY_MARK:
            self._owed.popleft()
