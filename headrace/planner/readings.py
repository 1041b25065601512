"""Comparison of two trees of one text: a parser's tree, for display, and Postgres' bound tree.

The parser's tree is never planned.  Its names are annotated with what Postgres resolved them to,
where that is unambiguous.  To check the tree, it is written as SQL and bound again: Postgres must
find the two bound trees equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.planner.analyse import nodetree, query_errors, session
from headrace.planner.analyse.nodetree import Node
from headrace.planner.graph import Graph, GraphNode
from headrace.planner.request import PlanRequest
from headrace.postgres.connect import Connection

AST = "ast"
"""The stage of that name."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a bound query, as one of its FROM clauses calls it."""

    alias: str
    oid: int
    shown: str
    """Its name, qualified and quoted where it must be."""
    columns: Mapping[str, int]
    """Numbers of its columns, by the names that they have there."""


@dataclass(frozen=True, slots=True)
class BoundText:
    """The bound tree of a text, and its relations."""

    tree: Node
    relations: tuple[Relation, ...]


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
        return BoundText(found.tree, tuple(_relations(conn, found.tree)))


def _relations(conn: Connection, tree: Node) -> Iterable[Relation]:
    found = [
        entry
        for entry in tree.walk()
        if entry.kind == "RANGETBLENTRY" and entry.number("relid") and entry.node("eref")
    ]
    rows = conn.execute(
        "SELECT c.oid::bigint, c.oid::regclass::text FROM pg_class c WHERE c.oid = ANY (%s::oid[])",
        ([entry.number("relid") for entry in found],),
    ).fetchall()
    names = {int(oid): str(name) for oid, name in rows}
    for entry in found:
        called = entry.child("eref")
        columns = [str(name) for name in called.items("colnames") if isinstance(name, str)]
        oid = entry.number("relid")
        yield Relation(
            called.text("aliasname") or "",
            oid,
            names.get(oid, str(oid)),
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
        HeadraceError: as ``bound``.
    """
    return _difference(conn, request, bound(conn, request), text) is None


def check(conn: Connection, request: PlanRequest) -> None:
    """Raise unless Postgres binds the query.

    Raises:
        HeadraceError: as ``bound``.
    """
    bound(conn, request)


def drawn(
    conn: Connection, request: PlanRequest, read: Iterable[Mapping[str, Any]], text: str
) -> Graph:
    """Return a parser's tree of the query (``reading.trees.plain``) with its names' relations.

    ``text``: the query as the parser writes it.

    Raises:
        HeadraceError: as ``bound``.
    """
    mine = bound(conn, request)
    differs = _difference(conn, request, mine, text)
    told = (
        "Postgres reads it alike"
        if differs is None
        else f"it is planned as Postgres reads it: {differs}"
    )
    return _annotated(read, mine, [told])


def _difference(conn: Connection, request: PlanRequest, mine: BoundText, text: str) -> str | None:
    """Return None if Postgres binds ``text`` to the same tree as ``mine``, else the difference."""
    try:
        other = bound(conn, PlanRequest(text, request.caller, request.settings))
    except HeadraceError as error:
        return f"Postgres refuses what the parser has read: {error.message}"
    if nodetree.same(mine.tree, other.tree):
        return None
    return "what the parser has read is written otherwise than it stands there"


def _annotated(read: Iterable[Mapping[str, Any]], mine: BoundText, told: Iterable[str]) -> Graph:
    nodes = [_node(data, mine) for data in read]
    return Graph(AST, nodes[0].id, tuple(nodes), notes=tuple(told))


def _node(data: Mapping[str, Any], mine: BoundText) -> GraphNode:
    more: dict[str, Any] = {}
    if "arg" in data:
        more["arg"] = data["arg"]
    if "at" in data:
        more["position"] = data["at"] + 1
    if "comments" in data:
        more["comments"] = data["comments"]
    detail = data["detail"]
    found = _found(data, mine.relations)
    if found is not None:
        relation, column = found
        more["oid"] = relation.oid
        more["relation"] = relation.shown
        said = relation.shown
        if column is not None:
            more["attnum"] = relation.columns[column]
            said = f"{said}.{column}"
        detail = f"{detail} = {said}"
    for comment in data.get("comments", ()):
        detail = f"{detail} -- {comment}".strip()
    return GraphNode(data["id"], data["kind"], detail, tuple(data["inputs"]), more=more or None)


def _found(
    data: Mapping[str, Any], relations: Iterable[Relation]
) -> tuple[Relation, str | None] | None:
    """Return what a table or column name refers to, if it is unambiguous in the whole query."""
    if "table" in data:
        mine = [r for r in relations if r.alias == data["alias"]]
        return _only([(r, None) for r in mine])
    if "column" in data:
        name, of = data["column"], data["of"]
        mine = [r for r in relations if name in r.columns and of in ("", r.alias)]
        return _only([(r, name) for r in mine])
    return None


def _only(
    found: list[tuple[Relation, str | None]],
) -> tuple[Relation, str | None] | None:
    return found[0] if len({(r.oid, r.alias) for r, _ in found}) == 1 else None
