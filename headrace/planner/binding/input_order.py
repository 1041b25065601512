"""Aggregates over a sorted subquery: ``SELECT array_agg(x) FROM (SELECT x … ORDER BY y) s``.

SQL orders the input of an aggregate only by the aggregate's own ORDER BY.  Postgres however, as its
manual documents, feeds it the rows in the order of the only FROM item.  So such an aggregate is
rewritten in the parse tree to ``array_agg(x ORDER BY y)``: each sort expression becomes an
additional, hidden column of the subquery.  The order also passes through WITH queries, and through
subqueries that preserve it.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.check import CTE, SUBQUERY
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical import alignment
from headrace.planner.scalars import functions

Env = tuple[dict[str, Node], ...]
"""WITH queries by name, per query level, outermost first."""


def carry_order(tree: Node, catalog: Catalog) -> None:
    """Give aggregates over sorted subqueries, anywhere in ``tree``, their order."""
    seen: set[int] = set()
    for query in _queries(tree):
        _visit(query, (), catalog, seen)


def _visit(query: Node, env: Env, catalog: Catalog, seen: set[int]) -> None:
    """Visit ``query``; ``seen`` has the visited queries, as a view's query may occur repeatedly."""
    if id(query) in seen:
        return
    seen.add(id(query))
    ctes = {c.text("ctename") or "": c for c in query.nodes("cteList")}
    env = (*env, ctes)
    for inner in _queries(*query.fields.values()):
        _visit(inner, env, catalog, seen)
    calls = [c for c in _aggregates(query) if _shows_order(c, catalog)]
    found = _input(query, env) if calls else None
    if found is None:
        return
    number, inner, inner_env = found
    if not _maintained(inner, inner_env, catalog):
        return
    columns = _sorted_by(inner, inner_env)
    for call in calls:
        _order(call, number, columns)


def _queries(*values: object) -> Iterator[Node]:
    """Yield the outermost queries in ``values``."""
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, Node) and value.kind == "QUERY":
            yield value
        elif isinstance(value, Node):
            stack.extend(value.fields.values())


def _aggregates(query: Node) -> Iterator[Node]:
    """Yield the aggregate calls of ``query`` itself."""
    stack: list[object] = [query.fields.get("targetList"), query.fields.get("havingQual")]
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
    return alignment.shows_order(catalog.functions[call.number("aggfnoid")])


def _input(query: Node, env: Env) -> tuple[int, Node, Env] | None:
    """Return (range-table index, query, its Env) of the only FROM item, if that is a query."""
    items = query.child("jointree").nodes("fromlist")
    if len(items) != 1 or items[0].kind != "RANGETBLREF":
        return None
    number = items[0].number("rtindex")
    entry = query.nodes("rtable")[number - 1]
    if entry.number("rtekind") == SUBQUERY:
        return number, entry.child("subquery"), env
    if entry.number("rtekind") != CTE:
        return None
    owner = len(env) - 1 - entry.number("ctelevelsup")
    cte = env[owner].get(entry.text("ctename") or "") if owner >= 0 else None
    if cte is None or cte.flag("cterecursive"):
        return None
    return number, cte.child("ctequery"), env[: owner + 1]


def _passes_on(query: Node) -> bool:
    """Return whether the rows of ``query`` keep the order of its input."""
    lists = ("groupClause", "groupingSets", "distinctClause", "windowClause")
    nodes = ("setOperations", "havingQual", "limitCount", "limitOffset")
    return (
        not any(map(query.nodes, lists))
        and not any(map(query.node, nodes))
        and not query.flag("hasAggs")
        and not query.flag("hasTargetSRFs")
    )


def _maintained(query: Node, env: Env, catalog: Catalog) -> bool:
    """Return whether ``query`` is sorted by columns that can be maintained."""
    env = (*env, {c.text("ctename") or "": c for c in query.nodes("cteList")})
    if query.nodes("sortClause"):
        return not any(_refused(e, catalog) for e, _ in _sort_entries(query))
    found = _input(query, env) if _passes_on(query) else None
    return found is not None and _maintained(found[1], found[2], catalog)


def _sorted_by(query: Node, env: Env) -> list[tuple[int, Node]]:
    """Make the sort columns of ``query`` visible; return (column number, sort clause) of each."""
    env = (*env, {c.text("ctename") or "": c for c in query.nodes("cteList")})
    if query.nodes("sortClause"):
        entries = _sort_entries(query)
        columns = _columns(query, [e for e, _ in entries])
        return list(zip(columns, (c for _, c in entries), strict=True))
    found = _input(query, env)
    assert found is not None, "_maintained has seen it"
    number, inner, inner_env = found
    made = []
    targets = query.nodes("targetList")
    for column, clause in _sorted_by(inner, inner_env):
        entry = Node("TARGETENTRY", {"expr": _var(number, column), "resjunk": "false"})
        targets.append(entry)
        made.append((entry, clause))
    query.fields["targetList"] = targets
    columns = _columns(query, [e for e, _ in made])
    return list(zip(columns, (c for _, c in made), strict=True))


def _sort_entries(inner: Node) -> list[tuple[Node, Node]]:
    """Return (target entry, sort clause) per sort item of a query."""
    by_ref = {e.number("ressortgroupref"): e for e in inner.nodes("targetList")}
    clauses = inner.nodes("sortClause")
    return [(by_ref[c.number("tleSortGroupRef")], c) for c in clauses]


def _refused(entry: Node, catalog: Catalog) -> bool:
    """Return whether a sort column cannot be maintained (``ORDER BY random()``)."""
    for node in entry.walk():
        if node.kind == "SQLVALUEFUNCTION":
            return True
        oid = node.number("funcid") or node.number("opfuncid")
        if oid and functions.refusal(catalog.functions[oid]) is not None:
            return True
    return False


def _columns(inner: Node, entries: list[Node]) -> list[int]:
    """Make ``entries`` visible columns of ``inner``, and return their numbers."""
    for entry in entries:
        entry.fields["resjunk"] = "false"
    shown = [e for e in inner.nodes("targetList") if not e.flag("resjunk")]
    return [next(i for i, e in enumerate(shown, 1) if e is entry) for entry in entries]


def _var(varno: int, column: int) -> Node:
    return Node("VAR", {"varno": str(varno), "varattno": str(column), "varlevelsup": "0"})


def _order(call: Node, varno: int, columns: list[tuple[int, Node]]) -> None:
    """Add ORDER BY ``columns`` of range-table entry ``varno`` to ``call``."""
    args = call.nodes("args")
    used = max(a.number("ressortgroupref") for a in args)
    order = []
    for place, (column, clause) in enumerate(columns, 1):
        entry: dict[str, object] = {
            "expr": _var(varno, column),
            "resno": str(len(args) + 1),
            "ressortgroupref": str(used + place),
            "resjunk": "true",
        }
        args.append(Node("TARGETENTRY", entry))
        named: dict[str, object] = {"tleSortGroupRef": str(used + place)}
        order.append(Node("SORTGROUPCLAUSE", clause.fields | named))
    call.fields["args"] = args
    call.fields["aggorder"] = order
