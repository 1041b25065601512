"""Names of the objects that an analysed query mentions: one statement for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetypes import type_of
from headrace.postgres.connect import Connection

_FIELDS: Final = {
    **dict.fromkeys(("opno", "eqop", "sortop"), "operator"),
    **dict.fromkeys(("funcid", "aggfnoid", "winfnoid"), "function"),
    **{"relid": "relation"},
}
"""Kind of the object whose OID a field has."""
_NAMES: Final = """
SELECT 'operator', o.oid::pg_catalog.int8, o.oprname::pg_catalog.text,
       o.oid::pg_catalog.regoperator::pg_catalog.text, false
  FROM pg_catalog.pg_operator o WHERE o.oid = ANY (%(operator)s::pg_catalog.oid[])
UNION ALL
SELECT 'function', p.oid::pg_catalog.int8, p.proname,
       p.oid::pg_catalog.regprocedure::pg_catalog.text, p.provariadic <> 0
  FROM pg_catalog.pg_proc p WHERE p.oid = ANY (%(function)s::pg_catalog.oid[])
UNION ALL
SELECT 'relation', c.oid::pg_catalog.int8, c.relname,
       c.oid::pg_catalog.regclass::pg_catalog.text, false
  FROM pg_catalog.pg_class c WHERE c.oid = ANY (%(relation)s::pg_catalog.oid[])
UNION ALL
SELECT 'type', t.oid::pg_catalog.int8, t.typname,
       pg_catalog.format_type(t.oid, NULL), false
  FROM pg_catalog.pg_type t WHERE t.oid = ANY (%(type)s::pg_catalog.oid[])"""


@dataclass(frozen=True, slots=True)
class Name:
    """An object: its name, the form with which it is shown, and whether it is variadic."""

    name: str
    shown: str
    variadic: bool = False


class Names:
    """Names by kind of object and OID."""

    def __init__(self, found: Mapping[tuple[str, int], Name]) -> None:
        self._found = found

    def name(self, kind: str, oid: int) -> str:
        """Return the bare name of an object."""
        return self.of(kind, oid).name

    def of(self, kind: str, oid: int) -> Name:
        """Return an object; its number if it is not known."""
        return self._found.get((kind, oid)) or Name(str(oid), str(oid))


def read(conn: Connection, tree: Tree) -> Names:
    """Return the names of the operators, functions, relations and types of ``tree``."""
    rows = conn.execute(_NAMES, {k: sorted(v) for k, v in mentioned(tree).items()}).fetchall()
    return Names(
        {(kind, int(oid)): Name(name, shown, more) for kind, oid, name, shown, more in rows}
    )


def mentioned(tree: Tree) -> dict[str, set[int]]:
    """Return the OIDs of a tree, by kind of object."""
    out: dict[str, set[int]] = {k: set() for k in ("operator", "function", "relation", "type")}
    for node in tree.walk():
        for field in _FIELDS.keys() & node.fields.keys():
            out[_FIELDS[field]].add(node.number(field))
        if "opnos" in node.fields:
            out["operator"].update(node.numbers("opnos"))
        if (found := type_of(node)) is not None:
            out["type"].add(found)
    return out
