"""Aggregates over a sorted subquery: ``SELECT array_agg(x) FROM (SELECT x … ORDER BY y) s``.

SQL gives the input of an aggregate no order but that of its own ORDER BY, yet Postgres feeds it the
rows as the only FROM item yields them, and its manual says so.  So such an aggregate is bound as
``array_agg(x ORDER BY y)``, in the parse tree: what the subquery sorts by becomes one more column of it,
which nobody can name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.planner import functions
from headrace.planner.catalog import FIRST_USER_OID, Catalog
from headrace.planner.check import SUBQUERY
from headrace.planner.nodetree import Node

_ORDERED: Final = ("array_agg", "string_agg", "json", "xmlagg")
"""Beginnings of the names of built-in aggregates that show the order of their input."""


def carry_order(tree: Node, catalog: Catalog) -> None:
    """Give aggregates over sorted subqueries, anywhere in ``tree``, their order."""
    for query in [n for n in tree.walk() if n.kind == "QUERY"]:
        calls = [c for c in _aggregates(query) if _shows_order(c, catalog)]
        found = _sorted_input(query) if calls else None
        if found is None:
            continue
        number, inner = found
        entries = _sort_entries(inner)
        if any(_refused(e, catalog) for e, _ in entries):
            continue
        columns = _columns(inner, [e for e, _ in entries])
        for call in calls:
            _order(call, number, columns, [c for _, c in entries])


def _aggregates(query: Node) -> Iterator[Node]:
    """The aggregate calls of ``query`` itself."""
    stack: list[object] = [
        query.fields.get("targetList"),
        query.fields.get("havingQual"),
    ]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, Node) and value.kind != "QUERY":
            if value.kind == "AGGREF" and not value.number("agglevelsup"):
                yield value
            stack.extend(value.fields.values())


def _shows_order(call: Node, catalog: Catalog) -> bool:
    plain = call.text("aggkind") == "n" and call.nodes("args")
    if not plain or call.nodes("aggorder") or call.nodes("aggdistinct"):
        return False
    oid = call.number("aggfnoid")
    return oid >= FIRST_USER_OID or catalog.function(oid).name.startswith(_ORDERED)


def _sorted_input(query: Node) -> tuple[int, Node] | None:
    """(range-table index, query) of the only FROM item, if it is a sorted subquery."""
    items = query.child("jointree").nodes("fromlist")
    if len(items) != 1 or items[0].kind != "RANGETBLREF":
        return None
    number = items[0].number("rtindex")
    entry = query.nodes("rtable")[number - 1]
    inner = entry.node("subquery")
    if entry.number("rtekind") != SUBQUERY or inner is None:
        return None
    return (number, inner) if inner.nodes("sortClause") else None


def _sort_entries(inner: Node) -> list[tuple[Node, Node]]:
    """(target entry, sort clause) of what a query sorts by."""
    by_ref = {e.number("ressortgroupref"): e for e in inner.nodes("targetList")}
    clauses = inner.nodes("sortClause")
    return [(by_ref[c.number("tleSortGroupRef")], c) for c in clauses]


def _refused(entry: Node, catalog: Catalog) -> bool:
    """Whether the value of a sort column may not be maintained (``ORDER BY random()``)."""
    for node in entry.walk():
        if node.kind == "SQLVALUEFUNCTION":
            return True
        oid = node.number("funcid") or node.number("opfuncid")
        if oid and functions.refusal(catalog.function(oid)) is not None:
            return True
    return False


def _columns(inner: Node, entries: list[Node]) -> list[int]:
    """Numbers of the columns of ``inner`` that show ``entries``, all of them from now on."""
    for entry in entries:
        entry.fields["resjunk"] = "false"
    shown = [e for e in inner.nodes("targetList") if not e.flag("resjunk")]
    return [next(i for i, e in enumerate(shown, 1) if e is entry) for entry in entries]


def _order(call: Node, varno: int, columns: list[int], clauses: list[Node]) -> None:
    """Let ``call`` see its rows by ``columns`` of range-table entry ``varno``."""
    args = call.nodes("args")
    used = max(a.number("ressortgroupref") for a in args)
    order = []
    for place, (column, clause) in enumerate(zip(columns, clauses, strict=True), 1):
        fields: dict[str, object] = {
            "varno": str(varno),
            "varattno": str(column),
            "varlevelsup": "0",
        }
        entry: dict[str, object] = {
            "expr": Node("VAR", fields),
            "resno": str(len(args) + place),
            "ressortgroupref": str(used + place),
            "resjunk": "true",
        }
        args.append(Node("TARGETENTRY", entry))
        named: dict[str, object] = {"tleSortGroupRef": str(used + place)}
        order.append(Node("SORTGROUPCLAUSE", clause.fields | named))
    call.fields["args"] = args
    call.fields["aggorder"] = order
