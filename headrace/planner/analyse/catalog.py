"""Facts of the system catalogs by OID: functions, operators, types, casts, collations.

Everything a query mentions is fetched in four statements (``preload``); what turns up later
(element types, I/O functions) is fetched one by one and remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headrace.errors import UnsupportedError
from headrace.expressions.signature import TypeRef
from headrace.planner.analyse.nodetree import Node, read_nodes
from headrace.types import FIRST_USER_OID

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Function:
    """A row of pg_proc."""

    oid: int
    schema: str
    name: str
    volatility: str
    kind: str
    returns_set: bool
    arguments: int
    quoted: str
    """Qualified name as SQL."""

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres and lives in pg_catalog."""
        return self.oid < FIRST_USER_OID and self.schema == "pg_catalog"


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of pg_operator."""

    oid: int
    schema: str
    name: str
    function: int
    quoted: str

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres and lives in pg_catalog."""
        return self.oid < FIRST_USER_OID and self.schema == "pg_catalog"


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
    category: str
    comparable: bool
    """Whether it is a base or enum type with a default btree operator class."""

    @property
    def builtin(self) -> bool:
        """Whether it came with Postgres."""
        return self.oid < FIRST_USER_OID


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a composite type; ``oid`` may be a domain."""

    number: int
    name: str
    oid: int
    typmod: int
    collation: int


@dataclass(frozen=True, slots=True)
class Collation:
    """A row of pg_collation; the default one resolved to the database's."""

    oid: int
    quoted: str
    deterministic: bool
    bytewise: bool


_FUNCTION: Final = """
SELECT p.oid, n.nspname, p.proname, p.provolatile::text, p.prokind::text, p.proretset,
       p.pronargs, format('%%I.%%I', n.nspname, p.proname)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = ANY (%s)"""
_OPERATOR: Final = """
SELECT o.oid, n.nspname, o.oprname, o.oprcode::oid,
       format('OPERATOR(%%I.%%s)', n.nspname, o.oprname)
  FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE o.oid = ANY (%s)"""
_TYPE: Final = """
SELECT t.oid, n.nspname, format_type(t.oid, -1), t.typtype::text, t.typbasetype,
       t.typtypmod, CASE WHEN t.typcategory = 'A' AND t.typsubscript::oid
       = 'pg_catalog.array_subscript_handler'::regproc THEN t.typelem ELSE 0 END,
       t.typcollation, t.typinput::oid, t.typoutput::oid, t.typlen, t.typalign::text,
       t.typcategory::text, t.typtype = 'e' OR t.typtype = 'b' AND t.typelem = 0 AND EXISTS (
         SELECT FROM pg_opclass o JOIN pg_am m ON m.oid = o.opcmethod
          WHERE m.amname = 'btree' AND o.opcdefault AND o.opcintype
                IN (t.oid, CASE t.oid WHEN 1043 THEN 25 WHEN 650 THEN 869 END))
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY (%s)"""
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
_CAST: Final = """
SELECT castfunc, castmethod::text FROM pg_cast WHERE castsource = %s AND casttarget = %s"""

_ATTRIBUTES: Final = """
SELECT a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation
  FROM pg_attribute a JOIN pg_type t ON t.typrelid = a.attrelid
 WHERE t.oid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
# What a range or a domain is built of; built-in functions are pinned and in no pg_depend.
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
# Who owns a type may give it a cast, a domain a check, a composite a column, at any time.
_OWNED: Final = """
SELECT pg_has_role(t.typowner, session_user, 'MEMBER') FROM pg_type t WHERE t.oid = %s"""
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
_AGGREGATE: Final = """
SELECT max(p.provolatile::text)
  FROM pg_aggregate a, pg_proc p WHERE a.aggfnoid = %s AND p.oid IN (
       aggtransfn, aggfinalfn, aggcombinefn, aggserialfn, aggdeserialfn, aggmtransfn,
       aggminvtransfn, aggmfinalfn)"""

_EXTENSION: Final = """
SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
 WHERE d.classid = %s::regclass AND d.objid = %s AND d.objsubid = 0 AND d.deptype = 'e'
   AND d.refclassid = 'pg_extension'::regclass"""

# Languages internal and C.
_COMPILED: Final = "SELECT prolang IN (12, 13) FROM pg_proc WHERE oid = %s"

_FUNCTION_FIELDS: Final = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
_TYPE_FIELDS: Final = (
    *(
        "vartype",
        "consttype",
        "opresulttype",
        "funcresulttype",
        "aggtype",
        "resulttype",
    ),
    *("casetype", "coalescetype", "minmaxtype", "array_typeid", "element_typeid"),
    *("refcontainertype", "refelemtype", "refrestype", "row_typeid", "typid"),
)
_COLLATION_FIELDS: Final = ("inputcollid", "varcollid", "constcollid", "collOid")
_OPERATOR_FIELDS: Final = ("opno", "eqop", "sortop")
_DEFAULT_COLLATION: Final = 100
_REFERENCES: Final = {
    24: "pg_proc", 2202: "pg_proc", 2203: "pg_operator", 2204: "pg_operator", 2206: "pg_type",
    3734: "pg_ts_config", 3769: "pg_ts_dict", 4089: "pg_namespace", 4191: "pg_collation",
}  # fmt: skip
"""Catalogs that values of regproc and kin are rows of."""
_DEFAULT_CONFIG: Final = """
SELECT pg_catalog.current_setting('default_text_search_config')::regconfig::oid::bigint
 WHERE EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = ANY (%s::oid[])
   AND p.oid < 16384 AND p.proname ~ '(^ts_headline|to_ts(query|vector))$'
   AND NOT 3734 = ANY (p.proargtypes::oid[]))"""


def mentioned(tree: Node) -> set[int]:
    """OIDs of the types that ``tree`` mentions."""
    types: set[int] = set()
    for node in tree.walk():
        types.update(node.number(f) for f in _TYPE_FIELDS)
        types.update(node.numbers("colTypes"))
        types.update(node.numbers("funccoltypes"))
    return types - {0}


class Catalog:
    """Looks things up on one connection and remembers them."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.mentioned: set[int] = set()
        """Types in the trees of ``preload``."""
        self.others: set[tuple[str, int]] = set()
        """(catalog, OID) of other objects there that can be altered."""
        self._functions: dict[int, Function] = {}
        self._operators: dict[int, Operator] = {}
        self._types: dict[int, Type] = {}
        self._collations: dict[int, Collation] = {}
        self._casts: dict[tuple[int, int], tuple[int, str] | None] = {}
        self._attributes: dict[int, tuple[Attribute, ...]] = {}
        self._plain: dict[int, bool] = {}
        self._trusted: dict[int, bool] = {}
        self._extensions: dict[tuple[str, int], str] = {}

    def preload(self, trees: list[Node]) -> None:
        """Fetch everything that ``trees`` mention."""
        functions: set[int] = set()
        types = {oid for tree in trees for oid in mentioned(tree)}
        operators: set[int] = set()
        collations = {100}
        for node in (n for tree in trees for n in tree.walk()):
            functions.update(node.number(f) for f in _FUNCTION_FIELDS)
            collations.update(node.number(f) for f in _COLLATION_FIELDS)
            operators.update(node.number(f) for f in _OPERATOR_FIELDS)
            operators.update(node.numbers("opnos"))
            self._refer(node)
        self._load_operators(operators)
        functions.update(o.function for o in self._operators.values())
        self.load_types(types)
        self.mentioned |= types - {0}
        self._load_functions(functions)
        self._load_collations(collations)
        self.others.update(("pg_operator", o) for o in operators if o >= FIRST_USER_OID)
        self.others.update(
            ("pg_collation", o) for o in collations if o not in (0, _DEFAULT_COLLATION)
        )
        found = self._conn.execute(_DEFAULT_CONFIG, (list(functions),)).fetchall()
        self.others.update(("pg_ts_config", row[0]) for row in found)

    def _refer(self, node: Node) -> None:
        """Take note of what a constant of type regconfig or kin stands for."""
        value = node.fields.get("constvalue")
        catalog = _REFERENCES.get(node.number("consttype"))
        if catalog is not None and isinstance(value, bytes):
            self.others.add((catalog, int.from_bytes(value[:4], "little")))

    def user_functions(self) -> frozenset[int]:
        """OIDs of the functions met so far that are not built in."""
        return frozenset(f.oid for f in self._functions.values() if not f.builtin)

    def constant_defaults(self, oid: int) -> bool:
        """Whether the arguments of a function that may be left out have constants as defaults."""
        row = self._conn.execute(
            "SELECT proargdefaults::text FROM pg_proc WHERE oid = %s", (oid,)
        ).fetchone()
        if row is None or row[0] is None:
            return False
        return all(
            self._constant(node) for root in read_nodes(row[0]) for node in root.walk()
        )

    def _constant(self, node: Node) -> bool:
        if node.kind == "FUNCEXPR":
            function = self.function(node.number("funcid"))
            return function.builtin and function.volatility == "i"
        return node.kind in ("CONST", "RELABELTYPE")

    def function(self, oid: int) -> Function:
        """The function of that OID."""
        if oid not in self._functions:
            self._load_functions({oid})
        return self._functions[oid]

    def aggregate_volatility(self, oid: int) -> str:
        """The worst volatility of the functions of an aggregate; its own says nothing."""
        row = self._conn.execute(_AGGREGATE, (oid,)).fetchone()
        assert row is not None, "an aggregate has a transition function"
        found: str = row[0]
        return found

    def operator(self, oid: int) -> Operator:
        """The operator of that OID."""
        if oid not in self._operators:
            self._load_operators({oid})
        return self._operators[oid]

    def type(self, oid: int) -> Type:
        """The type of that OID."""
        if oid not in self._types:
            self.load_types({oid})
        if oid not in self._types:
            raise UnsupportedError(f"type with OID {oid} is not supported")
        return self._types[oid]

    def base(self, oid: int) -> int:
        """``oid`` with domains resolved."""
        found = self.type(oid)
        return self.base(found.base) if found.kind == "d" else oid

    def base_typmod(self, oid: int) -> int:
        """Modifier that domain ``oid`` gives its base type; -1 if it is no domain."""
        found, typmod = self.type(oid), -1
        while found.kind == "d":
            typmod = found.base_typmod
            found = self.type(found.base)
        return typmod

    def type_with_modifier(self, oid: int, typmod: int) -> str:
        """SQL for the type with its modifier."""
        if typmod == -1:
            return self.type(oid).name
        query = "SELECT format_type(%s, %s)"
        row = self._conn.execute(query, (oid, typmod)).fetchone()
        assert row is not None, "functions give a row"
        return str(row[0])

    def attributes(self, oid: int) -> tuple[Attribute, ...]:
        """Columns of a composite type, in order; dropped ones are left out."""
        if oid not in self._attributes:
            rows = self._conn.execute(_ATTRIBUTES, (oid,)).fetchall()
            self._attributes[oid] = tuple(Attribute(*row) for row in rows)
        return self._attributes[oid]

    def parts(self, oid: int) -> tuple[int, ...]:
        """Types that a value of type ``oid`` is made of: columns, elements, bounds, base."""
        row = self._conn.execute(_PARTS, (oid,)).fetchone()
        return tuple(row[0]) if row else ()

    def subtype(self, oid: int) -> tuple[int, int]:
        """Type and collation of the bounds of a range or multirange."""
        row = self._conn.execute(_SUBTYPE, {"t": oid}).fetchone()
        assert row is not None, "every range has a subtype"
        return int(row[0]), int(row[1])

    def plain(self, oid: int) -> bool:
        """Whether reading, writing and comparing values of the type runs no code of a user now.

        Enums, composites, ranges and domains do not, unless a domain's check, a range's
        canonical function or a cast from the type (``to_json`` looks for one) is a user's.
        A base type that did not come with Postgres never counts as plain.
        """
        if oid < FIRST_USER_OID:
            return True
        if oid not in self._plain:
            kind = self.type(oid)
            good = kind.kind != "b" or bool(kind.element)
            if good:
                self._plain[oid] = True  # while its parts are looked at: rows nest
                more = {"t": oid, "first": FIRST_USER_OID}
                row = self._conn.execute(_USER_CODE, more).fetchone()
                assert row is not None, "EXISTS gives a row"
                good = not row[0] and all(self.plain(p) for p in self.parts(oid))
            self._plain[oid] = good
        return self._plain[oid]

    def trusted(self, oid: int) -> bool:
        """Whether values of the type may be handled where the engine's rights are.

        They run no code of a user, and whoever could change that has our rights anyway: each
        type that has a part in it belongs to our role, to a member of it or to a superuser.
        """
        if oid < FIRST_USER_OID:
            return True
        if oid not in self._trusted:
            good = self.plain(oid)
            if good:
                self._trusted[oid] = True  # while its parts are looked at: rows nest
                row = self._conn.execute(_OWNED, (oid,)).fetchone()
                good = bool(row and row[0]) and all(map(self.trusted, self.parts(oid)))
            self._trusted[oid] = good
        return self._trusted[oid]

    def writable(self, oid: int) -> bool:
        """Whether reading a value of the type from text may run with the engine's rights.

        As ``trusted``, but enums of anyone may be read, also inside of arrays and ranges: labels
        are all that they have.  So may base types of extensions (citext, hstore, …): only a
        superuser makes one, and its input function, if written in C, none else can replace.
        """
        if oid < FIRST_USER_OID or self.type(oid).kind == "e":
            return True
        found = self.type(oid)
        if found.kind == "b":
            if found.element:
                return self.writable(found.element)
            row = self._conn.execute(_COMPILED, (found.input,)).fetchone()
            return bool(row and row[0])
        if found.kind in ("r", "m"):
            return self.plain(oid) and all(map(self.writable, self.parts(oid)))
        return self.trusted(oid)

    def extension_of(self, kind: Type) -> str:
        """The extension that a base type came with; "" if with none."""
        if kind.builtin or kind.kind != "b" or kind.element:
            return ""
        return self.extension("pg_type", kind.oid)

    def extension(self, relation: str, oid: int) -> str:
        """The extension that object ``oid`` of a system catalog came with; "" if with none."""
        if (relation, oid) not in self._extensions:
            row = self._conn.execute(_EXTENSION, (relation, oid)).fetchone()
            self._extensions[relation, oid] = row[0] if row else ""
        return self._extensions[relation, oid]

    def collation(self, oid: int) -> Collation | None:
        """The collation of that OID; ``None`` for 0."""
        if not oid:
            return None
        if oid not in self._collations:
            self._load_collations({oid})
        return self._collations[oid]

    def bytewise(self, collation: int) -> bool:
        """Whether that collation (or none) compares by bytes."""
        found = self.collation(collation)
        return found is None or found.bytewise

    def deterministic(self, collation: int) -> bool:
        """Whether equal under that collation (or none) means equal bytes."""
        found = self.collation(collation)
        return found is None or found.deterministic

    def type_refs(
        self, types: Sequence[tuple[int, int, str | None]], collation: int
    ) -> list[TypeRef]:
        """(type, modifier, literal) of arguments under a collation, for ``native.resolve``."""
        bytewise, deterministic = (
            self.bytewise(collation),
            self.deterministic(collation),
        )
        utf8 = self._conn.info.parameter_status("server_encoding") == "UTF8"
        return [
            TypeRef(
                oid,
                typmod,
                bytewise,
                deterministic,
                literal,
                self.type(oid).kind == "e",
                utf8,
            )
            for oid, typmod, literal in types
        ]

    def declaration(self, oid: int, typmod: int) -> str:
        """SQL for the type with its modifier."""
        row = self._conn.execute("SELECT format_type(%s, %s)", (oid, typmod)).fetchone()
        assert row is not None, "functions give a row"
        return str(row[0])

    def cast(self, source: int, target: int) -> tuple[int, str] | None:
        """(function, method) of the cast between two types, if pg_cast has one."""
        key = (source, target)
        if key not in self._casts:
            self._casts[key] = self._conn.execute(_CAST, key).fetchone()
        return self._casts[key]

    def array_of(self, oid: int) -> int:
        """The type of an array of values of the type; an array of arrays has the same type."""
        if self.type(oid).element:
            return oid
        [row] = self._rows(
            "SELECT typarray::int8 FROM pg_type WHERE oid = ANY (%s)", {oid}
        )
        return int(row[0])

    def aggregate_support(self, oid: int) -> tuple[int, ...]:
        """Functions that an aggregate is made of: transition, final."""
        query = "SELECT aggtransfn::oid, aggfinalfn::oid FROM pg_aggregate WHERE aggfnoid = %s"
        row = self._conn.execute(query, (oid,)).fetchone()
        return tuple(f for f in row or () if f)

    def enum_label(self, oid: int) -> str | None:
        """Label of an enum value by its own OID."""
        query = "SELECT enumlabel FROM pg_enum WHERE oid = %s"
        row = self._conn.execute(query, (oid,)).fetchone()
        return row[0] if row else None

    def _rows(self, query: str, oids: set[int]) -> list[tuple[Any, ...]]:
        wanted = sorted(oids - {0})
        return self._conn.execute(query, (wanted,)).fetchall() if wanted else []

    def _load_functions(self, oids: set[int]) -> None:
        for row in self._rows(_FUNCTION, oids - self._functions.keys()):
            self._functions[row[0]] = Function(*row)

    def _load_operators(self, oids: set[int]) -> None:
        for row in self._rows(_OPERATOR, oids - self._operators.keys()):
            self._operators[row[0]] = Operator(*row)

    def load_types(self, oids: set[int]) -> None:
        """Fetch types that will be asked for, and what they consist of, at one go."""
        while missing := oids - self._types.keys() - {0}:
            found = [Type(*row) for row in self._rows(_TYPE, missing)]
            self._types.update((t.oid, t) for t in found)
            oids = {o for t in found for o in (t.base, t.element)}

    def _load_collations(self, oids: set[int]) -> None:
        for oid, name, deterministic, locale, encoding in self._rows(
            _COLLATION, oids - self._collations.keys()
        ):
            plain = locale in ("C", "POSIX") and encoding in _BY_POINT
            by_point = locale in ("C.UTF-8", "C.UTF8", "C.utf8", "PG_UNICODE_FAST")
            bytewise = bool(
                deterministic and (plain or (by_point and encoding == "UTF8"))
            )
            self._collations[oid] = Collation(oid, name, deterministic, bytewise)
