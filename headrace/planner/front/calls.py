"""Composes calls of functions, aggregates and window functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.front import words
from headrace.planner.front.clauses import clauses
from headrace.planner.front.syntax import Ast
from headrace.planner.front.walk import QueryLevel, Walk, implicit, operand, recast, refuse, shell

_NAMES: Final = {"WINDOWFUNC": "winfnoid", "AGGREF": "aggfnoid", "FUNCEXPR": "funcid"}
_MODES: Final = {"": 0x2, "RANGE": 0x2, "ROWS": 0x4, "GROUPS": 0x8}
_EXCLUDED: Final = {"": 0, "NO OTHERS": 0, "CURRENT ROW": 0x8000, "GROUP": 0x10000, "TIES": 0x20000}
_DEFAULT_FRAME: Final = 0x2 | 0x20 | 0x400
_NONDEFAULT, _BETWEEN = 0x1, 0x10


@dataclass(slots=True)
class _Parts:
    """The parts of a call as written."""

    args: list[Ast]
    order: list[Ast]
    distinct: bool = False
    star: bool = False
    filter: Ast | None = None
    within: Ast | None = None


def call(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a call of a function or an aggregate."""
    if node.kind == "AGGREF":
        return _aggregate(walk, ast, node, level, _parts(walk, ast))
    if node.kind in ("SQLVALUEFUNCTION", "GROUPINGFUNC"):
        return _fixed(walk, ast, node, level)
    if node.kind == "ROWEXPR" and ast.fact("called").lower() == "row":
        return shell(node, args=walk.all(ast.nodes("expressions"), node.nodes("args"), level, ast))
    if node.kind != "FUNCEXPR":
        refuse(ast, "Postgres reads something else here")
    _check_name(walk, ast, node)
    return shell(node, args=_arguments(walk, ast, _written(ast), node.nodes("args"), level, node))


def _fixed(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose CURRENT_DATE and the like, or GROUPING."""
    if node.kind == "SQLVALUEFUNCTION":
        walk.take(ast)
        return shell(node)
    if ast.kind != "Grouping":
        refuse(ast, "Postgres has GROUPING here")
    return shell(node, args=walk.all(ast.nodes("expressions"), node.nodes("args"), level, ast))


def _check_name(walk: Walk, ast: Ast, node: Tree) -> None:
    """Refuse a call of a function with another name."""
    name = walk.names.name("function", node.number(_NAMES[node.kind]))
    called = ast.fact("called")
    special = words.SPECIAL.get(ast.kind)
    wanted = called.strip('"') if called.startswith('"') else called.lower()
    if name != wanted and not (special is not None and name in special[0]):
        refuse(ast, f"function {name} for Postgres")


def _written(ast: Ast) -> list[Ast]:
    """Return the arguments of a call in Postgres' order: that of the text, unless it is fixed."""
    special = words.SPECIAL.get(ast.kind)
    if special is not None:
        return [one for name in special[1] for one in ast.under(name)]
    args = list(ast.inputs())
    if all(one.at is not None for one in args):
        return sorted(args, key=lambda one: one.at or 0)
    return args


def _arguments(
    walk: Walk, ast: Ast, args: list[Ast], found: list[Tree], level: QueryLevel, node: Tree
) -> list[Tree]:
    """Compose arguments; those of a variadic function may be one array for Postgres."""
    field = _NAMES[node.kind]
    variadic = walk.names.of("function", node.number(field)).variadic
    given = bool(args) and args[-1].kind == "Variadic"
    if given:
        walk.mark(args[-1].id)
        args = [*args[:-1], args[-1].child("this")]
    array = found[-1] if found else None
    inner = operand(array) if array is not None and implicit(array) else array
    if not variadic or given or inner is None or inner.kind != "ARRAYEXPR":
        return [_argument(walk, a, n, level) for a, n in _pairs(ast, args, found)]
    first, rest = args[: len(found) - 1], args[len(found) - 1 :]
    made = [_argument(walk, a, n, level) for a, n in _pairs(ast, first, found[:-1])]
    listed = shell(inner, elements=walk.all(rest, inner.nodes("elements"), level, ast))
    return [*made, listed if inner is array or array is None else recast(array, listed)]


def _pairs(ast: Ast, args: list[Ast], found: list[Tree]) -> list[tuple[Ast, Tree]]:
    if len(args) != len(found):
        refuse(ast, f"it has {len(args)} arguments, and {len(found)} for Postgres")
    return list(zip(args, found, strict=True))


def _argument(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose an argument; a keyword is a constant for Postgres."""
    if node.kind == "CONST" and (ast.kind == "Var" or (ast.at is None and ast.kind == "Literal")):
        walk.take(ast)
        return shell(node)
    return walk.expr(ast, node, level)


# -- aggregates


def _parts(walk: Walk, ast: Ast) -> _Parts:
    """Take DISTINCT, ORDER BY and * out of the arguments."""
    made = _Parts([], [])
    for one in _written(ast):
        arg = one
        if arg.kind == "Order":
            walk.mark(arg.id)
            made.order = arg.nodes("expressions")
            arg = arg.child("this") if arg.node("this") is not None else arg
            if arg is one:
                continue
        if arg.kind == "Distinct":
            walk.mark(arg.id)
            made.distinct = True
            made.args += arg.nodes("expressions")
        elif arg.kind == "Star":
            walk.mark(arg.id)
            made.star = True
        else:
            made.args.append(arg)
    return made


def _aggregate(walk: Walk, ast: Ast, node: Tree, level: QueryLevel, parts: _Parts) -> Tree:
    _check_name(walk, ast, node)
    home = level.up(0)
    entries = node.nodes("args")
    if parts.star != node.flag("aggstar"):
        refuse(ast, "only one of the trees has *")
    order = parts.order if parts.within is None else parts.within.nodes("expressions")
    shown = [e for e in entries if not e.flag("resjunk")]
    composed: dict[int, Tree] = {}
    direct: list[Tree] = []
    if parts.within is not None:
        direct = _arguments(walk, ast, parts.args, node.nodes("aggdirectargs"), level, node)
    else:
        exprs = [e.child("expr") for e in shown]
        made = _arguments(walk, ast, parts.args, exprs, level, node)
        composed = {id(e): m for e, m in zip(shown, made, strict=True)}
    sorted_ = clauses(walk, order, node.nodes("aggorder"), entries, home)
    for entry in entries:
        if (found := level.targets.get(id(entry))) is not None:
            composed.setdefault(id(entry), found)
    if parts.distinct != bool(node.nodes("aggdistinct")):
        refuse(ast, "only one of the trees has DISTINCT")
    return shell(
        node,
        args=[shell(e, expr=composed.get(id(e))) for e in entries],
        aggdirectargs=direct,
        aggorder=sorted_,
        aggdistinct=node.nodes("aggdistinct"),
        aggfilter=walk.maybe(parts.filter, node.node("aggfilter"), level, ast),
    )


def filtered(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose an aggregate with FILTER or WITHIN GROUP."""
    inner, condition, within = ast, None, None
    while inner.kind in ("Filter", "WithinGroup"):
        walk.bind(inner, node)
        below = inner.child("expression")
        walk.mark(below.id)
        if inner.kind == "Filter":
            condition = below.child("this") if below.kind == "Where" else below
        else:
            within = below
        inner = inner.child("this")
    if node.kind != "AGGREF":
        refuse(ast, "Postgres reads something else here")
    parts = _parts(walk, inner)
    parts.filter, parts.within = condition, within
    walk.bind(inner, node)
    return _aggregate(walk, inner, node, level, parts)


# -- windows


def windowed(walk: Walk, ast: Ast, node: Tree, level: QueryLevel) -> Tree:
    """Compose a window function, and the definition of its window."""
    if node.kind != "WINDOWFUNC":
        refuse(ast, "Postgres reads something else here")
    inner, condition = ast.child("this"), None
    if inner.kind == "Filter":
        walk.bind(inner, node)
        walk.mark(inner.child("expression").id)
        condition = inner.child("expression").child("this")
        inner = inner.child("this")
    walk.bind(inner, node)
    _check_name(walk, inner, node)
    parts = _parts(walk, inner)
    if parts.star != node.flag("winstar") or parts.order or parts.distinct:
        refuse(inner, "its arguments are others for Postgres")
    number = node.number("winref")
    found = level.query.nodes("windowClause")[number - 1]
    named = ast.node("alias")
    plain = not any(ast.args.get(n) for n in ("partition_by", "order", "spec"))
    if named is not None and plain:
        walk.take(named)
        if named.fact("name") != found.text("name"):
            refuse(ast, f"window {found.text('name')} for Postgres")
    else:
        define(walk, ast, found, level)
    return shell(
        node,
        args=_arguments(walk, inner, parts.args, node.nodes("args"), level, node),
        aggfilter=walk.maybe(condition, node.node("aggfilter"), level, ast),
    )


def define(walk: Walk, ast: Ast, found: Tree, level: QueryLevel) -> None:
    """Compose the definition of a window, which Postgres has as ``found``."""
    targets = level.query.nodes("targetList")
    walk.bind(ast, found)
    walk.take(ast.node("alias"))
    base = level.definitions.get(named.fact("name")) if (named := ast.node("alias")) else None
    order, spec = ast.node("order"), ast.node("spec")
    items: list[Ast] = []
    if order is not None:
        walk.mark(order.id)
        items = order.nodes("expressions")
    partition = ast.nodes("partition_by")
    if base is not None:
        partition = partition or base.nodes("partition_by")
        below = base.node("order")
        items = items or (below.nodes("expressions") if below is not None else [])
    made = shell(
        found,
        partitionClause=clauses(walk, partition, found.nodes("partitionClause"), targets, level),
        orderClause=clauses(walk, items, found.nodes("orderClause"), targets, level),
        startOffset=_offset(walk, spec, "start", found.node("startOffset"), level),
        endOffset=_offset(walk, spec, "end", found.node("endOffset"), level),
    )
    made.fields["frameOptions"] = str(_frame(spec) | found.number("frameOptions") & _BETWEEN)
    level.windows[found.number("winref")] = made


def _offset(
    walk: Walk, spec: Ast | None, name: str, found: Tree | None, level: QueryLevel
) -> Tree | None:
    if spec is not None:
        walk.mark(spec.id)
        walk.take(spec.node("exclude"))
    value = spec.node(name) if spec is not None else None
    return walk.maybe(value, found, level, spec or Ast("", "Window", None, {}))


def _frame(spec: Ast | None) -> int:
    """Return the frame options that ``spec`` stands for."""
    if spec is None:
        return _DEFAULT_FRAME
    start = _end(spec, "start", (0x20, 0x80, 0x200, 0x800, 0x2000))
    end = _end(spec, "end", (0x40, 0x100, 0x400, 0x1000, 0x4000)) or 0x400
    excluded = _EXCLUDED.get(_word(spec, "exclude"), 0)
    return _NONDEFAULT | _MODES.get(spec.text("kind").upper(), 0) | start | end | excluded


def _word(spec: Ast, name: str) -> str:
    """Return a keyword, which is a text or a node."""
    found = spec.node(name)
    return (found.text("this") if found is not None else spec.text(name)).upper()


def _end(spec: Ast, name: str, bits: tuple[int, ...]) -> int:
    side = spec.text(f"{name}_side").upper()
    value = spec.text(name).upper()
    if spec.node(name) is not None:
        return bits[3] if side == "PRECEDING" else bits[4]
    if value == "CURRENT ROW":
        return bits[2]
    if value == "UNBOUNDED":
        return bits[0] if side == "PRECEDING" else bits[1]
    return 0
