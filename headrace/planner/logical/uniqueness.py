"""What is certain of a plan node's rows: at most one, exactly one; a column that is never NULL.

Only identity columns of a table count as not null: a NOT NULL constraint may be dropped under
a view, the row identity may not.
"""

from __future__ import annotations

from headrace.planner.logical.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    TopK,
    Values,
    Window,
    ids,
)
from headrace.planner.logical.scalar import Call, Expr, Ref, core, refs


def at_most_one(node: Node) -> bool:
    """Whether ``node`` has never more than one row (for one row of the outer queries)."""
    match node:
        case Values():
            return len(node.rows) <= 1
        case Aggregate():
            return not node.keys
        case TopK():
            return (
                not node.keys
                and node.limit is not None
                and node.limit <= 1
                and not node.ties
            ) or at_most_one(node.input)
        case Project() | Distinct() | Window():
            return at_most_one(node.input)
        case Filter():
            return at_most_one(node.input) or _by_key(node.input, node.predicates)
        case Join():
            if node.kind in ("semi", "anti"):
                return at_most_one(node.left)
            both = at_most_one(node.left) and at_most_one(node.right)
            return both and node.kind != "full"
        case _:
            return False


def _by_key(node: Node, predicates: tuple[Expr, ...]) -> bool:
    """Whether ``predicates`` fix the identity of the one table below."""
    while isinstance(node, Filter | Project):
        if isinstance(node, Filter):
            predicates += node.predicates
        elif not all(isinstance(e, Ref) and e.id == c.id for c, e in node.items):
            return False
        node = node.input
    if not isinstance(node, Scan) or node.table.full or not node.table.key:
        return False
    mine = ids(node)
    fixed = set()
    for predicate in predicates:
        if not isinstance(predicate, Call) or predicate.symbol != "=":
            continue
        if predicate.native is None:
            continue
        first, second = (core(a) for a in predicate.args)
        for one, other in ((first, second), (second, first)):
            if isinstance(one, Ref) and one.id in mine and not refs(other) & mine:
                fixed.add(one.id)
    keyed = {c.id for c, f in node.fields if f.attnum in node.table.key}
    return len(keyed) == len(node.table.key) and keyed <= fixed


def exactly_one(node: Node) -> bool:
    """Whether ``node`` has always exactly one row."""
    match node:
        case Values():
            return len(node.rows) == 1
        case Aggregate():
            return not node.keys
        case Project() | Distinct() | Window():
            return exactly_one(node.input)
        case Join():
            return (
                node.kind in ("inner", "left")
                and not node.condition
                and exactly_one(node.left)
                and exactly_one(node.right)
            )
        case _:
            return False


def not_null(node: Node, column: int) -> bool:
    """Whether the column of that id is never NULL."""
    match node:
        case Scan():
            fields = [f for c, f in node.fields if c.id == column]
            return not node.table.full and any(
                f.attnum in node.table.key for f in fields
            )
        case Filter():
            return not_null(node.input, column) or any(
                _rejects(p, column) for p in node.predicates
            )
        case Project():
            found = {c.id: e for c, e in node.items}.get(column)
            return isinstance(found, Ref) and (
                found.id in ids(node.input) and not_null(node.input, found.id)
            )
        case Join():
            sides = {
                "inner": (node.left, node.right),
                "full": (),
            }.get(node.kind, (node.left,))
            return any(column in ids(side) and not_null(side, column) for side in sides)
        case Aggregate():
            found = {c.id: e for c, e in node.keys}.get(column)
            if isinstance(found, Ref):
                return found.id in ids(node.input) and not_null(node.input, found.id)
            counts = ("count", "count_star")
            return any(
                a.column.id == column and a.function in counts for a in node.aggs
            )
        case Distinct() | TopK() | Window():
            return column in ids(node.input) and not_null(node.input, column)
        case _:
            return False


def _rejects(predicate: Expr, column: int) -> bool:
    """Whether ``predicate`` is not true where the column is NULL."""
    if not isinstance(predicate, Call) or predicate.native is None:
        return False
    if predicate.symbol not in ("=", "<>", "<", "<=", ">", ">=", "is_not_null"):
        return False
    args = (core(a) for a in predicate.args)
    return any(isinstance(a, Ref) and a.id == column for a in args)
