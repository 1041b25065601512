"""Facts about plan nodes: predicates that hold for their rows, row counts, and possible failures.

Only identity columns of a table count as not null: a NOT NULL constraint may be dropped under a
view, the row identity may not.  The key of a result table may rely on such a constraint: a NULL
that comes later stops the view, which is then filled anew with another key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.collections.aggregate_traits import NATIVE, Empty
from headrace.planner.logical import nodes
from headrace.planner.logical.scalar import (
    CLOCK,
    Call,
    Const,
    Expr,
    Ref,
    any_call,
    core,
    reads_clock,
    references,
    refs,
    substitute,
)


@dataclass(frozen=True, slots=True)
class Equality:
    """``left = right`` between two columns."""

    left: Ref
    right: Ref
    collation: int

    def side(self, columns: frozenset[int]) -> tuple[Ref | None, Ref | None]:
        """Return the column that is one of ``columns``, and the other one."""
        if self.left.id in columns:
            return self.left, self.right
        if self.right.id in columns:
            return self.right, self.left
        return None, None


def column_equalities(condition: Iterable[Expr]) -> Iterator[Equality]:
    """Yield the native equalities between two plain columns; only their meaning is known."""
    for predicate in condition:
        if isinstance(predicate, Call) and predicate.symbol == "=" and predicate.native is not None:
            left, right = (core(a) for a in predicate.args)
            if isinstance(left, Ref) and isinstance(right, Ref):
                yield Equality(left, right, predicate.input_collation)


def entails(node: nodes.Node, predicate: Expr) -> bool:
    """Return whether ``predicate`` is already checked by or below ``node``.

    Follows the way a filter takes on its way down (``rules.push_filters``), so that a rule which
    adds filters does not add one for ever.
    """
    match node:
        case nodes.ScanNode():
            return predicate in node.predicates
        case nodes.FilterNode():
            return predicate in node.predicates or entails(node.input, predicate)
        case nodes.ProjectNode():
            mapping = {c.id: e for c, e in node.items}
            return entails(node.input, substitute(predicate, mapping))
        case nodes.JoinNode():
            # The nullable side of an outer join guarantees nothing.
            sides = {"inner": (node.left, node.right), "full": ()}
            return (node.kind == "inner" and predicate in node.condition) or any(
                refs(predicate) <= nodes.ids(side) and entails(side, predicate)
                for side in sides.get(node.kind, (node.left,))
            )
        case nodes.DistinctNode():
            return entails(node.input, predicate)
        case nodes.AggregateNode():
            mapping = {c.id: e for c, e in node.keys}
            return (
                not node.always
                and refs(predicate) <= mapping.keys()
                and entails(node.input, substitute(predicate, mapping))
            )
        case nodes.UnionNode():
            return all(
                entails(arm, substitute(predicate, arm_columns(node, arm))) for arm in node.inputs
            )
        case nodes.SetOpNode():
            moved = substitute(predicate, arm_columns(node, node.left))
            return entails(node.left, moved)
        case nodes.TopKNode() | nodes.WindowNode() | nodes.FunctionsNode():
            below = refs(predicate) <= nodes.ids(node.input)
            return below and entails(node.input, predicate)
        case _:
            return False


def arm_columns(node: nodes.UnionNode | nodes.SetOpNode, arm: nodes.Node) -> dict[int, Expr]:
    """Return the column of one input for each column of ``node``."""
    return {o.id: c.ref for o, c in zip(node.columns, arm.columns, strict=True)}


def known(node: nodes.Node) -> list[Expr]:
    """Return predicates that are true of every row of ``node``, over its output columns."""
    match node:
        case nodes.ScanNode():
            return list(node.predicates)
        case nodes.FilterNode():
            return [*known(node.input), *node.predicates]
        case nodes.JoinNode(kind="inner"):
            return [*known(node.left), *known(node.right), *node.condition]
        case nodes.JoinNode(kind="full"):
            return []
        case nodes.JoinNode(kind="semi"):
            mine = [p for p in node.condition if refs(p) <= nodes.ids(node.left)]
            return [*known(node.left), *mine]
        case nodes.JoinNode():
            return known(node.left)
        case nodes.DistinctNode() | nodes.TopKNode() | nodes.WindowNode() | nodes.FunctionsNode():
            return known(node.input)
        case nodes.ProjectNode():
            mapping: dict[int, Expr] = {}
            for column, expr in node.items:
                if isinstance(expr, Ref):
                    mapping.setdefault(expr.id, column.ref)
            facts = known(node.input)
            return [substitute(p, mapping) for p in facts if refs(p) <= mapping.keys()]
        case _:
            return []


_STRICT: Final = frozenset(
    {
        "=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "abs", "cast", "~~", "!~~",
        "substring", "left", "right", "strpos", "starts_with", "replace", "split_part",
        "extract", "date_part", "date_trunc", "to_char", "round", "trunc", "ceil", "floor", "numeric", "interval_+", "interval_-", "btrim", "ltrim", "rtrim", "ascii", "length", "octet_length",
    }
)  # fmt: skip
"""Kernels that give NULL for any NULL."""
_STRICT_OPERATORS: Final = frozenset(
    {*("=", "<>", "<", "<=", ">", ">="), *("~~", "!~~", "~~*", "!~~*", "~", "!~", "~*", "!~*")}
)
"""Built-in operators that are strict for all their types."""


def rejects(predicate: Expr) -> frozenset[int]:
    """Return columns that are not NULL wherever ``predicate`` is true."""
    if not isinstance(predicate, Call):
        return _nullifies(predicate)
    parts = [rejects(a) for a in predicate.args]
    match predicate.symbol:
        case "and":
            return frozenset().union(*parts)
        case "or":
            return frozenset.intersection(*parts)
        case "is_not_null" if predicate.native is not None:
            return _nullifies(predicate.args[0])
        case "is_true":
            return parts[0]
        case "= ANY" if "OPERATOR(pg_catalog.=)" in predicate.sql:
            return _nullifies(predicate.args[0])
        case _:
            return _nullifies(predicate)


def _nullifies(expr: Expr) -> frozenset[int]:
    """Return the columns whose NULL makes ``expr`` NULL."""
    match expr:
        case Ref():
            return frozenset((expr.id,))
        case Call() if _strict(expr):
            return frozenset().union(*(_nullifies(a) for a in expr.args))
        case _:
            return frozenset()


def _strict(call: Call) -> bool:
    if call.native is not None:
        return call.native in _STRICT or call.symbol == "not"
    return call.symbol in _STRICT_OPERATORS and (f"OPERATOR(pg_catalog.{call.symbol})" in call.sql)


def at_most_one(node: nodes.Node) -> bool:
    """Return whether ``node`` has never more than one row (for one row of the outer queries)."""
    match node:
        case nodes.ValuesNode():
            return len(node.rows) <= 1
        case nodes.AggregateNode():
            return not node.keys
        case nodes.TopKNode():
            return (
                not node.keys and node.limit is not None and node.limit <= 1 and not node.ties
            ) or at_most_one(node.input)
        case nodes.ProjectNode() | nodes.DistinctNode() | nodes.WindowNode():
            return at_most_one(node.input)
        case nodes.FilterNode():
            return at_most_one(node.input) or _by_key(node.input, node.predicates)
        case nodes.JoinNode():
            if node.kind in ("semi", "anti"):
                return at_most_one(node.left)
            both = at_most_one(node.left) and at_most_one(node.right)
            return both and node.kind != "full"
        case nodes.AgainNode():
            most = node.rows[1]
            return most is not None and most <= 1
        case _:
            return False


def _by_key(node: nodes.Node, predicates: tuple[Expr, ...]) -> bool:
    """Return whether ``predicates`` fix the identity of the one table below."""
    while isinstance(node, nodes.FilterNode | nodes.ProjectNode | nodes.AgainNode):
        if isinstance(node, nodes.AgainNode):
            predicates = _inside(node, predicates)
            node = node.plan
            continue
        if isinstance(node, nodes.FilterNode):
            predicates += node.predicates
        elif not all(isinstance(e, Ref) and e.id == c.id for c, e in node.items):
            return False
        node = node.input
    if not isinstance(node, nodes.ScanNode) or node.table.full or not node.table.key:
        return False
    mine = nodes.ids(node)
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


def _inside(node: nodes.AgainNode, predicates: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Return ``predicates`` over the named plan's columns; outer columns get unused ids."""
    names: dict[int, Expr] = {
        ref.id: dataclasses.replace(ref, id=ref.id - _FAR)
        for p in predicates
        for ref in references(p)
        if ref != CLOCK
    }
    names |= {c.id: dataclasses.replace(c.ref, id=i) for c, i in node.pairs}
    return tuple(substitute(p, names) for p in predicates)


_FAR: Final = 1 << 40
"""More than any column id."""


def exactly_one(node: nodes.Node) -> bool:
    """Return whether ``node`` has always exactly one row."""
    match node:
        case nodes.ValuesNode():
            return len(node.rows) == 1
        case nodes.AggregateNode():
            return not node.keys
        case nodes.ProjectNode() | nodes.DistinctNode() | nodes.WindowNode():
            return exactly_one(node.input)
        case nodes.JoinNode():
            return (
                node.kind in ("inner", "left")
                and not node.condition
                and exactly_one(node.left)
                and exactly_one(node.right)
            )
        case nodes.AgainNode():
            return node.rows == (1, 1)
        case _:
            return False


def not_null(node: nodes.Node, column: int, *, declared: bool = False) -> bool:
    """Return whether the column of that id is never NULL.

    ``declared``: NOT NULL constraints count, too.  They may be dropped under a view.
    """
    match node:
        case nodes.ScanNode():
            fields = [f for c, f in node.fields if c.id == column]
            identity = () if node.table.full else node.table.key
            return any(
                f.attnum in identity or (declared and node.table.column(f.attnum).not_null)
                for f in fields
            )
        case nodes.FilterNode():
            return not_null(node.input, column, declared=declared) or any(
                _rejects(p, column) for p in node.predicates
            )
        case nodes.ProjectNode():
            found = {c.id: e for c, e in node.items}.get(column)
            return isinstance(found, Ref) and (
                found.id in nodes.ids(node.input)
                and not_null(node.input, found.id, declared=declared)
            )
        case nodes.JoinNode():
            sides = {"inner": (node.left, node.right), "full": ()}.get(node.kind, (node.left,))
            return any(
                column in nodes.ids(side) and not_null(side, column, declared=declared)
                for side in sides
            )
        case nodes.AggregateNode():
            found = {c.id: e for c, e in node.keys}.get(column)
            if isinstance(found, Ref):
                return found.id in nodes.ids(node.input) and not_null(
                    node.input, found.id, declared=declared
                )
            return any(
                a.column.id == column and NATIVE[a.function].empty is Empty.ZERO for a in node.aggs
            )
        case nodes.DistinctNode() | nodes.TopKNode() | nodes.WindowNode():
            return column in nodes.ids(node.input) and not_null(
                node.input, column, declared=declared
            )
        case nodes.AgainNode():
            return not_null(node.plan, node.inside(column), declared=declared)
        case _:
            return False


def _rejects(predicate: Expr, column: int) -> bool:
    """Return whether ``predicate`` is not true if the column is NULL."""
    if not isinstance(predicate, Call) or predicate.native is None:
        return False
    if predicate.symbol not in ("=", "<>", "<", "<=", ">", ">=", "is_not_null"):
        return False
    args = (core(a) for a in predicate.args)
    return any(isinstance(a, Ref) and a.id == column for a in args)


_OVERFLOW: Final = frozenset(
    {
        *("+", "-", "*", "||", "abs", "pg_catalog.date_trunc", "pg_catalog.date_part"),
        *("pg_catalog.round", "pg_catalog.ceil", "pg_catalog.ceiling"),
        *("pg_catalog.floor",),
    }
)
_ZERO: Final = frozenset("0.-")


def fails(expr: Expr) -> bool:
    """Return whether ``expr`` may fail otherwise than by a number out of range."""
    return any_call(expr, _fails)


def _fails(call: Call) -> bool:
    if not call.raises or call.symbol in _OVERFLOW:
        return False
    if call.native is not None and call.symbol in ("/", "%"):
        divisor = call.args[1]
        if isinstance(divisor, Const):
            return divisor.text is not None and set(divisor.text) <= _ZERO
        return True
    # An expression of only the clock and constants is in range.
    return not reads_clock(call) or bool(refs(call))


def serious(node: nodes.Node) -> bool:
    """Return whether something in the plan may fail, so that it runs only for rows that ask for it.

    Numbers out of range do not count: each query that adds or multiplies would be computed by
    domain.
    """
    if isinstance(node, nodes.AgainNode):
        return node.fails
    return any(map(fails, nodes.expressions(node))) or any(map(serious, nodes.children(node)))
