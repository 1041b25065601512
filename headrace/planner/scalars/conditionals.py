"""AND, OR, CASE, COALESCE and similar forms, and tests of one value.

A part that is not always evaluated is lowered in a scope that has the condition of its evaluation
(``Scope.only``).
"""

from __future__ import annotations

import dataclasses
from typing import Final

from headrace.expressions.native import resolve
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import ARG, Call, Const, Expr
from headrace.planner.scalars import build, rowtypes
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope


def _in_turn(lowering: Lowering, nodes: list[Node], scope: Scope, more: str) -> tuple[Expr, ...]:
    """Lower arguments, each evaluated only if those before it pass the test ``more``."""
    args: list[Expr] = []
    for node in nodes:
        args.append(lowering.lower(node, scope))
        scope = scope.only(more, args[-1])
    return tuple(args)


def _logic(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    symbol = node.text("boolop") or ""
    more = "is_not_false" if symbol == "and" else "is_not_true"
    args = _in_turn(lowering, node.nodes("args"), scope, more)
    return build.logic(lowering, symbol, args)


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
    return build.choice(lowering, tuple(args), result)


def _case_value(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    if scope.case_value is None:
        lowering.refuse("a nested CASE of this form", node)
    return scope.case_value


def _coalesce(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    args = _in_turn(lowering, node.nodes("args"), scope, "is_null")
    result = lowering.result(node, "coalescetype", "coalescecollid")
    return build.coalesce(lowering, args, result)


def _min_max(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    args = lowering.all(node.nodes("args"), scope)
    collation = node.number("inputcollid")
    word = "LEAST" if node.text("op") in ("1", "IS_LEAST") else "GREATEST"
    return build.call(
        lowering,
        word.lower(),
        args,
        lowering.result(node, "minmaxtype", "minmaxcollid"),
        build.same(f"{word}({', '.join([ARG] * len(args))})"),
        resolve(word.lower(), lowering.types(args, collation)),
        build.Conduct(collation=collation),
    )


def _null_test(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    symbol = "is_not_null" if node.number("nulltesttype") else "is_null"
    if isinstance(arg, Call) and rowtypes.is_row(arg):
        expanded = rowtypes.null_test(lowering, symbol, arg)
        if expanded is not None:
            return expanded
    return build.null_test(lowering, symbol, arg, row=node.flag("argisrow"))


def _boolean_test(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    symbol = list(build.BOOLEAN_TESTS)[node.number("booltesttype")]
    return build.boolean_test(lowering, symbol, arg)


FORMS: Final[dict[str, Form]] = {
    "BOOLEXPR": _logic,
    "CASEEXPR": _case,
    "CASETESTEXPR": _case_value,
    "COALESCEEXPR": _coalesce,
    "MINMAXEXPR": _min_max,
    "NULLTEST": _null_test,
    "BOOLEANTEST": _boolean_test,
}
