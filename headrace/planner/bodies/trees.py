"""Predicates on trees of queries and expressions, and constructors of small trees."""

from __future__ import annotations

from typing import Final

from headrace.collections.aggregate_traits import Total, built_in
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.nodetypes import targets
from headrace.types import FIRST_USER_OID

EXISTS, _ALL, _ANY, VALUE = 0, 1, 2, 4
"""``subLinkType``."""
_TESTS: Final = (EXISTS, _ALL, _ANY)
_LABELS: Final = frozenset({"resname", "alias", "eref", "join_using_alias"})
_COLLATIONS: Final = (
    *("constcollid", "paramcollid", "varcollid", "funccollid", "opcollid", "casecollid"),
    *("resultcollid", "coalescecollid", "minmaxcollid", "aggcollid", "collOid"),
)
_PARTS: Final = (
    *("hasAggs", "hasWindowFuncs", "hasTargetSRFs"),
    *("limitCount", "limitOffset", "havingQual", "setOperations"),
    *("groupClause", "groupingSets", "distinctClause", "cteList", "rtable"),
)
"""Fields that are empty or false in a query that is only an expression."""
_TOTAL: Final = frozenset(
    {
        *("CONST", "PARAM", "VAR", "RELABELTYPE", "NULLTEST", "BOOLEANTEST", "BOOLEXPR"),
        *("CASEEXPR", "CASEWHEN", "CASETESTEXPR", "COALESCEEXPR", "QUERY", "FROMEXPR"),
        *("TARGETENTRY", "RANGETBLREF", "RANGETBLENTRY", "RTEPERMISSIONINFO", "ALIAS"),
        *("JOINEXPR", "SORTGROUPCLAUSE", "SUBLINK", "DISTINCTEXPR"),
    }
)
"""Nodes that fail only if a part of them fails."""
_INT8_OF_INT4: Final = 481
"""The function in ``LIMIT 1``."""
_COMPARISONS: Final = frozenset(("=", "<>", "<", "<=", ">", ">="))


def is_plain(query: Node) -> bool:
    """Return whether ``query`` is one row of expressions, without FROM, WHERE and so on."""
    tree = query.child("jointree")
    if tree.nodes("fromlist") or tree.node("quals"):
        return False
    return not any(query.fields.get(part) not in (None, "false", []) for part in _PARTS)


def is_single(query: Node) -> bool:
    """Return whether ``query`` returns exactly one row regardless of its tables' contents."""
    more = ("groupClause", "groupingSets", "setOperations", "havingQual")
    cut = ("limitCount", "limitOffset")
    return (
        query.flag("hasAggs")
        and not query.flag("hasTargetSRFs")
        and not any(query.fields.get(name) for name in (*more, *cut))
    )


def only(query: Node, place: int) -> Node:
    """Return ``query`` with one of its columns, and the other columns that its order needs."""
    entries: list[Node] = []
    at = 0
    for entry in query.nodes("targetList"):
        shown = not entry.flag("resjunk")
        if shown and at == place:
            entries.insert(0, entry)
        elif entry.number("ressortgroupref"):
            entries.append(Node(entry.kind, {**entry.fields, "resjunk": "true"}))
        at += shown
    numbered = [Node(e.kind, {**e.fields, "resno": str(n + 1)}) for n, e in enumerate(entries)]
    return Node(query.kind, {**query.fields, "targetList": numbered})


def row(query: Node, oid: int, names: list[str]) -> Node:
    """Return ``query`` with its columns combined into one row of composite type ``oid``."""
    shown = [e for e in query.nodes("targetList") if not e.flag("resjunk")]
    fields: dict[str, object] = {
        **{"args": [e.child("expr") for e in shown], "row_typeid": str(oid), "row_format": "0"},
        **{"colnames": list(names), "location": "-1"},
    }
    entry = {"expr": Node("ROWEXPR", fields), "resno": "1", "resname": "row"}
    more = {"ressortgroupref": "0", "resorigtbl": "0", "resorigcol": "0", "resjunk": "false"}
    sorting = [
        Node(e.kind, {**e.fields, "resjunk": "true", "resno": str(n)})
        for n, e in enumerate(
            (e for e in query.nodes("targetList") if e.number("ressortgroupref")), 2
        )
    ]
    made = Node("TARGETENTRY", {**entry, **more})
    return Node(query.kind, {**query.fields, "targetList": [made, *sorting]})


def sublink(query: Node, kind: int) -> Node:
    """Return a subquery as an expression; ``kind``: EXISTS or VALUE."""
    return Node(
        "SUBLINK",
        {
            **{"subLinkType": str(kind), "subLinkId": "0", "testexpr": None, "operName": None},
            **{"subselect": query, "location": "-1"},
        },
    )


def null_test(expr: Node) -> Node:
    """Return ``expr IS NULL``."""
    fields = {"arg": expr, "nulltesttype": "0", "argisrow": "false", "location": "-1"}
    return Node("NULLTEST", fields)


def collation(expr: Node) -> int | None:
    """Return the collation of an expression if its node has one."""
    if expr.kind == "SUBLINK" and expr.number("subLinkType") == VALUE:
        return collation(targets(expr.child("subselect"))[0])
    return next((expr.number(field) for field in _COLLATIONS if field in expr.fields), None)


def fails(catalog: Catalog, expr: Node) -> bool:
    """Return whether evaluating ``expr`` may fail, as far as is known."""
    for node in expr.walk():
        if node.kind in ("OPEXPR", "SCALARARRAYOPEXPR"):
            operator = catalog.operators[node.number("opno")]
            if not operator.builtin or operator.name not in _COMPARISONS:
                return True
        elif node.kind == "AGGREF":
            function = catalog.functions[node.number("aggfnoid")]
            if not function.builtin or built_in(function.name).total is not Total.ANY:
                return True
        elif node.kind == "FUNCEXPR":
            if node.number("funcid") != _INT8_OF_INT4:
                return True
        elif node.kind not in _TOTAL or (node.kind == "SUBLINK" and _may_find_several(node)):
            return True
    return False


def _may_find_several(link: Node) -> bool:
    kind = link.number("subLinkType")
    return kind not in _TESTS and not (kind == VALUE and is_single(link.child("subselect")))


def always(expr: Node) -> set[int]:
    """Return the numbers of the parameters that are evaluated whenever ``expr`` is."""
    if expr.kind == "PARAM":
        return {expr.number("paramid")}
    if expr.kind == "CASEEXPR":
        first = expr.node("arg") or expr.nodes("args")[0].child("expr")
        return always(first)
    if expr.kind in ("BOOLEXPR", "COALESCEEXPR"):
        return always(expr.nodes("args")[0])
    function = expr.number("funcid") or expr.number("opfuncid")
    if expr.kind in ("OPEXPR", "FUNCEXPR") and function < FIRST_USER_OID:
        # A strict function is not called for NULL, but all its arguments are evaluated.
        return set().union(*map(always, expr.nodes("args")))
    if expr.kind in ("RELABELTYPE", "COERCEVIAIO", "NULLTEST", "BOOLEANTEST", "COERCETODOMAIN"):
        return always(expr.child("arg"))
    return set()


def unlabelled(value: object) -> object:
    """Return a tree without the names of columns and tables."""
    if isinstance(value, list):
        return [unlabelled(each) for each in value]
    if not isinstance(value, Node):
        return value
    fields = {k: unlabelled(v) for k, v in value.fields.items() if k not in _LABELS}
    return Node(value.kind, fields)
