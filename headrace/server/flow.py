"""State shared by the parts of one client session, and the actions queued for its listener.

The parts (``startup.py``, ``queries.py``, ``calling.py``, ``incoming.py``, ``outgoing.py``) act on
it; this module reads no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.server import messages as m
from headrace.server.actions import Action, Close, ToClient, ToServer
from headrace.server.login import Login
from headrace.server.pipeline import OwedAnswers
from headrace.server.procedures import Invocation
from headrace.server.states import TRANSITIONS, SessionState


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for the barrier or the context."""

    invocation: Invocation
    text: str
    message: bytes
    settings: int
    """Value of ``Flow.settings`` when the statement was parsed."""
    extended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules that apply to every session of a listener."""

    database: str
    """The source's database; calls in sessions of other databases are relayed."""
    nonce: Callable[[], str]
    """Makes an unpredictable text."""
    tls: bool = False
    """Whether TLS is offered."""
    tls_required: bool = False
    allow_trust: bool = False
    full: Callable[[], bool] = lambda: False
    """Whether there is no room for one more session."""
    statement_bytes_max: int = 65_536


class Flow:
    """Shared state of one client session."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = SessionState.START
        self.key = b""
        self.user = ""
        self.database = ""
        self.application = ""
        self.ours = False
        """Whether its calls are handled here: it is a session of the source's database."""
        self.tls_on = False
        self.login = Login(allow_trust=rules.allow_trust, nonce=rules.nonce)
        self.client = bytearray()
        """Bytes from the client that are not processed yet."""
        self.source = bytearray()
        """Bytes from the source that are not processed yet."""
        self.pipeline = OwedAnswers()
        self.pending: Pending | None = None
        self.keeping_alive = False
        """Whether the source owes the answer to a Sync that keeps the session from idling."""
        self.settings = 0
        """Counter of changes of the settings that affect how a text is parsed."""
        self._parameters = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
        self._actions: list[Action] = []

    def fire(self, trigger: str) -> None:
        """Go to the next state."""
        following = TRANSITIONS[trigger].get(self.state)
        assert following is not None, f"{trigger} cannot happen in {self.state}"
        self.state = following

    def act(self, *actions: Action) -> None:
        """Queue actions for the listener."""
        self._actions += actions

    def take(self) -> list[Action]:
        """Return and clear the queued actions, in order."""
        actions, self._actions = self._actions, []
        return actions

    def to_client(self, data: bytes | bytearray | memoryview) -> None:
        """Queue data for the client."""
        if data:
            self._actions.append(ToClient(bytes(data)))

    def to_source(self, data: bytes | bytearray | memoryview) -> None:
        """Queue data for the source."""
        if data:
            self._actions.append(ToServer(bytes(data)))

    @property
    def quiet(self) -> bool:
        """Whether the session only relays: nothing is buffered and no answer needs attention."""
        return (
            self.state is SessionState.RELAY
            and self.pipeline.plain
            and not self.client
            and not self.source
        )

    def die(self, text: str, code: str, fields: dict[str, str] | None = None) -> None:
        """End the session with a FATAL error to the client."""
        shown = fields or {"C": code, "M": text}
        self.to_client(m.error_response(shown, severity="FATAL", encoding=self.encoding))
        self.close(Close(text))

    def close(self, *last: Action) -> None:
        """Close the session; ``last`` are its last actions."""
        self.state = SessionState.CLOSED
        self.client.clear()
        self.source.clear()
        self.act(*last)

    def setting(self, name: str, value: str) -> None:
        """Record a ParameterStatus of the source."""
        if name == "application_name":
            self.application = value
        if name in self._parameters and self._parameters[name] != value:
            self._parameters[name] = value
            self.settings += 1

    @property
    def encoding(self) -> str:
        """Encoding of the messages that Headrace itself sends to the client."""
        return self._read_as or "utf-8"

    @property
    def standard_strings(self) -> bool:
        """Whether a backslash is an ordinary character."""
        return self._parameters["standard_conforming_strings"] == "on"

    def decode(self, data: bytes) -> str | None:
        """Return a text of the client, or None if it cannot be decoded."""
        if self._read_as is None:
            return None
        try:
            return data.decode(self._read_as)
        except UnicodeDecodeError:
            return None

    @property
    def _read_as(self) -> str | None:
        return m.python_encoding(self._parameters["client_encoding"])
