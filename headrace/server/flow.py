"""What the parts of one client session share: where it is, and what is to be done for it.

The parts (``startup.py``, ``queries.py``, ``calling.py``, ``incoming.py``, ``outgoing.py``) act on
it; it reads no message itself.
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
from headrace.server.translation import Translation, translation


@dataclass(frozen=True, slots=True)
class Pending:
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
    admin: str = ""
    """The name of the admin database; "": there is none."""
    full: Callable[[bool], bool] = lambda _: False
    """Whether there is no room for one more session, which is one of the admin database or not."""
    statement_bytes_max: int = 65_536


class Flow:
    """See the module."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state = SessionState.START
        self.key = b""
        self.user = ""
        self.database = ""
        self.application = ""
        self.asked: m.StartupPacket | None = None
        """What a session of the admin database began with."""
        self.admin = False
        """Whether it is one."""
        self.ours = False
        """Whether calls of the session may be ours: it is one of the source's database."""
        self.tls_on = False
        self.login = Login(allow_trust=rules.allow_trust, nonce=rules.nonce)
        self.client = bytearray()
        """What has come from the client, and is not dealt with."""
        self.source = bytearray()
        """Likewise from the source."""
        self.pipeline = OwedAnswers()
        self.pending: Pending | None = None
        self.keeping_alive = False
        """Whether the source owes the answer to a Sync that keeps the session from idling."""
        self.translation: Translation | None = None
        self.settings = 0
        """Changes with every setting that matters to how a text is read."""
        self._parameters = {"client_encoding": "UTF8", "standard_conforming_strings": "on"}
        self._actions: list[Action] = []

    def fire(self, trigger: str) -> None:
        """Go on to the next state."""
        following = TRANSITIONS[trigger].get(self.state)
        assert following is not None, f"{trigger} cannot happen in {self.state}"
        self.state = following

    def act(self, *actions: Action) -> None:
        """These are to be done next."""
        self._actions += actions

    def take(self) -> list[Action]:
        """All that is to be done now, in order."""
        actions, self._actions = self._actions, []
        return actions

    def to_client(self, data: bytes | bytearray | memoryview) -> None:
        """The client gets this next."""
        if data:
            self._actions.append(ToClient(bytes(data)))

    def to_source(self, data: bytes | bytearray | memoryview) -> None:
        """The source gets this next."""
        if data:
            self._actions.append(ToServer(bytes(data)))

    @property
    def quiet(self) -> bool:
        """Whether it is relayed, and nothing waits for what may come."""
        return (
            self.state is SessionState.RELAY
            and self.pipeline.plain
            and self.translation is None
            and not self.client
            and not self.source
        )

    def die(self, text: str, code: str, fields: dict[str, str] | None = None) -> None:
        """The session ends here; the client is told why."""
        shown = fields or {"C": code, "M": text}
        self.to_client(m.error_response(shown, severity="FATAL", encoding=self.encoding))
        self.close(Close(text))

    def close(self, *last: Action) -> None:
        """Nothing is done any more but ``last``."""
        self.state = SessionState.CLOSED
        self.client.clear()
        self.source.clear()
        self.act(*last)

    def setting(self, name: str, value: str) -> None:
        """The source tells of a setting of the session."""
        if name == "application_name":
            self.application = value
        if name in self._parameters and self._parameters[name] != value:
            self._parameters[name] = value
            self.settings += 1

    @property
    def encoding(self) -> str:
        """How what we say to the client is encoded."""
        return self._read_as or "utf-8"

    @property
    def standard_strings(self) -> bool:
        """Whether a backslash is an ordinary character."""
        return self._parameters["standard_conforming_strings"] == "on"

    def decode(self, data: bytes) -> str | None:
        """A text of the client; None: it cannot be read."""
        if self._read_as is None:
            return None
        try:
            return data.decode(self._read_as)
        except UnicodeDecodeError:
            return None

    @property
    def _read_as(self) -> str | None:
        return m.python_encoding(self._parameters["client_encoding"])

    def translate(self, text: str) -> None:
        """What the source says to ``text`` may need other words."""
        found = translation(text, standard_strings=self.standard_strings)
        self.translation = found or self.translation
