"""Parser of the admin database's commands, and the columns of their results.

The commands are PgBouncer's where they mean the same: SHOW, KILL, RELOAD.  Statements that drivers
and psql send unasked (BEGIN, SET, DEALLOCATE …) are accepted so that they work, and change nothing.
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
"""Result columns by subject of SHOW. Names are PgBouncer's where the meaning is."""

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
"""Statements that drivers send, with their command tags."""


@dataclass(frozen=True, slots=True)
class Order:
    """One command; ``verb``: show, kill, reload, or a word that only drivers send."""

    verb: str
    subject: str = ""
    """Subject of SHOW; after other words, the name that follows."""
    number: int | None = None
    """Session to kill; None: the parameter gives it."""

    @property
    def columns(self) -> Columns | None:
        """Result columns; None: it returns no rows."""
        return SHOWN[self.subject] if self.verb == "show" else None

    @property
    def silent(self) -> str | None:
        """Command tag of a statement that needs no action; None: it needs one."""
        return _SILENT.get(self.verb)

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return int(self.verb == "kill" and self.number is None)


EMPTY: Final = Order("")


def read(text: str) -> Order:
    """Return the one command in ``text``; EMPTY if there is none.

    Raises:
        SyntaxUserError: it is no command of the admin database.
        UnsupportedError: it sets a setting that is set elsewhere.
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
    """Return the word that ``lexeme`` is, in lower case; "" if it is none."""
    return lexeme.value if lexeme.kind == "word" else ""


def _number(rest: Sequence[Lexeme], text: str) -> int | None:
    lexeme = rest[0]
    if lexeme.kind == "parameter" and lexeme.value == "$1":
        return None
    if lexeme.kind not in ("number", "string") or not lexeme.value.isdecimal():
        raise _unknown(text)
    return read_number(lexeme.value)


def read_number(text: str) -> int:
    """Return the number of a session.

    Raises:
        SyntaxUserError: it is no number.
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
