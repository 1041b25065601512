"""Replaces calls of SQL functions by their queries, as subqueries over the arguments.

The result of a function that reads tables does not depend only on its arguments; its query is a
subquery like any other.  A scalar call becomes the first row of the query, or NULL without a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace import types as t
from headrace.planner.analyse.check import CTE, FUNCTION, SUBQUERY
from headrace.planner.analyse.nodetree import Node
from headrace.planner.bodies import trees

_LEVELS: Final = {
    "VAR": "varlevelsup",
    "AGGREF": "agglevelsup",
    "GROUPINGFUNC": "agglevelsup",
    "RANGETBLENTRY": "ctelevelsup",
}
"""Field that holds the number of query levels between a node and its referent, by node kind."""
_EXTERNAL: Final = 0
"""``paramkind`` of a parameter of a function."""
_VALUE: Final = 4
"""``subLinkType`` of a subquery that stands for its value."""


def movable(value: object, level: int = 0) -> bool:
    """Return whether arguments mean the same inside a subquery; ``level``: query depth in them.

    An aggregate, a window function or a set-returning call belongs to the query with the call.
    """
    if isinstance(value, list):
        return all(movable(v, level) for v in value)
    if not isinstance(value, Node):
        return True
    if value.kind in ("AGGREF", "GROUPINGFUNC") and value.number("agglevelsup") >= level:
        return False
    if level == 0 and (value.flag("funcretset") or value.flag("opretset")):
        return False
    if value.kind == "NAMEDARGEXPR" or (value.kind == "WINDOWFUNC" and level == 0):
        return False
    level += value.kind == "QUERY"
    return all(movable(v, level) for v in value.fields.values())


def put_value(call: Node, query: Node, *, strict: bool) -> None:
    """Replace ``call`` by the value of the first row of ``query``; ``strict``: NULL for NULL.

    REQUIRES: its arguments are ``movable``.
    """
    arguments = call.nodes("args")
    inner = _bound(query, arguments, 0)
    assert isinstance(inner, Node), "a query is a node"
    if not trees.is_single(inner):
        inner.fields["limitCount"] = _one()
    link = Node(
        "SUBLINK",
        {
            **{"subLinkType": str(_VALUE), "subLinkId": "0", "testexpr": None, "operName": None},
            **{"subselect": inner, "location": "-1"},
        },
    )
    link = _collated(call, link)
    made = _unless_null(call, arguments, link) if strict and arguments else link
    call.kind, call.fields = made.kind, made.fields


def put_expression(call: Node, value: Node, *, strict: bool) -> None:
    """Replace ``call`` by the expression ``value``; ``strict``: NULL for NULL.

    REQUIRES: its arguments are ``movable``.
    """
    arguments = call.nodes("args")
    made = _bound(value, arguments, 0)
    assert isinstance(made, Node), "an expression is a node"
    made = _collated(call, made)
    if strict and arguments:
        made = _unless_null(call, arguments, made)
    call.kind, call.fields = made.kind, made.fields


def put_rows(entry: Node, query: Node) -> None:
    """Replace the function of a range-table entry by the subquery ``query``."""
    [item] = entry.nodes("functions")
    entry.fields["subquery"] = _bound(query, item.child("funcexpr").nodes("args"), 0)
    entry.fields["rtekind"] = str(SUBQUERY)
    del entry.fields["functions"]


def is_call(entry: Node) -> bool:
    """Return whether a range-table entry is a single set-returning function."""
    if entry.number("rtekind") != FUNCTION or entry.flag("funcordinality"):
        return False
    items = entry.nodes("functions")
    return (
        len(items) == 1
        and items[0].child("funcexpr").flag("funcretset")
        and not items[0].items("funccolnames")
    )


def _collated(call: Node, value: Node) -> Node:
    """Return ``value`` with the collation of the call's result, as Postgres inlines functions."""
    declared = call.number("funccollid")
    if declared in (0, trees.collation(value)):
        return value
    return Node("COLLATEEXPR", {"arg": value, "collOid": str(declared), "location": "-1"})


def _unless_null(call: Node, arguments: Sequence[Node], value: Node) -> Node:
    tests = [
        Node("NULLTEST", {"arg": a, "nulltesttype": "0", "argisrow": "false", "location": "-1"})
        for a in arguments
    ]
    kind, collation = call.number("funcresulttype"), call.number("funccollid")
    null: dict[str, object] = {
        **{"consttype": str(kind), "consttypmod": "-1", "constcollid": str(collation)},
        **{"constlen": "-1", "constbyval": "false", "constisnull": "true"},
        **{"location": "-1", "constvalue": None},
    }
    # Postgres has no OR of one test: the proof of an expression would not find it again.
    [test, *more] = tests
    if more:
        test = Node("BOOLEXPR", {"boolop": "or", "args": tests, "location": "-1"})
    when = {"expr": test, "result": Node("CONST", null), "location": "-1"}
    return Node(
        "CASEEXPR",
        {
            **{"casetype": str(kind), "casecollid": str(collation), "arg": None},
            **{"args": [Node("CASEWHEN", when)], "defresult": value, "location": "-1"},
        },
    )


def _one() -> Node:
    fields = {
        **{"consttype": str(t.INT8), "consttypmod": "-1", "constcollid": "0", "constlen": "8"},
        **{"constbyval": "true", "constisnull": "false", "location": "-1"},
    }
    return Node("CONST", {**fields, "constvalue": (1).to_bytes(8, "little")})


def _bound(value: object, arguments: Sequence[Node], depth: int) -> object:
    """Return a copy of ``value``, ``depth`` queries deep, with arguments for parameters."""
    if isinstance(value, list):
        return [_bound(v, arguments, depth) for v in value]
    if not isinstance(value, Node):
        return value
    if value.kind == "PARAM" and value.number("paramkind") == _EXTERNAL:
        return _moved(arguments[value.number("paramid") - 1], depth, 0)
    inner = depth + (value.kind == "QUERY")
    return Node(value.kind, {k: _bound(v, arguments, inner) for k, v in value.fields.items()})


def _moved(value: object, by: int, level: int) -> object:
    """Return a copy of ``value`` for use ``by`` query levels deeper; ``level``: depth in it."""
    if isinstance(value, list):
        return [_moved(v, by, level) for v in value]
    if not isinstance(value, Node):
        return value
    level += value.kind == "QUERY"
    fields = {k: _moved(v, by, level) for k, v in value.fields.items()}
    name = _LEVELS.get(value.kind)
    refers = value.kind != "RANGETBLENTRY" or value.number("rtekind") == CTE
    if name in fields and refers and value.number(name) >= level:
        fields[name] = str(value.number(name) + by)
    return Node(value.kind, fields)
