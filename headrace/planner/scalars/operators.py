"""Operators: plain, NULLIF and IS DISTINCT FROM by their equality, ANY and ALL over arrays."""

from __future__ import annotations

from typing import Final

from headrace.expressions.native import resolve
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import ARG, Expr
from headrace.planner.scalars import build, citext, clockranges, containers, rowtypes
from headrace.planner.scalars.build import Conduct, Spelling, enclosed, same
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope

_IN_LIST_MAX: Final = 64
"""Longest IN list that becomes a chain of native comparisons."""
_SPECIAL: Final = (citext.comparison, clockranges.contains)
"""Special translations of an operator's function, tried first."""


def _operator(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    if node.flag("opretset"):
        lowering.refuse("a set-returning operator", node)
    operator = lowering.catalog.operators[node.number("opno")]
    function = lowering.function(operator.function, node)
    args = lowering.all(node.nodes("args"), scope)
    for special in _SPECIAL:
        if (known := special(lowering, function, args)) is not None:
            return known
    result = lowering.result(node, "opresulttype", "opcollid")
    return build.operate(lowering, operator, args, result, node.number("inputcollid"))


def _distinct(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    spelling = enclosed(f"{ARG} IS DISTINCT FROM {ARG}")
    return _equality(lowering, node, scope, "is_distinct_from", spelling)


def _nullif(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    return _equality(lowering, node, scope, "nullif", same(f"NULLIF({ARG}, {ARG})"))


def _equality(
    lowering: Lowering, node: Node, scope: Scope, symbol: str, spelling: Spelling
) -> Expr:
    operator = lowering.catalog.operators[node.number("opno")]
    function = lowering.function(operator.function, node)
    args = lowering.all(node.nodes("args"), scope)
    if (known := citext.equality(lowering, function, symbol, args)) is not None:
        return known
    if not operator.builtin or operator.name != "=":
        lowering.refuse(f"{symbol.replace('_', ' ')} with operator {operator.name}", node)
    collation = node.number("inputcollid")
    if symbol == "is_distinct_from" and all(map(rowtypes.is_row, args)):
        # Postgres expands IS DISTINCT FROM between row constructors into tests of the fields.
        # The constructors are not NULL, so their equality is the same test.
        equal = build.operate(lowering, operator, args, build.BOOLEAN, collation)
        return build.logic(lowering, "not", (equal,))
    result = lowering.result(node, "opresulttype", "opcollid")
    if symbol == "is_distinct_from":
        result = build.BOOLEAN
    native = resolve(symbol, lowering.types(args, collation))
    conduct = Conduct(collation=collation, functions=(function,))
    return build.call(lowering, symbol, args, result, spelling, native, conduct)


def _array_operator(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    operator = lowering.catalog.operators[node.number("opno")]
    function = lowering.function(operator.function, node)
    left_node, right_node = node.nodes("args")
    collation = node.number("inputcollid")
    left = lowering.lower(left_node, scope)
    if (chain := _in_list(lowering, node, scope, left, right_node)) is not None:
        return chain
    args = (left, lowering.lower(right_node, scope))
    word = "ANY" if node.flag("useOr") else "ALL"
    symbol = f"{operator.name} {word}"
    return build.call(
        lowering,
        symbol,
        args,
        build.BOOLEAN,
        Spelling(
            f"({ARG} {operator.quoted} {word} ({ARG}))", f"{ARG} {operator.name} {word} ({ARG})"
        ),
        build.kernel(lowering, operator, symbol, args, collation),
        Conduct(
            raises=operator.name not in build.COMPARISONS or not function.builtin,
            collation=collation,
            functions=(function,),
        ),
    )


def _in_list(lowering: Lowering, node: Node, scope: Scope, left: Expr, right: Node) -> Expr | None:
    """Return ``x IN (a, b)`` as ``x = a OR x = b`` (``NOT IN``: with AND), or None."""
    operator = lowering.catalog.operators[node.number("opno")]
    if not operator.builtin or operator.name not in ("=", "<>"):
        return None
    items = containers.elements(lowering, right, scope, _IN_LIST_MAX)
    if items is None:
        return None
    collation = node.number("inputcollid")
    tests = []
    for item in items:
        native = resolve(operator.name, lowering.types((left, item), collation))
        if native is None:
            return None
        tests.append(build.comparison(lowering, operator.name, left, item, collation))
    if len(tests) == 1:
        return tests[0]
    return build.logic(lowering, "or" if node.flag("useOr") else "and", tuple(tests))


FORMS: Final[dict[str, Form]] = {
    "OPEXPR": _operator,
    "DISTINCTEXPR": _distinct,
    "NULLIFEXPR": _nullif,
    "SCALARARRAYOPEXPR": _array_operator,
}
