"""Parser of the statements that the commander handles itself; all others are relayed.

``parse`` reads ``CALL headrace.<procedure>(…)`` when it is the only statement of a text.

It need not understand every spelling.  A statement that it does not recognise is relayed, and the
procedures in the database run it through the command table.  So ``None`` is always a correct
answer, and a wrong parse never is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from headrace.postgres.tokens import Unreadable, name, pieces, scan

SCHEMA: Final = "headrace"


class Lexeme(NamedTuple):
    """A token with its value; ``kind``: word, quoted, string, parameter, number or symbol."""

    kind: str
    value: str
    spans: tuple[range, ...] = ()
    """For a string: positions in the text of the characters of ``value``, in pieces."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call: a constant (None is NULL) or the number of a parameter."""

    name: str | None
    value: str | bool | None
    parameter: int | None = None
    cast: str | None = None
    spans: tuple[range, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Statement:
    """A call of Headrace; ``text`` is the whole statement."""

    procedure: str
    arguments: tuple[Argument, ...]
    text: str = field(compare=False)


STEPS_MAX: Final = 500
"""Limit of lexemes, comments and string pieces in a text: calls have fewer, and each takes time."""
_PARAMETER_MAX: Final = len("$65535")
_READ: Final = frozenset(("plain", "escape", "dollar"))
_LEFT: Final = frozenset(("unicode", "national", "bits", "unicode_quoted"))
"""Kinds of tokens that are rare enough to leave to Postgres."""
_SEMICOLON, _CLOSING = Lexeme("symbol", ";"), Lexeme("symbol", ")")
_COMMA, _CAST = Lexeme("symbol", ","), Lexeme("symbol", "::")
_DOT, _OPENING = Lexeme("symbol", "."), Lexeme("symbol", "(")
_ARROWS: Final = (Lexeme("symbol", "=>"), Lexeme("symbol", ":="))
_CASTS: Final = frozenset(
    ("text", "varchar", "jsonb", "json", "boolean", "bool", "pg_lsn", "interval")
)


def parse(text: str, *, standard_strings: bool = True) -> Statement | None:
    """Return the call of Headrace that ``text`` consists of, or None."""
    try:
        lexemes = tokenize(text, standard_strings=standard_strings)
    except Unreadable:
        return None
    while lexemes and lexemes[-1] == _SEMICOLON:
        lexemes.pop()
    if not lexemes or lexemes[0].kind != "word" or lexemes[0].value != "call":
        return None
    return _invocation(lexemes[1:], text)


def tokenize(text: str, *, standard_strings: bool = True) -> list[Lexeme]:
    """Return the lexemes of ``text``.

    Raises:
        Unreadable: only Postgres can read the text.
    """
    tokens = [*scan(text, standard_strings=standard_strings, steps=STEPS_MAX)]
    left = STEPS_MAX - len(tokens)
    out: list[Lexeme] = []
    for token in tokens:
        kind, start, end = token
        if kind in _READ:
            said = [*islice(pieces(text, token), left + 1)]
            left -= len(said)
            value = "".join(piece for piece, _ in said)
            out.append(Lexeme("string", value, tuple(span for _, span in said)))
        elif kind in ("word", "quoted"):
            out.append(Lexeme(kind, name(text[start:end])))
        else:
            out.append(Lexeme(kind, text[start:end]))
        if left < 0 or kind in _LEFT:
            raise Unreadable
    return out


# --- the statement


def _is_ours(lexemes: Sequence[Lexeme]) -> bool:
    """Return whether ``lexemes`` begin with ``headrace . name (``."""
    return (
        len(lexemes) > 3
        and lexemes[0].kind in ("word", "quoted")
        and lexemes[0].value == SCHEMA
        and lexemes[1] == _DOT
        and lexemes[2].kind in ("word", "quoted")
        and lexemes[3] == _OPENING
    )


def _invocation(lexemes: list[Lexeme], text: str) -> Statement | None:
    if not _is_ours(lexemes):
        return None
    name, at = lexemes[2].value, 4
    arguments: list[Argument] = []
    while at < len(lexemes):
        if lexemes[at] == _CLOSING and not arguments:
            break
        argument, at = _argument(lexemes, at)
        if argument is None or at >= len(lexemes):
            return None
        arguments.append(argument)
        if lexemes[at] == _CLOSING:
            break
        if lexemes[at] != _COMMA:
            return None
        at += 1
    if at != len(lexemes) - 1:
        return None
    return Statement(name, tuple(arguments), text)


def _argument(lexemes: list[Lexeme], at: int) -> tuple[Argument | None, int]:
    """Return the argument at ``at`` and the position after it; None if it is not a constant."""
    name = None
    if at + 1 < len(lexemes) and lexemes[at + 1] in _ARROWS:
        if lexemes[at].kind not in ("word", "quoted"):
            return None, at
        name, at = lexemes[at].value, at + 2
    if at >= len(lexemes):
        return None, at
    lexeme, at = lexemes[at], at + 1
    value: str | bool | None = None
    parameter = None
    if lexeme.kind == "string":
        value = lexeme.value
    elif lexeme.kind == "parameter" and len(lexeme.value) <= _PARAMETER_MAX:
        parameter = int(lexeme.value[1:])
    elif lexeme.kind == "word" and lexeme.value in ("true", "false"):
        value = lexeme.value == "true"
    elif not (lexeme.kind == "word" and lexeme.value == "null"):
        return None, at
    cast = None
    if at < len(lexemes) and lexemes[at] == _CAST:
        kind, cast, _ = lexemes[at + 1] if at + 1 < len(lexemes) else _CAST
        if kind not in ("word", "quoted") or cast not in _CASTS:
            return None, at
        at += 2
    return Argument(name, value, parameter, cast, lexeme.spans), at
