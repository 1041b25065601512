"""SQL names of plan nodes, for messages to users."""

from __future__ import annotations

from typing import Final

from headrace.planner.logical import nodes

_JOINS: Final = {
    "inner": "a join",
    "left": "a LEFT or RIGHT JOIN",
    "full": "a FULL JOIN",
    "semi": "IN, ANY or EXISTS",
    "anti": "NOT IN, ALL or NOT EXISTS",
}


_CONSTRUCTS: Final[dict[type[nodes.Node], str]] = {
    nodes.ScanNode: "a table",
    nodes.ValuesNode: "VALUES",
    nodes.FilterNode: "WHERE or HAVING",
    nodes.ProjectNode: "a select list",
    nodes.AgainNode: "a select list",
    nodes.DistinctNode: "DISTINCT",
    nodes.UnionNode: "UNION",
    nodes.TopKNode: "ORDER BY with LIMIT, or DISTINCT ON,",
    nodes.WindowNode: "a window function",
    nodes.FunctionsNode: "a set-returning function",
    nodes.ExpandNode: "GROUPING SETS",
    nodes.TemporalNode: "a comparison with the clock",
    nodes.CalendarNode: "a value of the calendar",
    nodes.WorkTableNode: "a recursive query's reference to itself",
    nodes.RecursiveNode: "another WITH RECURSIVE",
}


def construct(node: nodes.Node) -> str:
    """Return the SQL construct that ``node`` stands for."""
    match node:
        case nodes.JoinNode() | nodes.ApplyNode():
            return _JOINS[node.kind]
        case nodes.AggregateNode():
            return "GROUP BY" if node.keys else "an aggregate without GROUP BY"
        case nodes.SetOpNode():
            return f"{node.kind.upper()}{' ALL' if node.all else ''}"
        case _:
            return _CONSTRUCTS[type(node)]
