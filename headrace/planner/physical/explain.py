"""EXPLAIN text: one line per node, indented, the same for the same plan always."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.collections import plan as physical
from headrace.planner.logical.estimates import ExpectedSize
from headrace.planner.logical.nodes import (
    AgainNode,
    Agg,
    AggregateNode,
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
from headrace.planner.logical.scalar import Expr, Ref, show

_INDENT: Final = "  "
_OPERATOR: Final = re.compile(r"OPERATOR\(pg_catalog\.([^)]+)\)")


def explain_logical(node: Node) -> str:
    """Text of a logical plan."""
    return "\n".join(_lines(node, 0, set()))


def _lines(node: Node, depth: int, shown: set[int]) -> Iterable[str]:
    yield _INDENT * depth + describe(node)
    below = children(node)
    if isinstance(node, AgainNode) and node.number not in shown:
        shown.add(node.number)
        below = (node.plan,)
    for child in below:
        yield from _lines(child, depth + 1, shown)


def _all(exprs: Iterable[Expr]) -> str:
    parts = list(exprs)
    return " AND ".join(show(e, nested=len(parts) > 1) for e in parts)


def describe(node: Node) -> str:  # noqa: C901  one case per node
    """One line of EXPLAIN."""
    match node:
        case ScanNode():
            return _scan(node)
        case ValuesNode():
            return f"Values [{_names(node)}] {len(node.rows)} rows"
        case FilterNode():
            return f"Filter {_all(node.predicates)}"
        case ProjectNode():
            return f"Project [{', '.join(_item(c.name, e) for c, e in node.items)}]"
        case JoinNode(kind="inner") if not node.condition:
            return "CrossJoin"
        case JoinNode():
            return f"{node.kind.capitalize()}Join {_all(node.condition)}".rstrip()
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


def _item(name: str, expr: Expr) -> str:
    text = show(expr)
    if isinstance(expr, Ref) and text.rsplit(".", 1)[-1].split("(")[0] == name:
        return text if "(" not in text else f"{text} AS {name}"
    return f"{text} AS {name}"


def _scan(node: ScanNode) -> str:
    name = f"{node.table.schema}.{node.table.name}"
    alias = f" AS {node.alias}" if node.alias != node.table.name else ""
    text = f"Scan {name}{alias} [{_names(node)}]"
    if node.predicates:
        text += f" filter {_all(node.predicates)}"
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


# -- physical

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
    "Sink": "O(changed result rows)",
}


def explain_physical(
    plan: physical.PhysicalPlan,
    type_name: Callable[[int], str],
    sizes: Mapping[str, ExpectedSize] | None = None,
) -> str:
    """Text of a physical plan: columns with types, state and cost class per node.

    ``sizes`` of the nodes' rows, where they are known, say how large the states will be.
    """
    shown: set[str] = set()

    def lines(node: physical.Node, depth: int) -> Iterable[str]:
        again = node.id in shown
        shown.add(node.id)
        head = _INDENT * depth + f"{node.id} {physical.kind(type(node))}"
        if again:
            yield f"{head} (shared, see above)"
            return
        columns = ", ".join(f"{f.name} {type_name(f.oid)}" for f in node.schema)
        yield f"{head} {_detail(node)}".rstrip() + (
            f" ({columns}) state: {_state(node)}{_expected(node, sizes or {})}; cost: {_cost(node)}"
        )
        for name in physical.inputs(node):
            yield from lines(plan.node(name), depth + 1)

    return "\n".join(lines(plan.sink, 0))


def _expected(node: physical.Node, sizes: Mapping[str, ExpectedSize]) -> str:
    """How large the state of ``node`` will be, if that is known."""
    if _state(node) == "none" or isinstance(node, physical.RecursiveSpec):
        return ""
    own = isinstance(node, physical.SourceSpec | physical.ReduceSpec | physical.DistinctSpec)
    names = (node.id,) if own else physical.inputs(node)
    found = [sizes[name] for name in names if name in sizes]
    if not names or len(found) < len(names):
        return ""
    count = sum(f.rows for f in found)
    kilobytes = sum(f.rows * f.width for f in found) / 1024
    return f", about {count:.0f} rows of {kilobytes:.0f} kB"


def _cost(node: physical.Node) -> str:
    if isinstance(node, physical.ReduceSpec) and any(
        a.function == "remote" for a in node.aggregates
    ):
        return "O(changes + rows of touched groups)"
    if isinstance(node, physical.WindowSpec) and node.native:
        return "O(changes + rows that become different)"
    if not isinstance(node, physical.TopKSpec):
        return _COST[physical.kind(type(node))]
    count = node.offset + (node.limit or 0)
    if all(item.native for item in node.order):
        return f"O(changes + {count} rows of touched groups)"
    return f"O(changes + {count} rows of touched groups, ordered by Postgres)"


def _detail(node: physical.Node) -> str:  # noqa: C901  one case per node
    match node:
        case physical.TopKSpec() | physical.WindowSpec():
            order = ", ".join(
                f"{item.column}{' DESC' if item.descending else ''}" for item in node.order
            )
            text = f"order [{order}]"
            if node.keys:
                text += f" by [{', '.join(map(str, node.keys))}]"
            if isinstance(node, physical.WindowSpec):
                calls = ", ".join(f"{c.sql} {c.frame}".rstrip() for c in node.calls)
                return f"[{calls}] {text}"
            if node.limit is not None:
                text += f" limit {node.limit}" + (" with ties" if node.ties else "")
            return text + (f" offset {node.offset}" if node.offset else "")
        case physical.SourceSpec():
            identity = (
                "full identity"
                if node.full_identity
                else "key " + ", ".join(k.name for k in node.key)
            )
            text = f"{node.schema_name}.{node.table_name} by {identity}"
            where = _where([c.name for c in node.columns], node.pushdown)
            if node.wanted and not where:
                where = f" where {len(node.wanted)} predicates are true"
            return text + where
        case physical.FeedSpec():
            return f"of view {node.view}{_where([f.name for f in node.schema], node.pushdown)}"
        case physical.FusedSpec():
            return " + ".join(physical.kind(type(s)) for s in node.steps)
        case physical.JoinSpec():
            pairs = zip(node.left_keys, node.right_keys, strict=True)
            keys = ", ".join(f"{a} = {b}" for a, b in pairs) or "cross product"
            extra = f" residual {len(node.residual)}" if node.residual else ""
            op = "" if node.op == "inner" else f"{node.op} "
            return f"{op}on {keys}{extra}"
        case physical.ReduceSpec():
            functions = ", ".join(a.sql or a.function for a in node.aggregates)
            keys = ", ".join(map(str, node.keys))
            return f"[{functions}] by [{keys}]"
        case physical.RecursiveSpec():
            union = "union" if node.distinct else "union all"
            return f"{union}, step: {', '.join(_inner(n) for n in node.step)}"
        case physical.FlatMapSpec():
            more = " with ordinality" if node.ordinality else ""
            return ", ".join(node.calls) + more + (" outer" if node.outer else "")
        case physical.SetOpSpec():
            return f"{node.op}{' all' if node.all else ''}"
        case physical.ExpandSpec():
            sets = ("(" + ", ".join(str(node.keys[k]) for k in s) + ")" for s in node.sets)
            return f"to {', '.join(sets)}"
        case physical.TemporalSpec():
            return f"{len(node.tests)} comparisons with the clock"
        case physical.ValuesSpec():
            return f"{len(node.rows)} rows"
        case _:
            return ""


def _where(names: Sequence[str], pushdown: Sequence[str]) -> str:
    """Which rows of a table with such columns are read, where not all are."""
    if not pushdown:
        return ""
    parts = [names[int(part)] if number % 2 else part for number, part in enumerate(pushdown)]
    return " where " + _OPERATOR.sub(r"\1", "".join(parts))


def _inner(node: physical.Node) -> str:
    return f"{node.id} {_detail(node)}".strip()


def _state(node: physical.Node) -> str:
    match node:
        case physical.SourceSpec():
            rows = "wanted" if node.wanted else "all"
            return f"{rows} rows of the table, columns above"
        case physical.JoinSpec():
            if node.left_only and not node.residual:
                return "all rows of the left, one entry per key of the right"
            more = ", pairs per row" if node.watched and node.residual else ""
            return f"all rows of both sides{more}"
        case physical.ReduceSpec():
            kept = {a.function for a in node.aggregates} & {"min", "max", "any", "single", "remote"}
            values = any(a.distinct for a in node.aggregates)
            more = " and values" if kept or values else ""
            return f"one entry per group{more}"
        case physical.TemporalSpec():
            return "all rows, by the time they are compared with"
        case physical.DistinctSpec():
            return "one entry per distinct row"
        case physical.TopKSpec():
            return "all rows of the input"
        case physical.WindowSpec():
            return "all rows of the input and of the output"
        case physical.RecursiveSpec():
            own = "rows by iteration" if node.distinct else "none of its own"
            inner = [f"{n.id}: {_state(n)}" for n in node.step if _state(n) != "none"]
            return "; ".join([own, *inner])
        case physical.SetOpSpec():
            return "one entry per distinct row of either side"
        case _:
            return "none"
