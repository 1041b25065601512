"""Where a construct stands in the user's text, for servers that keep no locations."""

from __future__ import annotations

import contextlib
import re

from headrace.postgres.tokens import STRINGS, Token, Unreadable, scan, value

_OPAQUE = STRINGS | {"quoted", "unicode_quoted"}


class Text:
    """The text of a query."""

    def __init__(self, query: str, *, standard_strings: bool) -> None:
        """Scan ``query``; ``standard_strings``: its session's ``standard_conforming_strings``."""
        self._query = query
        self._tokens: list[Token] = []
        try:
            self._tokens += scan(query, standard_strings=standard_strings)
        except Unreadable:
            self._tokens.clear()

    def find(self, pattern: str) -> int | None:
        """Return the 1-based position of the first match outside strings and comments."""
        bare = [" "] * len(self._query)
        for kind, start, end in self._tokens:
            if kind not in _OPAQUE:
                bare[start:end] = self._query[start:end]
        match = re.search(pattern, "".join(bare), re.IGNORECASE)
        return match.start() + 1 if match else None

    def literals(self) -> list[tuple[int, str, bool]]:
        """Return (1-based position, value, certain) of every string literal.

        A value with escapes that only Postgres can decode, or a text that cannot be read, is not
        certain.
        """
        if not self._tokens:
            return [(1, self._query, False)]
        return [
            (token.start + 1, *self._value(token))
            for token in self._tokens
            if token.kind in STRINGS
        ]

    def _value(self, token: Token) -> tuple[str, bool]:
        if token.kind in ("plain", "escape", "dollar"):
            with contextlib.suppress(Unreadable):
                return value(self._query, token), True
        return self._query[token.start : token.end], False
