"""Leaves of expressions: columns, whole rows, constants, and subqueries (one value each)."""

from __future__ import annotations

from typing import Final

from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import Const, Expr
from headrace.planner.scalars import rowtypes
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope

_SYSTEM_COLUMNS: Final = {
    -1: "ctid", -2: "xmin", -3: "cmin", -4: "xmax", -5: "cmax", -6: "tableoid",
}  # fmt: skip


def _var(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    levels = node.number("varlevelsup")
    home = scope.up(levels)
    if home is None:
        lowering.refuse("a reference to an outer query", node)
    attno = node.number("varattno")
    if attno == 0:
        if home.row is None:
            lowering.refuse("a whole-row reference", node)
        found = home.row(node.number("varno"), node.number("vartype"))
        return home.above(found) if levels and home.above is not None else found
    if attno < 0:
        name = _SYSTEM_COLUMNS.get(attno, "?")
        lowering.refuse(f'system column "{name}"', node)
    found = home.column(node.number("varno"), attno)
    return home.above(found) if levels and home.above is not None else found


def _sublink(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    if scope.subqueries is None or not scope.sites:
        found = rowtypes.named_record(lowering, node, scope)
        return found if found is not None else lowering.refuse("a subquery here", node)
    return scope.subqueries.value(node, scope)


def _const(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    del scope
    declared = node.number("consttype")
    oid = lowering.catalog.types.base(declared)
    typmod, collation = node.number("consttypmod", -1), node.number("constcollid")
    if node.flag("constisnull"):
        return Const(None, oid, typmod, collation)
    data = node.fields.get("constvalue")
    assert isinstance(data, bytes), "a constant that is not null has octets"
    text = lowering.constants.text(declared, data)
    if text is None:
        lowering.refuse(f"a constant of type {lowering.type_name(oid)}", node)
    return Const(text, oid, typmod, collation)


FORMS: Final[dict[str, Form]] = {"VAR": _var, "SUBLINK": _sublink, "CONST": _const}
