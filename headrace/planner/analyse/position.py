"""Where a construct stands in the user's text, for servers that keep no locations."""

from __future__ import annotations

import re

import sqlglot
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

_OPAQUE = {
    TokenType.STRING,
    TokenType.NATIONAL_STRING,
    TokenType.RAW_STRING,
    TokenType.HEREDOC_STRING,
    TokenType.UNICODE_STRING,
    TokenType.BYTE_STRING,
    TokenType.IDENTIFIER,
}


def _tokens(query: str) -> list[Token]:
    try:
        return list(sqlglot.tokenize(query, read="postgres"))
    except TokenError:
        return []


def find(query: str, pattern: str) -> int | None:
    """1-based position of the first match of ``pattern`` outside strings and comments."""
    bare = [" "] * len(query)
    for token in _tokens(query):
        if token.token_type not in _OPAQUE:
            end = token.end + 1
            bare[token.start : end] = query[token.start : end]
    match = re.search(pattern, "".join(bare), re.IGNORECASE)
    return match.start() + 1 if match else None


def literals(query: str) -> list[tuple[int, str, bool]]:
    """(1-based position, value, certain) of every string literal.

    Parts of one literal on several lines are joined.  A value with escapes, or a text that
    is no sequence of tokens to sqlglot, is not certain.
    """
    tokens = _tokens(query)
    if not tokens:
        return [(1, query, False)]
    out: list[tuple[int, str, bool]] = []
    follows = False
    for token in tokens:
        if token.token_type not in _OPAQUE - {TokenType.IDENTIFIER}:
            follows = False
            continue
        source = query[token.start : token.end + 1]
        plain = token.token_type in (TokenType.STRING, TokenType.HEREDOC_STRING)
        certain = plain and "\\" not in source
        if follows:
            start, text, before = out.pop()
            out.append((start, text + token.text, before and certain))
        else:
            out.append((token.start + 1, token.text, certain))
        follows = True
    return out
