"""The type of an expression in Postgres' tree, as ``exprType`` finds it."""

from __future__ import annotations

from typing import Final

from headrace import types as t
from headrace.planner.analyse.nodetree import Node

_TYPES: Final = {
    **{"VAR": "vartype", "CONST": "consttype", "PARAM": "paramtype", "FUNCEXPR": "funcresulttype"},
    **{"OPEXPR": "opresulttype", "NULLIFEXPR": "opresulttype", "AGGREF": "aggtype"},
    **{"WINDOWFUNC": "wintype", "RELABELTYPE": "resulttype", "CONVERTROWTYPEEXPR": "resulttype"},
    **{"COERCEVIAIO": "resulttype", "ARRAYCOERCEEXPR": "resulttype"},
    **{"COERCETODOMAIN": "resulttype", "COERCETODOMAINVALUE": "typeId"},
    **{"FIELDSELECT": "resulttype", "SUBSCRIPTINGREF": "refrestype", "CASETESTEXPR": "typeId"},
    **{"CASEEXPR": "casetype", "COALESCEEXPR": "coalescetype", "ROWEXPR": "row_typeid"},
    **{"MINMAXEXPR": "minmaxtype", "ARRAYEXPR": "array_typeid", "SQLVALUEFUNCTION": "type"},
}
"""Where a node of the tree says its type."""
_BOOLEANS: Final = frozenset(
    {
        *("BOOLEXPR", "NULLTEST", "BOOLEANTEST", "DISTINCTEXPR", "SCALARARRAYOPEXPR"),
        *("ROWCOMPAREEXPR", "JSONISPREDICATE"),
    }
)
_TESTS: Final = (0, 1, 2, 3)
"""``subLinkType`` of EXISTS, ALL, ANY and a comparison of rows."""
_VALUE: Final = 4
"""``subLinkType`` of a subquery that stands for its value."""


def type_of(node: Node) -> int | None:
    """Return the OID of the type of ``node``, or None if its kind does not determine it."""
    if node.kind in ("COLLATEEXPR", "NAMEDARGEXPR"):
        return type_of(node.child("arg"))
    if node.kind in _BOOLEANS:
        return t.BOOL
    if node.kind == "GROUPINGFUNC":
        return t.INT4
    if node.kind == "SUBLINK":
        kind = node.number("subLinkType")
        if kind in _TESTS:
            return t.BOOL
        shown = targets(node.child("subselect"))
        return type_of(shown[0]) if kind == _VALUE and shown else None
    field = _TYPES.get(node.kind)
    return None if field is None else node.number(field) or None


def targets(query: Node) -> list[Node]:
    """Return the expressions of the output columns of ``query``."""
    entries = [e for e in query.nodes("targetList") if not e.flag("resjunk")]
    return [entry.child("expr") for entry in entries]
