"""Recognises the statements that the commander answers itself; everything else is not ours.

``parse`` reads ``CALL headrace.<procedure>(…)`` and ``SELECT … FROM headrace.explain_view(…)``
(or ``verify_view``) when they are the only statement of a text.  It need not understand every spelling: what it
does not recognise is relayed, and the procedures in the database carry it out through the
command table.  So ``None`` is always a correct answer, and a wrong reading never is.

Source: "Lexical Structure" of the Postgres documentation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

SCHEMA: Final = "headrace"


@dataclass(frozen=True, slots=True)
class Token:
    """A lexeme: ``value`` as it means, ``start`` as it stands in the text (0-based).

    ``kind``: word, quoted, string, parameter, number or symbol.
    """

    kind: str
    value: str
    start: int
    offsets: tuple[int, ...] | range = field(default=(), compare=False)
    """For a string: position in the text of each character of ``value``."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a call: a constant (None is NULL) or the number of a parameter."""

    name: str | None
    value: str | bool | None
    parameter: int | None = None
    cast: str | None = None
    offsets: tuple[int, ...] | range = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Statement:
    """``kind`` is ``call`` or ``explain``; ``text`` the whole statement."""

    kind: str
    procedure: str
    arguments: tuple[Argument, ...]
    text: str = field(compare=False)


class _Unreadable(Exception):
    """The text has something this tokenizer does not read."""


_SPACE: Final = re.compile(r"[ \t\n\r\f\v]+|--[^\n\r]*")
_WORD: Final = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_PARAMETER: Final = re.compile(r"\$([0-9]{1,5})")
_PIECES_MAX: Final = 1_000
"""Lexemes of a text, or pieces of one: no call has more, and reading them takes its time."""
_COMMENT: Final = re.compile(r"/\*|\*/")
_PREFIXED: Final = re.compile(r"[uU]&['\"]|[bBxXnN]'")
_PLAIN: Final = re.compile(r"[^'\\]+")
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff][\w]*)?\$")
_CASTS: Final = frozenset(
    ("text", "varchar", "jsonb", "json", "boolean", "bool", "pg_lsn", "interval")
)
_SIMPLE_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def mentions_us(text: str) -> bool:
    """A cheap necessary condition for ``parse`` to find something."""
    return SCHEMA in text.lower()


def parse(text: str, *, standard_strings: bool = True) -> Statement | None:
    """The statement of ours that ``text`` consists of, or None."""
    try:
        tokens = tokenize(text, standard_strings=standard_strings)
    except _Unreadable:
        return None
    while tokens and tokens[-1].value == ";" and tokens[-1].kind == "symbol":
        tokens.pop()
    return _call(tokens, text) or _explain(tokens, text)


def contains_call(text: str, *, standard_strings: bool = True) -> str | None:
    """Name of the first ``CALL headrace.name`` among several statements, if any."""
    try:
        tokens = tokenize(text, standard_strings=standard_strings)
    except _Unreadable:
        return None
    for at in range(len(tokens) - 3):
        word, rest = tokens[at], tokens[at + 1 : at + 5]
        first = at == 0 or tokens[at - 1] == Token("symbol", ";", tokens[at - 1].start)
        if first and word.kind == "word" and word.value == "call" and _is_ours(rest):
            return rest[2].value
    return None


def tokenize(text: str, *, standard_strings: bool = True) -> list[Token]:
    """Lexemes of ``text``; raises when it has something Postgres might read otherwise."""
    out: list[Token] = []
    at, end = 0, len(text)
    while at < end:
        if found := _SPACE.match(text, at):
            at = found.end()
            continue
        if text.startswith("/*", at):
            at = _comment(text, at)
            continue
        token, at = _token(text, at, standard_strings=standard_strings)
        out.append(token)
        if len(out) > _PIECES_MAX:
            raise _Unreadable
    return out


def _token(text: str, at: int, *, standard_strings: bool) -> tuple[Token, int]:
    c = text[at]
    if c == "'":
        return _string(text, at, at + 1, escapes=not standard_strings)
    if c in "eE" and text.startswith("'", at + 1):
        return _string(text, at, at + 2, escapes=True)
    if c in "uUbBxXnN" and _PREFIXED.match(text, at):
        raise _Unreadable
    if c == '"':
        return _quoted(text, at)
    if c == "$":
        return _dollar(text, at)
    if found := _WORD.match(text, at):
        word = found[0]
        # Postgres folds ASCII only in most encodings; others are not our names anyway.
        folded = "".join(x.lower() if x.isascii() else x for x in word)
        return Token("word", folded, at), found.end()
    if found := _NUMBER.match(text, at):
        return Token("number", found[0], at), found.end()
    for symbol in ("=>", ":=", "::"):
        if text.startswith(symbol, at):
            return Token("symbol", symbol, at), at + 2
    return Token("symbol", c, at), at + 1


def _comment(text: str, at: int) -> int:
    """End of the comment at ``at``; comments nest."""
    depth = 0
    for count, found in enumerate(_COMMENT.finditer(text, at)):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
        if count > _PIECES_MAX:
            break
    raise _Unreadable


def _string(text: str, start: int, at: int, *, escapes: bool) -> tuple[Token, int]:
    value: list[str] = []
    offsets: list[int] = []
    end = len(text)
    while at < end:
        if len(value) > _PIECES_MAX:
            break
        if run := _PLAIN.match(text, at):
            value.append(run[0])
            offsets += range(at, run.end())
            at = run.end()
            continue
        c = text[at]
        begin = at
        if c == "'":
            if not text.startswith("''", at):
                _no_continuation(text, at + 1)
                return Token("string", "".join(value), start, tuple(offsets)), at + 1
            at += 2
        elif c == "\\" and escapes:
            c, at = _escape(text, at + 1)
        else:
            at += 1
        value.append(c)
        offsets.append(begin)
    raise _Unreadable


def _no_continuation(text: str, at: int) -> None:
    """Postgres joins 'a' <newline> 'b'; rare enough to leave to Postgres."""
    while found := _SPACE.match(text, at):
        at = found.end()
    if text.startswith("'", at):
        raise _Unreadable


def _escape(text: str, at: int) -> tuple[str, int]:
    """Character of the escape whose letter is at ``at``, and where it ends."""
    c = text[at : at + 1]
    if not c or c in "xX01234567":
        # Bytes of the client's encoding: left to Postgres.
        raise _Unreadable
    if c in "uU":
        size = 4 if c == "u" else 8
        digits = text[at + 1 : at + 1 + size]
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{size}}}", digits):
            raise _Unreadable
        code = int(digits, 16)
        if code == 0 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise _Unreadable
        return chr(code), at + 1 + size
    return _SIMPLE_ESCAPES.get(c, c), at + 1


def _quoted(text: str, start: int) -> tuple[Token, int]:
    found = re.compile(r'"((?:[^"]|"")+)"').match(text, start)
    if not found:
        raise _Unreadable
    return Token("quoted", found[1].replace('""', '"'), start), found.end()


def _dollar(text: str, start: int) -> tuple[Token, int]:
    if found := _PARAMETER.match(text, start):
        return Token("parameter", found[1], start), found.end()
    found = _DOLLAR.match(text, start)
    if not found:
        raise _Unreadable
    begin = found.end()
    close = text.find(found[0], begin)
    if close < 0:
        raise _Unreadable
    value = text[begin:close]
    return Token("string", value, start, range(begin, close)), close + len(found[0])


# --- the two statements


def _is_ours(tokens: Sequence[Token]) -> bool:
    """Whether ``tokens`` begin with ``headrace . name (``."""
    return (
        len(tokens) > 3
        and tokens[0].kind in ("word", "quoted")
        and tokens[0].value == SCHEMA
        and tokens[1].value == "."
        and tokens[2].kind in ("word", "quoted")
        and tokens[3].value == "("
        and tokens[3].kind == "symbol"
    )


def _call(tokens: list[Token], text: str) -> Statement | None:
    if not tokens or tokens[0].kind != "word" or tokens[0].value != "call":
        return None
    return _invocation("call", tokens[1:], text)


def _explain(tokens: list[Token], text: str) -> Statement | None:
    """``SELECT * FROM headrace.explain_view(…)`` (or ``SELECT plan FROM …``), verify_view."""
    words = [(t.kind, t.value) for t in tokens[:3]]
    if words not in (
        [("word", "select"), ("symbol", "*"), ("word", "from")],
        [("word", "select"), ("word", "plan"), ("word", "from")],
    ):
        return None
    found = _invocation("explain", tokens[3:], text)
    if found and found.procedure == "verify_view" and words[1][1] == "*":
        return found
    return found if found and found.procedure == "explain_view" else None


def _invocation(kind: str, tokens: list[Token], text: str) -> Statement | None:
    if not _is_ours(tokens):
        return None
    name, at = tokens[2].value, 4
    arguments: list[Argument] = []
    closing = Token("symbol", ")", -1)
    while at < len(tokens):
        if _same(tokens[at], closing) and not arguments:
            break
        argument, at = _argument(tokens, at)
        if argument is None or at >= len(tokens):
            return None
        arguments.append(argument)
        if _same(tokens[at], closing):
            break
        if not _same(tokens[at], Token("symbol", ",", -1)):
            return None
        at += 1
    if at != len(tokens) - 1:
        return None
    return Statement(kind, name, tuple(arguments), text)


def _same(a: Token, b: Token) -> bool:
    return a.kind == b.kind and a.value == b.value


def _argument(tokens: list[Token], at: int) -> tuple[Argument | None, int]:
    """The argument at ``at`` and the position behind it; None when it is no constant."""
    name = None
    if at + 1 < len(tokens) and tokens[at + 1].value in ("=>", ":="):
        if tokens[at].kind not in ("word", "quoted"):
            return None, at
        name, at = tokens[at].value, at + 2
    if at >= len(tokens):
        return None, at
    token, at = tokens[at], at + 1
    value: str | bool | None = None
    parameter = None
    if token.kind == "string":
        value = token.value
    elif token.kind == "parameter":
        parameter = int(token.value)
    elif token.kind == "word" and token.value in ("true", "false"):
        value = token.value == "true"
    elif not (token.kind == "word" and token.value == "null"):
        return None, at
    cast = None
    if at < len(tokens) and tokens[at].value == "::" and tokens[at].kind == "symbol":
        if at + 1 >= len(tokens) or tokens[at + 1].value not in _CASTS:
            return None, at
        cast, at = tokens[at + 1].value, at + 2
    return Argument(name, value, parameter, cast, token.offsets), at
