"""What is known to be true of every row of a plan node: shared by the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.planner.logical import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Node,
    Project,
    Scan,
    Union,
    ids,
)
from headrace.planner.scalar import Call, Expr, Ref, core, refs, substitute


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
            return predicate in node.condition or any(
                refs(predicate) <= ids(side) and entails(side, predicate)
                for side in (node.left, node.right)
            )
        case Distinct():
            return entails(node.input, predicate)
        case Aggregate():
            mapping = {c.id: e for c, e in node.keys}
            return refs(predicate) <= mapping.keys() and entails(
                node.input, substitute(predicate, mapping)
            )
        case Union():
            return all(
                entails(arm, substitute(predicate, _arm_columns(node, arm)))
                for arm in node.inputs
            )
        case _:
            return False


def _arm_columns(union: Union, arm: Node) -> dict[int, Expr]:
    return {o.id: c.ref for o, c in zip(union.columns, arm.columns, strict=True)}


def known(node: Node) -> list[Expr]:
    """Predicates that are true of every row of ``node``, over its output columns."""
    match node:
        case Scan():
            return list(node.predicates)
        case Filter():
            return [*known(node.input), *node.predicates]
        case Join():
            return [*known(node.left), *known(node.right), *node.condition]
        case Distinct():
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
