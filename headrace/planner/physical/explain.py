"""Graphs of logical and physical plans for people (``planner/graph.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import structs

from headrace.collections import plan as physical
from headrace.collections.aggregate_traits import NATIVE
from headrace.planner import graph as graphs
from headrace.planner import limits
from headrace.planner.analyse.tables import Table, TableColumn
from headrace.planner.graph import Graph, GraphColumn, GraphNode
from headrace.planner.logical.estimates import ExpectedSize
from headrace.planner.logical.lineage import SAME, ColumnOrigin
from headrace.planner.logical.nodes import (
    AgainNode,
    Agg,
    AggregateNode,
    CalendarNode,
    Col,
    DistinctNode,
    ExpandNode,
    FilterNode,
    FunctionsNode,
    JoinNode,
    Node,
    OrderNode,
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
    children,
    kind,
)
from headrace.planner.logical.scalar import Expr, Ref, show, substitute
from headrace.planner.physical.columns import KEY_COLUMN
from headrace.planner.physical.extraction import own

LINEAGE: Final = "lineage"
"""The stage of that name."""


def explain_logical(node: Node) -> str:
    """Return the text of a logical plan, in lines of any width."""
    return graphs.text(logical_graph("logical", node), width=None)


def logical_graph(stage: str, plan: Node, type_name: Callable[[int], str] = lambda _: "") -> Graph:
    """Return a logical plan as a graph; a repeated subplan (``Again``) is in it once."""
    numbers = itertools.count(1)
    nodes: list[GraphNode] = []
    again: dict[int, str] = {}

    def add(node: Node) -> str:
        limits.check()
        name = str(next(numbers))
        place = len(nodes)
        kind, _, detail = describe(node).partition(" ")
        columns = tuple(GraphColumn(c.name, type_name(c.oid)) for c in node.columns)
        nodes.append(GraphNode(name, kind, detail, columns=columns))
        below = tuple(add(child) for child in children(node))
        if isinstance(node, AgainNode):
            if node.number not in again:
                again[node.number] = add(node.plan)
            below = (again[node.number],)
        nodes[place] = structs.replace(nodes[place], inputs=below)
        return name

    return Graph(stage, add(plan), tuple(nodes))


def conditions(exprs: Iterable[Expr]) -> str:
    """Return the conjunction of conditions as text."""
    parts = list(exprs)
    return " AND ".join(show(e, nested=len(parts) > 1) for e in parts)


def detail(node: Node) -> str:
    """Return the parameters of the collection that executes ``node``."""
    said = describe(node)
    if not isinstance(node, JoinNode):
        return said.partition(" ")[2]
    on = f"on {conditions(node.condition)}" if node.condition else "all with all"
    return on if node.kind == "inner" else f"{node.kind} {on}"


def read(table: Table, fields: Sequence[TableColumn], tests: Iterable[Expr]) -> str:
    """Describe the columns and rows of a table that a source reads."""
    key = "full" if table.full else ", ".join(table.column(number).name for number in table.key)
    columns = ", ".join(f.name for f in fields)
    return f"{table.schema}.{table.name} [{columns}] key {key}{_where(table, tests)}"


def fed(table: Table, tests: Iterable[Expr]) -> str:
    """Describe the rows of a view that a feed has."""
    return f"of view {table.view}{_where(table, tests)}"


def _where(table: Table, tests: Iterable[Expr]) -> str:
    names: dict[int, Expr] = {
        own(table, c.attnum): Ref(own(table, c.attnum), c.oid, label=c.name) for c in table.columns
    }
    said = conditions(substitute(e, names) for e in tests)
    return f" where {said}" if said else ""


def describe(node: Node) -> str:  # noqa: C901  one case per node
    """Return one line of EXPLAIN."""
    match node:
        case ScanNode():
            return _scan(node)
        case ValuesNode():
            return f"Values [{_names(node)}] {len(node.rows)} rows"
        case FilterNode():
            return f"Filter {conditions(node.predicates)}"
        case ProjectNode():
            return f"Project {items(node.items)}"
        case JoinNode(kind="inner") if not node.condition:
            return "CrossJoin"
        case JoinNode():
            return f"{node.kind.capitalize()}Join {conditions(node.condition)}".rstrip()
        case AggregateNode():
            return _aggregate(node)
        case ExpandNode():
            return _expand(node)
        case DistinctNode():
            return "Distinct"
        case UnionNode():
            return f"UnionAll [{_names(node)}]"
        case FunctionsNode():
            calls = ", ".join(show(e) for e in node.calls)
            more = " with ordinality" if node.ordinality is not None else ""
            return f"{'Outer' if node.outer else ''}Functions {calls}{more}"
        case WorkTableNode():
            return f"WorkTable {node.name} [{_names(node)}]"
        case RecursiveNode():
            kind = "Union" if node.distinct else "UnionAll"
            return f"Recursive{kind} {node.name} [{_names(node)}]"
        case SetOpNode():
            name = node.kind.capitalize() + ("All" if node.all else "")
            return f"{name} [{_names(node)}]"
        case TopKNode():
            return _topk(node)
        case WindowNode():
            return _window(node)
        case _:
            return _rare(node)


def _rare(node: Node) -> str:
    if isinstance(node, AgainNode):
        return f"Again {node.number} [{_names(node)}]"
    if isinstance(node, TemporalNode):
        return "Temporal [" + ", ".join(show(t.test) for t in node.tests) + "]"
    if isinstance(node, CalendarNode):
        return "Calendar [" + ", ".join(show(e) for _, e in node.values) + "]"
    return kind(node)


def _order(order: tuple[OrderNode, ...]) -> str:
    return ", ".join(
        show(o.column)
        + (" DESC" if o.descending else "")
        + (" NULLS FIRST" if o.nulls_first and not o.descending else "")
        + (" NULLS LAST" if o.descending and not o.nulls_first else "")
        for o in order
    )


def _topk(node: TopKNode) -> str:
    text = f"TopK [{_order(node.order)}]"
    if node.keys:
        text += f" by [{', '.join(map(show, node.keys))}]"
    if node.limit is not None:
        text += f" limit {node.limit}" + (" with ties" if node.ties else "")
    return text + (f" offset {node.offset}" if node.offset else "")


def _window(node: WindowNode) -> str:
    calls = ", ".join(f"{c.show} {c.frame}".rstrip() for c in node.calls)
    text = f"Window [{calls}]"
    if node.keys:
        text += f" by [{', '.join(map(show, node.keys))}]"
    if node.order:
        text += f" order [{_order(node.order)}]"
    return text


def _names(node: Node) -> str:
    return ", ".join(c.name for c in node.columns)


def items(pairs: Iterable[tuple[Col, Expr]]) -> str:
    """Return output columns and their expressions as text."""
    return f"[{', '.join(_item(c, e) for c, e in pairs)}]"


def _item(column: Col, expr: Expr) -> str:
    text, name = show(expr), column.name
    if column.id <= KEY_COLUMN:
        return text  # it has no name of its own
    if isinstance(expr, Ref) and text.rsplit(".", 1)[-1].split("(")[0] == name:
        return text if "(" not in text else f"{text} AS {name}"
    return f"{text} AS {name}"


def _scan(node: ScanNode) -> str:
    name = f"{node.table.schema}.{node.table.name}"
    alias = f" AS {node.alias}" if node.alias != node.table.name else ""
    text = f"Scan {name}{alias} [{_names(node)}]"
    if node.predicates:
        text += f" filter {conditions(node.predicates)}"
    return text


def _aggregate(node: AggregateNode) -> str:
    aggs = ", ".join(_agg(a) for a in node.aggs)
    keys = ", ".join(show(e) for _, e in node.keys)
    return f"Aggregate [{aggs}]" + (f" by [{keys}]" if node.keys else "")


def _expand(node: ExpandNode) -> str:
    names = [show(ref) for _, ref in node.keys]
    sets = [f"({', '.join(names[k] for k in sorted(s))})" for s in node.sets]
    return f"Expand {', '.join(sets)}"


def _agg(agg: Agg) -> str:
    text = agg.column.name if agg.function != "any" else f"any({agg.column.name})"
    return text + (f" FILTER ({show(agg.filter)})" if agg.filter is not None else "")


# -- lineage

Lineage = Sequence[tuple[str, Sequence[ColumnOrigin]]]
"""Origins of each column, by its name."""


def lineage_text(found: Lineage) -> str:
    """Return a line for each column."""
    return "\n".join(
        f"{name} <- {', '.join(map(_origin, origins)) or 'no table'}" for name, origins in found
    )


def _origin(origin: ColumnOrigin) -> str:
    column = f"{origin.schema}.{origin.table}.{origin.name or '*'}"
    return column if origin.how == SAME else f"{column} ({origin.how})"


def lineage_graph(found: Lineage) -> Graph:
    """Return a graph with columns of the query above those of tables."""
    columns: list[GraphNode] = []
    origins: dict[str, ColumnOrigin] = {}
    for number, (name, mine) in enumerate(found, 1):
        ids = {f"{o.oid}.{o.attnum}": o for o in mine}
        origins |= ids
        how = {place: o.how for place, o in ids.items()}
        columns.append(GraphNode(f"column_{number}", "Column", name, tuple(ids), more=how or None))
    tables = [
        GraphNode(place, "TableColumn", f"{o.schema}.{o.table}.{o.name or '*'}")
        for place, o in sorted(origins.items())
    ]
    root = GraphNode("query", "Query", inputs=tuple(c.id for c in columns))
    return Graph(LINEAGE, root.id, (root, *columns, *tables))


# -- physical

_ITERATION: Final = "iteration"
"""Text shown for the column of that name."""
_COST: Final = {
    "Source": "O(changes), one read per changed row",
    "Filter": "O(changes)",
    "Map": "O(changes)",
    "Fused": "O(changes)",
    "Union": "O(changes)",
    "Values": "once",
    "Feed": "O(changes)",
    "Expand": "O(changes × grouping sets)",
    "Join": "O(changes × matches)",
    "Reduce": "O(changes + touched groups)",
    "Distinct": "O(changes)",
    "SetOp": "O(changes)",
    "WorkTable": "O(changes)",
    "Recursive": "O(changes in all iterations)",
    "FlatMap": "O(changes × rows of the functions)",
    "Window": "O(touched partitions)",
    "Temporal": "O(changes + rows whose time has come)",
    "Calendar": "O(changes), O(rows) when a value changes",
    "Sink": "O(changed result rows)",
}


def physical_graph(
    plan: physical.PhysicalPlan,
    words: Mapping[str, str],
    type_name: Callable[[int], str],
    sizes: Mapping[str, ExpectedSize] | None = None,
) -> Graph:
    """Return a physical plan as a graph.

    ``words``: descriptions of nodes by id, from the builder.  ``sizes``: rows of nodes where known,
    from which the sizes of states are estimated.
    """
    nodes = []
    for node in reversed(plan.nodes):
        expected = _expected(node, sizes or {})
        state = _state(node)
        nodes.append(
            GraphNode(
                node.id,
                physical.kind(type(node)),
                _detail(node, words),
                physical.inputs(node),
                _columns(node, type_name),
                state,
                _cost(node),
                None if expected is None else round(expected.rows),
                None if expected is None else round(expected.rows * expected.width),
            )
        )
    return Graph("physical", plan.sink.id, tuple(nodes), named=True)


def _columns(node: physical.Node, type_name: Callable[[int], str]) -> tuple[GraphColumn, ...]:
    names = (f.name.replace(physical.ITERATION, _ITERATION) for f in node.schema)
    return tuple(
        GraphColumn(name, type_name(f.oid)) for name, f in zip(names, node.schema, strict=True)
    )


def _expected(node: physical.Node, sizes: Mapping[str, ExpectedSize]) -> ExpectedSize | None:
    """Return the expected size of the state of ``node``, if that is known."""
    if not _state(node) or isinstance(node, physical.RecursiveSpec):
        return None
    own = isinstance(node, physical.SourceSpec | physical.ReduceSpec | physical.DistinctSpec)
    names = (node.id,) if own else physical.inputs(node)
    found = [sizes[name] for name in names if name in sizes]
    if not names or len(found) < len(names):
        return None
    rows = sum(f.rows for f in found)
    return ExpectedSize(rows, round(sum(f.rows * f.width for f in found) / rows) if rows else 0)


def _cost(node: physical.Node) -> str:
    if isinstance(node, physical.ReduceSpec) and any(
        NATIVE[a.function].whole for a in node.aggregates
    ):
        return "O(changes + rows of touched groups)"
    if isinstance(node, physical.JoinSpec) and node.compared:
        return "O(changes + rows that gain or lose their match)"
    if isinstance(node, physical.WindowSpec) and node.native:
        return "O(changes + rows that become different)"
    if not isinstance(node, physical.TopKSpec):
        return _COST[physical.kind(type(node))]
    count = node.offset + (node.limit or 0)
    if all(item.native for item in node.order):
        return f"O(changes + {count} rows of touched groups)"
    return f"O(changes + {count} rows of touched groups, ordered by Postgres)"


def _detail(node: physical.Node, words: Mapping[str, str]) -> str:
    match node:
        case physical.SinkSpec():
            key = f" key {', '.join(node.key)}" if node.key else ""
            return f"[{', '.join(f.name for f in node.schema)}]{key}"
        case physical.RecursiveSpec():
            step = ", ".join(f"{n.id} {_detail(n, words)}".rstrip() for n in node.step)
            return f"{'union' if node.distinct else 'union all'}, step: {step}"
        case physical.SetOpSpec():
            return f"{node.op}{' all' if node.all else ''}"
        case physical.ValuesSpec():
            return f"{len(node.rows)} rows"
        case _:
            return words.get(node.id, "").replace(physical.ITERATION, _ITERATION)


def _state(node: physical.Node) -> str:
    """Return a description of the state; "": none."""
    match node:
        case physical.SourceSpec():
            return "wanted rows" if node.wanted else "all rows"
        case physical.JoinSpec():
            if node.compared:
                return "rows of the left in order, values of the right"
            if node.left_only and not node.residual:
                return "rows of the left, keys of the right"
            pairs = ", pairs" if node.watched and node.residual else ""
            return f"rows of both sides{pairs}"
        case physical.ReduceSpec():
            values = any(NATIVE[a.function].retained or a.distinct for a in node.aggregates)
            return "groups and values" if values else "groups"
        case physical.TemporalSpec():
            return "all rows, by time"
        case physical.DistinctSpec():
            return "distinct rows"
        case physical.TopKSpec() | physical.CalendarSpec():
            return "rows of the input"
        case physical.WindowSpec():
            return "rows and some values" if node.native else "rows of input and output"
        case physical.RecursiveSpec():
            own = ["rows by iteration"] if node.distinct else []
            inner = [f"{n.id}: {state}" for n in node.step if (state := _state(n))]
            return "; ".join([*own, *inner])
        case physical.SetOpSpec():
            return "distinct rows of both sides"
        case _:
            return ""
