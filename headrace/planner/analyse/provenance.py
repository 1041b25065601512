"""Determines whose code runs when values of a type are handled, and an object's extension."""

from __future__ import annotations

from typing import Final

from headrace.planner.analyse.pg_types import Type, TypeFacts
from headrace.postgres.connect import Connection
from headrace.types import FIRST_USER_OID

# Functions of a range or a domain; built-in functions are pinned and not in pg_depend.
_USER_CODE: Final = """
SELECT EXISTS (
    SELECT FROM pg_cast c WHERE c.castsource = %(t)s AND c.castfunc >= %(first)s
       AND NOT EXISTS (SELECT FROM pg_range r  -- made with every range type
            WHERE r.rngtypid = c.castsource AND r.rngmultitypid = c.casttarget)
    UNION ALL
    SELECT FROM pg_constraint k JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass
        AND d.objid = k.oid
     WHERE k.contypid = %(t)s
       AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
    UNION ALL
    SELECT FROM pg_range r JOIN pg_opclass o ON o.oid = r.rngsubopc
     WHERE %(t)s IN (r.rngtypid, r.rngmultitypid)
       AND (r.rngcanonical::oid >= %(first)s OR o.oid >= %(first)s))"""
# The owner of a type may add a cast, a domain check or a composite column at any time.
_OWNED: Final = """
SELECT pg_has_role(t.typowner, session_user, 'MEMBER') FROM pg_type t WHERE t.oid = %s"""
_EXTENSION: Final = """
SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
 WHERE d.classid = %s::regclass AND d.objid = %s AND d.objsubid = 0 AND d.deptype = 'e'
   AND d.refclassid = 'pg_extension'::regclass"""
# Languages internal and C.
_COMPILED: Final = "SELECT prolang IN (12, 13) FROM pg_proc WHERE oid = %s"


class Provenance:
    """Facts about the creators of types, each looked up once."""

    def __init__(self, conn: Connection, types: TypeFacts) -> None:
        self._conn = conn
        self._types = types
        self._plain: dict[int, bool] = {}
        self._trusted: dict[int, bool] = {}
        self._extensions: dict[tuple[str, int], str] = {}

    def plain(self, oid: int) -> bool:
        """Return whether reading, writing and comparing values of the type runs no user code now.

        Enums, composites, ranges and domains run none, unless a domain's check, a range's
        canonical function or a cast from the type (``to_json`` looks for one) is a user's.
        A base type that did not come with Postgres never counts as plain.
        """
        if oid < FIRST_USER_OID:
            return True
        if oid not in self._plain:
            kind = self._types[oid]
            good = kind.kind != "b" or bool(kind.element)
            if good:
                self._plain[oid] = True  # while its parts are looked at: rows nest
                more = {"t": oid, "first": FIRST_USER_OID}
                row = self._conn.execute(_USER_CODE, more).fetchone()
                assert row is not None, "EXISTS gives a row"
                good = not row[0] and all(self.plain(p) for p in self._types.parts(oid))
            self._plain[oid] = good
        return self._plain[oid]

    def trusted(self, oid: int) -> bool:
        """Return whether values of the type may be handled with the engine's rights.

        They run no user code, and every role that could change that has the engine's rights
        anyway: the type and its parts belong to our role, to a member of it or to a superuser.
        """
        if oid < FIRST_USER_OID:
            return True
        if oid not in self._trusted:
            good = self.plain(oid)
            if good:
                self._trusted[oid] = True  # while its parts are looked at: rows nest
                row = self._conn.execute(_OWNED, (oid,)).fetchone()
                good = bool(row and row[0]) and all(map(self.trusted, self._types.parts(oid)))
            self._trusted[oid] = good
        return self._trusted[oid]

    def writable(self, oid: int) -> bool:
        """Return whether reading a value of the type from text may run with the engine's rights.

        As ``trusted``, but enums of any owner may be read, also inside arrays and ranges: they
        consist of labels only.  So may base types of extensions (citext, hstore, …): only a
        superuser can create one, or replace its input function if that is written in C.
        """
        if oid < FIRST_USER_OID or self._types[oid].kind == "e":
            return True
        found = self._types[oid]
        if found.kind == "b":
            if found.element:
                return self.writable(found.element)
            row = self._conn.execute(_COMPILED, (found.input,)).fetchone()
            return bool(row and row[0])
        if found.kind in ("r", "m"):
            return self.plain(oid) and all(map(self.writable, self._types.parts(oid)))
        return self.trusted(oid)

    def extension_of(self, kind: Type) -> str:
        """Return the extension to which a base type belongs; "" if none."""
        if kind.builtin or kind.kind != "b" or kind.element:
            return ""
        return self.extension("pg_type", kind.oid)

    def extension(self, relation: str, oid: int) -> str:
        """Return the extension to which object ``oid`` of a system catalog belongs; "" if none."""
        if (relation, oid) not in self._extensions:
            row = self._conn.execute(_EXTENSION, (relation, oid)).fetchone()
            self._extensions[relation, oid] = row[0] if row else ""
        return self._extensions[relation, oid]
