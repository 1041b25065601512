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

A session of the admin database goes from LOGIN to ADMIN in place of RELAY, and back there from each
command (ORDERED); before it (NAMED) the source is asked whether a database is called so.

Invariant 1: while the state is BARRIER, CONTEXT or RUNNING no client message is relayed.
Invariant 2: what the client gets is the upstream's bytes at message boundaries, in order.
Invariant 3: a message is buffered only up to a limit; longer ones are streamed unread.
Invariant 4: who calls is what the source says in a row with a nonce made for this one call.
    What the source still owes (``pipeline.py``) decides when to ask, never whom to believe;
    an answer that nobody asked for ends the session.

The parts of the machine act on what they share (``flow.py``): ``startup.py``, ``incoming.py``
with ``queries.py``, ``outgoing.py``, ``calling.py``, and ``admin.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from headrace.errors import HeadraceError, ProtocolError
from headrace.server import messages as m
from headrace.server import startup
from headrace.server.actions import Action, ToClient
from headrace.server.admin import Admin, Carried
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
    """What a session says of itself, proven or not."""

    user: str
    database: str
    application: str
    ours: bool
    """It is read along."""
    admin: bool
    """It is one of the admin database."""


class Session:
    """The state machine; every method returns the actions to carry out, in order."""

    def __init__(self, rules: Rules) -> None:
        self._flow = Flow(rules)
        self._queries = Queries(self._flow)
        self._calling = Calling(self._flow, self._queries)
        self._admin = Admin(self._flow)
        self._incoming = Incoming(self._flow, self._queries, self._calling, self._admin)
        self._outgoing = Outgoing(self._flow, self._queries, self._calling)

    @property
    def state(self) -> SessionState:
        """Where the session is."""
        return self._flow.state

    @property
    def key(self) -> bytes:
        """What its cancel requests carry; b"": it has not logged in."""
        return self._flow.key

    @property
    def pipeline(self) -> OwedAnswers:
        """What the source still owes."""
        return self._flow.pipeline

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the client that wait to be relayed."""
        return len(self._flow.client)

    @property
    def remembered_bytes(self) -> int:
        """Bytes of what the client has prepared that are kept."""
        return self._queries.size

    @property
    def about(self) -> About:
        """What it says of itself."""
        flow = self._flow
        return About(flow.user, flow.database, flow.application, flow.ours, flow.admin)

    # --- what the listener tells

    def passes_client(self, data: bytes) -> bool:
        """Whether bytes of the client go to the source as they are; if not, they are received."""
        return self._incoming.passes(data)

    def passes_server(self, data: bytes) -> bool:
        """Likewise those of the source."""
        return self._outgoing.passes(data)

    def receive_client(self, data: bytes) -> list[Action]:
        """Bytes from the client."""
        if self.state is SessionState.CLOSED:
            return []
        self._flow.client += data
        return self._go_on()

    def receive_server(self, data: bytes) -> list[Action]:
        """Bytes from the source."""
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
        """The TLS handshake with the client is done; ``binding`` is of our certificate."""
        self._flow.fire("tls_ready")
        self._flow.tls_on = True
        self._flow.login.client = Channel(True, binding)
        return self._go_on()

    def connected(self, *, tls: bool, binding: bytes = b"") -> None:
        """The source is reached; ``binding`` is of its certificate."""
        self._flow.login.source = Channel(tls, binding)

    def database_found(self, there: bool) -> list[Action]:
        """The answer to ``Find``."""
        if self.state is not SessionState.NAMED:
            return []
        startup.database_found(self._flow, there=there)
        return self._go_on()

    def verifier_found(self, verifier: Verifier | None) -> list[Action]:
        """The answer to ``Verify``; None: we may not read it."""
        if self.state is not SessionState.LOGIN:
            return []
        try:
            startup.go_on(self._flow, self._flow.login.verifier_found(verifier))
        except HeadraceError as error:
            return self._die(error.message, error.code, error.fields())
        return self._go_on()

    def server_lost(self, fields: dict[str, str]) -> list[Action]:
        """The source cannot be reached; the client is told why (before login only)."""
        if self.state is SessionState.CLOSED:
            return []
        return self._die(fields["M"], fields["C"], fields)

    def notice(self, text: str) -> list[Action]:
        """Tell the client something about the running call."""
        if self.state is not SessionState.RUNNING:
            return []
        return [ToClient(m.notice_response(text, encoding=self._flow.encoding))]

    def keep_alive(self) -> list[Action]:
        """The running call takes long: keep the source from ending the session as idle."""
        self._calling.keep_alive()
        return self._flow.take()

    def finish(self, found: m.ResultSet | None) -> list[Action]:
        """The running call is done; ``found`` are its rows, if it has any."""
        if self.state is not SessionState.RUNNING:
            return []
        self._calling.finish(found)
        return self._go_on()

    def carried_out(self, carried: Carried) -> list[Action]:
        """The command of the admin database is done."""
        if self.state is not SessionState.ORDERED:
            return []
        self._admin.finish(carried)
        return self._go_on()

    def fail(self, fields: dict[str, str]) -> list[Action]:
        """The running call failed with these fields (position relative to the query)."""
        if self.state is SessionState.ORDERED:
            self._admin.fail(fields)
            return self._go_on()
        if self.state is not SessionState.RUNNING:
            return []
        self._calling.fail(fields)
        return self._go_on()

    def _go_on(self) -> list[Action]:
        """Go on with the client's bytes; malformed ones end the session, nothing else."""
        try:
            self._incoming.read()
        except (ProtocolError, struct.error) as error:
            return self._die(str(error), "08P01")
        return self._flow.take()

    def _die(self, text: str, code: str, fields: dict[str, str] | None = None) -> list[Action]:
        self._flow.die(text, code, fields)
        return self._flow.take()
