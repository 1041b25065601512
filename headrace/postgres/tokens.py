"""Tokenizer of SQL text that agrees with Postgres' scanner; no other code reads SQL text.

``scan`` finds the tokens, ``pieces`` decodes a string; ``identifier`` and ``doubled`` are the
inverse.  They follow ``src/backend/parser/scan.l`` of 15 to 18 (16 and later read numbers that 15
refuses), and raise ``Unreadable`` where it fails.  The tokenizer of a library only approximates
many dialects: sqlglot reads ``@-``, ``1..2``, ``1x`` and strings on two lines differently than
Postgres, and does not support sessions in which a backslash escapes.  A token that Postgres sees
and this module does not would be a security hole.

A token is one regular-expression match without backtracking (possessive repeats), so the time is
proportional to the length of the text.  Each iteration in Python is a step; a caller may bound the
steps.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple


class Unreadable(ValueError):
    """Postgres' scanner refuses the text; or there are more steps than are allowed."""


class Token(NamedTuple):
    """``text[start:end]``.

    ``kind``: word, quoted, unicode_quoted (``U&""``), number, parameter, symbol (operators and all
    else); of strings plain, escape (``E''``), dollar, unicode (``U&''``), national, bits.
    """

    kind: str
    start: int
    end: int


STRINGS: Final = frozenset(("plain", "escape", "dollar", "unicode", "national", "bits"))
_LOWER: Final = re.compile(r"[a-z_][a-z0-9_]*")
_OPERATOR_MAX: Final = 63
_FOLDED: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
"""Folds ASCII only, as Postgres does in multi-byte encodings; with a single-byte encoding Postgres
folds other letters too."""
_SIMPLE_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_LETTER: Final = r"A-Za-z_\x80-\U0010ffff"
_LINE: Final = r"--[^\n\r]*+"
_AGAIN: Final = rf"'(?:[ \t\f\v]++|{_LINE})*+[\n\r](?:[ \t\n\r\f\v]++|{_LINE}[\n\r])*+'"
"""Separator between two parts of a string that are on different lines."""
_PLAIN: Final = rf"[^']++|(?:'')++|{_AGAIN}"
_ESCAPE: Final = rf"[^'\\]++|(?:\\.)++|(?:'')++|{_AGAIN}"
_NAME: Final = '"(?:[^"]++|(?:"")++)++"'
_CODED: Final = r"\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}|\\."
_PIECES: Final = {
    "plain": re.compile(rf"[^']++|''|{_AGAIN}"),
    "escape": re.compile(rf"[^'\\]++|''|{_CODED}|{_AGAIN}", re.DOTALL),
}
_DIGITS: Final = "[0-9]++(?:_[0-9]++)*+"
_POINT: Final = rf"{_DIGITS}\.(?!\.)"
_DECIMAL: Final = rf"(?:(?:{_POINT}|\.)?+{_DIGITS}|{_POINT})"
_NUMBER: Final = rf"""
    (?:(?:{_POINT}|\.)?+[0-9]++|{_POINT}|{_DECIMAL}[eE][-+][0-9]++)(?![0-9{_LETTER}])
  | (?:0[xX](?:_?[0-9A-Fa-f])++|0[oO](?:_?[0-7])++|0[bB](?:_?[01])++
    |{_DECIMAL}(?:[eE][-+]?{_DIGITS})?+)(?![0-9${_LETTER}])"""
"""A number directly followed by a letter or a dollar sign is refused."""
_GOES_ON: Final = re.compile(r"[+*<>=~!@#^&|`?%]|-(?!-)|/(?!\*)")
_MARK: Final = re.compile(r"/\*|\*/")


def _tokens(*, standard_strings: bool) -> re.Pattern[str]:
    """Return the pattern of one token, after spaces and line comments."""
    body = _PLAIN if standard_strings else _ESCAPE
    return re.compile(
        rf"""(?:[ \t\n\r\f\v]++|{_LINE})*+(?:
          (?P<word>(?![eEbBxXnN]'|[uU]&['"])[{_LETTER}][0-9${_LETTER}]*+)
        | (?P<{"plain" if standard_strings else "escape"}>'(?:{body})*+')
        | (?P<comment>/\*)
        | (?P<operator>(?:[+*<>=~!@\#^&|`?%]++|-(?!-)|/(?!\*)){{1,600}}+)
        | (?P<quoted>{_NAME})
        | (?P<number>{_NUMBER})
        | (?P<parameter>\$[0-9]++(?![{_LETTER}]))
        | (?P<dollar>\$(?:[{_LETTER}][0-9{_LETTER}]*+)?+\$)
        | (?P<e_string>[eE]'(?:{_ESCAPE})*+')
        | (?P<unicode>[uU]&'(?:{body})*+'){"" if standard_strings else "(?!)"}
        | (?P<unicode_quoted>[uU]&{_NAME})
        | (?P<national>[nN]'(?:{body})*+')
        | (?P<bits>[bBxX]'[^']*+(?:{_AGAIN}[^']*+)*+')
        | (?P<symbol>::|:=|\.\.|\.(?![0-9])|\$(?![0-9])|[^'"$.0-9{_LETTER}])
        | (?P<end>\Z))""",
        re.VERBOSE | re.DOTALL,
    )


_STANDARD: Final = _tokens(standard_strings=True)
_BACKSLASHES: Final = _tokens(standard_strings=False)


def scan(text: str, *, standard_strings: bool = True, steps: int = sys.maxsize) -> Iterator[Token]:
    """Yield the tokens of ``text``, in at most ``steps`` steps.

    ``standard_strings``: a backslash is an ordinary character in a plain string.

    Raises:
        Unreadable: no token can be read at this position, or the steps are used up.
    """
    match = (_STANDARD if standard_strings else _BACKSLASHES).match
    at = 0
    while steps > 0 and (found := match(text, at)):
        steps -= 1
        kind = found.lastgroup or ""
        start, at = found.span(kind)
        match kind:
            case "operator":
                length = _operator(found[kind])
                steps -= at - start - length
                # The pattern's limit was reached: no real operator is so long.
                if steps < 0 or length > _OPERATOR_MAX or _GOES_ON.match(text, at):
                    break
                yield Token("symbol", start, start + length)
                for sign in range(start + length, at):
                    yield Token("symbol", sign, sign + 1)
                continue
            case "comment":
                at, steps = _comment(text, start, steps)
                continue
            case "dollar":
                close = text.find(found[kind], at)
                if close < 0:
                    break
                at += close - start
            case "e_string":
                kind = "escape"
            case "end":
                return
        yield Token(kind, start, at)
    raise Unreadable


def _operator(run: str) -> int:
    """Return the length of the first operator; each later sign is an operator of its own."""
    if run[-1] not in "+-" or set(run).intersection("~!@#^&|`?%"):
        return len(run)
    return len(run.rstrip("+-")) or 1


def _comment(text: str, at: int, steps: int) -> tuple[int, int]:
    """Return the end of the (nested) comment at ``at``, and the remaining steps."""
    depth = 0
    for mark in _MARK.finditer(text, at):
        steps -= 1
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end(), steps
        if steps <= 0:
            break
    raise Unreadable


def name(word: str) -> str:
    """Return the name that a word or a quoted identifier denotes."""
    if word.startswith('"'):
        return word[1:-1].replace('""', '"')
    return word.translate(_FOLDED)


def identifier(called: str) -> str:
    """Return a name as a quoted identifier; the inverse of ``name``."""
    return '"' + called.replace('"', '""') + '"'


def qualified(*names: str) -> str:
    """Return a qualified name for people, quoted where it is not in lower case."""
    return ".".join(n if _LOWER.fullmatch(n) else identifier(n) for n in names)


def doubled(text: str) -> str:
    """Return a text with its quotes doubled, for use in a plain string."""
    return text.replace("'", "''")


def argument(name: str) -> str:
    """Return a name, quoted where it must be, as an argument of a call: a literal of SQL."""
    return f"'{doubled(name)}'"


def split(text: str) -> list[str]:
    """Split ``text``: tokens are at odd indexes, the text between them at even ones."""
    out: list[str] = []
    at = 0
    for _, start, end in scan(text):
        out += (text[at:start], text[start:end])
        at = end
    return [*out, text[at:]]


def pieces(text: str, token: Token) -> Iterator[tuple[str, range]]:
    """Yield the decoded pieces of a plain, escape or dollar string, with their positions.

    Raises:
        Unreadable: only Postgres can decode an escape.
    """
    if token.kind == "dollar":
        tag = text.index("$", token.start + 1) + 1 - token.start
        body = range(token.start + tag, token.end - tag)
        yield text[body.start : body.stop], body
        return
    begin = text.index("'", token.start) + 1
    for found in _PIECES[token.kind].finditer(text, begin, token.end - 1):
        at, piece = found.start(), found[0]
        if piece == "''":
            yield "'", range(at, at + 1)
        elif piece[0] == "\\" and token.kind == "escape":
            yield _escape(piece[1:]), range(at, at + 1)
        elif piece[0] != "'":
            yield piece, range(at, found.end())


def value(text: str, token: Token) -> str:
    """Return the decoded string: the ``pieces`` joined."""
    return "".join(piece for piece, _ in pieces(text, token))


def _escape(escape: str) -> str:
    """Return the character that an escape (without its backslash) denotes."""
    if len(escape) == 1:
        if escape in "xX01234567uU":  # bytes of the client's encoding; or wrong
            raise Unreadable
        return _SIMPLE_ESCAPES.get(escape, escape)
    code = int(escape[1:], 16)
    if code == 0 or 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
        raise Unreadable
    return chr(code)
