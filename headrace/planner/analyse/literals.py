"""Guards against string literals that could run another role's code while they are analysed.

Postgres reads a literal as soon as it knows its type.  Only the input of a composite, an array or a
range reads parts of other types, including domains with their checks, and only from a text that
begins with a bracket.  So a query without such a literal (``suspects``) runs no user code.  For any
other query, a harmless copy is analysed first.  In the copy, each such literal is replaced by one
that its type accepts or refuses before it reads any part.  The types in the copy's tree are then
checked: a type is refused if a role that cannot act as the caller anyway could add code to it (a
check to a domain, a column to a composite).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import HeadraceError, UnsupportedError
from headrace.planner.analyse.nodetree import Node
from headrace.postgres import acting
from headrace.postgres.tokens import STRINGS, Token, Unreadable, scan, value

_VISIBLE: Final = re.compile(r"[\x21-\x7e]")

_GEOMETRIC: Final = ("'0,0,0,0'", "'0,0'", "'0,0,0'")
_OTHERS: Final = ("'0'", "'empty'", *_GEOMETRIC)
_UUID: Final = "'00000000-0000-0000-0000-000000000000'"
_NULL: Final = "NULL"
# The input of a type with parts reads no part of these texts.  The most likely one comes first.
_HARMLESS: Final = {
    "{": ("'{}'", "'0'", _UUID, *_OTHERS[1:], _NULL),
    "[": ("'0'", "'empty'", "'{}'", *_GEOMETRIC, _NULL),
    "(": (*_OTHERS, "'{}'", _NULL),
    "": (*_OTHERS, "'{}'", _UUID, _NULL),
}
_ATTEMPTS_MAX: Final = 1_000
# After any other word (or a parenthesis) the literal may belong to a type's name, as in
# ``type 'text'``, where NULL would mean something else.  Reserved words are not type names.
_BEFORE_NULL: Final = frozenset(
    {
        *("select", "all", "distinct", "where", "having", "limit", "offset", "from"),
        *("and", "or", "not", "in", "like", "ilike", "similar", "to", "on", "using"),
        *("case", "when", "then", "else", "any", "some", "symmetric", "asymmetric"),
        *("variadic", "default"),
    }
)

_UNSAFE: Final = """
WITH RECURSIVE part (root, oid, inside) AS (
    SELECT oid, oid, false FROM pg_catalog.pg_type WHERE oid = ANY (%(types)s::oid[])
    UNION SELECT p.root, x.oid, x.inside FROM part p
      JOIN pg_catalog.pg_type t ON t.oid = p.oid
     CROSS JOIN LATERAL (
           SELECT a.atttypid, true FROM pg_catalog.pg_attribute a
            WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
              AND NOT a.attisdropped
           UNION ALL SELECT t.typelem, true WHERE t.typelem <> 0
           UNION ALL SELECT t.typbasetype, p.inside WHERE t.typbasetype <> 0
           UNION ALL SELECT r.rngsubtype, true FROM pg_catalog.pg_range r
            WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) x (oid, inside)),
suspect (root, oid) AS (
    SELECT p.root, t.oid FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.oid
     WHERE t.oid >= 16384 AND (t.typtype = 'c' OR t.typtype = 'd' AND p.inside)),
owned (root, owner) AS (
    SELECT s.root, t.typowner FROM suspect s JOIN pg_catalog.pg_type t ON t.oid = s.oid
    UNION SELECT s.root, f.proowner FROM suspect s
      JOIN pg_catalog.pg_constraint k ON k.contypid = s.oid
      JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_constraint'::regclass
       AND d.objid = k.oid AND d.refclassid = 'pg_catalog.pg_proc'::regclass
      JOIN pg_catalog.pg_proc f ON f.oid = d.refobjid)
SELECT pg_catalog.format_type(o.root, NULL), pg_catalog.pg_get_userbyid(o.owner) FROM owned o
 WHERE NOT (pg_catalog.pg_has_role(o.owner, current_user, 'MEMBER')
         OR pg_catalog.pg_has_role(o.owner, session_user, 'MEMBER'))
 ORDER BY 1, 2 LIMIT 1"""
"""A type and an owner who might add code to it and can act neither as the caller nor as us."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A literal whose input might read parts: its position, and its bracket ("": any)."""

    start: int
    end: int
    bracket: str
    typed: bool
    """Whether it may be the second part of ``type 'text'``."""

    @property
    def harmless(self) -> tuple[str, ...]:
        """Texts that may replace it, in the order in which they are tried."""
        choices = _HARMLESS[self.bracket]
        return choices[:-1] if self.typed else choices


def suspects(query: str, *, standard_strings: bool) -> list[Suspect]:
    """Return the literals of ``query`` that begin, or may begin, with a bracket.

    REQUIRES: Postgres' own grammar accepts ``query``; only then is it lexed the same way here.
    """
    found = []
    try:
        tokens = [*scan(query, standard_strings=standard_strings)]
    except Unreadable as error:
        raise UnsupportedError("the text of the query cannot be read") from error
    words = [query[start:end].lower() for _, start, end in tokens]
    for at, token in enumerate(tokens):
        end = token.end
        if token.kind == "unicode" and words[at + 1 : at + 2] == ["uescape"]:
            end = tokens[at + 2].end
        elif words[max(at - 1, 0)] == "uescape" and tokens[at - 2].kind == "unicode":
            continue
        if token.kind in STRINGS:
            bracket = _bracket(query, token)
            if bracket is not None:
                typed = at > 0 and _may_be_type(words[at - 1])
                found.append(Suspect(token.start, end, bracket, typed=typed))
    return found


def _may_be_type(last: str) -> bool:
    """Return whether the word before a literal may be the end of a type's name."""
    return last not in _BEFORE_NULL and (
        last in ")]" or last[0] in '"_' or last[0].isalnum() or last[0] > "\x7f"
    )


def _bracket(query: str, token: Token) -> str | None:
    if token.kind in ("bits", "national"):
        return None  # their type is built in
    if token.kind == "unicode":
        return ""  # any character may be written as any other
    try:
        shown = _VISIBLE.search(value(query, token))
    except Unreadable:
        return ""
    return shown[0] if shown and shown[0] in "{[(" else None


Analysed = Callable[[str], Node]
"""Returns the tree of a query, analysed with the caller's rights; errors as in ``session``."""


class Rehearsal:
    """Finds a harmless copy of a query, and refuses the query if a type in it is unsafe."""

    def __init__(self, conn: psycopg.Connection[Any], query: str, found: list[Suspect]) -> None:
        self._conn = conn
        self._query = query
        self._found = found
        self._tried = [0] * len(found)
        self._refusals: list[HeadraceError | None] = [None] * len(found)

    def run(self, analysed: Analysed, types: Callable[[Node], set[int]]) -> None:
        """Raise unless analysing the query runs no code but the caller's own.

        ``types`` returns the types that a tree mentions.

        Raises:
            UnsupportedError: 0A000, at the literal.
            UserError: the error that analysing the query itself would raise.
        """
        for _ in range(_ATTEMPTS_MAX):
            text, starts = self._copy()
            try:
                tree = analysed(text)
            except HeadraceError as error:
                self._advance(error, starts)
                continue
            # A literal that is compared with NULL leaves no constant of its type.
            chosen = {self._choice(at) for at in range(len(self._found))}
            mentioned = types(tree) if _NULL in chosen else _constants(tree)
            self._check(mentioned)
            return
        raise UnsupportedError("too many literals of types that have parts")

    def _choice(self, at: int) -> str:
        return self._found[at].harmless[self._tried[at]]

    def _copy(self) -> tuple[str, list[int]]:
        """Return the harmless copy, and the offsets of its replaced literals."""
        out, starts, done = [], [], 0
        for at, literal in enumerate(self._found):
            out.append(self._query[done : literal.start])
            starts.append(sum(map(len, out)))
            out.append(self._choice(at))
            done = literal.end
        out.append(self._query[done:])
        return "".join(out), starts

    def _advance(self, error: HeadraceError, starts: list[int]) -> None:
        """Choose the next replacement of the literal at the position of ``error``."""
        place = (error.position or 0) - 1
        if place not in starts:
            raise self._moved(error, place, starts)
        at = starts.index(place)
        first = self._refusals[at]
        self._refusals[at] = first or error
        self._tried[at] += 1
        if self._tried[at] < len(self._found[at].harmless):
            return
        if first is not None and first.code == error.code and error.code[:2] != "22":
            raise self._moved(error, place, starts)
        raise UnsupportedError(
            "this literal is not supported",
            detail="Reading the literal might run another user's code with your rights.",
            hint="Write it as a cast ('…'::type), or build the value with ROW(…) or ARRAY[…].",
            position=self._found[at].start + 1,
        )

    def _moved(self, error: HeadraceError, place: int, starts: list[int]) -> HeadraceError:
        """Return ``error`` with its position moved to that in the original query."""
        if place < 0:
            return error
        shift = 0
        for at, start in enumerate(starts):
            if start < place:
                literal = self._found[at]
                shift += literal.end - literal.start - len(self._choice_shown(at))
        error.position = place + shift + 1
        return error

    def _choice_shown(self, at: int) -> str:
        choices = self._found[at].harmless
        return choices[min(self._tried[at], len(choices) - 1)]

    def _check(self, types: set[int]) -> None:
        with acting.own_names(self._conn):
            asked = {"types": sorted(types)}
            row = self._conn.execute(_UNSAFE, asked).fetchone()
        if row is None:
            return
        raise UnsupportedError(
            f"a literal of type {row[0]} is not supported",
            detail=f'Reading the literal might run code of role "{row[1]}" with your rights.',
            hint="Build the value with ROW(…) or ARRAY[…], or let a superuser own the type.",
            position=self._found[0].start + 1 if len(self._found) == 1 else None,
        )


def _constants(tree: Node) -> set[int]:
    return {n.number("consttype") for n in tree.walk() if n.kind == "CONST"}
