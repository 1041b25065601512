"""Reads ``pg_node_tree`` text: the query as bound by Postgres itself.

``pg_rewrite.ev_action`` of the temporary view holds the parse tree after analysis: every
column is a range-table index and attribute number, every function and operator an OID,
every coercion explicit.  Nothing has to be resolved again, so nothing can be resolved
differently.  Fields are found by name, so fields added by newer versions do no harm.
A node of an unexpected kind is refused by the code that reads it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import BugError
from headrace.planner import limits

# Only the characters that Postgres treats as blanks and escapes in names may end a word.  Words
# are matched whole, never a part of one.
_BLANKS: Final = r"[ \n\t]*+"
_WORD: Final = r"(?:\\.|[^ \n\t(){}\\])++"
_TOKEN: Final = re.compile(rf"{_BLANKS}([(){{}}]|{_WORD})", re.DOTALL)
_FIELD: Final = re.compile(rf"{_BLANKS}(?:\}}|:({_WORD}){_BLANKS}([({{]|{_WORD}))", re.DOTALL)
"""A field's name with its value, or the beginning of the value; no groups: the node ends."""
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_OCTETS: Final = {str(number): number & 0xFF for number in range(-128, 256)}
_WORDS_MAX: Final = 10_000
_PIECE: Final = 65_536
"""Number of characters of a constant's bytes that are read at once."""

# Labels of Postgres 15 and older -> the node names that 16 and newer print.
_OLD_LABELS: Final = {
    "ARRAY": "ARRAYEXPR",
    "CASE": "CASEEXPR",
    "COALESCE": "COALESCEEXPR",
    "MINMAX": "MINMAXEXPR",
    "ROW": "ROWEXPR",
    "RTE": "RANGETBLENTRY",
    "WHEN": "CASEWHEN",
}


@dataclass(slots=True)
class Node:
    """One node: ``kind`` in upper case and its fields."""

    kind: str
    fields: dict[str, object] = field(default_factory=dict)

    def node(self, name: str) -> Node | None:
        """Return the child node called ``name``, or ``None`` if it is null."""
        value = self.fields.get(name)
        return value if isinstance(value, Node) else None

    def child(self, name: str) -> Node:
        """Return the child node called ``name``; it must exist."""
        value = self.fields.get(name)
        if not isinstance(value, Node):
            raise BugError(f"node {self.kind} has no child {name}")
        return value

    def nodes(self, name: str) -> list[Node]:
        """Return the nodes in the list called ``name``; empty if it is null."""
        value = self.fields.get(name)
        if not isinstance(value, list):
            return []
        return [v for v in value if isinstance(v, Node)]

    def items(self, name: str) -> list[object]:
        """Return the list called ``name`` unchanged; empty if it is null."""
        value = self.fields.get(name)
        return value if isinstance(value, list) else []

    def number(self, name: str, default: int = 0) -> int:
        """Return the integer called ``name``."""
        value = self.fields.get(name)
        return int(value) if isinstance(value, str) else default

    def flag(self, name: str) -> bool:
        """Return the boolean called ``name``."""
        return self.fields.get(name) == "true"

    def text(self, name: str) -> str | None:
        """Return the string called ``name``."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def numbers(self, name: str) -> list[int]:
        """Return the integers of an integer or OID list."""
        return [int(v) for v in self.items(name) if isinstance(v, str) and v.isdigit()]

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, in the order of the text.

        A query that occurs several times, such as that of a view, is visited once.
        """
        stack: list[object] = [self]
        queries: set[int] = set()
        below: Iterable[object]
        while stack:
            value = stack.pop()
            if isinstance(value, Node):
                if value.kind == "QUERY":
                    if id(value) in queries:
                        continue
                    queries.add(id(value))
                    limits.check()
                yield value
                below = value.fields.values()
            elif isinstance(value, list):
                below = value
            else:
                continue
            # Most are texts.
            stack += [v for v in below if v.__class__ is Node or v.__class__ is list][::-1]


_IGNORED: Final = {"location", "stmt_location", "stmt_len"}


def same(left: object, right: object) -> bool:
    """Return whether two trees are equal except for locations."""
    if isinstance(left, Node) and isinstance(right, Node):
        return left.kind == right.kind and all(
            name in _IGNORED or same(left.fields.get(name), right.fields.get(name))
            for name in left.fields.keys() | right.fields.keys()
        )
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def frozen(value: object) -> Hashable:
    """Return a tree as a hashable key; two keys are equal if the trees are the ``same``."""
    if isinstance(value, Node):
        fields = sorted(value.fields.items())
        return value.kind, *((name, frozen(v)) for name, v in fields if name not in _IGNORED)
    if isinstance(value, list):
        return tuple(map(frozen, value))
    assert isinstance(value, Hashable), "texts and bytes are left"
    return value


class _Reader:
    """Reads one field or token after the other.

    A tree is many times larger than its query.  So tokens are produced lazily, equal words share
    one string, and the bytes of constants are read without tokens.
    """

    def __init__(self, text: str) -> None:
        limits.check_tree(len(text))
        self._text = text
        self._at = 0
        """Offset of the end of the last token."""
        self._words: dict[str, str] = {}

    def value(self) -> object:
        return self._value(self._next())

    def _value(self, token: str) -> object:
        if token == "{":
            return self._node()
        if token == "(":
            return self._list()
        if token == "<>":
            return None
        if token[0] == '"' or "\\" in token:
            token = _unescape(token)
        if len(self._words) < _WORDS_MAX:
            return self._words.setdefault(token, token)
        return self._words.get(token, token)

    def _next(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise BugError("a pg_node_tree ends too early")
        self._at = found.end()
        return found.group(1)

    def _node(self) -> Node:
        limits.check()
        kind = sys.intern(self._next())
        node = Node(_OLD_LABELS.get(kind, kind))
        fields, text, field_at = node.fields, self._text, _FIELD.match
        while found := field_at(text, self._at):
            self._at = found.end()
            name, token = found.groups()
            if name is None:
                return node
            name = sys.intern(name)
            fields[name] = self._datum(token) if name == "constvalue" else self._value(token)
        token = self._next()
        if token[0] == ":":
            raise BugError("a pg_node_tree ends too early")
        raise BugError(f"unreadable pg_node_tree at {token!r} in {kind}")

    def _list(self) -> list[object]:
        out: list[object] = []
        token = self._next()
        if token in ("i", "o", "x", "b"):
            token = self._next()  # a list of integers, OIDs, xids, bits; strings have quotes
        while token != ")":
            out.append(self._value(token))
            token = self._next()
        return out

    def _datum(self, length: str) -> bytes | None:
        if length == "<>":
            return None
        text = self._text
        at, end = text.index("[", self._at) + 1, text.index("]", self._at)
        octets = bytearray()
        while at < end:
            piece = text.find(" ", min(at + _PIECE, end), end)
            until = end if piece < 0 else piece
            octets += bytes(map(_OCTETS.__getitem__, text[at:until].split()))
            at = until
        self._at = end + 1
        return bytes(octets[: int(length)])


def _unescape(token: str) -> str:
    if token.startswith('"') and token.endswith('"') and len(token) > 1:
        token = token[1:-1]
    return _ESCAPE.sub(r"\1", token) if "\\" in token else token


def read_nodes(text: str) -> list[Node]:
    """Return the nodes of a list: the queries of an ``ev_action``, the defaults of a function."""
    value = _Reader(text).value()
    assert isinstance(value, list), "these columns hold lists"
    return [v for v in value if isinstance(v, Node)]


def read_node(text: str) -> Node:
    """Return the node of a ``pg_node_tree`` that is a single node, such as an expression."""
    value = _Reader(text).value()
    assert isinstance(value, Node), "an expression is a node"
    return value
