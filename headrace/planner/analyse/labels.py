"""Updates enum labels and attributes of composite types in the constants of a stored query.

Postgres stores a constant of an enum as the label's OID, so its views follow a renamed label.  They
also follow new and dropped attributes of a composite type.  The text of a stored query has the
labels and attributes of the time at which it was printed.  So the OIDs of these labels and the
numbers of these attributes are stored with the text (``record``), and the present ones are written
into it (``rewritten``).  Constants of arrays, ranges and composite types may contain both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from headrace.postgres import tokens
from headrace.postgres.connect import Connection

_PARTS: Final = """
WITH RECURSIVE part (oid) AS (
    SELECT unnest(%s::oid[])
    UNION SELECT x.oid FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.oid
     CROSS JOIN LATERAL (
           SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
           UNION ALL SELECT t.typelem UNION ALL SELECT t.typbasetype
           UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r
            WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) x (oid) WHERE x.oid <> 0)
SELECT t.oid::bigint, CASE WHEN t.typlen = -1 AND t.typelem <> 0 THEN 'array' ELSE t.typtype::text END,
       coalesce(nullif(t.typbasetype, 0), nullif(t.typelem, 0), (
         SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
       ), 0)::bigint,
       t.typdelim::text,
       (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.atttypid::bigint,
          CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END) ORDER BY a.attnum)
          FROM pg_catalog.pg_attribute a WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid
           AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT jsonb_object_agg(e.oid::bigint, e.enumlabel) FROM pg_catalog.pg_enum e
         WHERE e.enumtypid = t.oid)
  FROM pg_catalog.pg_type t JOIN part p ON p.oid = t.oid"""
_BOUNDS: Final = re.compile(r"(?:\[[-+]?\d+:[-+]?\d+\])+=")

Names = Mapping[tuple[str, str], int]
"""OIDs of types by schema and name."""


class _UnreadableError(ValueError):
    """The text is not one that the output of its type gives."""


@dataclass(frozen=True, slots=True)
class _Type:
    kind: str
    """``array``, or ``pg_type.typtype``."""
    inner: int
    """Type of the elements of an array, of a range's bounds, or of the values of a domain."""
    delimiter: str
    attributes: list[tuple[int, int, str | None]]
    """Number, type, and the value in rows that are older than the attribute."""
    labels: dict[str, str]
    """Labels by OID."""


def record(conn: Connection, text: str, types: Names) -> list[dict[str, Any]]:
    """Return the labels and attributes in the constants of ``text``, to store with it."""
    if not types:
        return []
    found = list(_constants(text, types))
    known = _look(conn, {oid for _, _, oid, _ in found})
    labels = {oid: t.labels for oid, t in known.items()}
    values = _Values(known, labels, {oid: _numbers(t) for oid, t in known.items()})
    for _, word, oid, is_array in found:
        values.present(oid, _value(word), is_array=is_array)
    used: dict[int, dict[str, str]] = {}
    for oid, label in sorted(values.labels_read):
        used.setdefault(oid, {})[label] = labels[oid][label]
    return [{"oid": oid, "labels": used[oid]} for oid in used] + [
        {"oid": oid, "attributes": _numbers(known[oid])} for oid in sorted(values.rows_read)
    ]


def rewritten(conn: Connection, text: str, named: Sequence[dict[str, Any]], types: Names) -> str:
    """Return ``text`` with the present labels and attributes; ``named`` is what was recorded."""
    labels = {entry["oid"]: entry["labels"] for entry in named if "labels" in entry}
    attributes = {entry["oid"]: entry["attributes"] for entry in named if "attributes" in entry}
    if not labels and not attributes:
        return text
    found = list(_constants(text, types))
    values = _Values(_look(conn, {oid for _, _, oid, _ in found}), labels, attributes)
    parts = tokens.split(text)
    for at, word, oid, is_array in found:
        old = _value(word)
        new = values.present(oid, old, is_array=is_array)
        if new != old:
            parts[2 * at + 1] = sql.Literal(new).as_string().strip()
    return "".join(parts)


def _constants(text: str, types: Names) -> Iterator[tuple[int, str, int, bool]]:
    """Yield constants of the types: index of the word, the word, type, whether it is an array."""
    words = [*tokens.split(text)[1::2], *[""] * 5]
    for at, word in enumerate(words[:-5]):
        if word[0] != "'" or words[at + 1] != "::" or words[at + 3] != ".":
            continue
        oid = types.get((tokens.name(words[at + 2]), tokens.name(words[at + 4])))
        if oid is not None:
            yield at, word, oid, words[at + 5] == "["


def _value(word: str) -> str:
    return tokens.value(word, tokens.Token("plain", 0, len(word)))


def _numbers(known: _Type) -> list[int]:
    return [number for number, _, _ in known.attributes]


def _look(conn: Connection, oids: set[int]) -> dict[int, _Type]:
    """Return the types and all types of their parts, by OID."""
    rows = conn.execute(_PARTS, (sorted(oids),)).fetchall() if oids else []
    return {
        oid: _Type(kind, inner, delimiter, [tuple(a) for a in attributes or ()], labels or {})
        for oid, kind, inner, delimiter, attributes, labels in rows
    }


class _Values:
    """Reads the texts of values, in which labels and attributes are those that were recorded."""

    def __init__(
        self,
        types: Mapping[int, _Type],
        labels: Mapping[int, Mapping[str, str]],
        attributes: Mapping[int, Sequence[int]],
    ) -> None:
        self._types = types
        self._labels = {t: {text: oid for oid, text in had.items()} for t, had in labels.items()}
        self._attributes = attributes
        self.labels_read: set[tuple[int, str]] = set()
        """Type and OID."""
        self.rows_read: set[int] = set()

    def present(self, oid: int, text: str, *, is_array: bool) -> str:
        """Return the present text of a constant; the same text if it cannot be read.

        If nothing in it has changed, the text is equal to ``text``.
        """
        try:
            new, changed = self._array(oid, text) if is_array else self._read(oid, text)
        except (_UnreadableError, IndexError, KeyError):
            return text
        return new if changed else text

    def _read(self, oid: int, text: str) -> tuple[str, bool]:
        """Return the present text, and whether a label or an attribute in it has changed."""
        known = self._types[oid]
        match known.kind:
            case "e":
                return self._label(oid, text)
            case "d":
                return self._read(known.inner, text)
            case "array":
                return self._array(known.inner, text)
            case "c":
                return self._row(oid, text)
            case "r":
                return self._range(known.inner, text)
            case "m":
                return self._ranges(known.inner, text)
        return text, False

    def _part(self, oid: int, text: str | None, null: str) -> tuple[str, bool]:
        """Return the present text of a part, quoted, and whether it has changed."""
        if text is None:
            return null, False
        new, changed = self._read(oid, text)
        escaped = new.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"', changed

    def _label(self, oid: int, text: str) -> tuple[str, bool]:
        label = self._labels.get(oid, {}).get(text)
        if label is None:
            return text, False
        self.labels_read.add((oid, label))
        new = self._types[oid].labels.get(label, text)
        return new, new != text

    def _row(self, oid: int, text: str) -> tuple[str, bool]:
        self.rows_read.add(oid)
        now = self._types[oid].attributes
        had = self._attributes.get(oid, _numbers(self._types[oid]))
        scanner = _Scanner(text)
        scanner.skip("(")
        values = [scanner.item(",)") for _ in had] if had else []
        if text[-1:] != ")" or scanner.at != len(text) - (not had):
            raise _UnreadableError
        there = dict(zip(had, values, strict=True))
        parts = [self._part(kind, there.get(n, first), "") for n, kind, first in now]
        differs = list(had) != [n for n, _, _ in now] or any(changed for _, changed in parts)
        return f"({','.join(part for part, _ in parts)})", differs

    def _range(self, subtype: int, text: str) -> tuple[str, bool]:
        if text == "empty":
            return text, False
        scanner = _Scanner(text)
        new, changed = self._bounds(subtype, scanner)
        return new, changed

    def _bounds(self, subtype: int, scanner: _Scanner) -> tuple[str, bool]:
        first = scanner.skip("[(")
        lower, changed = self._part(subtype, scanner.item(","), "")
        upper, also = self._part(subtype, scanner.item(")]"), "")
        return f"{first}{lower},{upper}{scanner.last}", changed or also

    def _ranges(self, subtype: int, text: str) -> tuple[str, bool]:
        scanner = _Scanner(text)
        scanner.skip("{")
        parts = []
        while scanner.next != "}":
            parts.append(self._bounds(subtype, scanner))
            if scanner.next == ",":
                scanner.skip(",")
        return f"{{{','.join(p for p, _ in parts)}}}", any(changed for _, changed in parts)

    def _array(self, element: int, text: str) -> tuple[str, bool]:
        bounds = _BOUNDS.match(text)
        scanner = _Scanner(text, bounds.end() if bounds else 0)
        new, changed = self._elements(element, self._types[element].delimiter, scanner)
        return (bounds[0] if bounds else "") + new, changed

    def _elements(self, element: int, delimiter: str, scanner: _Scanner) -> tuple[str, bool]:
        scanner.skip("{")
        parts = []
        while scanner.next != "}":
            if scanner.next == "{":
                parts.append(self._elements(element, delimiter, scanner))
            else:
                value = scanner.item(delimiter + "}", null="NULL", keep=True)
                parts.append(self._part(element, value, "NULL"))
            if scanner.next == delimiter:
                scanner.skip(delimiter)
        scanner.skip("}")
        return f"{{{delimiter.join(p for p, _ in parts)}}}", any(changed for _, changed in parts)


class _Scanner:
    """Reads the text of an array, a row or a range from left to right."""

    def __init__(self, text: str, at: int = 0) -> None:
        self._text = text
        self.at = at
        self.last = ""
        """The character that ended the last item."""

    @property
    def next(self) -> str:
        """The next character."""
        return self._text[self.at]

    def skip(self, allowed: str) -> str:
        """Read one of the characters ``allowed``."""
        found = self.next
        if found not in allowed:
            raise _UnreadableError
        self.at += 1
        return found

    def item(self, ends: str, *, null: str = "", keep: bool = False) -> str | None:
        """Read an item and one of the characters ``ends`` after it; None: it is ``null``.

        ``keep``: that character stays unread.
        """
        pieces: list[str] = []
        was_quoted = inside = False
        while inside or self.next not in ends:
            char = self.next
            if char == "\\":
                self.at += 1
                pieces.append(self.next)
            elif char == '"' and inside and self._text[self.at + 1 :].startswith('"'):
                self.at += 1
                pieces.append('"')
            elif char == '"':
                was_quoted, inside = True, not inside
            else:
                pieces.append(char)
            self.at += 1
        self.last = self.next
        self.at += not keep
        value = "".join(pieces)
        return None if value == null and not was_quoted else value
