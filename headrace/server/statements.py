"""Recognises the statements that the commander answers itself; everything else is not ours.

``parse`` reads ``CALL headrace.<procedure>(…)`` and ``SELECT … FROM headrace.explain_view(…)``
(or ``verify_view``) when they are the only statement of a text.  It need not understand every
spelling: what it does not recognise is relayed, and the procedures in the database carry it out
through the command table.  So ``None`` is always a correct answer, and a wrong reading never is.

Source: "Lexical Structure" of the Postgres documentation.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

SCHEMA: Final = "headrace"


class Token(NamedTuple):
    """A lexeme: ``value`` as it means, ``start`` as it stands in the text (0-based).

    ``kind``: word, quoted, string, parameter, number or symbol.
    """

    kind: str
    value: str
    start: int
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
STEPS_MAX: Final = 500
"""Lexemes, comments and pieces of strings in a text: no call has more, and each takes time."""
_FOLDED: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Postgres folds ASCII only in most encodings; others are not our names anyway."""
_NAME_MAX: Final = 64
"""Characters of a word that are kept: none of ours is that long."""
_COMMENT: Final = re.compile(r"/\*|\*/")
_PREFIXED: Final = re.compile(r"[uU]&['\"]|[bBxXnN]'")
_PLAIN: Final = re.compile(r"[^'\\]+")
_STANDARD: Final = re.compile(r"[^']+")
_SYMBOL: Final = re.compile(r"=>|:=|::|.", re.DOTALL)
_HEXADECIMAL: Final = re.compile(r"[0-9A-Fa-f]+")
_DOLLAR: Final = re.compile(r"\$(?:[A-Za-z_\u0080-\U0010ffff]\w{0,62})?\$")
_CASTS: Final = frozenset(
    ("text", "varchar", "jsonb", "json", "boolean", "bool", "pg_lsn", "interval")
)
_SIMPLE_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


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
    return _Lexer(text, escapes=not standard_strings).tokens()


class _Lexer:
    """Reads one text from its beginning, in a bounded number of steps.

    Whatever Python does again and again is a step; what one step reads, however much, a
    search written in C does in one go over characters that are not looked at again.
    """

    def __init__(self, text: str, *, escapes: bool) -> None:
        self._text = text
        self._escapes = escapes
        """Whether a backslash means something in a plain string constant."""
        self._at = 0
        self._steps = 0

    def tokens(self) -> list[Token]:
        out: list[Token] = []
        end = len(self._text)
        while self._skip() < end:
            out.append(self._token())
        return out

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise _Unreadable

    def _skip(self) -> int:
        """Go behind spaces and comments; returns where that is."""
        while True:
            self._step()
            if found := _SPACE.match(self._text, self._at):
                self._at = found.end()
            elif self._text.startswith("/*", self._at):
                self._comment()
            else:
                return self._at

    def _comment(self) -> None:
        """Comments nest."""
        depth = 0
        for found in _COMMENT.finditer(self._text, self._at):
            self._step()
            depth += 1 if found[0] == "/*" else -1
            if depth == 0:
                self._at = found.end()
                return
        raise _Unreadable

    def _token(self) -> Token:
        text, at = self._text, self._at
        c = text[at]
        if c == "'":
            return self._string(at + 1, escapes=self._escapes)
        if c in "eE" and text.startswith("'", at + 1):
            return self._string(at + 2, escapes=True)
        if c in "uUbBxXnN" and _PREFIXED.match(text, at):
            raise _Unreadable
        if c == '"':
            return self._quoted()
        if c == "$":
            return self._dollar()
        if found := _WORD.match(text, at):
            self._at = found.end()
            return Token("word", found[0][:_NAME_MAX].translate(_FOLDED), at)
        if found := _NUMBER.match(text, at):
            self._at = found.end()
            return Token("number", found[0], at)
        found = _SYMBOL.match(text, at)
        assert found is not None, "a symbol is any character"
        self._at = found.end()
        return Token("symbol", found[0], at)

    def _string(self, begin: int, *, escapes: bool) -> Token:
        text, start = self._text, self._at
        value: list[str] = []
        spans: list[range] = []
        plain = _PLAIN if escapes else _STANDARD
        at, end = begin, len(text)
        while at < end:
            self._step()
            if run := plain.match(text, at):
                value.append(run[0])
                spans.append(range(at, run.end()))
                at = run.end()
                continue
            begin = at
            if text.startswith("''", at):
                c, at = "'", at + 2
            elif text[at] == "'":
                self._at = at + 1
                self._no_continuation()
                return Token("string", "".join(value), start, tuple(spans))
            else:
                c, at = _escape(text, at + 1)
            value.append(c)
            spans.append(range(begin, begin + 1))
        raise _Unreadable

    def _no_continuation(self) -> None:
        """Postgres joins 'a' <newline> 'b'; rare enough to leave to Postgres."""
        while found := _SPACE.match(self._text, self._at):
            self._step()
            self._at = found.end()
        if self._text.startswith("'", self._at):
            raise _Unreadable

    def _quoted(self) -> Token:
        text, start = self._text, self._at
        at = start + 1
        while (found := text.find('"', at)) >= 0:
            self._step()
            if not text.startswith('""', found):
                self._at = found + 1
                name = text[start + 1 : found].replace('""', '"')
                if not name:
                    raise _Unreadable
                return Token("quoted", name, start)
            at = found + 2
        raise _Unreadable

    def _dollar(self) -> Token:
        text, start = self._text, self._at
        if found := _PARAMETER.match(text, start):
            self._at = found.end()
            return Token("parameter", found[1], start)
        found = _DOLLAR.match(text, start)
        if not found:
            raise _Unreadable
        begin = found.end()
        close = text.find(found[0], begin)
        if close < 0:
            raise _Unreadable
        self._at = close + len(found[0])
        return Token("string", text[begin:close], start, (range(begin, close),))


def _escape(text: str, at: int) -> tuple[str, int]:
    """Character of the escape whose letter is at ``at``, and where it ends."""
    c = text[at : at + 1]
    if not c or c in "xX01234567":
        # Bytes of the client's encoding: left to Postgres.
        raise _Unreadable
    if c in "uU":
        size = 4 if c == "u" else 8
        digits = text[at + 1 : at + 1 + size]
        if len(digits) < size or not _HEXADECIMAL.fullmatch(digits):
            raise _Unreadable
        code = int(digits, 16)
        if code == 0 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise _Unreadable
        return chr(code), at + 1 + size
    return _SIMPLE_ESCAPES.get(c, c), at + 1


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
    return Argument(name, value, parameter, cast, token.spans), at
