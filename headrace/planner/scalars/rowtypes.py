"""Rows, composite types and domains: from Postgres' parse tree to expressions.

A composite value is represented by its Postgres text.  An anonymous record has no text that can
be read back, so it exists only inside an expression that Postgres evaluates.  The SQL contains its
constructor with the field names (``row_to_json`` shows them)::

    ROW(a, b)                                          fields f1, f2
    (SELECT s FROM (SELECT a AS x, b AS y) s)          fields x, y
    ROW(a, b)::public.point2                           a composite type

In ``ROW(…)::type`` Postgres coerces every field to its column's domain and length.  These
coercions are removed from the fields when such a constructor is read, because its SQL repeats
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from headrace.expressions.native import resolve
from headrace.planner.analyse.nodetree import Node
from headrace.planner.analyse.pg_types import CompositeField
from headrace.planner.logical.scalar import ARG, Call, Const, Expr
from headrace.planner.scalars import build, casts
from headrace.planner.scalars.build import Conduct, Spelling, enclosed
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres.tokens import identifier
from headrace.types import RECORD

ROW_SYMBOL: Final = "row"
_RECORD_HINT: Final = "Select the field where the function is called: (f(x)).field."
_ROW_OPERATORS: Final = {1: "<", 2: "<=", 3: "=", 4: ">=", 5: ">", 6: "<>"}
"""By RowCompareType."""
_ALIAS: Final = "headrace_row"
_RECORD_LEVELS: Final = 2
"""Number of query levels between a named record and its fields."""


def record(context: QueryContext, args: Sequence[Expr], names: Sequence[str]) -> Expr:
    """Return an anonymous record with fields of these names."""
    plain = [f"f{i}" for i in range(1, len(args) + 1)]
    if list(names) == plain or not args:
        sql = f"ROW({', '.join([ARG] * len(args))})"
    else:
        fields = ", ".join(f"{ARG} AS {identifier(name)}" for name in names)
        # Names are quoted, the rest is generated.
        sql = f"(SELECT {_ALIAS} FROM (SELECT {fields}) {_ALIAS})"  # noqa: S608
    show = f"ROW({', '.join([ARG] * len(args))})"
    return _row(context, args, (RECORD, -1, 0), Spelling(sql, show))


def composite(context: QueryContext, oid: int, args: Sequence[Expr]) -> Expr:
    """Return a value of composite type ``oid`` from its columns without the dropped ones."""
    attributes = context.catalog.types.attributes(oid)
    bare = [_bare(context, a, f) for a, f in zip(args, attributes, strict=True)]
    marks = ", ".join([ARG] * len(bare))
    sql = f"ROW({marks})::{context.type_name(oid)}"
    return _row(context, bare, (oid, -1, 0), enclosed(sql))


def _row(
    context: QueryContext, args: Sequence[Expr], result: build.Result, spelling: Spelling
) -> Expr:
    return build.call(context, ROW_SYMBOL, args, result, spelling, None)


def is_row(expr: Expr) -> bool:
    """Return whether ``expr`` is a row constructor."""
    return isinstance(expr, Call) and expr.symbol == ROW_SYMBOL


def _bare(context: QueryContext, expr: Expr, attribute: CompositeField) -> Expr:
    """Remove from ``expr`` the coercion to its column, which ``ROW(…)::type`` repeats."""
    kind = context.catalog.types[attribute.oid]
    if kind.kind == "d":
        return without_domain(context, expr, kind.oid)
    return without_length(context, expr, kind.oid, attribute.typmod)


def without_domain(context: QueryContext, expr: Expr, oid: int) -> Expr:
    """Remove the coercion to type ``oid`` at the top of ``expr`` if that is a domain.

    An array or a row of the domain repeats it.
    """
    kind = context.catalog.types[oid]
    if kind.kind != "d":
        return expr
    if isinstance(expr, Call) and expr.symbol == f"domain {kind.name}":
        [expr] = expr.args
    base = context.catalog.types.base(oid)
    return without_length(context, expr, base, kind.base_typmod)


def without_length(context: QueryContext, expr: Expr, oid: int, typmod: int) -> Expr:
    """Remove the explicit coercion to a length or precision at the top of ``expr``."""
    if isinstance(expr, Call) and expr.symbol == "collate":
        # Postgres moves COLLATE above the coercion.
        inner = without_length(context, expr.args[0], oid, typmod)
        if inner == expr.args[0]:
            return expr
        return build.collate(context, inner, expr.collation)
    if typmod == -1 or not isinstance(expr, Call) or expr.oid != oid:
        return expr
    cast = context.catalog.operators.cast(oid, oid)
    if cast is None or not cast[0] or len(expr.args) < 2:
        return expr
    value, length, *explicit = expr.args
    relabelled = context.catalog.operators.cast(value.oid, oid)
    same = (
        expr.symbol == context.catalog.functions[cast[0]].quoted
        and (value.oid == oid or (relabelled is not None and relabelled[1] == "b"))
        and isinstance(length, Const)
        and length.text == str(typmod)
        and all(isinstance(e, Const) and e.text == "t" for e in explicit)
    )
    return value if same else expr


# -- forms


def _row_expr(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    declared = node.number("row_typeid")
    args = node.nodes("args")
    if declared == RECORD:
        names = [n for n in node.items("colnames") if isinstance(n, str)]
        return record(lowering, lowering.all(args, scope), names)
    oid = lowering.catalog.types.base(declared)
    numbers = [a.number - 1 for a in lowering.catalog.types.attributes(oid)]
    exprs = [lowering.lower(args[n], scope) for n in numbers]
    return composite(lowering, oid, exprs)


def _field_select(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    number = node.number("fieldnum")
    if arg.oid == RECORD:
        if isinstance(arg, Call) and is_row(arg):
            return arg.args[number - 1]
        name = identifier(_output_name(lowering, node, number))
    else:
        found = [a for a in lowering.catalog.types.attributes(arg.oid) if a.number == number]
        name = identifier(found[0].name)
    result = lowering.result(node, "resulttype", "resultcollid")
    spelling = enclosed(f"({ARG}).{name}")
    return build.call(lowering, f"field {name}", (arg,), result, spelling, None)


def _output_name(lowering: Lowering, node: Node, number: int) -> str:
    """Return the name of a field of the record that a function with OUT parameters returns."""
    call = node.child("arg")
    names: list[str] = []
    if call.kind == "FUNCEXPR":
        names = lowering.catalog.functions.output_names(call.number("funcid"))
    if not names:
        lowering.refuse("selection of a field of a record", node, hint=_RECORD_HINT)
    return names[number - 1]


def _convert_row_type(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    arg = lowering.lower(node.child("arg"), scope)
    oid = lowering.catalog.types.base(node.number("resulttype"))
    return casts.whole(lowering, arg, lowering.type_name(oid), (oid, -1, 0))


def _domain(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    declared = node.number("resulttype")
    kind = lowering.catalog.types[declared]
    oid = lowering.catalog.types.base(declared)
    arg = lowering.lower(node.child("arg"), scope)
    arg = without_length(lowering, arg, oid, lowering.catalog.types.base_typmod(declared))
    return build.call(
        lowering,
        f"domain {kind.name}",
        (arg,),
        (oid, node.number("resulttypmod", -1), node.number("resultcollid")),
        Spelling(f"(({ARG})::{kind.name})", f"{ARG}::{kind.name}"),
        None,
        Conduct(raises=True, declared=declared),
    )


def _row_compare(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    """Lower ``(a, b) < (c, d)`` to ``a < c OR a = c AND b < d``; NULLs give the same result."""
    symbol = _ROW_OPERATORS[node.number("rctype") or node.number("cmptype")]
    left = lowering.all(node.nodes("largs"), scope)
    right = lowering.all(node.nodes("rargs"), scope)
    collations = node.numbers("inputcollids")
    operators = [lowering.catalog.operators[o] for o in node.numbers("opnos")]
    for operator in operators:
        lowering.function(operator.function, node)
    pairs = list(zip(left, right, collations, operators, strict=True))
    if all(o.builtin and _native_comparison(lowering, a, b, c) for a, b, c, o in pairs):
        return _lexicographic(lowering, symbol, [p[:3] for p in pairs])
    quoted = {o.quoted for o in operators}
    if len(quoted) != 1:
        lowering.refuse("a row comparison with several operators", node)
    names = ", ".join([ARG] * len(left))
    [word] = quoted
    functions = (lowering.catalog.functions[o.function] for o in operators)
    return build.call(
        lowering,
        f"row {symbol}",
        (*left, *right),
        build.BOOLEAN,
        Spelling(f"(ROW({names}) {word} ROW({names}))", f"ROW({names}) {symbol} ROW({names})"),
        None,
        Conduct(
            raises=not all(o.builtin for o in operators)
            or any(build.comparison_raises(lowering, a.oid) for a in left),
            collation=next((c for c in collations if c), 0),
            functions=tuple(functions),
        ),
    )


def _native_comparison(context: QueryContext, a: Expr, b: Expr, collation: int) -> bool:
    types = context.types((a, b), collation)
    return resolve("<", types) is not None and resolve("=", types) is not None


def _lexicographic(context: QueryContext, symbol: str, pairs: list[tuple[Expr, Expr, int]]) -> Expr:
    strict = symbol[0]
    (left, right, collation), *rest = pairs
    if not rest:
        return build.comparison(context, symbol, left, right, collation)
    less = build.comparison(context, strict, left, right, collation)
    equal = build.comparison(context, "=", left, right, collation)
    tail = _lexicographic(context, symbol, rest)
    both = build.logic(context, "and", (equal, tail))
    return build.logic(context, "or", (less, both))


def null_test(context: QueryContext, symbol: str, row: Call) -> Expr | None:
    """Return ``ROW(a, b) IS [NOT] NULL`` as the same test of each field, or None.

    None if a field is itself a row: Postgres then tests the row value and not its fields, which
    SQL cannot express.
    """
    kinds = [context.catalog.types[a.oid].kind for a in row.args]
    if not row.args or any(k in ("c", "p") for k in kinds):
        return None
    tests = tuple(build.null_test(context, symbol, a) for a in row.args)
    return tests[0] if len(tests) == 1 else build.logic(context, "and", tests)


def named_record(lowering: Lowering, node: Node, scope: Scope) -> Expr | None:
    """Return the record of a subquery whose SQL was written by ``record``, else None."""
    query = node.child("subselect")
    tables = query.nodes("rtable")
    targets = query.nodes("targetList")
    if len(tables) != 1 or len(targets) != 1:
        return None
    var = targets[0].child("expr")
    alias = tables[0].child("eref").text("aliasname")
    if alias != _ALIAS or var.kind != "VAR" or var.number("varattno"):
        return None
    fields = tables[0].child("subquery").nodes("targetList")
    inner = dataclasses.replace(scope.below(_RECORD_LEVELS), case_value=scope.case_value)
    args = [lowering.lower(f.child("expr"), inner) for f in fields]
    return record(lowering, args, [f.text("resname") or "" for f in fields])


FORMS: Final[dict[str, Form]] = {
    "ROWEXPR": _row_expr,
    "FIELDSELECT": _field_select,
    "CONVERTROWTYPEEXPR": _convert_row_type,
    "COERCETODOMAIN": _domain,
    "ROWCOMPAREEXPR": _row_compare,
}
