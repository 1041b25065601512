"""Calls of functions, also of functions without parentheses (``CURRENT_DATE``).

Some functions have a special translation (``_SPECIAL``), which is tried first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace import types as t
from headrace.expressions.native import NativeOp, TypeRef, resolve, resolve_cast
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.scalar import ARG, CLOCK, Const, Expr
from headrace.planner.scalars import build, functions, typenames
from headrace.planner.scalars.build import Conduct, Spelling
from headrace.planner.scalars.coercions import convert
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres.tokens import identifier

_CLOCK: Final = (
    *("current_date", "current_time", "current_time", "current_timestamp"),
    *("current_timestamp", "localtime", "localtime", "localtimestamp"),
    *("localtimestamp", "current_role", "current_user", "user", "session_user"),
    *("current_catalog", "current_schema"),
)
"""Names of SQLValueFunctionOp, in its order."""
_TIMES: Final = {0: t.DATE, 3: t.TIMESTAMPTZ, 7: t.TIMESTAMP}
"""Types of the SQLValueFunctionOp that are ``now()`` or a cast of it (``temporal.py``)."""
_READER: Final = frozenset(
    {"current_role", "current_user", "user", "session_user", "current_schema"}
)


def _now(lowering: Lowering, node: Node, scope: Scope) -> Expr | None:
    del lowering, node, scope
    return CLOCK


_SPECIAL: Final[dict[int, Callable[[Lowering, Node, Scope], Expr | None]]] = {
    1299: _now,
    2647: _now,  # transaction_timestamp
    1619: typenames.type_of_value,  # pg_typeof
    1081: typenames.formatted,  # format_type
}


def _call(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    special = _SPECIAL.get(node.number("funcid"))
    if special is not None and (known := special(lowering, node, scope)) is not None:
        return known
    function = lowering.function(node.number("funcid"), node)
    args, names = arguments(lowering, node.nodes("args"), scope)
    if len(args) < function.arguments:
        require_constant_defaults(lowering, function, node)
    result = lowering.result(node, "funcresulttype", "funccollid")
    if functions.populates_dates(lowering.catalog, function, result[0]):
        lowering.refuse(f'function "{function.name}" over dates or times', node)
    marks = [f"{name} => {ARG}" if name else ARG for name in names]
    display = f"{function.name}({', '.join(marks)})"
    symbol = function.quoted
    if any(names):
        symbol = f"{function.quoted} {', '.join(names)}"
    if node.flag("funcvariadic"):
        marks[-1] = f"VARIADIC {ARG}"
        symbol += " variadic"
    sql = f"{function.quoted}({', '.join(marks)})"
    kind = lowering.type_name(result[0])
    collation = node.number("inputcollid")
    cast = None
    if len(args) == 1:
        cast = lowering.catalog.operators.cast(args[0].oid, result[0])
    native: NativeOp | None = None
    if cast is not None and cast[0] == function.oid:
        source = lowering.types(args, collation)[0]
        native = resolve_cast(source, TypeRef(result[0]))
        display = f"{ARG}::{kind}"
    elif function.builtin and not any(names):  # named arguments come in any order
        native = resolve(function.name, lowering.types(args, collation))
    if functions.borrowed(cast, function, args, result[0]):
        sql = f"({ARG})::{kind}"
    conduct = Conduct(
        raises=functions.may_raise(function, args),
        collation=collation,
        functions=(function,),
        strict=function.strict,
    )
    return build.call(lowering, symbol, args, result, Spelling(sql, display), native, conduct)


def require_constant_defaults(lowering: Lowering, function: Function, node: Node) -> None:
    """Refuse a call with fewer arguments than a user's function has, if they may vary."""
    if function.builtin or lowering.catalog.functions.constant_defaults(function.oid):
        return
    # A default would be computed when the query is planned, even if volatile.
    lowering.refuse(f'default arguments of function "{function.name}"', node)


def arguments(
    lowering: Lowering, nodes: list[Node], scope: Scope
) -> tuple[tuple[Expr, ...], list[str]]:
    """Return the arguments of a call, and their quoted names (empty if not named)."""
    names, inner = [], []
    for node in nodes:
        named = node.kind == "NAMEDARGEXPR"
        names.append(identifier(node.text("name") or "") if named else "")
        inner.append(node.child("arg") if named else node)
    return lowering.all(inner, scope), names


def _value_function(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    del scope
    if (kind := _TIMES.get(node.number("op"))) is not None:
        return convert(lowering, CLOCK, kind, 0)
    name = _CLOCK[node.number("op")]
    if name == "current_catalog":
        # The engine's own database: it cannot be renamed while the engine is connected.
        dbname = lowering.database
        return Const(dbname, t.NAME, -1, node.number("typcollation"))
    if name in _READER:
        lowering.refuse(
            f'"{name}" is not supported because it depends on the role that reads the view', node
        )
    return lowering.refuse(f'"{name}" depends on time or session and is not supported', node)


FORMS: Final[dict[str, Form]] = {"FUNCEXPR": _call, "SQLVALUEFUNCTION": _value_function}
