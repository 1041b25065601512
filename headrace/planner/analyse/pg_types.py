"""Types and their components, each looked up once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import UnsupportedError
from headrace.planner.analyse.lookup import rows
from headrace.postgres.connect import Connection
from headrace.types import BOOL, FIRST_USER_OID, INT4, INT8, TEXT

_TYPE: Final = """
SELECT t.oid, n.nspname, format_type(t.oid, -1), t.typtype::text, t.typbasetype,
       t.typtypmod, CASE WHEN t.typcategory = 'A' AND t.typsubscript::oid
       = 'pg_catalog.array_subscript_handler'::regproc THEN t.typelem ELSE 0 END,
       t.typcollation, t.typinput::oid, t.typoutput::oid, t.typlen, t.typalign::text,
       t.typtype = 'e' OR t.typtype = 'b' AND t.typelem = 0 AND EXISTS (
         SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
          WHERE m.amname = 'btree' AND o.opcdefault AND o.opcintype
                IN (t.oid, CASE t.oid WHEN 1043 THEN 25 WHEN 650 THEN 869 END))
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY (%s)"""
_ATTRIBUTES: Final = """
SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation
  FROM pg_attribute a JOIN pg_type t ON t.typrelid = a.attrelid
 WHERE t.oid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_SUBTYPE: Final = """
SELECT rngsubtype, rngcollation FROM pg_range WHERE %(t)s IN (rngtypid, rngmultitypid)"""
_PARTS: Final = """
SELECT ARRAY(
    SELECT a.atttypid FROM pg_attribute a
     WHERE a.attrelid = t.typrelid AND t.typrelid <> 0 AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT t.typelem WHERE t.typelem <> 0
    UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid))
  FROM pg_type t WHERE t.oid = %s"""
_CHECKED_AGAIN: Final = """
WITH RECURSIVE d (oid) AS (SELECT %s::oid
    UNION SELECT t.typbasetype FROM d JOIN pg_type t ON t.oid = d.oid WHERE t.typtype = 'd')
SELECT EXISTS (SELECT FROM d JOIN pg_type t ON t.oid = d.oid WHERE t.typnotnull)
    OR EXISTS (SELECT FROM d JOIN pg_constraint k ON k.contypid = d.oid WHERE NOT k.convalidated)"""
_OURS: Final = frozenset({BOOL, INT4, INT8, TEXT})
"""Types of expressions that the planner itself builds; fetched along with the first types."""
_ARRAY: Final = "SELECT typarray::int8 FROM pg_type WHERE oid = ANY (%s)"


@dataclass(frozen=True, slots=True)
class Type:
    """A row of pg_type; ``name`` is SQL for it without modifier."""

    oid: int
    schema: str
    name: str
    kind: str
    base: int
    base_typmod: int
    element: int
    """Element type of a true array, else 0."""
    collation: int
    input: int
    output: int
    length: int
    alignment: str
    comparable: bool
    """Whether it is a base or enum type with a default btree operator class."""

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres."""
        return self.oid < FIRST_USER_OID


@dataclass(frozen=True, slots=True)
class CompositeField:
    """A column of a composite type; ``oid`` may be a domain."""

    number: int
    name: str
    oid: int
    typmod: int
    collation: int


class TypeFacts:
    """Types by OID."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.shown: Callable[[int], str | None] = lambda _: None
        self.named = False
        """Whether the plan depends on the names that the caller sees."""
        self._known: dict[int, Type] = {}
        self._attributes: dict[int, tuple[CompositeField, ...]] = {}

    def name_for_caller(self, oid: int) -> str | None:
        """Return a type's name as the plan's caller sees it, if nothing can come to hide it."""
        found = self.shown(oid)
        self.named = self.named or found is not None
        return found

    def __getitem__(self, oid: int) -> Type:
        """Return the type with that OID."""
        if oid not in self._known:
            self.load({oid})
        if oid not in self._known:
            raise UnsupportedError(f"type with OID {oid} is not supported")
        return self._known[oid]

    def load(self, oids: set[int]) -> None:
        """Fetch several types together with their base and element types."""
        while missing := oids - self._known.keys() - {0}:
            missing |= _OURS - self._known.keys()
            found = [Type(*row) for row in rows(self._conn, _TYPE, missing)]
            self._known.update((t.oid, t) for t in found)
            oids = {o for t in found for o in (t.base, t.element)}

    def base(self, oid: int) -> int:
        """Return ``oid`` with domains resolved."""
        found = self[oid]
        return self.base(found.base) if found.kind == "d" else oid

    def base_typmod(self, oid: int) -> int:
        """Return the modifier that domain ``oid`` gives its base type; -1 if not a domain."""
        found, typmod = self[oid], -1
        while found.kind == "d":
            typmod = found.base_typmod
            found = self[found.base]
        return typmod

    def with_modifier(self, oid: int, typmod: int) -> str:
        """Return SQL for the type, with its modifier unless that is -1."""
        return self[oid].name if typmod == -1 else self.declaration(oid, typmod)

    def declaration(self, oid: int, typmod: int) -> str:
        """Return SQL for the type with its modifier."""
        row = self._conn.execute("SELECT format_type(%s, %s)", (oid, typmod)).fetchone()
        assert row is not None, "functions give a row"
        return str(row[0])

    def attributes(self, oid: int) -> tuple[CompositeField, ...]:
        """Return the columns of a composite type, in order, without dropped ones."""
        if oid not in self._attributes:
            rows = self._conn.execute(_ATTRIBUTES, (oid,)).fetchall()
            self._attributes[oid] = tuple(CompositeField(*row) for row in rows)
        return self._attributes[oid]

    def parts(self, oid: int) -> tuple[int, ...]:
        """Return the component types of ``oid``: of columns, elements, bounds, and the base."""
        row = self._conn.execute(_PARTS, (oid,)).fetchone()
        return tuple(row[0]) if row else ()

    def subtype(self, oid: int) -> tuple[int, int]:
        """Return type and collation of the bounds of a range or multirange."""
        row = self._conn.execute(_SUBTYPE, {"t": oid}).fetchone()
        assert row is not None, "every range has a subtype"
        return int(row[0]), int(row[1])

    def array_of(self, oid: int) -> int:
        """Return the array type of ``oid``; an array type is its own array type."""
        if self[oid].element:
            return oid
        [row] = rows(self._conn, _ARRAY, {oid})
        return int(row[0])

    def checked_again(self, domain: int) -> bool:
        """Return whether a value of the domain in a query may fail a cast to that domain.

        An outer join can produce a NULL for a domain that is NOT NULL, and values older than a
        constraint added as NOT VALID need not satisfy it.
        """
        row = self._conn.execute(_CHECKED_AGAIN, (domain,)).fetchone()
        return bool(row and row[0])

    def enum_label(self, oid: int) -> str | None:
        """Return the label of an enum value by the value's OID."""
        query = "SELECT enumlabel FROM pg_enum WHERE oid = %s"
        row = self._conn.execute(query, (oid,)).fetchone()
        return row[0] if row else None
