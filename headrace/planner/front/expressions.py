"""Composes expressions other than calls: operators, conditionals, literals, casts, subqueries."""

from __future__ import annotations

import re
from typing import Final, Protocol

from headrace import types as t
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetypes import type_of
from headrace.planner.front import calls, words
from headrace.planner.front.syntax import Ast, bare
from headrace.planner.front.walk import (
    EXPLICIT,
    QueryLevel,
    Walk,
    form_of,
    implicit,
    operand,
    recast,
    refuse,
    require,
    shell,
)

_VAR: Final = ("varno", "varattno")
_SIZES: Final = {t.INT2: 2, t.INT4: 4, t.INT8: 8}
_SYSTEM: Final = {-1: "ctid", -2: "xmin", -3: "cmin", -4: "xmax", -5: "cmax", -6: "tableoid"}
_TESTS: Final = {
    ("Null", "", False): ("0", "4"), ("Null", "", True): ("1", "5"),
    ("Boolean", "True", False): ("0",), ("Boolean", "True", True): ("1",),
    ("Boolean", "", False): ("2",), ("Boolean", "", True): ("3",),
}  # fmt: skip
"""NullTestType and BoolTestType by the words after IS [NOT]; sqlglot reads UNKNOWN as NULL."""
_PARAMETERS: Final = re.compile(r"\([^)]*\)")
_PARTS: Final = {"Array": "elements"}
"""Field of a list of expressions, unless it is ``args``."""
_MINMAX: Final = {"Greatest": "0", "Least": "1"}
_EXISTS, _ALL, _ANY, _EXPR, _ARRAY = 0, 1, 2, 4, 6
"""SubLinkType."""


class NegatedForm(Protocol):
    """A form that NOT may be a part of."""

    def __call__(
        self, walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool
    ) -> Tree:
        """Compose the negated expression."""


# -- leaves


def column(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a reference to a column, or to a whole row."""
    walk.take(ast)
    if node.kind == "SQLVALUEFUNCTION":
        return shell(node)
    if node.kind == "FIELDSELECT":
        require(ast, node.child("arg"), "VAR")
        return shell(node, arg=shell(node.child("arg")))
    # As the text names it: a column of a join with an alias is also one of a table.
    index, number = (node.number(f"{name}syn") or node.number(name) for name in _VAR)
    entry = level.up(node.number("varlevelsup")).entry(index)
    called = entry.child("eref")
    walk.places[ast.id] = entry, number
    name, table, names = ast.fact("column"), ast.fact("of"), called.items("colnames")
    if number > 0:
        found = names[number - 1]
    elif number < 0:
        found = _SYSTEM.get(number)
    else:
        found, table = called.text("aliasname"), ""
        name = ast.fact("of") if name == "*" else name
    if found != name or table not in ("", called.text("aliasname")):
        refuse(ast, f'"{name}" is column "{found}" of "{called.text("aliasname")}" for Postgres')
    return shell(node)


def literal(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, sign: int = 1) -> Tree:
    """Compose a constant: Postgres' value, which the text must have if the type is simple."""
    value, kind, written = node.fields.get("constvalue"), node.number("consttype"), ast.text("this")
    is_string, alike = bool(ast.text("is_string")), True
    if not isinstance(value, bytes):
        alike = ast.kind == "Null"
    elif ast.kind == "Boolean":
        alike = kind == t.BOOL and bool(value[0]) == bool(written)
    elif kind in _SIZES and written.isdigit():
        alike = int.from_bytes(value[: _SIZES[kind]], "little", signed=True) == sign * int(written)
    elif kind in (t.TEXT, t.UNKNOWN):
        alike = (
            is_string
            and (value[4:] if kind == t.TEXT else value.split(b"\0")[0]) == written.encode()
        )
    if not alike:
        refuse(ast, "it has another value for Postgres")
    return shell(node)


def interval(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose an interval: a literal, perhaps with a restriction of its fields."""
    walk.take(ast)
    if node.kind == "FUNCEXPR":
        return recast(node, interval(walk, ast, operand(node), level))
    require(ast, node, "CONST")
    return shell(node)


def cast(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a cast: a coercion, or nothing where the type is the same already."""
    to, inner = ast.child("to"), ast.child("this")
    walk.take(to)
    _check_type(walk, ast, node, to.fact("detail").lower())
    if form_of(node) == EXPLICIT:
        composed = walk.attempt(inner, operand(node), level)
        if composed is not None:
            return recast(node, composed)
    return walk.expr(inner, node, level)


def _check_type(walk: Walk, ast: Ast, node: Tree, to: str) -> None:
    """Refuse a cast to another type than the one that Postgres has."""
    oid = type_of(node)
    if oid is None or '"' in to:
        return
    found = walk.names.name("type", oid)
    name = " ".join(_PARAMETERS.sub("", to).split())
    if name.endswith("[]"):
        name, found = name.rstrip("[]"), found.removeprefix("_")
    name = name.split(".")[-1]
    if found not in (name, words.TYPES.get(name)):
        refuse(ast, f"it casts to {name}, and Postgres to {found}")


# -- operators


def negative(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a negative number, or the operator of one operand."""
    inner = bare(ast.child("this"))
    if node.kind == "CONST" and inner.kind == "Literal":
        walk.bind(inner, node)
        return literal(walk, inner, node, level, -1)
    _operator(walk, ast, node, words.UNARY[ast.kind])
    return shell(node, args=walk.all([ast.child("this")], node.nodes("args"), level, ast))


def binary(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool = False) -> Tree:
    """Compose an operator of two operands."""
    name = words.OPERATORS[ast.kind] or ast.text("operator")
    name = words.NEGATED.get(name, "") if negated != bool(ast.text("negate")) else name
    left, right = _operands(ast)
    if right.kind in ("Any", "All"):
        return _quantified(walk, ast, node, level, name)
    if node.kind == "FUNCEXPR":
        return calls.call(walk, ast, node, level)
    if node.kind in ("BOOLEXPR", "ROWCOMPAREEXPR"):
        return _rows(walk, ast, node, level, name)
    _operator(walk, ast, node, name)
    if right.kind == "JSONPath":
        first, second = node.nodes("args")
        return shell(node, args=[walk.expr(left, first, level), _path(walk, right, second, level)])
    return shell(node, args=walk.all([left, right], node.nodes("args"), level, ast))


def _path(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose the key or the index after -> and the like."""
    walk.take(ast)
    require(ast, node, "CONST")
    keys = [one.text("this") for one in ast.nodes("expressions") if one.kind != "JSONPathRoot"]
    if len(keys) != 1:
        return shell(node)
    one = {"this": keys[0], "is_string": True}
    return literal(walk, Ast(ast.id, "Literal", ast.at, ast.data, one), node, level)


def _operands(ast: Ast) -> tuple[Ast, Ast]:
    """Return the operands; sqlglot has those of @@ as a search for words in columns."""
    if ast.kind == "MatchAgainst" and len(ast.nodes("expressions")) == 1:
        return ast.nodes("expressions")[0], ast.child("this")
    return ast.child("this"), ast.child("expression")


def _operator(walk: Walk, ast: Ast, node: Tree, name: str, kind: str = "OPEXPR") -> None:
    """Refuse a node that is not operator ``name``."""
    require(ast, node, kind)
    number = node.number("opno") if "opno" in node.fields else node.numbers("opnos")[0]
    found = walk.names.name("operator", number)
    if found != name:
        refuse(ast, f"operator {found} for Postgres")


def _fields(walk: Walk, ast: Ast) -> list[Ast]:
    """Return the fields of a row constructor, or the expression itself."""
    ast = bare(ast)
    if ast.kind not in ("Tuple", "Struct") and ast.fact("called").lower() != "row":
        return [ast]
    walk.mark(ast.id)
    return ast.nodes("expressions")


def _rows(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, name: str) -> Tree:
    """Compose the comparison of two rows, field by field."""
    left, right = (_fields(walk, one) for one in _operands(ast))
    if node.kind == "ROWCOMPAREEXPR":
        _operator(walk, ast, node, name, node.kind)
        largs = walk.all(left, node.nodes("largs"), level, ast)
        return shell(node, largs=largs, rargs=walk.all(right, node.nodes("rargs"), level, ast))
    if node.text("boolop") != ("or" if name == "<>" else "and") or len(left) != len(right):
        refuse(ast, "another comparison for Postgres")
    made = []
    for pair, test in zip(zip(left, right, strict=True), node.nodes("args"), strict=True):
        _operator(walk, ast, test, name)
        made.append(shell(test, args=walk.all(list(pair), test.nodes("args"), level, ast)))
    return shell(node, args=made)


def _quantified(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, name: str) -> Tree:
    """Compose a comparison with ANY or ALL of an array or a query."""
    left, right = _operands(ast)
    walk.bind(right, node)
    every, inner = right.kind == "All", bare(right.child("this"))
    if node.kind == "SUBLINK":
        kind = _ALL if every else _ANY
        return _compared(walk, ast, node, level, (left, inner, name, kind))
    _operator(walk, ast, node, name, "SCALARARRAYOPEXPR")
    if node.flag("useOr") == every:
        refuse(ast, "the other one of ANY and ALL for Postgres")
    return shell(node, args=walk.all([left, inner], node.nodes("args"), level, ast))


def _compared(
    walk: Walk, ast: Ast, node: Tree, level: QueryLevel, parts: tuple[Ast, Ast, str, int]
) -> Tree:
    """Compose the comparison of an expression or a row with the rows of a query."""
    left, query, name, kind = parts
    if node.number("subLinkType") != kind:
        refuse(ast, "another kind of subquery for Postgres")
    test, fields = node.child("testexpr"), _fields(walk, left)
    single = test.nodes("args") if test.kind == "BOOLEXPR" else [test]
    made = []
    for field, one in zip(fields, single, strict=True):
        _operator(walk, ast, one, name)
        first, second = one.nodes("args")
        made.append(shell(one, args=[walk.expr(field, first, level), second]))
    composed = walk.query(walk, query, node.child("subselect"), level)
    whole = shell(test, args=made) if test.kind == "BOOLEXPR" else made[0]
    return shell(node, testexpr=whole, subselect=composed)


def within(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool = False) -> Tree:
    """Compose [NOT] IN: a subquery, an array, or comparisons in a row."""
    negated = negated != bool(ast.text("negate"))
    items, left = ast.nodes("expressions"), ast.child("this")
    query = ast.node("query") or (items[0] if items and items[0].kind == "Values" else None)
    if query is not None:
        require(ast, node, "SUBLINK")
        if negated:
            refuse(ast, "Postgres has no NOT here")
        return _compared(walk, ast, node, level, (left, bare(query), "=", _ANY))
    many = node.kind == "BOOLEXPR" and len(items) > 1
    if many and node.text("boolop") != ("and" if negated else "or"):
        refuse(ast, "Postgres joins the comparisons otherwise")
    made: list[Tree] = []
    for unit in node.nodes("args") if many else [node]:
        if unit.kind == "SCALARARRAYOPEXPR":
            # Items that read columns are compared one by one, after the others.
            plain = [one for one in items if not _reads_columns(one)]
            items = [one for one in items if _reads_columns(one)]
            made.append(_listed(walk, ast, unit, level, (plain, negated)))
        elif items:
            one = {"this": left, "expression": items[0]}
            equal = Ast(ast.id, "NEQ" if negated else "EQ", ast.at, ast.data, one)
            made.append(binary(walk, equal, unit, level))
            items = items[1:]
    if items:
        refuse(ast, "it has more items than for Postgres")
    return shell(node, args=made) if many else made[0]


def _listed(
    walk: Walk, ast: Ast, node: Tree, level: QueryLevel, items: tuple[list[Ast], bool]
) -> Tree:
    """Compose the comparison with an array of the items of IN."""
    plain, negated = items
    _operator(walk, ast, node, "<>" if negated else "=", node.kind)
    if node.flag("useOr") == negated:
        refuse(ast, "the other one of ANY and ALL for Postgres")
    first, array = node.nodes("args")
    inner = operand(array) if implicit(array) else array
    require(ast, inner, "ARRAYEXPR")
    made = shell(inner, elements=walk.all(plain, inner.nodes("elements"), level, ast))
    made = made if inner is array else recast(array, made)
    return shell(node, args=[walk.expr(ast.child("this"), first, level), made])


def _reads_columns(ast: Ast) -> bool:
    return any(one.kind == "Column" for one in ast.walk())


def between(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool = False) -> Tree:
    """Compose [NOT] BETWEEN: two comparisons of the same expression."""
    negated = negated != bool(ast.text("negate"))
    if ast.text("symmetric") or node.text("boolop") != ("or" if negated else "and"):
        refuse(ast, "Postgres reads something else here")
    made = []
    names = ("<", ">") if negated else (">=", "<=")
    for part, name, limit in zip(node.nodes("args"), names, ("low", "high"), strict=True):
        _operator(walk, ast, part, name)
        args = [ast.child("this"), ast.child(limit)]
        made.append(shell(part, args=walk.all(args, part.nodes("args"), level, ast)))
    return shell(node, args=made)


def negation(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose NOT, or the negated operator that stands for it."""
    inner = ast.child("this")
    if node.text("boolop") == "not":
        return shell(node, args=walk.all([inner], node.nodes("args"), level, ast))
    form = _NEGATED.get(inner.kind)
    if form is None:
        refuse(ast, "Postgres reads something else here")
    walk.bind(inner, node)
    return form(walk, inner, node, level, negated=True)


def logic(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose AND or OR; a chain to the left is one node."""
    if node.text("boolop") != ast.kind.lower():
        refuse(ast, "Postgres reads something else here")
    parts: list[Ast] = []
    one = ast
    while one.kind == ast.kind:
        walk.bind(one, node)
        parts.append(one.child("expression"))
        one = bare(one.child("this"))
    return shell(node, args=walk.all([one, *reversed(parts)], node.nodes("args"), level, ast))


def predicate(
    walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool = False
) -> Tree:
    """Compose IS [NOT] NULL, TRUE, FALSE or UNKNOWN."""
    right, negated = ast.child("expression"), negated != bool(ast.text("negate"))
    walk.take(right)
    wanted = _TESTS.get((right.kind, right.text("this"), negated), ())
    if (node.text("nulltesttype") or node.text("booltesttype")) not in wanted:
        refuse(ast, "another test for Postgres")
    return shell(node, arg=walk.expr(ast.child("this"), node.child("arg"), level))


def distinct(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose IS [NOT] DISTINCT FROM."""
    equal, parts = ast.kind == "NullSafeEQ", [ast.child("this"), ast.child("expression")]
    if node.kind == "NULLTEST":
        # One of the operands is a literal NULL.
        first, second = parts if bare(parts[1]).kind == "Null" else reversed(parts)
        walk.take(second)
        if bare(second).kind != "Null" or node.text("nulltesttype") != ("0" if equal else "1"):
            refuse(ast, "another test for Postgres")
        return shell(node, arg=walk.expr(first, node.child("arg"), level))
    inner = node
    if equal:
        require(ast, node, "BOOLEXPR")
        [inner] = node.nodes("args")
    _operator(walk, ast, inner, "=", "DISTINCTEXPR")
    made = shell(inner, args=walk.all(parts, inner.nodes("args"), level, ast))
    return shell(node, args=[made]) if equal else made


def escape(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, *, negated: bool = False) -> Tree:
    """Compose LIKE … ESCAPE: the pattern is an argument of ``like_escape``."""
    like = ast.child("this")
    name = words.OPERATORS[like.kind]
    negated = negated != bool(like.text("negate"))
    _operator(walk, ast, node, words.NEGATED[name] if negated else name)
    walk.bind(like, node)
    left, pattern = node.nodes("args")
    require(ast, pattern, "FUNCEXPR")
    pair = [like.child("expression"), ast.child("expression")]
    escaped = shell(pattern, args=walk.all(pair, pattern.nodes("args"), level, ast))
    return shell(node, args=[walk.expr(like.child("this"), left, level), escaped])


_NEGATED: Final[dict[str, NegatedForm]] = {
    "In": within,
    "Is": predicate,
    "Between": between,
    "Escape": escape,
    **dict.fromkeys(("Like", "ILike", "RegexpLike", "RegexpILike", "SimilarTo", "EQ"), binary),
}


# -- with parts


def conditional(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose CASE."""
    value = walk.maybe(ast.node("this"), node.node("arg"), level, ast)
    made = []
    for branch, when in zip(ast.nodes("ifs"), node.nodes("args"), strict=True):
        walk.bind(branch, when)
        condition, written = when.child("expr"), branch.child("this")
        if value is None:
            composed = walk.expr(written, condition, level)
        else:
            _operator(walk, branch, condition, "=")
            tested, other = condition.nodes("args")
            composed = shell(condition, args=[tested, walk.expr(written, other, level)])
        result = walk.expr(branch.child("true"), when.child("result"), level)
        made.append(shell(when, expr=composed, result=result))
    # Without ELSE, Postgres has NULL.
    default = ast.node("default") or Ast("", "Null", ast.at, {})
    result = walk.expr(default, node.child("defresult"), level)
    return shell(node, arg=value, args=made, defresult=result)


def parts(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose COALESCE, GREATEST, LEAST, NULLIF, a row or an array: a list of expressions."""
    if node.kind == "SUBLINK":
        return subquery(walk, ast, node, level)
    if ast.kind in _MINMAX and node.text("op") != _MINMAX[ast.kind]:
        refuse(ast, "the other extreme for Postgres")
    field = _PARTS.get(ast.kind, "args")
    first = [one for one in (ast.node("this"), ast.node("expression")) if one is not None]
    made = walk.all([*first, *ast.nodes("expressions")], node.nodes(field), level, ast)
    return shell(node, **{field: made})


def subquery(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a scalar subquery, EXISTS or ARRAY (SELECT …)."""
    kind = {"Exists": _EXISTS, "Array": _ARRAY}.get(ast.kind, _EXPR)
    if node.number("subLinkType") != kind:
        refuse(ast, "another kind of subquery for Postgres")
    query = ast
    if kind != _EXPR:
        [query] = ast.inputs()
    return shell(node, subselect=walk.query(walk, bare(query), node.child("subselect"), level))


def subscript(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose the elements or the slice of an array."""
    chain, inner = [], ast
    while inner.kind == "Bracket":
        walk.bind(inner, node)
        chain.append(inner)
        inner = bare(inner.child("this"))
    indexes = [one for each in reversed(chain) for one in each.nodes("expressions")]
    lower = iter(node.nodes("reflowerindexpr"))
    above, below = [], []
    for index, upper in zip(indexes, node.nodes("refupperindexpr"), strict=True):
        first, last = None, index
        if index.kind == "Slice":
            walk.bind(index, node)
            first, last = index.child("this"), index.child("expression")
        above.append(_index(walk, last, upper, level))
        if (found := next(lower, None)) is not None:
            # One slice makes all subscripts slices, from 1.
            below.append(_index(walk, first, found, level) if first is not None else found)
    whole = walk.expr(inner, node.child("refexpr"), level)
    return shell(node, refexpr=whole, refupperindexpr=above, reflowerindexpr=below)


def _index(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a subscript; sqlglot counts a number from 0."""
    if bare(ast).kind in ("Literal", "Neg") and node.kind == "CONST":
        walk.take(ast)
        return shell(node)
    return walk.expr(ast, node, level)


def field(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose the field of a row, or a function with a schema."""
    inner, left = ast.child("expression"), ast.child("this")
    if node.kind == "FIELDSELECT":
        walk.take(inner)
        return shell(node, arg=walk.expr(left, node.child("arg"), level))
    walk.take(left)
    return walk.expr(inner, node, level)


def collation(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose COLLATE."""
    walk.take(ast.child("expression"))
    return shell(node, arg=walk.expr(ast.child("this"), node.child("arg"), level))
