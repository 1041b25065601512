"""Composes expressions other than calls of functions: operators, conditionals, literals, casts."""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from headrace import types as t
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetypes import type_of
from headrace.planner.front import calls, words
from headrace.planner.front.syntax import Ast, bare
from headrace.planner.front.walk import (
    EXPLICIT,
    Level,
    Walk,
    form_of,
    implicit,
    operand,
    recast,
    refuse,
    shell,
)

_VAR: Final = ("varno", "varattno")
_INTEGERS: Final = (t.INT2, t.INT4, t.INT8)
_SYSTEM: Final = {-1: "ctid", -2: "xmin", -3: "cmin", -4: "xmax", -5: "cmax", -6: "tableoid"}
_TESTS: Final = {
    ("Boolean", "True", False): "0", ("Boolean", "True", True): "1",
    ("Boolean", "", False): "2", ("Boolean", "", True): "3",
    ("Null", "", False): "4", ("Null", "", True): "5",
}  # fmt: skip
"""BoolTestType by what follows IS [NOT]."""
_PARAMETERS: Final = re.compile(r"\([^)]*\)")
_PARTS: Final = {
    "Coalesce": ("COALESCEEXPR", "args"),
    **dict.fromkeys(("Greatest", "Least"), ("MINMAXEXPR", "args")),
    "Nullif": ("NULLIFEXPR", "args"),
    **dict.fromkeys(("Tuple", "Struct"), ("ROWEXPR", "args")),
    "Array": ("ARRAYEXPR", "elements"),
}
"""Kind of Postgres' node, and the field with its parts."""
_MINMAX: Final = {"Greatest": ("0", "IS_GREATEST"), "Least": ("1", "IS_LEAST")}
EXISTS, ALL, ANY, ROWCOMPARE, EXPR, ARRAY = 0, 1, 2, 3, 4, 6
"""SubLinkType."""
QUERIES: Final = ("Select", "Union", "Intersect", "Except", "Values", "Subquery")




class NegatedForm(Protocol):
    """A form that NOT may be a part of."""

    def __call__(self, walk: Walk, ast: Ast, node: Tree, level: Level, *, negated: bool) -> Tree:
        """Compose the negated expression."""


def column(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose a reference to a column, or to a whole row."""
    walk.take(ast)
    if node.kind == "SQLVALUEFUNCTION":
        return shell(node)
    if node.kind == "FIELDSELECT":
        inner = node.child("arg")
        if inner.kind != "VAR":
            refuse(ast, "it is a field of a computed row")
        return shell(node, arg=shell(inner))
    if node.kind != "VAR":
        refuse(ast, f"Postgres has {node.kind} here")
    # As the text names it: a column of a join with an alias is also one of a table.
    index, number = (node.number(f"{name}syn") or node.number(name) for name in _VAR)
    entry = level.up(node.number("varlevelsup")).entry(index)
    called = entry.child("eref")
    name, table = ast.fact("column"), ast.fact("of")
    if number > 0:
        names = called.items("colnames")
        found = names[number - 1] if number <= len(names) else None
    elif number == 0:
        found, table = called.text("aliasname"), "" if name != "*" else table
        name = ast.fact("of") if name == "*" else name
    else:
        found = _SYSTEM.get(number)
    if found != name or table not in ("", called.text("aliasname")):
        refuse(ast, f'"{name}" is column "{found}" of "{called.text("aliasname")}" for Postgres')
    return shell(node)


def literal(walk: Walk, ast: Ast, node: Tree, level: Level, sign: int = 1) -> Tree:
    """Compose a constant; its type and value are those of Postgres, as far as they agree."""
    if node.kind != "CONST" or node.flag("constisnull"):
        refuse(ast, f"Postgres has {node.kind} here")
    value = node.fields.get("constvalue")
    written, kind = ast.text("this"), node.number("consttype")
    if isinstance(value, bytes) and kind in _INTEGERS and not ast.text("is_string"):
        size = {t.INT2: 2, t.INT4: 4, t.INT8: 8}[kind]
        if int.from_bytes(value[:size], "little", signed=True) != sign * _integer(written):
            refuse(ast, "it has another value for Postgres")
    if isinstance(value, bytes) and kind in (t.TEXT, t.UNKNOWN) and ast.text("is_string"):
        if _text(value, kind) != written.encode():
            refuse(ast, "it has another value for Postgres")
    return shell(node)


def _integer(written: str) -> int | None:
    try:
        return int(written, 0)
    except ValueError:
        return None


def _text(value: bytes, kind: int) -> bytes:
    if kind == t.UNKNOWN:
        return value.split(b"\0")[0]
    return value[4:]


def negative(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose a negative number, or the operator of one operand."""
    inner = bare(ast.child("this"))
    if node.kind == "CONST" and inner.kind == "Literal":
        walk.bind(inner, node)
        return literal(walk, inner, node, level, -1)
    return unary(walk, ast, node, level)


def unary(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose an operator of one operand."""
    _operator(walk, ast, node, words.UNARY[ast.kind])
    return shell(node, args=walk.all([ast.child("this")], node.nodes("args"), level, ast))


def fixed(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose NULL, TRUE or FALSE."""
    value = node.fields.get("constvalue")
    if node.kind != "CONST" or node.flag("constisnull") != (ast.kind == "Null"):
        refuse(ast, f"Postgres has {node.kind} here")
    if isinstance(value, bytes) and bool(value[0]) != bool(ast.text("this")):
        refuse(ast, "it has another value for Postgres")
    return shell(node)


def interval(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose an interval: a literal, perhaps with a restriction of its fields."""
    walk.take(ast)
    if form_of(node):
        return recast(node, interval(walk, ast, operand(node), level))
    if node.kind != "CONST":
        refuse(ast, f"Postgres has {node.kind} here")
    return shell(node)


def cast(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
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


def binary(walk: Walk, ast: Ast, node: Tree, level: Level, *, negated: bool = False) -> Tree:
    """Compose an operator of two operands."""
    name = words.OPERATORS[ast.kind] or ast.text("operator")
    negated = negated != bool(ast.text("negate"))
    name = words.NEGATED.get(name, "") if negated else name
    left, right = _operands(ast)
    if node.kind in ("SCALARARRAYOPEXPR", "SUBLINK"):
        return _quantified(walk, ast, node, level, name)
    fields = [_fields(left), _fields(right)]
    if node.kind in ("BOOLEXPR", "ROWCOMPAREEXPR") and all(fields):
        return _rows(walk, ast, node, level, name)
    if node.kind == "FUNCEXPR":
        return calls.call(walk, ast, node, level)
    _operator(walk, ast, node, name)
    if right.kind == "JSONPath":
        walk.take(right)
        first, second = node.nodes("args")
        if second.kind != "CONST":
            refuse(ast, "it is no path for Postgres")
        return shell(node, args=[walk.expr(left, first, level), second])
    return shell(node, args=walk.all([left, right], node.nodes("args"), level, ast))


def _operands(ast: Ast) -> tuple[Ast, Ast]:
    """Return the operands; sqlglot has those of @@ as a search for words in columns."""
    if ast.kind == "MatchAgainst" and len(ast.nodes("expressions")) == 1:
        return ast.nodes("expressions")[0], ast.child("this")
    return ast.child("this"), ast.child("expression")


def _operator(walk: Walk, ast: Ast, node: Tree, name: str, kind: str = "OPEXPR") -> None:
    """Refuse a node that is not operator ``name``."""
    if node.kind != kind:
        refuse(ast, f"Postgres has {node.kind} here")
    found = walk.names.name("operator", node.number("opno"))
    if found != name:
        refuse(ast, f"operator {found} for Postgres")


def _fields(ast: Ast) -> list[Ast]:
    """Return the fields of a row constructor; empty for anything else."""
    ast = bare(ast)
    if ast.kind == "Anonymous" and ast.fact("called").lower() == "row":
        return ast.nodes("expressions")
    return ast.nodes("expressions") if ast.kind in ("Tuple", "Struct") else []


def _rows(walk: Walk, ast: Ast, node: Tree, level: Level, name: str) -> Tree:
    """Compose the comparison of two rows, field by field."""
    left, right = bare(ast.child("this")), bare(ast.child("expression"))
    walk.read.update((left.id, right.id))
    if node.kind == "ROWCOMPAREEXPR":
        first = walk.names.name("operator", node.numbers("opnos")[0])
        if first != name:
            refuse(ast, f"operator {first} for Postgres")
        return shell(
            node,
            largs=walk.all(_fields(left), node.nodes("largs"), level, left),
            rargs=walk.all(_fields(right), node.nodes("rargs"), level, right),
        )
    args = node.nodes("args")
    wanted = "or" if name == "<>" else "and"
    pairs = list(zip(_fields(left), _fields(right), strict=False))
    if len(pairs) != len(args) or node.text("boolop") != wanted:
        refuse(ast, "rows of another length for Postgres")
    made = []
    for pair, arg in zip(pairs, args, strict=True):
        _operator(walk, ast, arg, name)
        made.append(shell(arg, args=walk.all(list(pair), arg.nodes("args"), level, ast)))
    return shell(node, args=made)


def _quantified(walk: Walk, ast: Ast, node: Tree, level: Level, name: str) -> Tree:
    """Compose a comparison with ANY or ALL of an array or a query."""
    left, right = ast.child("this"), ast.child("expression")
    every = right.kind == "All"
    if right.kind not in ("Any", "All"):
        refuse(ast, f"Postgres has {node.kind} here")
    walk.bind(right, node)
    inner = bare(right.child("this"))
    if node.kind == "SUBLINK":
        if node.number("subLinkType") != (ALL if every else ANY):
            refuse(ast, "another kind of subquery for Postgres")
        return _tested(walk, ast, node, level, (left, inner, name))
    found = walk.names.name("operator", node.number("opno"))
    if found != name or node.flag("useOr") == every:
        refuse(ast, f"operator {found} for Postgres")
    return shell(node, args=walk.all([left, inner], node.nodes("args"), level, ast))


def _tested(
    walk: Walk, ast: Ast, node: Tree, level: Level, parts: tuple[Ast, Ast, str]
) -> Tree:
    """Compose the comparison of an expression or a row with the rows of a query."""
    left, query, name = parts
    test = node.child("testexpr")
    fields = _fields(left) or [left]
    if len(fields) > 1:
        walk.read.add(bare(left).id)
    if test.kind == "ROWCOMPAREEXPR":
        largs = walk.all(fields, test.nodes("largs"), level, ast)
        composed = shell(test, largs=largs, rargs=test.nodes("rargs"))
    elif test.kind == "BOOLEXPR":
        args = test.nodes("args")
        if len(args) != len(fields):
            refuse(ast, "rows of another length for Postgres")
        tests = [_one_test(walk, ast, a, level, (f, name)) for f, a in zip(fields, args)]
        composed = shell(test, args=tests)
    else:
        composed = _one_test(walk, ast, test, level, (fields[0], name))
    return shell(node, testexpr=composed, subselect=walk.query(walk, query, node.child("subselect"), level))


def _one_test(walk: Walk, ast: Ast, test: Tree, level: Level, part: tuple[Ast, str]) -> Tree:
    field, name = part
    _operator(walk, ast, test, name)
    left, right = test.nodes("args")
    return shell(test, args=[walk.expr(field, left, level), right])


def subquery(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose a scalar subquery, EXISTS or ARRAY (SELECT …)."""
    kind = {"Exists": EXISTS, "Array": ARRAY}.get(ast.kind, EXPR)
    if node.kind != "SUBLINK" or node.number("subLinkType") != kind:
        refuse(ast, f"Postgres has {node.kind} here")
    query = ast
    if kind == EXISTS:
        query = ast.child("this")
    elif kind == ARRAY:
        [query] = ast.nodes("expressions")
    composed = walk.query(walk, bare(query), node.child("subselect"), level)
    return shell(node, subselect=composed)


def within(walk: Walk, ast: Ast, node: Tree, level: Level, *, negated: bool = False) -> Tree:
    """Compose [NOT] IN: a subquery, an array, or comparisons in a row."""
    negated = negated != bool(ast.text("negate"))
    name, left = "<>" if negated else "=", ast.child("this")
    items = ast.nodes("expressions")
    query = ast.node("query") or (items[0] if items and items[0].kind == "Values" else None)
    if query is not None:
        if node.kind != "SUBLINK" or node.number("subLinkType") != ANY:
            refuse(ast, f"Postgres has {node.kind} here")
        return _tested(walk, ast, node, level, (left, bare(query), "="))
    units = node.nodes("args") if node.kind == "BOOLEXPR" and len(items) > 1 else [node]
    if len(units) > 1 and node.text("boolop") != ("and" if negated else "or"):
        refuse(ast, "Postgres joins the comparisons otherwise")
    made = []
    waiting = list(items)
    for unit in units:
        if unit.kind == "SCALARARRAYOPEXPR":
            first, array = unit.nodes("args")
            plain = [one for one in waiting if not _reads_columns(one)]
            waiting = [one for one in waiting if _reads_columns(one)]
            if walk.names.name("operator", unit.number("opno")) != name or unit.flag("useOr") == negated:
                refuse(ast, "another operator for Postgres")
            inner = operand(array) if implicit(array) else array
            elements = walk.all(plain, inner.nodes("elements"), level, ast)
            listed: Tree = shell(inner, elements=elements)
            listed = recast(array, listed) if inner is not array else listed
            made.append(shell(unit, args=[walk.expr(left, first, level), listed]))
        elif not waiting:
            refuse(ast, "it has fewer items than for Postgres")
        else:
            equal = Ast(ast.id, "NEQ" if negated else "EQ", ast.at, ast.data, {"this": left, "expression": waiting.pop(0)})
            made.append(binary(walk, equal, unit, level))
    if waiting:
        refuse(ast, "it has more items than for Postgres")
    return shell(node, args=made) if node.kind == "BOOLEXPR" and len(items) > 1 else made[0]


def _reads_columns(ast: Ast) -> bool:
    return any(one.kind == "Column" for one in ast.walk())


def between(walk: Walk, ast: Ast, node: Tree, level: Level, *, negated: bool = False) -> Tree:
    """Compose [NOT] BETWEEN: two comparisons of the same expression."""
    negated = negated != bool(ast.text("negate"))
    operators = ("<", ">") if negated else (">=", "<=")
    parts = node.nodes("args")
    if node.text("boolop") != ("or" if negated else "and") or len(parts) != 2 or ast.text("symmetric"):
        refuse(ast, f"Postgres has {node.kind} here")
    made = []
    for part, name, limit in zip(parts, operators, ("low", "high"), strict=True):
        _operator(walk, ast, part, name)
        args = [ast.child("this"), ast.child(limit)]
        made.append(shell(part, args=walk.all(args, part.nodes("args"), level, ast)))
    return shell(node, args=made)


def negation(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose NOT, or the negated operator that stands for it."""
    inner = ast.child("this")
    if node.kind == "BOOLEXPR" and node.text("boolop") == "not":
        return shell(node, args=walk.all([inner], node.nodes("args"), level, ast))
    form = _NEGATED.get(inner.kind)
    if form is None:
        refuse(ast, f"Postgres has {node.kind} here")
    walk.bind(inner, node)
    return form(walk, inner, node, level, negated=True)


def logic(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose AND or OR; a chain to the left is one node."""
    if node.kind != "BOOLEXPR" or node.text("boolop") != ast.kind.lower():
        refuse(ast, f"Postgres has {node.kind} here")
    parts: list[Ast] = []
    one = ast
    while one.kind == ast.kind:
        walk.bind(one, node)
        parts.append(one.child("expression"))
        one = bare(one.child("this"))
    return shell(node, args=walk.all([one, *reversed(parts)], node.nodes("args"), level, ast))


def test(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose IS [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM."""
    inner, right, negated = ast.child("this"), ast.node("expression"), bool(ast.text("negate"))
    if right is None:
        refuse(ast, "it tests for nothing")
    if node.kind == "BOOLEXPR" and node.text("boolop") == "not" and right.kind not in ("Null", "Boolean"):
        return shell(node, args=[distinct(walk, ast, node.nodes("args")[0], level)])
    walk.take(right)
    if node.kind == "NULLTEST":
        if right.kind != "Null" or node.text("nulltesttype") not in (("1", "IS_NOT_NULL") if negated else ("0", "IS_NULL")):
            refuse(ast, "another test for Postgres")
    elif node.kind == "BOOLEANTEST":
        wanted = _TESTS.get((right.kind, right.text("this"), negated))
        if node.text("booltesttype") != wanted:
            refuse(ast, "another test for Postgres")
    else:
        refuse(ast, f"Postgres has {node.kind} here")
    return shell(node, arg=walk.expr(inner, node.child("arg"), level))


def distinct(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose IS [NOT] DISTINCT FROM."""
    if ast.kind == "NullSafeEQ" and node.kind == "BOOLEXPR":
        if node.text("boolop") != "not":
            refuse(ast, "another test for Postgres")
        [inner] = node.nodes("args")
        return shell(node, args=[_distinct(walk, ast, inner, level)])
    if ast.kind == "NullSafeEQ" and node.kind != "NULLTEST":
        refuse(ast, f"Postgres has {node.kind} here")
    return _distinct(walk, ast, node, level)


def _distinct(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    left, right = ast.child("this"), ast.child("expression")
    if node.kind == "NULLTEST":
        # Postgres tests for NULL where one of the operands is a literal NULL.
        first, second = (left, right) if bare(right).kind == "Null" else (right, left)
        walk.take(second)
        wanted = ("0", "IS_NULL") if ast.kind == "NullSafeEQ" else ("1", "IS_NOT_NULL")
        if bare(second).kind != "Null" or node.text("nulltesttype") not in wanted:
            refuse(ast, "another test for Postgres")
        return shell(node, arg=walk.expr(first, node.child("arg"), level))
    _operator(walk, ast, node, "=", "DISTINCTEXPR")
    return shell(node, args=walk.all([left, right], node.nodes("args"), level, ast))


def conditional(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose CASE."""
    branches, whens = ast.nodes("ifs"), node.nodes("args")
    if node.kind != "CASEEXPR" or len(branches) != len(whens):
        refuse(ast, f"Postgres has {node.kind} here")
    value = walk.maybe(ast.node("this"), node.node("arg"), level, ast)
    made = []
    for branch, when in zip(branches, whens, strict=True):
        walk.bind(branch, when)
        condition = when.child("expr")
        if value is None:
            composed = walk.expr(branch.child("this"), condition, level)
        else:
            _operator(walk, branch, condition, "=")
            tested, other = condition.nodes("args")
            composed = shell(condition, args=[tested, walk.expr(branch.child("this"), other, level)])
        result = walk.expr(branch.child("true"), when.child("result"), level)
        made.append(shell(when, expr=composed, result=result))
    default, found = ast.node("default"), node.child("defresult")
    if default is not None:
        found = walk.expr(default, found, level)
    elif not _is_null(found):
        refuse(ast, "it has an ELSE for Postgres")
    return shell(node, arg=value, args=made, defresult=found)


def _is_null(node: Tree) -> bool:
    while implicit(node):
        node = operand(node)
    return node.kind == "CONST" and node.flag("constisnull")


def parts(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose COALESCE, GREATEST, LEAST, NULLIF, a row or an array: a list of expressions."""
    kind, field = _PARTS[ast.kind]
    if ast.kind == "Array" and node.kind == "SUBLINK":
        return subquery(walk, ast, node, level)
    if node.kind != kind:
        refuse(ast, f"Postgres has {node.kind} here")
    if kind == "MINMAXEXPR" and node.text("op") not in _MINMAX[ast.kind]:
        refuse(ast, "the other extreme for Postgres")
    first = [one for one in (ast.node("this"), ast.node("expression")) if one is not None]
    made = walk.all([*first, *ast.nodes("expressions")], node.nodes(field), level, ast)
    return shell(node, **{field: made})


def subscript(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose the element or the slice of an array."""
    if node.kind != "SUBSCRIPTINGREF":
        refuse(ast, f"Postgres has {node.kind} here")
    upper, lower = node.nodes("refupperindexpr"), node.nodes("reflowerindexpr")
    made: list[Tree] = []
    below: list[Tree] = []
    inner: Ast | None = ast
    chain: list[Ast] = []
    while inner is not None and inner.kind == "Bracket":
        chain.append(inner)
        walk.bind(inner, node)
        inner = bare(inner.child("this"))
    indexes = [one for each in reversed(chain) for one in each.nodes("expressions")]
    if inner is None or len(indexes) != len(upper):
        refuse(ast, "another number of subscripts for Postgres")
    for place, index in enumerate(indexes):
        if index.kind == "Slice":
            walk.bind(index, node)
            made.append(_index(walk, index.child("expression"), upper[place], level))
            below.append(_index(walk, index.child("this"), lower[place], level))
        else:
            made.append(_index(walk, index, upper[place], level))
            # One slice makes all subscripts slices, from 1.
            below += [n for n in lower[place : place + 1] if n.kind == "CONST"]
    if len(below) != len(lower):
        refuse(ast, "another slice for Postgres")
    return shell(
        node,
        refexpr=walk.expr(inner, node.child("refexpr"), level),
        refupperindexpr=made,
        reflowerindexpr=below,
    )


def _index(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose a subscript; sqlglot counts a number from 0."""
    if bare(ast).kind in ("Literal", "Neg") and node.kind == "CONST":
        walk.take(ast)
        return shell(node)
    return walk.expr(ast, node, level)


def field(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose the field of a row, or a function with a schema."""
    inner = ast.child("expression")
    if node.kind == "FIELDSELECT":
        walk.take(inner)
        return shell(node, arg=walk.expr(ast.child("this"), node.child("arg"), level))
    walk.take(ast.child("this"))
    return walk.expr(inner, node, level)


def collation(walk: Walk, ast: Ast, node: Tree, level: Level) -> Tree:
    """Compose COLLATE."""
    walk.take(ast.child("expression"))
    if node.kind != "COLLATEEXPR":
        refuse(ast, f"Postgres has {node.kind} here")
    return shell(node, arg=walk.expr(ast.child("this"), node.child("arg"), level))


def escape(walk: Walk, ast: Ast, node: Tree, level: Level, *, negated: bool = False) -> Tree:
    """Compose LIKE … ESCAPE: the pattern is an argument of ``like_escape``."""
    like = ast.child("this")
    negated = negated != bool(like.text("negate"))
    name = words.OPERATORS[like.kind]
    _operator(walk, ast, node, words.NEGATED[name] if negated else name)
    walk.bind(like, node)
    left, pattern = node.nodes("args")
    if pattern.kind != "FUNCEXPR":
        refuse(ast, "it has no ESCAPE for Postgres")
    pair = [like.child("expression"), ast.child("expression")]
    escaped = shell(pattern, args=walk.all(pair, pattern.nodes("args"), level, ast))
    return shell(node, args=[walk.expr(like.child("this"), left, level), escaped])


_NEGATED: Final[dict[str, NegatedForm]] = {
    "In": within,
    "Between": between,
    "Escape": escape,
    **dict.fromkeys(("Like", "ILike", "RegexpLike", "RegexpILike", "SimilarTo", "EQ"), binary),
}
