"""What the parts of a plan are called in SQL: messages to users have no other words for them."""

from __future__ import annotations

from typing import Final

from headrace.planner.logical.nodes import (
    Again,
    Aggregate,
    Apply,
    Distinct,
    Expand,
    Filter,
    Functions,
    Join,
    Node,
    Project,
    Recursive,
    Scan,
    SetOp,
    Temporal,
    TopK,
    Union,
    Values,
    Window,
    WorkTable,
)

_JOINS: Final = {
    "inner": "a join",
    "left": "a LEFT or RIGHT JOIN",
    "full": "a FULL JOIN",
    "semi": "IN, ANY or EXISTS",
    "anti": "NOT IN, ALL or NOT EXISTS",
}


_CONSTRUCTS: Final[dict[type[Node], str]] = {
    Scan: "a table",
    Values: "VALUES",
    Filter: "WHERE or HAVING",
    Project: "a select list",
    Again: "a select list",
    Distinct: "DISTINCT",
    Union: "UNION",
    TopK: "ORDER BY with LIMIT, or DISTINCT ON,",
    Window: "a window function",
    Functions: "a set-returning function",
    Expand: "GROUPING SETS",
    Temporal: "a comparison with the clock",
    WorkTable: "a recursive query's reference to itself",
    Recursive: "another WITH RECURSIVE",
}


def construct(node: Node) -> str:
    """The construct of a query that ``node`` stands for."""
    match node:
        case Join() | Apply():
            return _JOINS[node.kind]
        case Aggregate():
            return "GROUP BY" if node.keys else "an aggregate without GROUP BY"
        case SetOp():
            return f"{node.kind.upper()}{' ALL' if node.all else ''}"
        case _:
            return _CONSTRUCTS[type(node)]
