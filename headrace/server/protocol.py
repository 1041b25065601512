"""One client session as a pure state machine: bytes and answers in, actions out; no sockets.

The commander relays every byte between a client and the source Postgres.  It reads the messages and
intercepts two of them: a Query that is a single Headrace statement, and the Execute of a portal of
such a statement.  Parse, Bind and Describe are relayed as usual: the procedures exist in the
database, so Postgres itself resolves types, defaults and errors.

Before it runs a call, the session makes sure that the upstream session is idle (state BARRIER). It
then reads the role and settings of that session by an injected query, whose answers the client
never sees (CONTEXT), and hands out the call (RUNNING).  A statement that cannot be handled exactly
is relayed: the procedure in the database reaches the engine through the command table, or Postgres
reports the error.

    START ──startup──▶ LOGIN ──ready──▶ RELAY ◀──────────────────────────────┐
      │ ▲                               │  ▲ └─ours─▶ BARRIER ─idle─▶ CONTEXT ┤ refused
      ▼ │                               │  └──not_ours──┘              │     │
      TLS                             SKIP ◀──failed─────────────── RUNNING ─┘ finished

Invariant 1: in the states BARRIER, CONTEXT and RUNNING no client message is relayed.
Invariant 2: the client gets the upstream's bytes in order; bytes are added only between messages.
Invariant 3: a message is buffered only up to a limit; longer ones are streamed unread.
Invariant 4: the caller is identified by a row of the source that carries a nonce of this one call.
    The answers still owed (``pipeline.py``) decide when to ask, never which caller to believe;
    an unexpected answer ends the session.

The parts of the machine act on shared data (``flow.py``): ``startup.py``, ``incoming.py`` with
``queries.py``, ``outgoing.py`` and ``calling.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.errors import HeadraceError, ProtocolError
from headrace.server import messages as m
from headrace.server import startup
from headrace.server.actions import Action, ToClient
from headrace.server.calling import Calling
from headrace.server.flow import Flow, Rules
from headrace.server.incoming import Incoming
from headrace.server.login import Channel
from headrace.server.outgoing import Outgoing
from headrace.server.pipeline import OwedAnswers
from headrace.server.queries import Queries
from headrace.server.scram import Verifier
from headrace.server.states import SessionState


@dataclass(frozen=True, slots=True)
class About:
    """Identity of a session as the client claims it, proven or not."""

    user: str
    database: str
    application: str
    ours: bool
    """Whether the session's messages are inspected."""


class Session:
    """The state machine; methods that take input return the actions to carry out, in order."""

    def __init__(self, rules: Rules) -> None:
        self._flow = Flow(rules)
        self._queries = Queries(self._flow)
        self._calling = Calling(self._flow, self._queries)
        self._incoming = Incoming(self._flow, self._queries, self._calling)
        self._outgoing = Outgoing(self._flow, self._queries, self._calling)

    @property
    def state(self) -> SessionState:
        """Current state of the session."""
        return self._flow.state

    @property
    def key(self) -> bytes:
        """Key of its cancel requests; b"" before login."""
        return self._flow.key

    @property
    def pipeline(self) -> OwedAnswers:
        """Model of the answers that the source still owes."""
        return self._flow.pipeline

    @property
    def buffered_bytes(self) -> int:
        """Bytes from the client that wait to be relayed."""
        return len(self._flow.client)

    @property
    def about(self) -> About:
        """Identity as the client claims it."""
        flow = self._flow
        return About(flow.user, flow.database, flow.application, flow.ours)

    # --- input from the listener

    def passes_client(self, data: bytes) -> bool:
        """Return whether to relay ``data`` as it is; if not, call ``receive_client``."""
        return self._incoming.passes(data)

    def passes_server(self, data: bytes) -> bool:
        """Return whether to relay ``data`` as it is; if not, call ``receive_server``."""
        return self._outgoing.passes(data)

    def receive_client(self, data: bytes) -> list[Action]:
        """Process bytes from the client."""
        if self.state is SessionState.CLOSED:
            return []
        self._flow.client += data
        return self._go_on()

    def receive_server(self, data: bytes) -> list[Action]:
        """Process bytes from the source."""
        if self.state is SessionState.CLOSED:
            return []
        self._flow.source += data
        try:
            self._outgoing.read()
        except (ProtocolError, struct.error, ValueError) as error:
            return self._die(f"invalid message from the source: {error}", "08P01")
        except HeadraceError as error:
            return self._die(error.message, error.code, error.fields())
        return self._go_on()

    def tls_started(self, binding: bytes = b"") -> list[Action]:
        """Continue after the client's TLS handshake; ``binding`` is that of our certificate."""
        self._flow.fire("tls_ready")
        self._flow.tls_on = True
        self._flow.login.client = Channel(True, binding)
        return self._go_on()

    def connected(self, *, tls: bool, binding: bytes = b"") -> None:
        """Record the connection to the source; ``binding`` is that of the source's certificate."""
        self._flow.login.source = Channel(tls, binding)

    def verifier_found(self, verifier: Verifier | None) -> list[Action]:
        """Continue with the answer to ``Verify``; None: the verifier cannot be read."""
        if self.state is not SessionState.LOGIN:
            return []
        try:
            startup.go_on(self._flow, self._flow.login.verifier_found(verifier))
        except HeadraceError as error:
            return self._die(error.message, error.code, error.fields())
        return self._go_on()

    def server_lost(self, fields: dict[str, str]) -> list[Action]:
        """End the session because the source cannot be reached, and send the client ``fields``."""
        if self.state is SessionState.CLOSED:
            return []
        return self._die(fields["M"], fields["C"], fields)

    def notice(self, text: str) -> list[Action]:
        """Send the client a notice about the running call."""
        if self.state is not SessionState.RUNNING:
            return []
        return [ToClient(m.notice_response(text, encoding=self._flow.encoding))]

    def keep_alive(self) -> list[Action]:
        """Keep the source from ending the session as idle during a long call."""
        self._calling.keep_alive()
        return self._flow.take()

    def finish(self, found: m.ResultSet | None) -> list[Action]:
        """Finish the running call; ``found`` is its result, if it has rows."""
        if self.state is not SessionState.RUNNING:
            return []
        self._calling.finish(found)
        return self._go_on()

    def fail(self, fields: dict[str, str]) -> list[Action]:
        """Fail the running call; an error position is relative to the query."""
        if self.state is not SessionState.RUNNING:
            return []
        self._calling.fail(fields)
        return self._go_on()

    def _go_on(self) -> list[Action]:
        """Process the client's buffered bytes; a malformed message ends only this session."""
        try:
            self._incoming.read()
        except (ProtocolError, struct.error) as error:
            return self._die(str(error), "08P01")
        return self._flow.take()

    def _die(self, text: str, code: str, fields: dict[str, str] | None = None) -> list[Action]:
        self._flow.die(text, code, fields)
        return self._flow.take()
