"""UNION, INTERSECT and EXCEPT of one query level, with type conversion; VALUES."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.logical.nodes import Col, Node, ProjectNode, SetOpNode, UnionNode, ValuesNode
from headrace.planner.logical.scalar import Const, Expr
from headrace.planner.scalars import xml_values
from headrace.planner.scalars.coercions import convert
from headrace.planner.scalars.lower import Lowering

_KINDS: Final = {
    **dict.fromkeys(("1", "SETOP_UNION"), "union"),
    **dict.fromkeys(("2", "SETOP_INTERSECT"), "intersect"),
    **dict.fromkeys(("3", "SETOP_EXCEPT"), "except"),
}
"""SetOperation, as a number (Postgres 15 and older) or by name."""


@dataclasses.dataclass(frozen=True, slots=True)
class SetOperations:
    """Binds the tree of set operations of one query level.

    ``leaf`` binds an arm, ``column`` makes a new column, ``distinct`` removes duplicates (UNION
    without ALL).  ``require_keys`` refuses column types whose equality cannot be decided.
    """

    lowering: Lowering
    leaf: Callable[[Tree], Node]
    column: Callable[[str, Expr], Col]
    distinct: Callable[[Node, str], Node]
    require_keys: Callable[[Node, str], None]

    def bind(self, tree: Tree) -> Node:
        """Return the plan of ``tree``: a set operation, or an arm of one."""
        if tree.kind == "RANGETBLREF":
            return self.leaf(tree)
        kind = _KINDS.get(tree.text("op") or "")
        if tree.kind != "SETOPERATIONSTMT" or kind is None:
            self.lowering.refuse("this set operation")
        left, right = (
            self.converted(self.bind(tree.child(side)), tree) for side in ("larg", "rarg")
        )
        columns = self.columns(tree, [c.name for c in left.columns])
        if kind == "union":
            # A nested UNION ALL is merged; a UNION (DISTINCT) is not.
            arms = (a.inputs if isinstance(a, UnionNode) else (a,) for a in (left, right))
            union = UnionNode(tuple(one for each in arms for one in each), columns)
            return union if tree.flag("all") else self.distinct(union, "UNION")
        for arm in (left, right):
            self.require_keys(arm, kind.upper())
        return SetOpNode(kind, tree.flag("all"), left, right, columns)

    def columns(self, tree: Tree, names: list[str]) -> tuple[Col, ...]:
        """Return new columns for the results of the operation ``tree``."""
        return tuple(
            self.column(name, Const(None, oid, int(str(typmod)), collation))
            for name, oid, typmod, collation in zip(
                names,
                self._types(tree),
                tree.items("colTypmods"),
                tree.numbers("colCollations"),
                strict=True,
            )
        )

    def converted(self, arm: Node, tree: Tree) -> Node:
        """Convert the columns of ``arm`` to the types of the operation ``tree``."""
        oids = self._types(tree)
        if [c.oid for c in arm.columns] == oids:
            return arm
        items: list[tuple[Col, Expr]] = []
        seen: set[int] = set()
        for col, oid, collation in zip(
            arm.columns, oids, tree.numbers("colCollations"), strict=True
        ):
            if col.oid == oid and col.id not in seen:
                seen.add(col.id)
                items.append((col, col.ref))
            else:
                expr = convert(self.lowering, col.ref, oid, collation)
                items.append((self.column(col.name, expr), expr))
        return ProjectNode(arm, tuple(items))

    def _types(self, tree: Tree) -> list[int]:
        base = self.lowering.catalog.types.base
        return [base(oid) for oid in tree.numbers("colTypes")]


def value_rows(rows: list[tuple[Node, list[Expr]]], column: Callable[[str, Expr], Col]) -> Node:
    """Return the plan of VALUES: constant rows as literals, any other row as a projection.

    Each row comes with its input: one row without columns, joined with the row's subqueries.
    Postgres has already converted the rows to common types.  A type modifier is kept only if all
    rows have the same.
    """
    exprs = [row for _, row in rows]
    typmods = [{e.typmod for e in each} for each in zip(*exprs, strict=True)]

    def columns() -> tuple[Col, ...]:
        return tuple(
            dataclasses.replace(
                column(f"column{number}", expr), typmod=expr.typmod if len(found) == 1 else -1
            )
            for number, (expr, found) in enumerate(zip(exprs[0], typmods, strict=True), 1)
        )

    constant: list[tuple[str | None, ...]] = []
    arms: list[Node] = []
    for node, row in rows:
        texts = tuple(xml_values.printed(e) for e in row if isinstance(e, Const))
        if len(texts) == len(row) and node == ValuesNode((), ((),)):
            constant.append(texts)
        else:
            arms.append(ProjectNode(node, tuple(zip(columns(), row, strict=True))))
    if constant:
        arms.insert(0, ValuesNode(columns(), tuple(constant)))
    return arms[0] if len(arms) == 1 else UnionNode(tuple(arms), columns())
