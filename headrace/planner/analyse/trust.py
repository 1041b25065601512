"""User functions whose results depend on their arguments alone, whatever they are declared to be.

``CREATE FUNCTION`` declares a function VOLATILE unless told otherwise, so the declaration alone
says little.  Two sources say more: the option ``trust_stable``, in which the author of a view
names functions; and the body of an SQL function that Postgres stores analysed (``BEGIN ATOMIC``,
``RETURN``), where every function that it calls can be looked at.  A body that is stored as text is
not looked into: to analyse it can run code of its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.errors import UserError
from headrace.planner.analyse.nodetree import read_nodes
from headrace.postgres.connect import Connection

_RESOLVE: Final = """
SELECT CASE WHEN pg_catalog.strpos(n.name, '(') OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.to_regprocedure(n.name)::pg_catalog.oid
            ELSE pg_catalog.to_regproc(n.name)::pg_catalog.oid END::pg_catalog.int8
  FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS n(name, at) ORDER BY n.at"""
_BODY: Final = "SELECT p.prosqlbody::text FROM pg_catalog.pg_proc p WHERE p.oid = %s"
_CALLS: Final = ("funcid", "opfuncid", "aggfnoid", "winfnoid")
_OPAQUE: Final = frozenset(
    ("COERCEVIAIO", "SQLVALUEFUNCTION", "NEXTVALUEEXPR", "XMLEXPR", "JSONEXPR", "CURRENTOFEXPR")
)
"""Nodes whose value may depend on the session or the clock."""
_SELECT: Final = 1
"""``commandType`` of a query that changes nothing."""


def resolve(conn: Connection, names: Iterable[str]) -> frozenset[int]:
    """Return the OIDs of functions that option ``trust_stable`` names.

    Names have their schema, since the view is planned again later, under other search paths.

    Raises:
        UserError: 42883, there is no such function, or several; 22023, a name has no schema.
    """
    wanted = list(names)
    for name in wanted:
        if "." not in name.split("(")[0]:
            raise UserError(
                f'function "{name}" of option "trust_stable" must be named with its schema',
                hint=f"Write for example public.{name}.",
                sqlstate="22023",
            )
    found = [oid for (oid,) in conn.execute(_RESOLVE, (wanted,)).fetchall()] if wanted else []
    for name, oid in zip(wanted, found, strict=True):
        if oid is None:
            raise UserError(
                f'function "{name}" of option "trust_stable" does not exist, or is not unique',
                hint="Give its argument types: f(integer, text).",
                sqlstate="42883",
            )
    return frozenset(int(oid) for oid in found)


def body_is_stable(conn: Connection, oid: int, callable_: Callable[[int], bool]) -> bool:
    """Whether the stored body of an SQL function calls only what ``callable_`` accepts.

    False where the function has no stored body, reads a table, or has a part that is not known.
    """
    row: Any = conn.execute(_BODY, (oid,)).fetchone()
    if row is None or row[0] is None:
        return False
    text = str(row[0])  # BEGIN ATOMIC is a list of a list of statements, RETURN a statement.
    statements = text[1:-1] if text.startswith("((") else f"({text})"
    nodes = [node for root in read_nodes(statements) for node in root.walk()]
    queries = [node for node in nodes if node.kind == "QUERY"]
    if not queries or any(node.number("commandType") != _SELECT for node in queries):
        return False
    if any(node.kind == "RANGETBLENTRY" and node.number("relid") for node in nodes):
        return False
    if any(node.kind in _OPAQUE for node in nodes):
        return False
    called = {node.number(name) for node in nodes for name in _CALLS} - {0}
    return all(callable_(each) for each in called)
