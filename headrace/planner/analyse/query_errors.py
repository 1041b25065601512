"""Errors about the text of a view's query, with the place and the remedy that Postgres leaves out.

Postgres reads the query inside of statements of ours, so its error about a text of another kind
would be about them.  Its errors about rights and columns have no position.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

from headrace.errors import HeadraceError, SyntaxUserError, UnsupportedError
from headrace.postgres import tokens
from headrace.postgres.tokens import Token

_STEPS_MAX: Final = 100_000
"""Tokens of a text that are looked at; a longer one gets the errors of Postgres."""
_QUERY: Final = "Pass one SELECT, VALUES, TABLE or WITH query."
_OTHERS: Final = frozenset(
    (
        *(
            "alter",
            "analyze",
            "call",
            "close",
            "cluster",
            "comment",
            "copy",
            "create",
            "deallocate",
        ),
        *("declare", "delete", "do", "drop", "execute", "explain", "fetch", "grant", "insert"),
        *("listen", "lock", "merge", "notify", "prepare", "refresh", "reindex", "reset", "revoke"),
        *("set", "show", "truncate", "unlisten", "update", "vacuum"),
    )
)
"""First words of statements that are no queries."""
_NOT_OF_SELECT: Final = frozenset(("insert", "merge", "as", "."))
"""Words before an INTO that does not belong to a SELECT INTO."""
_BEFORE_TABLE: Final = frozenset(("from", "join", "only", "table", ",", "."))
_QUOTED: Final = re.compile(r'"([^"]+)"')
_LAST_WORD: Final = re.compile(r'[^\s"]+$')
_DUPLICATE_COLUMN: Final = "42701"


def check_kind(query: str, *, standard_strings: bool) -> None:
    """Raise if ``query`` is empty, has several statements, or begins as another statement.

    Raises:
        SyntaxUserError: 42601, it is so.
        UnsupportedError: it is a SELECT INTO.
    """
    found = _tokens(query, standard_strings=standard_strings)
    if found is None:
        return
    words = [query[token.start : token.end].lower() for token in found]
    if not set(words) - {";"}:
        raise SyntaxUserError("the query is empty", hint=_QUERY)
    if found[0].kind == "word" and words[0] in _OTHERS:
        raise SyntaxUserError(
            f"a view cannot be made of {words[0].upper()}",
            hint=_QUERY,
            position=found[0].start + 1,
        )
    for number, (before, word) in enumerate(pairwise(words), 1):
        if before == ";" and word != ";":
            raise SyntaxUserError(
                "the text has more than one statement",
                hint=_QUERY,
                position=found[number].start + 1,
            )
        if word == "into" and found[number].kind == "word" and before not in _NOT_OF_SELECT:
            raise UnsupportedError(
                "SELECT INTO is not supported",
                hint="Leave out INTO and its table: the result goes into the table of the view.",
                position=found[number].start + 1,
            )


@contextmanager
def completed(query: str) -> Iterator[None]:
    """Add what is missing to errors about ``query``: the position of a table, and remedies."""
    try:
        yield
    except HeadraceError as error:
        if error.position is None:
            error.position = _place(query, error.message)
        if error.code == _DUPLICATE_COLUMN and error.hint is None:
            error.hint = 'Give each column a name of its own, for example with AS "other_name".'
        raise


def _place(query: str, message: str) -> int | None:
    """Return the 1-based position of the only table in ``query`` that ``message`` names."""
    named = {*_QUOTED.findall(message), *_LAST_WORD.findall(message)}
    found = _tokens(query, standard_strings=True) if named else None
    places: dict[str, int] = {}
    for before, token in pairwise(found or ()):
        if token.kind in ("word", "quoted"):
            name = tokens.name(query[token.start : token.end])
            if query[before.start : before.end].lower() in _BEFORE_TABLE and name in named:
                places.setdefault(name, token.start + 1)
    return next(iter(places.values())) if len(places) == 1 else None


def _tokens(query: str, *, standard_strings: bool) -> Sequence[Token] | None:
    try:
        return list(tokens.scan(query, standard_strings=standard_strings, steps=_STEPS_MAX))
    except tokens.Unreadable:
        return None
