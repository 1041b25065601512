"""AND, OR, CASE, COALESCE and kin: expressions of which not every part is always evaluated.

A part is lowered in a scope that knows when it is evaluated (``Scope.only``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.expressions.native import resolve
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import ARG, Const, Expr
from headrace.planner.scalars.scope import Scope

if TYPE_CHECKING:
    from headrace.planner.scalars.lower import Lowering


def _in_turn(
    lowering: Lowering, nodes: list[Node], scope: Scope, more: str
) -> tuple[Expr, ...]:
    """Arguments of which the next is evaluated where those before it pass the test ``more``."""
    args: list[Expr] = []
    for node in nodes:
        args.append(lowering.lower(node, scope))
        scope = scope.only(more, args[-1])
    return tuple(args)


def _logic(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    symbol = node.text("boolop") or ""
    more = "is_not_false" if symbol == "and" else "is_not_true"
    return lowering.logic(symbol, _in_turn(lowering, node.nodes("args"), scope, more))


def _case(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    subject = node.node("arg")
    if subject is not None:
        value = lowering.lower(subject, scope)
        scope = dataclasses.replace(scope, case_value=value)
    args: list[Expr] = []
    for when in node.nodes("args"):
        test = lowering.lower(when.child("expr"), scope)
        value = lowering.lower(when.child("result"), scope.only("is_true", test))
        args += [test, value]
        scope = scope.only("is_not_true", test)
    result = lowering.result(node, "casetype", "casecollid")
    default = node.node("defresult")
    if default is None:
        args.append(Const(None, *result))
    else:
        args.append(lowering.lower(default, scope))
    return lowering.choice(tuple(args), result)


def _case_value(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    if scope.case_value is None:
        lowering.refuse("a nested CASE of this form", node)
    return scope.case_value


def _coalesce(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    args = _in_turn(lowering, node.nodes("args"), scope, "is_null")
    text = f"COALESCE({', '.join([ARG] * len(args))})"
    return lowering.call(
        "coalesce",
        args,
        lowering.result(node, "coalescetype", "coalescecollid"),
        text,
        text,
        native=resolve("coalesce", lowering.types(args, 0)),
        remote_raises=False,
    )


def _min_max(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    args = tuple(lowering.lower(n, scope) for n in node.nodes("args"))
    collation = node.number("inputcollid")
    word = "LEAST" if node.text("op") in ("1", "IS_LEAST") else "GREATEST"
    text = f"{word}({', '.join([ARG] * len(args))})"
    return lowering.call(
        word.lower(),
        args,
        lowering.result(node, "minmaxtype", "minmaxcollid"),
        text,
        text,
        native=resolve(word.lower(), lowering.types(args, collation)),
        remote_raises=False,
        input_collation=collation,
    )


HANDLERS: Final[dict[str, Callable[[Lowering, Node, Scope], Expr]]] = {
    "BOOLEXPR": _logic,
    "CASEEXPR": _case,
    "CASETESTEXPR": _case_value,
    "COALESCEEXPR": _coalesce,
    "MINMAXEXPR": _min_max,
}
