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
Invariant 4: who calls is what the source says in a row with a nonce made for this one call.
    What the source still owes (``pipeline.py``) decides when to ask, never whom to believe;
    an answer that nobody asked for ends the session.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError, ProtocolError
from headrace.server import messages as m
from headrace.server.actions import (
    Action,
    Cancel,
    Close,
    Connect,
    Ready,
    Run,
    StartTls,
    ToClient,
    ToServer,
    Verify,
)
from headrace.server.context import CONTEXT_QUERY, Context, read_context
from headrace.server.login import Channel, Login, Step
from headrace.server.pipeline import Pipeline
from headrace.server.procedures import Given, Invocation, bind
from headrace.server.remembered import Calls, Copies, Prepared, may_copy_in
from headrace.server.scram import Verifier
from headrace.server.statements import SCHEMA, parse
from headrace.server.states import TRANSITIONS, State
from headrace.server.translation import Translation, translation
from headrace.sql.verbs import VERBS

_READING: Final = (State.LOGIN, State.RELAY, State.SKIP)
_CONTEXT_NAME: Final = b"__headrace_"
_CONTEXT_ANSWERS: Final = b"12DC33"
_CONTEXT_BYTES_MAX: Final = 1_048_576
_ROLE_BYTES_MAX: Final = 63

_Q, _P, _B, _E, _C, _S, _F, _X, _PASSWORD = b"QPBECSFXp"
_NAMED: Final = frozenset((_P, _B))
_AUTH, _ERROR, _READY, _ROW = b"REZD"
_UNASKED: Final = frozenset(b"DdcNAS")
"""Messages of the source that answer nothing: rows, data, notices, notifications, settings."""
_AT_ANY_TIME: Final = frozenset(b"NAS")
_RENAMING: Final = (b"prepare", b"deallocate", b"discard")


@dataclass(frozen=True, slots=True)
class _Pending:
    """The call that waits for the barrier or the context."""

    invocation: Invocation
    text: str
    message: bytes
    settings: int
    """Under which settings it was read."""
    extended: bool
    formats: tuple[int, ...] = ()
    """Result formats of Bind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every session of a listener."""

    database: str
    """The source's: calls of others are left to them."""
    nonce: Callable[[], str]
    """Makes a text that nobody can know before."""
    tls: bool = False
    """It can be offered."""
    tls_required: bool = False
    allow_trust: bool = False
    full: Callable[[], bool] = lambda: False
    """Whether there is no room for one more session."""
    statement_bytes_max: int = 65_536


class Session:
    """The state machine; every method returns the actions to carry out, in order."""

    def __init__(self, rules: Rules) -> None:
        self.state = State.START
        self.key = b""
        self.user = ""
        self._rules = rules
        self._ours = False
        self._tls_on = False
        self._login = Login(allow_trust=rules.allow_trust, nonce=rules.nonce)
        self._parameters = {
            "client_encoding": "UTF8",
            "standard_conforming_strings": "on",
        }
        self._settings = 0
        """Changes with every setting that matters to how a text is read."""
        self._actions: list[Action] = []
        # From the client.
        self._in = bytearray()
        self._in_pass = 0
        self._calls = Calls()
        self._copies = Copies()
        self._executes = 0
        self.pipeline = Pipeline()
        # From the source.
        self._out = bytearray()
        self._out_pass = 0
        self._error_seen = False
        self._translation: Translation | None = None
        # A call of ours.
        self._pending: _Pending | None = None
        self._synced = False
        self._nonce = ""
        self._context: Context | None = None
        self._context_at = 0

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
        except (ProtocolError, struct.error, ValueError) as error:
            return self._die(f"invalid message from the source: {error}", "08P01")
        except HeadraceError as error:
            return self._die(error.message, error.code, error.fields())
        return self._guarded()

    def tls_started(self, binding: bytes = b"") -> list[Action]:
        """The TLS handshake with the client is done; ``binding`` is of our certificate."""
        self._fire("tls_ready")
        self.tls_is_on(binding)
        return self._guarded()

    def tls_is_on(self, binding: bytes = b"") -> None:
        """The client speaks TLS (from its first byte on, or since ``StartTls``)."""
        self._tls_on = True
        self._login.client = Channel(True, binding)

    def connected(self, *, tls: bool, binding: bytes = b"") -> None:
        """The source is reached; ``binding`` is of its certificate."""
        self._login.source = Channel(tls, binding)

    def verifier_found(self, verifier: Verifier | None) -> list[Action]:
        """The answer to ``Verify``; None: we may not read it."""
        if self.state is not State.LOGIN:
            return []
        try:
            self._step(self._login.verifier_found(verifier))
        except HeadraceError as error:
            return self._die(error.message, error.code, error.fields())
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
        if found is not None and VERBS[pending.invocation.procedure].selected:
            tag = f"SELECT {len(found.rows)}"
        out += m.command_complete(tag)
        if not pending.extended:
            out += m.ready_for_query(self.pipeline.status)
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
            self._send_client(m.ready_for_query(self.pipeline.status))
            self._fire("finished")
        return self._guarded()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the client that wait to be relayed."""
        return len(self._in)

    @property
    def remembered_bytes(self) -> int:
        """Bytes of what the client has prepared that are kept."""
        return self._calls.size

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
        self._actions.append(Close(text))
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
            elif self.state is State.RELAY and not self._ours:
                self._send_server(self._in)
                self._in.clear()
            elif self.state in _READING:
                self._read_messages()
            if before == (self.state, len(self._in), self._in_pass):
                return

    def _read_startup(self) -> None:
        packet = m.read_startup(self._in)
        if packet is None:
            return
        del self._in[: len(packet.packet)]
        if packet.code == m.SSL_CODE and self._rules.tls and not self._tls_on:
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
        elif packet.code >> 16 == 3:
            self._begin(packet)
        else:
            raise ProtocolError(
                f"unsupported frontend protocol {packet.code >> 16}.{packet.code & 0xFFFF}"
            )

    def _begin(self, packet: m.StartupPacket) -> None:
        """A StartupMessage: connect to the source, if there is room."""
        if self._rules.tls_required and not self._tls_on:
            self._actions = self._die("connections must use TLS here", "28000")
            return
        if self._rules.full():
            self._actions = self._die("sorry, too many clients already", "53300")
            return
        self._fire("startup")
        parameters = packet.parameters
        # As the source does, which has no longer names.
        name = parameters.get("user", "").encode()[:_ROLE_BYTES_MAX]
        self.user = name.decode("utf-8", "ignore")
        database = parameters.get("database") or parameters.get("user")
        # Another database has no engine; a replication session runs no statements.
        self._ours = (
            database == self._rules.database and "replication" not in parameters
        )
        self._actions.append(Connect())
        self._send_server(packet.packet)

    def _read_messages(self) -> None:
        """Relay whole messages and parts of streamed ones, up to where a call begins.

        ``buffer[sent:at]`` has been looked at and is to be relayed.
        """
        buffer = self._in
        sent = at = 0
        while self.state in _READING:
            if self._in_pass:
                part = min(self._in_pass, len(buffer) - at)
                self._in_pass -= part
                at += part
                if self.state is State.SKIP:
                    sent = at
                if part == 0:
                    break
                continue
            head = self._next_head(at)
            if head is None:
                break
            kind, total = head
            syncs = self.pipeline.interrupts(kind)
            if syncs:
                self._send_server(buffer[sent:at])
                self._send_server(m.SYNC * syncs)
                sent = at
            if syncs is not None or not self._wanted(kind, total):
                if self.state is State.RELAY:
                    self._on_streamed(kind, bytes(buffer[at + 5 : at + 600]))
                self._in_pass = total
                continue
            if len(buffer) - at < total:
                break
            message = bytes(buffer[at : at + total])
            if not self._on_client_message(kind, message):
                self._send_server(buffer[sent:at])
                sent = at + total
            at += total
            sent = self._flush_gated(kind, sent, at)
        self._send_server(buffer[sent:at])
        del buffer[:at]
        if self.state is State.BARRIER:
            self._begin_barrier()

    def _flush_gated(self, kind: int, sent: int, at: int) -> int:
        """What answers an Execute is not flushed without a Sync, which is to wait."""
        if kind != _E or not self.pipeline.gated:
            return sent
        self._send_server(self._in[sent:at])
        self._send_server(m.FLUSH)
        return at

    def _next_head(self, at: int) -> tuple[int, int] | None:
        """Type and size of the client's message at ``at``; None: it has to wait."""
        if self.pipeline.gated or len(self._in) - at < m.HEADER_BYTES:
            return None
        kind = self._in[at]
        (length,) = struct.unpack_from("!i", self._in, at + 1)
        m.check_length(kind, length)
        if self.state is State.LOGIN:
            if length > m.LOGIN_BYTES_MAX:
                raise ProtocolError("invalid message length")
            if kind not in (_PASSWORD, _X):
                # Said too early: it waits until the source is ready for it.
                return None
        return kind, int(length) + 1

    def _wanted(self, kind: int, total: int) -> bool:
        """Whether the message must be seen whole before it is relayed or dropped."""
        if self.state is State.LOGIN:
            return kind == _PASSWORD and self._login.answers_client
        if kind in (_S, _X) or kind == m.FLUSH[0]:
            return True
        if self.state is State.SKIP or total > self._rules.statement_bytes_max:
            return False
        if self.pipeline.ignoring or self.pipeline.copying:
            return False
        if kind in (_B, _E):
            return bool(self._calls) or bool(self._copies)
        return kind in (_Q, _P)

    def _on_streamed(self, kind: int, begin: bytes) -> None:
        """Bookkeeping for a message that is relayed unread; ``begin`` of its body."""
        may_copy = False
        if not self.pipeline.ignoring and not self.pipeline.copying:
            if kind == _Q:
                may_copy = True
                self._calls.forget_all()
                self._executes = 0
            elif kind == _E:
                self._executes += 1
            elif kind in _NAMED:
                self._on_long(kind, begin)
        self.pipeline.relays(kind, may_copy=may_copy)

    def _on_long(self, kind: int, begin: bytes) -> None:
        """A Parse or Bind that is too long to look into, but perhaps for its names."""
        if kind == _B and not self._calls and not self._copies:
            return
        names = begin.split(b"\x00", 2)[:-1]
        if len(names) < 1 + (kind == _B):
            self._calls.forget_all()
            self._copies.put_any()
        elif kind == _P:
            self._calls.forget(names[0])
            self._copies.put(_P, names[0], may_copy=True)
        else:
            self._calls.unbind(names[0])
            may_copy = self._copies.has(_P, names[1])
            self._copies.put(_B, names[0], may_copy=may_copy)

    def _on_client_message(self, kind: int, message: bytes) -> bool:
        """Act on a whole message; returns whether it is to be relayed now."""
        if self.state is State.LOGIN:
            self._step(self._login.from_client(message[5:]))
            return False
        if self.state is State.SKIP:
            return self._on_skipped(kind)
        if kind == _S:
            self._end_segment()
        elif kind == _Q:
            return self._on_query(message)
        elif kind == _P:
            self._on_parse(message)
        elif kind == _B:
            self._on_bind(message)
        elif kind == _E:
            return self._on_execute(message)
        return self.pipeline.relays(kind)

    def _on_skipped(self, kind: int) -> bool:
        """After an error of ours everything up to Sync is dropped."""
        if kind == _X:
            return True
        if kind != _S:
            return False
        self._fire("sync")
        self._end_segment()
        return self.pipeline.relays(kind)

    def _end_segment(self) -> None:
        self._executes = 0
        self._calls.end_segment()

    def _on_query(self, message: bytes) -> bool:
        self._end_segment()
        # A Query drops the unnamed statement.
        self._calls.forget(b"")
        low = message.lower()
        if SCHEMA.encode() in low:
            text = self._decode(message[5:].rstrip(b"\x00"))
            if text is not None:
                statement = parse(text, standard_strings=self._standard_strings)
                invocation = bind(statement, (), self._encoding) if statement else None
                if invocation:
                    self._pending = _Pending(
                        invocation, text, message, self._settings, extended=False
                    )
                    self._fire("ours")
                    return False
                self._translate(text)
        self._forget_renamed(low)
        return self.pipeline.relays(_Q, may_copy=may_copy_in(low))

    def _on_parse(self, message: bytes) -> None:
        parsed = m.read_parse(message[5:])
        low = parsed.query.lower()
        self._calls.forget(parsed.name)
        self._copies.put(_P, parsed.name, may_copy=may_copy_in(low))
        self._forget_renamed(low)
        if SCHEMA.encode() not in low:
            return
        text = self._decode(parsed.query)
        if text is None:
            return
        if parse(text, standard_strings=self._standard_strings):
            prepared = Prepared(text, parsed.oids, self._settings)
            self._calls.prepare(parsed.name, prepared)
        self._translate(text)

    def _on_bind(self, message: bytes) -> None:
        bound = m.read_bind(message[5:])
        may_copy = self._copies.has(_P, bound.statement)
        self._copies.put(_B, bound.portal, may_copy=may_copy)
        given: list[Given] = []
        prepared = self._calls.prepared(bound.statement)
        if prepared:
            oids = prepared.oids
            given = [
                Given(f, data, oids[i] if i < len(oids) else 0)
                for i, (f, data) in enumerate(bound.parameters)
            ]
        self._calls.bind(bound.portal, bound.statement, given, bound.result_formats)

    def _on_execute(self, message: bytes) -> bool:
        portal = m.Reader(message[5:]).cstring()
        bound = self._calls.bound(portal)
        self._executes += 1
        # After another Execute the same transaction may hold changes: Postgres decides.
        if bound and self._executes == 1:
            text = bound.prepared.text
            statement = parse(text, standard_strings=self._standard_strings)
            invocation = statement and bind(statement, bound.given, self._encoding)
            if invocation:
                settings, formats = bound.prepared.settings, bound.formats
                self._pending = _Pending(
                    invocation, text, message, settings, extended=True, formats=formats
                )
                self._fire("ours")
                return False
        return self.pipeline.relays(_E, may_copy=self._copies.has(_B, portal))

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

    def _forget_renamed(self, low: bytes) -> None:
        """SQL that may redefine a prepared name: ours are then left to the database."""
        if self._calls and any(w in low for w in _RENAMING):
            self._calls.forget_all()

    def _translate(self, text: str) -> None:
        found = translation(text, standard_strings=self._standard_strings)
        self._translation = found or self._translation

    # --- a call of ours

    def _begin_barrier(self) -> None:
        self._synced = False
        if not self.pipeline.settled:
            # What is before it is to be answered (while a portal of its own is there).
            self._send_server(m.FLUSH)
        self._check_barrier()

    def _check_barrier(self) -> None:
        """Go on with the pending call once the upstream owes nothing."""
        if not self.pipeline.settled:
            return
        pending = self._pending
        assert pending is not None, "a barrier is there for a call"
        idle = self.pipeline.status == b"I" and not self.pipeline.ignoring
        if not self._synced and (not idle or pending.settings != self._settings):
            # In a transaction block Postgres refuses it, in its own state; after an error
            # it is skipped; read under other settings it may be something else.
            self._relay_pending()
        elif pending.extended and not self._synced:
            # Ends the implicit transaction that Parse and Bind began; the client never
            # sees this ReadyForQuery, its own Sync brings it another.
            self._synced = True
            self._end_segment()
            self.pipeline.relays(_S)
            self._send_server(m.SYNC)
        else:
            self._fire("idle")
            self._context = None
            self._context_at = 0
            self._nonce = self._rules.nonce()
            name = _CONTEXT_NAME + self._nonce.encode()
            query = CONTEXT_QUERY.encode()
            self._send_server(m.extended_query(name, query, self._nonce.encode()))

    def _relay_pending(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None, "there is a call to relay"
        self._fire("not_ours")
        self._translate(pending.text)
        self.pipeline.relays(_E if pending.extended else _Q)
        self._send_server(pending.message)

    # --- from the source

    def _read_server(self) -> None:
        buffer = self._out
        if self.state is State.RELAY and not self._ours:
            self._send_client(buffer)
            buffer.clear()
            return
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
                self._on_passing(kind)
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
        """Whether a message of the source is looked at whole; others are streamed."""
        if self.state is State.CONTEXT and kind not in _AT_ANY_TIME and kind != _ERROR:
            if total > _CONTEXT_BYTES_MAX:
                raise ProtocolError("unexpected answer to the context query")
            return True
        if self.state is State.LOGIN and kind in (_AUTH, ord("K")):
            if total > m.LOGIN_BYTES_MAX:
                raise ProtocolError("invalid message length")
            return True
        if kind == _READY:
            if total != len(m.ready_for_query(b"I")):
                raise ProtocolError("invalid message length")
            return True
        return kind in (_ERROR, ord("S")) and total <= self._rules.statement_bytes_max

    def _on_passing(self, kind: int) -> None:
        """Bookkeeping for a message of the source that is relayed unread."""
        if kind in _UNASKED or self.state is State.LOGIN:
            return
        if kind == _ERROR:
            self._on_error()
        else:
            self.pipeline.answers(kind)
        if self.state is State.BARRIER:
            self._check_barrier()

    def _on_server_message(self, kind: int, message: bytes) -> bytes:
        """Act on a message of the source; returns what the client gets instead of it."""
        if kind == _READY:
            return self._on_ready(message)
        if kind == _ERROR:
            shown = message
            if self._translation:
                shown = self._translation.of(message, self._encoding)
            self._on_error()
            if self.state is State.BARRIER:
                self._check_barrier()
            return shown
        if kind == ord("S"):
            self._on_setting(m.Reader(message[5:]))
        elif self.state is State.CONTEXT:
            self._on_context(kind, message)
            return b""
        elif kind == ord("K"):
            self.key = message[5:]
        elif kind == _AUTH:
            self._step(self._login.from_source(message[5:]))
            return b""
        return message

    def _on_setting(self, reader: m.Reader) -> None:
        name = reader.cstring().decode("utf-8", "replace")
        value = reader.cstring().decode("utf-8", "replace")
        if name in self._parameters and self._parameters[name] != value:
            self._parameters[name] = value
            self._settings += 1

    def _step(self, step: Step) -> None:
        self._send_client(step.client)
        self._send_server(step.server)
        if step.asks_verifier:
            self._actions.append(Verify(self.user))

    def _on_context(self, kind: int, message: bytes) -> None:
        """One of the answers to the context query: these, in this order, and no others."""
        expected = _CONTEXT_ANSWERS[self._context_at : self._context_at + 1]
        if self._error_seen or kind not in expected:
            raise ProtocolError("the source answers what it was not asked")
        self._context_at += 1
        if kind == _ROW:
            row = m.read_data_row(message[5:])
            self._context = read_context(row, self._nonce, self._encoding)

    def _on_error(self) -> None:
        self._error_seen = True
        self._send_server(m.SYNC * self.pipeline.fails())
        self._calls.refuse()
        self._copies.refuse()

    def _on_ready(self, message: bytes) -> bytes:
        status = message[5:6]
        failed, self._error_seen = self._error_seen, False
        if self.state is State.LOGIN:
            self.pipeline.status = status
            self._fire("ready")
            self._actions.append(Ready(self.key))
            return message
        if self.state is State.CONTEXT:
            return self._on_context_ready(message, failed=failed)
        self._translation = None
        self.pipeline.ready(status)
        if self.pipeline.settled:
            self._calls.confirm()
            self._copies.confirm(idle=status == b"I")
        if self.state is not State.BARRIER:
            return message
        if not self._synced:
            # What was answered before goes out before anything the barrier leads to.
            self._send_client(message)
            self._check_barrier()
        elif failed:
            self._pending = None
            self._fire("failed")
        else:
            self._check_barrier()
        return b""

    def _on_context_ready(self, message: bytes, *, failed: bool) -> bytes:
        self.pipeline.status = message[5:6]
        pending = self._pending
        assert pending is not None, "the context is read for a call"
        if not failed and self._context_at == len(_CONTEXT_ANSWERS):
            assert self._context is not None, "its row has come"
            self._fire("answered")
            self._actions.append(Run(pending.invocation, self._context, self.user))
            return b""
        if not failed:
            raise ProtocolError("the source answers what it was not asked")
        # The client has already been sent the error.
        self._pending = None
        if pending.extended:
            self._fire("failed")
            return b""
        self._fire("refused")
        return message
