"""SQL/XML and SQL/JSON: expressions with a special grammar, as SQL for Postgres.

Every clause of the tree is written out.  The check in ``plan.py``, that Postgres parses the
generated SQL to the same expression, covers clauses of later versions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from headrace import types as t
from headrace.planner.analyse.nodetree import Node
from headrace.planner.logical.scalar import ARG, Const, Expr
from headrace.planner.scalars import build
from headrace.planner.scalars.context import QueryContext
from headrace.planner.scalars.lower import Form, Lowering
from headrace.planner.scalars.scope import Scope
from headrace.postgres.tokens import identifier

_STANDALONE: Final = {
    "0": ", STANDALONE YES",
    "1": ", STANDALONE NO",
    "2": ", STANDALONE NO VALUE",
    "3": "",
}
"""By XmlStandaloneType."""


def _make(
    context: QueryContext,
    symbol: str,
    args: Sequence[Expr],
    result: build.Result,
    sql: str,
    *,
    raises: bool = True,
) -> Expr:
    # The text of a value inside XML or JSON depends on settings.
    conduct = build.Conduct(raises=raises, stable=True)
    return build.call(context, symbol, args, result, build.enclosed(sql), None, conduct)


# -- XML


def _xml(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    operation = node.number("op")
    named = lowering.all(node.nodes("named_args"), scope)
    args = list(lowering.all(node.nodes("args"), scope))
    names = [n for n in node.items("arg_names") if isinstance(n, str)]
    result = (t.XML, -1, 0)
    word = "CONTENT" if node.number("xmloption") else "DOCUMENT"
    listed = ", ".join([ARG] * len(args))
    fields = ", ".join(f"{ARG} AS {identifier(_sql_name(n))}" for n in names)
    name = identifier(_sql_name(node.text("name") or ""))
    match operation:  # XmlExprOp
        case 0:
            sql = f"XMLCONCAT({listed})"
        case 1:
            parts = [f"NAME {name}"]
            parts += [f"XMLATTRIBUTES({fields})"] if named else []
            sql = f"XMLELEMENT({', '.join([*parts, *([listed] if args else [])])})"
        case 2:
            sql = f"XMLFOREST({fields})"
        case 3:
            keep = isinstance(args[1], Const) and args[1].text == "t"
            space = "PRESERVE" if keep else "STRIP"
            args = args[:1]
            sql = f"XMLPARSE({word} {ARG} {space} WHITESPACE)"
        case 4:
            sql = f"XMLPI(NAME {name}{f', {ARG}' if args else ''})"
        case 5:
            value, version, standalone = args
            ending = _STANDALONE.get(
                (standalone.text if isinstance(standalone, Const) else None) or "", ""
            )
            absent = isinstance(version, Const) and version.text is None
            args = [value] if absent else [value, version]
            sql = f"XMLROOT({ARG}, VERSION {'NO VALUE' if absent else ARG}{ending})"
        case 6:
            oid, typmod = node.number("type"), node.number("typmod", -1)
            kind = lowering.catalog.types.with_modifier(oid, typmod)
            indent = " INDENT" if node.flag("indent") else ""
            sql = f"XMLSERIALIZE({word} {ARG} AS {kind}{indent})"
            result = (oid, typmod, 0)
        case 7:
            sql, result = f"{ARG} IS DOCUMENT", (t.BOOL, -1, 0)
        case _:
            lowering.refuse("this XML expression", node)
    return _make(lowering, f"xml {operation}", [*named, *args], result, sql)


def _sql_name(name: str) -> str:
    """Return the SQL name of an XML name; ``_x0020_`` denotes the character of that code."""
    out = []
    at = 0
    while at < len(name):
        code = name[at + 2 : at + 6]
        escaped = name[at : at + 2] == "_x" and name[at + 6 : at + 7] == "_"
        if escaped and all(c in "0123456789ABCDEFabcdef" for c in code):
            out.append(chr(int(code, 16)))
            at += 7
        else:
            out.append(name[at])
            at += 1
    return "".join(out)


# -- JSON

_JSON_OBJECT, _JSON_ARRAY, _OBJECT_AGG, _ARRAY_AGG = 1, 2, 3, 4
_JSON_PARSE, _JSON_SCALAR, _JSON_SERIALIZE = 5, 6, 7
"""JsonConstructorType."""
_ITEMS: Final = {0: "", 1: " OBJECT", 2: " ARRAY", 3: " SCALAR"}
"""By JsonValueType."""
_ENCODINGS: Final = {0: "", 1: " ENCODING UTF8", 2: " ENCODING UTF16", 3: " ENCODING UTF32"}  # fmt: skip


def _returning(context: QueryContext, node: Node) -> tuple[str, build.Result]:
    returning = node.child("returning")
    oid, typmod = returning.number("typid"), returning.number("typmod", -1)
    name = context.catalog.types.with_modifier(oid, typmod)
    form = returning.node("format")
    encoding = _ENCODINGS[form.number("encoding")] if form is not None else ""
    format_type = form.number("format_type") if form is not None else 0
    words = f" FORMAT JSON{encoding}" if format_type == 1 and encoding else ""
    base = context.catalog.types.base(oid)
    collation = context.catalog.types[base].collation
    return f" RETURNING {name}{words}", (base, typmod, collation)


def _json_value(lowering: Lowering, node: Node, scope: Scope) -> tuple[Expr, str]:
    """Return an argument and its SQL, with FORMAT JSON if the query has it."""
    if node.kind != "JSONVALUEEXPR":
        return lowering.lower(node, scope), f"({ARG})"
    form = node.node("format")
    kind = form.number("format_type") if form is not None else 0
    expr = lowering.lower(node.child("raw_expr"), scope)
    encoding = _ENCODINGS[form.number("encoding")] if form is not None else ""
    return expr, f"({ARG}) FORMAT JSON{encoding}" if kind == 1 else f"({ARG})"


def _json_constructor(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    kind = node.number("type")
    returning, result = _returning(lowering, node)
    if kind in (_OBJECT_AGG, _ARRAY_AGG):
        inner = node.child("func")
        if inner.kind != "AGGREF":
            lowering.refuse("a JSON aggregate as a window function", node)
        value = lowering.lower(inner, scope)
        coercion = node.node("coercion")
        if coercion is None:
            return value
        return lowering.lower(coercion, dataclasses.replace(scope, case_value=value))
    values = [_json_value(lowering, n, scope) for n in node.nodes("args")]
    args, words = [v[0] for v in values], [v[1] for v in values]
    nulls = " ABSENT ON NULL" if node.flag("absent_on_null") else " NULL ON NULL"
    unique = " WITH UNIQUE KEYS" if node.flag("unique") else ""
    if kind == _JSON_OBJECT:
        pairs = zip(words[::2], words[1::2], strict=True)
        listed = ", ".join(f"{k} VALUE {v}" for k, v in pairs)
        more = f"{nulls}{unique}" if args else ""
        sql = f"JSON_OBJECT({listed}{more}{returning})"
    elif kind == _JSON_ARRAY:
        sql = f"JSON_ARRAY({', '.join(words)}{nulls if args else ''}{returning})"
    elif kind == _JSON_PARSE:
        sql = f"JSON({words[0]}{unique})"
    elif kind == _JSON_SCALAR:
        sql = f"JSON_SCALAR({words[0]})"
    elif kind == _JSON_SERIALIZE:
        sql = f"JSON_SERIALIZE({words[0]}{returning})"
    else:
        lowering.refuse("this JSON constructor", node)
    return _make(lowering, f"json {kind}", args, result, sql)


def _is_json(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    expr, word = _json_value(lowering, node.child("expr"), scope)
    unique = " WITH UNIQUE KEYS" if node.flag("unique_keys") else ""
    sql = f"{word} IS JSON{_ITEMS[node.number('item_type')]}{unique}"
    return _make(lowering, "is json", [expr], (t.BOOL, -1, 0), sql, raises=False)


_BEHAVIORS: Final = {
    0: "NULL", 1: "ERROR", 2: "EMPTY", 3: "TRUE", 4: "FALSE", 5: "UNKNOWN",
    6: "EMPTY ARRAY", 7: "EMPTY OBJECT", 8: "DEFAULT",
}  # fmt: skip
"""By JsonBehaviorType."""
_DEFAULT: Final = 8
_WRAPPERS: Final = {
    0: "", 1: " WITHOUT WRAPPER", 2: " WITH CONDITIONAL WRAPPER",
    3: " WITH UNCONDITIONAL WRAPPER",
}  # fmt: skip
"""By JsonWrapper."""
_EXISTS, _QUERY, _VALUE = 0, 1, 2
"""JsonExprOp."""


def _json_query(lowering: Lowering, node: Node, scope: Scope) -> Expr:
    operation = node.number("op")
    if operation not in (_EXISTS, _QUERY, _VALUE):
        lowering.refuse("JSON_TABLE", node)
    item, word = _json_value(lowering, node.child("formatted_expr"), scope)
    args = [item, lowering.lower(node.child("path_spec"), scope)]
    sql = f"{('JSON_EXISTS', 'JSON_QUERY', 'JSON_VALUE')[operation]}({word}, ({ARG})"
    names = [n for n in node.items("passing_names") if isinstance(n, str)]
    if names:
        passed = [_json_value(lowering, n, scope) for n in node.nodes("passing_values")]
        args += [expr for expr, _ in passed]
        listed = zip(passed, names, strict=True)
        sql += " PASSING " + ", ".join(f"{w} AS {identifier(n)}" for (_, w), n in listed)
    returning, result = _returning(lowering, node)
    if operation != _EXISTS:
        sql += returning
    if operation == _QUERY:
        sql += _WRAPPERS[node.number("wrapper")]
        sql += " OMIT QUOTES" if node.flag("omit_quotes") else " KEEP QUOTES"
        if node.number("wrapper") in (2, 3):
            sql = sql.removesuffix(" KEEP QUOTES")
    for field, word in (("on_empty", "EMPTY"), ("on_error", "ERROR")):
        behavior = node.node(field)
        if behavior is None or (operation == _EXISTS and field == "on_empty"):
            continue
        kind = behavior.number("btype")
        sql += f" {_BEHAVIORS[kind]}"
        if kind == _DEFAULT:
            args.append(lowering.lower(behavior.child("expr"), scope))
            sql += f" ({ARG})"
        sql += f" ON {word}"
    return _make(lowering, f"json query {operation}", args, result, f"{sql})")


FORMS: Final[dict[str, Form]] = {
    "XMLEXPR": _xml,
    "JSONCONSTRUCTOREXPR": _json_constructor,
    "JSONISPREDICATE": _is_json,
    "JSONEXPR": _json_query,
}
