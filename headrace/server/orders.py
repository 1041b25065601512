"""The commands of the admin database: what a text asks for, and which columns it answers.

They are PgBouncer's where they mean the same: SHOW, KILL, RELOAD.  What drivers and psql say
unasked (BEGIN, SET, DEALLOCATE …) is understood so that they work, and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.config import Settings
from headrace.errors import SyntaxUserError, UnsupportedError
from headrace.postgres.tokens import Unreadable
from headrace.server.statements import Lexeme, tokenize
from headrace.types import INT8, TEXT

Columns = tuple[tuple[str, int], ...]

SHOWN: Final[dict[str, Columns]] = {
    "clients": (
        *(("type", TEXT), ("user", TEXT), ("database", TEXT), ("state", TEXT), ("addr", TEXT)),
        *(("port", INT8), ("local_addr", TEXT), ("local_port", INT8), ("connect_time", TEXT)),
        *(("request_time", TEXT), ("link", INT8), ("tls", TEXT), ("application_name", TEXT)),
        ("id", INT8),
    ),
    "servers": (
        *(("type", TEXT), ("user", TEXT), ("database", TEXT), ("state", TEXT), ("addr", TEXT)),
        *(("port", INT8), ("local_addr", TEXT), ("local_port", INT8), ("connect_time", TEXT)),
        *(("link", INT8), ("remote_pid", INT8), ("tls", TEXT), ("application_name", TEXT)),
        ("id", INT8),
    ),
    "sessions": (
        *(("id", INT8), ("user", TEXT), ("database", TEXT), ("state", TEXT)),
        *(("transaction", TEXT), ("call", TEXT), ("call_ms", INT8), ("connect_time", TEXT)),
        *(("quiet_ms", INT8), ("queries", INT8), ("received", INT8), ("sent", INT8)),
        *(("remote_pid", INT8), ("application_name", TEXT)),
    ),
    "stats": (
        *(("database", TEXT), ("sessions", INT8), ("total_query_count", INT8)),
        *(("total_received", INT8), ("total_sent", INT8), ("total_session_count", INT8)),
        *(("total_call_count", INT8), ("total_call_errors", INT8), ("total_call_time", INT8)),
    ),
    "config": (("key", TEXT), ("value", TEXT), ("default", TEXT), ("changeable", TEXT)),
    "version": (("version", TEXT),),
    "help": (("command", TEXT), ("does", TEXT)),
}
"""By what is shown.  Names are PgBouncer's where the meaning is."""

HELP: Final = (
    ("SHOW clients", "who is connected to this port"),
    ("SHOW servers", "the connections to the source that sessions are relayed to"),
    ("SHOW sessions", "who is logged in, and what each is at"),
    ("SHOW stats", "what has gone through, by database, since the start"),
    ("SHOW config", "the settings, and which of them RELOAD changes (for members of our role)"),
    ("SHOW version", "the release of Headrace"),
    ("SHOW help", "these lines"),
    ("KILL id", "ends a session, and what it is at"),
    ("RELOAD", "reads settings and certificate again (for members of our role)"),
)
_SETTINGS: Final = frozenset(field.name for field in dataclasses.fields(Settings))
_HINT: Final = "SHOW help lists the commands."
_SILENT: Final = {
    "begin": "BEGIN",
    "start": "START TRANSACTION",
    "commit": "COMMIT",
    "end": "COMMIT",
    "rollback": "ROLLBACK",
    "abort": "ROLLBACK",
    "set": "SET",
    "reset": "RESET",
    "deallocate": "DEALLOCATE",
    "discard": "DISCARD ALL",
}
"""What drivers say, and its tag."""


@dataclass(frozen=True, slots=True)
class Order:
    """One command; ``verb``: show, kill, reload, or a word that only drivers say."""

    verb: str
    subject: str = ""
    """What is shown; of other words, the name that follows."""
    number: int | None = None
    """Who is killed; None: the parameter says it."""

    @property
    def columns(self) -> Columns | None:
        """What it answers rows of; None: it answers none."""
        return SHOWN[self.subject] if self.verb == "show" else None

    @property
    def silent(self) -> str | None:
        """The tag of what nothing is done for; None: something is."""
        return _SILENT.get(self.verb)

    @property
    def parameters(self) -> int:
        """How many parameters it has."""
        return int(self.verb == "kill" and self.number is None)


EMPTY: Final = Order("")


def read(text: str) -> Order:
    """The one command that ``text`` is; EMPTY if there is none.

    Raises:
        SyntaxUserError: it is none of ours.
        UnsupportedError: it would change what is changed elsewhere.
    """
    try:
        lexemes = tokenize(text)
    except Unreadable:
        raise _unknown(text) from None
    while lexemes and lexemes[-1].value == ";":
        lexemes.pop()
    if not lexemes:
        return EMPTY
    word, rest = _word(lexemes[0]), lexemes[1:]
    match word, [_word(each) for each in rest]:
        case "show", [subject] if subject in SHOWN:
            return Order("show", subject)
        case "kill" | "kill_client", [_]:
            return Order("kill", number=_number(rest, text))
        case "reload", []:
            return Order("reload")
        case "set", [_, _, *_]:
            return _setting(rest)
        case ("deallocate", [*_, _]) | ("discard", ["all"]):
            return Order(word, "" if rest[-1].value == "all" else rest[-1].value)
        case _ if word in _SILENT and word not in ("set", "deallocate", "discard"):
            if all(each.kind != "symbol" for each in rest):
                return Order(word)
    raise _unknown(text)


def _word(lexeme: Lexeme) -> str:
    """A word in small letters; "" where it is none."""
    return lexeme.value if lexeme.kind == "word" else ""


def _number(rest: Sequence[Lexeme], text: str) -> int | None:
    lexeme = rest[0]
    if lexeme.kind == "parameter" and lexeme.value == "$1":
        return None
    if lexeme.kind not in ("number", "string") or not lexeme.value.isdecimal():
        raise _unknown(text)
    return read_number(lexeme.value)


def read_number(text: str) -> int:
    """The number of a session.

    Raises:
        SyntaxUserError: it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise SyntaxUserError(f'"{text[:40]}" is no session', hint="SHOW sessions has their ids.")
    return int(text)


def _setting(rest: Sequence[Lexeme]) -> Order:
    names = [each for each in rest if _word(each) not in ("session", "local")]
    name = names[0].value if names else ""
    if name in _SETTINGS or name == "client_encoding":
        hint = "Write it into the configuration file or the environment, then say RELOAD."
        if name == "client_encoding":
            hint = "Say it when you connect."
        raise UnsupportedError(f'"{name}" is not set here', hint=hint)
    return Order("set", name)


def _unknown(text: str) -> SyntaxUserError:
    shown = text.strip()
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    return SyntaxUserError(f'"{shown}" is no command of the admin database', hint=_HINT)
