"""The two trees of a text: sqlglot's syntax tree, and the one that Postgres has analysed.

The front (``front/``) composes the query to be planned from both.  The syntax tree is shown with
the objects that Postgres has bound its nodes to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from headrace.errors import HeadraceError
from headrace.planner.analyse import nodetree, query_errors, session
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.nodetypes import type_of
from headrace.planner.analyse.session import BoundQuery
from headrace.planner.front.front import Composed, compose
from headrace.planner.front.names import Names, read
from headrace.planner.graph import Graph, GraphNode
from headrace.planner.request import PlanRequest
from headrace.postgres.connect import Connection

AST = "ast"
"""The stage of that name."""
ALIKE: Final = "Postgres reads it alike"
_STORED_MAX: Final = 5_000
"""Limit on nodes of a tree that is stored with its plan."""
_OBJECTS: Final = {
    "opno": "operator", "funcid": "function", "aggfnoid": "function", "winfnoid": "function",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a bound query, as one of its FROM clauses calls it."""

    alias: str
    oid: int
    columns: Mapping[str, int]
    """Numbers of its columns, by the names that they have there."""


@dataclass(frozen=True, slots=True)
class BoundText:
    """The bound tree of a text, and its relations."""

    tree: Node
    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Front:
    """The query of the front, and the stage that shows it."""

    tree: Node | None = None
    """None: Postgres' tree is planned."""
    graphs: tuple[Graph, ...] = ()


def composed(conn: Connection, request: PlanRequest, query: BoundQuery) -> Front:
    """Return ``query`` as the front composes it from the syntax tree of ``request``."""
    if request.syntax is None:
        if not request.unread:
            return Front()
        note = f"it is planned as Postgres reads it: {request.unread}"
        root = GraphNode("1", "Query", "not parsed")
        return Front(graphs=(Graph(AST, root.id, (root,), notes=(note,)),))
    names = read(conn, query.tree)
    found = compose(request.syntax, query.tree, names)
    if len(request.syntax) > _STORED_MAX:
        return Front(found.tree)
    return Front(found.tree, (_annotated(request.syntax, found, names, tuple(_relations(query))),))


def bound(conn: Connection, request: PlanRequest) -> BoundText:
    """Return the query as Postgres binds it for planning; nothing is left in the database.

    Raises:
        HeadraceError: Postgres refuses the query, or analysing it could run another owner's code.
    """
    with (
        query_errors.completed(request.query),
        session.binding(conn, request.caller, request.settings),
    ):
        session.bind_query(conn, request.query, request.caller)
        session.captured_settings(conn, request.settings)
        found = session.read_view(conn, request.query)
        # Up to Postgres 15 a view's own tree has the view itself in it, twice.  It has another OID
        # each time.
        for entry in found.tree.walk():
            if entry.kind == "RANGETBLENTRY" and entry.number("relid") == found.oid:
                entry.fields["relid"] = "0"
        conn.execute("RESET ROLE")
        return BoundText(found.tree, tuple(_relations(found)))


def _relations(query: BoundQuery) -> Iterable[Relation]:
    """Yield the relations that a query reads; up to Postgres 15 the view itself is in its tree."""
    for entry in query.tree.walk():
        read = entry.kind == "RANGETBLENTRY" and entry.number("relid") not in (0, query.oid)
        if read and entry.node("eref"):
            called = entry.child("eref")
            columns = [str(name) for name in called.items("colnames") if isinstance(name, str)]
            yield Relation(
                called.text("aliasname") or "",
                entry.number("relid"),
                {name: number for number, name in enumerate(columns, 1) if name},
            )


def schemas(conn: Connection, mine: BoundText) -> list[str]:
    """Return the schemas of the relations of a bound query, quoted where they must be."""
    rows = conn.execute(
        "SELECT DISTINCT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n"
        " ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[]) ORDER BY 1",
        ([relation.oid for relation in mine.relations],),
    ).fetchall()
    return [str(schema) for (schema,) in rows]


def alike(conn: Connection, request: PlanRequest, text: str) -> bool:
    """Return whether Postgres binds ``text`` to the same tree as the query.

    Raises:
        HeadraceError: Postgres refuses the query itself.
    """
    mine = bound(conn, request)
    try:
        other = bound(conn, PlanRequest(text, request.caller, request.settings))
    except HeadraceError:
        return False
    return nodetree.same(mine.tree, other.tree)


def check(conn: Connection, request: PlanRequest) -> None:
    """Raise unless Postgres binds the query.

    Raises:
        HeadraceError: as ``bound``.
    """
    bound(conn, request)


def drawn(conn: Connection, request: PlanRequest) -> Graph:
    """Return the syntax tree of ``request`` with the objects that its nodes are bound to.

    Raises:
        HeadraceError: as ``bound``.
    """
    mine = bound(conn, request)
    nodes = request.syntax or ()
    with session.reading(conn):
        session.pin(conn)
        names = read(conn, mine.tree)
    return _annotated(nodes, compose(nodes, mine.tree, names), names, mine.relations)


def renamed(conn: Connection, graph: Graph) -> Graph:
    """Return a stored tree with the current names of its relations."""
    oids = sorted({node.more["oid"] for node in graph.nodes if node.more and "oid" in node.more})
    with session.reading(conn):
        session.pin(conn)
        rows = conn.execute(
            "SELECT c.oid::int8, c.oid::regclass::text FROM pg_class c"
            " WHERE c.oid = ANY (%s::int8[]::oid[])",
            (oids,),
        ).fetchall()
    names = dict(rows)
    return structs.replace(graph, nodes=tuple(_renamed(node, names) for node in graph.nodes))


def _renamed(node: GraphNode, names: Mapping[int, str]) -> GraphNode:
    more = node.more or {}
    name = names.get(more.get("oid", 0))
    if name is None or name == more["relation"]:
        return node
    detail = node.detail.replace(f" = {more['relation']}", f" = {name}")
    return structs.replace(node, detail=detail, more={**more, "relation": name})


def _annotated(
    nodes: Iterable[Mapping[str, Any]],
    found: Composed,
    names: Names,
    relations: tuple[Relation, ...],
) -> Graph:
    note = ALIKE
    if found.tree is None:
        at = "" if found.at is None else f" (position {found.at + 1})"
        note = f"it is planned as Postgres reads it: {found.differs}{at}"
    coercions: dict[str, list[str]] = {}
    for inside, coercion in found.walk.coercions:
        coercions.setdefault(inside, []).append(_kind(coercion, names))
    made = tuple(_node(data, found, names, relations, coercions) for data in nodes)
    return Graph(AST, made[0].id, made, notes=(note,))


def _node(
    data: Mapping[str, Any],
    found: Composed,
    names: Names,
    relations: tuple[Relation, ...],
    coercions: Mapping[str, list[str]],
) -> GraphNode:
    more: dict[str, Any] = {}
    if "arg" in data:
        more["arg"] = data["arg"]
    if "at" in data:
        more["position"] = data["at"] + 1
    if "comments" in data:
        more["comments"] = data["comments"]
    detail = data["detail"]
    said = _place(data, found, names, relations, more)
    if (node := found.walk.bound.get(data["id"])) is not None:
        more |= _objects(node, names)
        if data["id"] in coercions:
            more["coercions"] = coercions[data["id"]]
    if said:
        detail = f"{detail} = {said}"
    for comment in data.get("comments", ()):
        detail = f"{detail} -- {comment}".strip()
    return GraphNode(data["id"], data["kind"], detail, tuple(data["inputs"]), more=more or None)


def _objects(node: Node, names: Names) -> dict[str, Any]:
    """Return the operator, the function and the type of a node of Postgres' tree."""
    out: dict[str, Any] = {}
    for field, kind in _OBJECTS.items():
        if field in node.fields:
            out[kind] = names.of(kind, node.number(field)).shown
    if (oid := type_of(node)) is not None:
        out["type"] = names.of("type", oid).shown
    return out


def _kind(coercion: Node, names: Names) -> str:
    """Return the function of a coercion, or else its type."""
    told = _objects(coercion, names)
    return str(told.get("function") or told.get("operator") or told.get("type", ""))


def _place(
    data: Mapping[str, Any],
    found: Composed,
    names: Names,
    relations: tuple[Relation, ...],
    more: dict[str, Any],
) -> str:
    """Enter the relation and the column of a node, and return their names."""
    oid, column = 0, ""
    node = found.walk.bound.get(data["id"])
    if data["id"] in found.walk.places:
        entry, number = found.walk.places[data["id"]]
        called = entry.child("eref").items("colnames")
        if oid := entry.number("relid"):
            column = str(called[number - 1]) if 0 < number <= len(called) else ""
            more["attnum"] = number
    elif node is not None and node.kind == "RANGETBLENTRY":
        oid = node.number("relid")
    elif (only := _unambiguous(data, relations)) is not None:
        oid, column = only[0].oid, only[1]
        if column:
            more["attnum"] = only[0].columns[column]
    if not oid:
        return ""
    more["oid"], more["relation"] = oid, names.of("relation", oid).shown
    if column:
        more["column"] = column
    return f"{more['relation']}.{column}" if column else str(more["relation"])


def _unambiguous(
    data: Mapping[str, Any], relations: tuple[Relation, ...]
) -> tuple[Relation, str] | None:
    """Return the object of a name that has only one in the whole query, as far as it is bound."""
    found: list[tuple[Relation, str]] = []
    if "table" in data:
        found = [(r, "") for r in relations if r.alias == data["alias"]]
    elif "column" in data:
        name, of = data["column"], data["of"]
        found = [(r, name) for r in relations if name in r.columns and of in ("", r.alias)]
    return found[0] if len({(r.oid, r.alias) for r, _ in found}) == 1 else None
