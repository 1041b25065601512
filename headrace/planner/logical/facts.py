"""What is known to be true of every row of a plan node: shared by the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from headrace.planner.logical.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Functions,
    Join,
    Node,
    Project,
    Scan,
    SetOp,
    TopK,
    Union,
    Window,
    ids,
)
from headrace.planner.logical.scalar import Call, Expr, Ref, core, refs, substitute


@dataclass(frozen=True, slots=True)
class Equality:
    """``left = right`` between two columns."""

    left: Ref
    right: Ref
    collation: int

    def side(self, columns: frozenset[int]) -> tuple[Ref | None, Ref | None]:
        """(the column that is one of ``columns``, the other one)."""
        if self.left.id in columns:
            return self.left, self.right
        if self.right.id in columns:
            return self.right, self.left
        return None, None


def column_equalities(condition: Iterable[Expr]) -> Iterator[Equality]:
    """Equalities between two plain columns; native ones, hence of known meaning."""
    for predicate in condition:
        if (
            isinstance(predicate, Call)
            and predicate.symbol == "="
            and predicate.native is not None
        ):
            left, right = (core(a) for a in predicate.args)
            if isinstance(left, Ref) and isinstance(right, Ref):
                yield Equality(left, right, predicate.input_collation)


def entails(node: Node, predicate: Expr) -> bool:
    """Whether ``predicate`` is already checked by or below ``node``.

    Follows the way a filter takes on its way down (``rules.push_filters``), so that a rule
    which adds filters does not add one for ever.
    """
    match node:
        case Scan():
            return predicate in node.predicates
        case Filter():
            return predicate in node.predicates or entails(node.input, predicate)
        case Project():
            mapping = {c.id: e for c, e in node.items}
            return entails(node.input, substitute(predicate, mapping))
        case Join():
            # Of an outer join, the side that NULLs may stand in for promises nothing.
            sides = {"inner": (node.left, node.right), "full": ()}
            return (node.kind == "inner" and predicate in node.condition) or any(
                refs(predicate) <= ids(side) and entails(side, predicate)
                for side in sides.get(node.kind, (node.left,))
            )
        case Distinct():
            return entails(node.input, predicate)
        case Aggregate():
            mapping = {c.id: e for c, e in node.keys}
            return (
                not node.always
                and refs(predicate) <= mapping.keys()
                and entails(node.input, substitute(predicate, mapping))
            )
        case Union():
            return all(
                entails(arm, substitute(predicate, arm_columns(node, arm)))
                for arm in node.inputs
            )
        case SetOp():
            moved = substitute(predicate, arm_columns(node, node.left))
            return entails(node.left, moved)
        case TopK() | Window() | Functions():
            below = refs(predicate) <= ids(node.input)
            return below and entails(node.input, predicate)
        case _:
            return False


def arm_columns(node: Union | SetOp, arm: Node) -> dict[int, Expr]:
    """What the columns of ``node`` are in one of its inputs."""
    return {o.id: c.ref for o, c in zip(node.columns, arm.columns, strict=True)}


def known(node: Node) -> list[Expr]:
    """Predicates that are true of every row of ``node``, over its output columns."""
    match node:
        case Scan():
            return list(node.predicates)
        case Filter():
            return [*known(node.input), *node.predicates]
        case Join(kind="inner"):
            return [*known(node.left), *known(node.right), *node.condition]
        case Join(kind="full"):
            return []
        case Join(kind="semi"):
            mine = [p for p in node.condition if refs(p) <= ids(node.left)]
            return [*known(node.left), *mine]
        case Join():
            return known(node.left)
        case Distinct() | TopK() | Window() | Functions():
            return known(node.input)
        case Project():
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
    {
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "~~",
        "!~~",
        "~~*",
        "!~~*",
        "~",
        "!~",
        "~*",
        "!~*",
    }
)
"""Operators of Postgres' own that do, whatever their types."""


def rejects(predicate: Expr) -> frozenset[int]:
    """Columns that are not NULL wherever ``predicate`` is true."""
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
    """Columns for whose NULL ``expr`` is NULL."""
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
    return call.symbol in _STRICT_OPERATORS and (
        f"OPERATOR(pg_catalog.{call.symbol})" in call.sql
    )
