"""Collations, each looked up once: whether they compare bytes and are deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.planner.analyse.lookup import rows
from headrace.postgres.connect import Connection

# We compare the bytes that the server sends, which are UTF-8: in the order of its own bytes if
# the database has UTF-8 or a part of it, or sends what it has.
_BY_POINT: Final = frozenset({"UTF8", "SQL_ASCII", "LATIN1"})
_COLLATION: Final = """
WITH d AS (
  SELECT datlocprovider::text AS provider, datcollate AS locale,
         pg_encoding_to_char(encoding) AS encoding,
         coalesce(to_jsonb(pg_database) ->> 'datlocale',
                  to_jsonb(pg_database) ->> 'daticulocale') AS builtin
    FROM pg_database WHERE datname = current_database())
SELECT c.oid, format('%%I.%%I', n.nspname, c.collname), c.collisdeterministic,
       CASE WHEN c.oid = 100 THEN
              CASE d.provider WHEN 'c' THEN d.locale WHEN 'b' THEN d.builtin END
            WHEN c.collprovider = 'c' THEN c.collcollate
            WHEN c.collprovider = 'b' THEN
              coalesce(to_jsonb(c) ->> 'colllocale', to_jsonb(c) ->> 'colliculocale')
       END, d.encoding
  FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace, d
 WHERE c.oid = ANY (%s)"""


@dataclass(frozen=True, slots=True)
class Collation:
    """A row of pg_collation; the default one resolved to the database's."""

    oid: int
    quoted: str
    deterministic: bool
    bytewise: bool


class CollationFacts:
    """Collations by OID; 0 is none."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known: dict[int, Collation] = {}

    def get(self, oid: int) -> Collation | None:
        """Return the collation with that OID; ``None`` for 0."""
        if not oid:
            return None
        if oid not in self._known:
            self.load({oid})
        return self._known[oid]

    def bytewise(self, collation: int) -> bool:
        """Return whether that collation (or none) compares by bytes."""
        found = self.get(collation)
        return found is None or found.bytewise

    def deterministic(self, collation: int) -> bool:
        """Return whether equal under that collation (or none) means equal bytes."""
        found = self.get(collation)
        return found is None or found.deterministic

    def load(self, oids: set[int]) -> None:
        """Fetch several collations in one statement."""
        found = rows(self._conn, _COLLATION, oids - self._known.keys())
        for oid, name, deterministic, locale, encoding in found:
            plain = locale in ("C", "POSIX") and encoding in _BY_POINT
            by_point = locale in ("C.UTF-8", "C.UTF8", "C.utf8", "PG_UNICODE_FAST")
            bytewise = bool(deterministic and (plain or (by_point and encoding == "UTF8")))
            self._known[oid] = Collation(oid, name, deterministic, bytewise)
