"""Catalog rows that a query needs, by subject.

All objects that a query mentions are fetched in five statements (``preload``).  Objects that turn
up later (element types, I/O functions) are fetched one by one and cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace import types as t
from headrace.expressions.signature import TypeRef
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.pg_collations import CollationFacts
from headrace.planner.analyse.pg_functions import FunctionFacts
from headrace.planner.analyse.pg_operators import OperatorFacts
from headrace.planner.analyse.pg_types import TypeFacts
from headrace.planner.analyse.provenance import Provenance
from headrace.postgres.connect import Connection

_FUNCTION_FIELDS: Final = frozenset({"funcid", "opfuncid", "aggfnoid", "winfnoid"})
_TYPE_FIELDS: Final = frozenset(
    {
        *("vartype", "consttype", "opresulttype", "funcresulttype", "aggtype"),
        *("resulttype", "casetype", "coalescetype", "minmaxtype", "array_typeid"),
        *("element_typeid", "refcontainertype", "refelemtype", "refrestype"),
        *("row_typeid", "typid"),
    }
)
_COLLATION_FIELDS: Final = frozenset({"inputcollid", "varcollid", "constcollid", "collOid"})
_OPERATOR_FIELDS: Final = frozenset({"opno", "eqop", "sortop"})
_DEFAULT_COLLATION: Final = 100
_REFERENCES: Final = {
    24: "pg_proc", 2202: "pg_proc", 2203: "pg_operator", 2204: "pg_operator", 2206: "pg_type",
    3734: "pg_ts_config", 3769: "pg_ts_dict", 4089: "pg_namespace", 4191: "pg_collation",
}  # fmt: skip
"""Catalog to which the values of an OID alias type (regproc, regtype, …) refer, by type OID."""
_DEFAULT_CONFIG: Final = """
SELECT pg_catalog.current_setting('default_text_search_config')::regconfig::oid::bigint
 WHERE EXISTS (SELECT FROM pg_catalog.pg_proc p WHERE p.oid = ANY (%s::oid[])
   AND p.oid < 16384 AND p.proname ~ '(^ts_headline|to_ts(query|vector))$'
   AND NOT 3734 = ANY (p.proargtypes::oid[]))"""
_NOW: Final = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())"


def _numbers(node: Node, fields: frozenset[str]) -> list[int]:
    """Return the values of those of ``fields`` that ``node`` has."""
    return [node.number(name) for name in fields.intersection(node.fields)]


def mentioned(tree: Node) -> set[int]:
    """Return the OIDs of the types that ``tree`` mentions."""
    types: set[int] = set()
    for node in tree.walk():
        types.update(_numbers(node, _TYPE_FIELDS))
        types.update(node.numbers("colTypes"))
        types.update(node.numbers("funccoltypes"))
    return types - {0}


class Catalog:
    """Facts of one database, and which of them a query has asked for."""

    def __init__(self, conn: Connection, trusted: frozenset[int] = frozenset()) -> None:
        """``trusted`` has the functions that the view's author vouches for, by OID."""
        self._conn = conn
        self.functions = FunctionFacts(conn, trusted)
        self.operators = OperatorFacts(conn)
        self.types = TypeFacts(conn)
        self.collations = CollationFacts(conn)
        self.provenance = Provenance(conn, self.types)
        self.mentioned: set[int] = set()
        """Types in the trees of ``preload``."""
        self.others: set[tuple[str, int]] = set()
        """(catalog, OID) of other objects there that can be altered."""

    def preload(self, trees: list[Node]) -> None:
        """Fetch everything that ``trees`` mention."""
        functions: set[int] = set()
        types = {oid for tree in trees for oid in mentioned(tree)}
        operators: set[int] = set()
        collations = {_DEFAULT_COLLATION}
        for node in (n for tree in trees for n in tree.walk()):
            functions.update(_numbers(node, _FUNCTION_FIELDS))
            collations.update(_numbers(node, _COLLATION_FIELDS))
            operators.update(_numbers(node, _OPERATOR_FIELDS))
            operators.update(node.numbers("opnos"))
            self._refer(node)
        self.operators.load(operators)
        functions |= self.operators.functions()
        self.types.load(types)
        self.mentioned |= types - {0}
        self.functions.load(functions)
        self.collations.load(collations)
        self.others.update(("pg_operator", o) for o in operators if o >= t.FIRST_USER_OID)
        self.others.update(
            ("pg_collation", o) for o in collations if o not in (0, _DEFAULT_COLLATION)
        )
        found = self._conn.execute(_DEFAULT_CONFIG, (list(functions),)).fetchall()
        self.others.update(("pg_ts_config", row[0]) for row in found)

    def now(self) -> float:
        """Return the server's Unix time in seconds."""
        row: Any = self._conn.execute(_NOW).fetchone()
        return float(row[0])

    def _refer(self, node: Node) -> None:
        """Record the object to which a constant of an OID alias type (regconfig, …) refers."""
        value = node.fields.get("constvalue")
        catalog = _REFERENCES.get(node.number("consttype"))
        if catalog is not None and isinstance(value, bytes):
            self.others.add((catalog, int.from_bytes(value[:4], "little")))

    def type_refs(
        self, types: Sequence[tuple[int, int, str | None]], collation: int
    ) -> list[TypeRef]:
        """Convert (type, modifier, literal) of arguments for ``native.resolve``."""
        bytewise = self.collations.bytewise(collation)
        deterministic = self.collations.deterministic(collation)

        def enum(oid: int) -> bool:
            return self.types[oid].kind == "e"

        utf8 = self._conn.info.parameter_status("server_encoding") == "UTF8"
        return [
            TypeRef(oid, typmod, bytewise, deterministic, literal, enum(oid), utf8)
            for oid, typmod, literal in types
        ]
