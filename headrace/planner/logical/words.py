"""What the parts of a plan are called in SQL: messages to users have no other words for them."""

from __future__ import annotations

from typing import Final

from headrace.planner.logical.nodes import (
    AgainNode,
    AggregateNode,
    ApplyNode,
    DistinctNode,
    ExpandNode,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    ProjectNode,
    RecursiveNode,
    ScanNode,
    SetOpNode,
    TemporalNode,
    TopKNode,
    UnionNode,
    ValuesNode,
    WindowNode,
    WorkTableNode,
)

_JOINS: Final = {
    "inner": "a join",
    "left": "a LEFT or RIGHT JOIN",
    "full": "a FULL JOIN",
    "semi": "IN, ANY or EXISTS",
    "anti": "NOT IN, ALL or NOT EXISTS",
}


_CONSTRUCTS: Final[dict[type[Node], str]] = {
    ScanNode: "a table",
    ValuesNode: "VALUES",
    FilterNode: "WHERE or HAVING",
    ProjectNode: "a select list",
    AgainNode: "a select list",
    DistinctNode: "DISTINCT",
    UnionNode: "UNION",
    TopKNode: "ORDER BY with LIMIT, or DISTINCT ON,",
    WindowNode: "a window function",
    FunctionsNode: "a set-returning function",
    ExpandNode: "GROUPING SETS",
    TemporalNode: "a comparison with the clock",
    WorkTableNode: "a recursive query's reference to itself",
    RecursiveNode: "another WITH RECURSIVE",
}


def construct(node: Node) -> str:
    """The construct of a query that ``node`` stands for."""
    match node:
        case JoinNode() | ApplyNode():
            return _JOINS[node.kind]
        case AggregateNode():
            return "GROUP BY" if node.keys else "an aggregate without GROUP BY"
        case SetOpNode():
            return f"{node.kind.upper()}{' ALL' if node.all else ''}"
        case _:
            return _CONSTRUCTS[type(node)]
