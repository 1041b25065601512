"""Composes queries: WITH, FROM, the clauses of SELECT, VALUES and set operations."""

from __future__ import annotations

import itertools
from typing import Final

from headrace.planner.analyse.check import CTE, FUNCTION, GROUP, RELATION, SUBQUERY, VALUES
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.front import calls, words
from headrace.planner.front.clauses import clauses
from headrace.planner.front.syntax import Ast, Different, bare
from headrace.planner.front.walk import QueryLevel, Walk, refuse, shell

_SIDES: Final = {"": "0", "LEFT": "1", "FULL": "2", "RIGHT": "3"}
_OPERATIONS: Final = {
    "Union": ("1", "SETOP_UNION"), "Intersect": ("2", "SETOP_INTERSECT"), "Except": ("3", "SETOP_EXCEPT"),
}  # fmt: skip
_ORDINAL: Final = ("ordinality", "offset")
"""Arguments for WITH ORDINALITY."""
_AROUND: Final = ("with", "order", "limit", "offset", "locks")
"""Clauses that may stand outside of the parentheses of a query."""


def query(walk: Walk, ast: Ast, node: Tree, outer: QueryLevel | None) -> Tree:
    """Compose a query, which Postgres has analysed as ``node``."""
    ast = _opened(walk, ast)
    if (values := _only_values(ast)) is not None:
        walk.take(ast.nodes("expressions")[0])
        walk.mark(ast.id, ast.child("from").id)
        ast = values
    level = QueryLevel(node, outer)
    walk.bind(ast, node)
    made = shell(node, rteperminfos=node.nodes("rteperminfos"))
    made.fields["cteList"] = _with(walk, ast, level) or None
    if ast.kind in _OPERATIONS:
        _set_operation(walk, ast, made, level)
    elif ast.kind == "Values":
        _values(walk, ast, made, level)
    elif ast.kind == "Select":
        _select(walk, ast, made, level)
    else:
        refuse(ast, "it is no query")
    _ordered(walk, ast, made, level)
    made.fields["targetList"] = _targets(node, level)
    return made


def _opened(walk: Walk, ast: Ast) -> Ast:
    """Return the query in parentheses, with the clauses after them."""
    while ast.kind in ("Subquery", "Paren", "Table"):
        inner = ast.child("this")
        walk.mark(ast.id)
        around = {n: ast.args[n] for n in _AROUND if ast.args.get(n)}
        ast = inner.replaced(**around) if around else inner
    return ast


def _only_values(ast: Ast) -> Ast | None:
    """Return the VALUES that sqlglot has as a query of all its columns."""
    clause = ast.node("from")
    if ast.kind != "Select" or clause is None or clause.at is None:
        return None
    inner = clause.child("this")
    return inner if inner.kind == "Values" and inner.fact("name") == "_values" else None


def _with(walk: Walk, ast: Ast, level: QueryLevel) -> list[Tree]:
    found = {cte.text("ctename"): cte for cte in level.query.nodes("cteList")}
    clause = ast.node("with")
    made: dict[str | None, Tree] = {}
    for one in clause.nodes("expressions") if clause is not None else ():
        cte = found.get(one.fact("name"))
        if cte is None:
            refuse(one, "Postgres has no such WITH query")
        walk.bind(one, cte)
        walk.take(one.node("alias"))
        names = cte.items("aliascolnames")
        if one.data.get("columns") and list(one.data["columns"]) != names:
            refuse(one, "its columns have other names for Postgres")
        composed = walk.query(walk, one.child("this"), cte.child("ctequery"), level)
        made[cte.text("ctename")] = shell(cte, ctequery=composed)
    if clause is not None:
        walk.mark(clause.id)
        if not clause.text("recursive") and list(made) != list(found):
            refuse(clause, "Postgres has the WITH queries in another order")
    return [made[name] for name in found if name in made]


# -- SELECT


def _select(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    node = level.query
    items, entries = _from(walk, ast, level)
    where = ast.node("where")
    condition = node.child("jointree").node("quals")
    made.fields["jointree"] = shell(
        node.child("jointree"),
        fromlist=items,
        quals=walk.maybe(_inside(walk, where), condition, level, ast),
    )
    for window in ast.nodes("windows"):
        level.definitions[window.child("this").fact("name")] = window
    _output(walk, ast, level)
    _group(walk, ast, made, level)
    having = walk.maybe(_inside(walk, ast.node("having")), node.node("havingQual"), level, ast)
    made.fields["havingQual"] = having
    named = {w.text("name"): w for w in node.nodes("windowClause")}
    for name, window in level.definitions.items():
        walk.take(window.node("this"))
        if name not in named:
            refuse(window, "Postgres has no such window")
        calls.define(walk, window, named[name], level)
    _distinct(walk, ast, made, level)
    made.fields["rtable"] = _entries(walk, entries, level)


def _inside(walk: Walk, clause: Ast | None) -> Ast | None:
    """Return the condition of WHERE or HAVING."""
    if clause is None:
        return None
    walk.mark(clause.id)
    return clause.child("this")


def _entries(walk: Walk, entries: dict[int, Tree], level: QueryLevel) -> list[Tree] | None:
    """Return the range table: the entries of FROM, and those that Postgres adds."""
    out = []
    for index, entry in enumerate(level.query.nodes("rtable"), 1):
        if index in entries:
            out.append(entries[index])
        elif index < _first(level) or entry.number("rtekind") == GROUP:
            out.append(entry)
    return out or None


def _copied(entry: Tree, **parts: object) -> Tree:
    """Return an entry with its names and columns, which are Postgres' to resolve."""
    return Tree(entry.kind, {**entry.fields, **parts})


def _first(level: QueryLevel) -> int:
    """Return the first entry of the query: up to Postgres 15 a view's own come before it."""
    entries = level.query.nodes("rtable")
    if level.outer is None and len(entries) > 1:
        own = [e.child("eref").text("aliasname") for e in entries[:2]]
        if own == ["old", "new"] and not entries[0].flag("inFromCl"):
            return 3
    return 1


class _From:
    """The items of one FROM clause; entries are numbered in Postgres' order."""

    def __init__(self, walk: Walk, level: QueryLevel) -> None:
        self._walk = walk
        self._level = level
        self._next = itertools.count(_first(level))
        self.entries: dict[int, Tree] = {}

    def items(self, ast: Ast, found: list[Tree]) -> list[Tree]:
        """Compose the items of a FROM clause with its joins."""
        groups: list[tuple[Ast, list[Ast]]] = []
        clause = ast.node("from")
        if clause is not None:
            self._walk.mark(clause.id)
            groups.append((clause.child("this"), []))
        for join in ast.nodes("joins"):
            if _is_comma(join):
                self._walk.mark(join.id)
                groups.append((join.child("this"), []))
            elif groups:
                groups[-1][1].append(join)
        if len(groups) != len(found):
            refuse(ast, f"FROM has {len(groups)} items, and {len(found)} for Postgres")
        return [self._joined(g, j, n) for (g, j), n in zip(groups, found, strict=True)]

    def _joined(self, first: Ast, joins: list[Ast], node: Tree) -> Tree:
        """Compose ``first`` with its joins, of which the last one is ``node``."""
        if not joins:
            return self._item(first, node)
        *before, join = joins
        if node.kind != "JOINEXPR":
            refuse(join, "Postgres has no join here")
        self._walk.bind(join, node)
        kind, method = join.text("kind").upper(), join.text("method").upper()
        if kind not in ("", "INNER", "OUTER", "CROSS") or method not in ("", "NATURAL"):
            refuse(join, f"{method or kind} is not compared")
        left = self._joined(first, before, node.child("larg"))
        right = self._item(join.child("this"), node.child("rarg"))
        made = shell(node, larg=left, rarg=right, alias=None)
        made.fields["jointype"] = _SIDES.get(join.text("side").upper())
        made.fields["isNatural"] = "true" if method == "NATURAL" else "false"
        made.fields["quals"] = self._condition(join, node, natural=method == "NATURAL")
        if node.node("alias") is not None or node.node("join_using_alias") is not None:
            made.fields["alias"] = node.node("alias")
        self._enter(join, node.number("rtindex"), {})
        return made

    def _condition(self, join: Ast, node: Tree, *, natural: bool) -> Tree | None:
        """Compose ON; the comparisons of USING and NATURAL are Postgres'."""
        using = join.nodes("using")
        names = [one.fact("name") for one in using]
        for one in using:
            self._walk.take(one)
        if natural or using:
            found = node.items("usingClause")
            if not natural and found != names:
                refuse(join, "Postgres joins by other columns")
            return node.node("quals")
        if node.items("usingClause"):
            refuse(join, "Postgres joins by USING")
        return self._walk.maybe(join.node("on"), node.node("quals"), self._level, join)

    def _enter(self, ast: Ast, index: int, parts: dict[str, object]) -> None:
        """Enter a range-table entry with its composed ``parts``."""
        if index != next(self._next):
            refuse(ast, "Postgres has the items of FROM in another order")
        entry = self._level.entry(index)
        self.entries[index] = _copied(entry, **parts)

    def _item(self, ast: Ast, node: Tree) -> Tree:
        """Compose a table, a function, a query or joins in parentheses."""
        joins = ast.nodes("joins")
        if joins:
            return self._joined(ast.replaced(joins=[]), joins, node)
        if ast.kind == "Paren" or (ast.kind == "Subquery" and _holds_joins(ast.child("this"))):
            self._walk.mark(ast.id)
            self._walk.take(ast.node("alias"))
            return self._item(ast.child("this"), node)
        if node.kind != "RANGETBLREF":
            refuse(ast, "Postgres has a join here")
        index = node.number("rtindex")
        entry = self._level.entry(index)
        self._walk.bind(ast, entry)
        self._check_alias(ast, entry)
        self._enter(ast, index, self._parts(ast, entry))
        return shell(node)

    def _check_alias(self, ast: Ast, entry: Tree) -> None:
        """Refuse other names of an item and its columns than Postgres has."""
        called = entry.child("eref")
        alias = ast.node("alias")
        self._walk.take(alias)
        name, columns = ast.fact("name"), list(ast.data.get("columns") or ())
        if name and name != called.text("aliasname"):
            refuse(ast, f'it is called "{called.text("aliasname")}" by Postgres')
        if columns and called.items("colnames")[: len(columns)] != columns:
            refuse(ast, "its columns have other names for Postgres")

    def _parts(self, ast: Ast, entry: Tree) -> dict[str, object]:
        """Return the composed parts of a range-table entry."""
        walk, kind = self._walk, entry.number("rtekind")
        if kind in (RELATION, CTE):
            self._check_name(ast, entry)
            return {}
        if kind == SUBQUERY:
            inner = ast.child("this") if ast.kind == "Lateral" else ast
            return {"subquery": walk.query(walk, inner, entry.child("subquery"), self._level)}
        if kind != FUNCTION:
            refuse(ast, "an item of this kind is not compared")
        ordinal = any(one.text(n) or one.node(n) for one in _around(ast) for n in _ORDINAL)
        numbered = "true" if ordinal else "false"
        return {"functions": self._functions(ast, entry), "funcordinality": numbered}

    def _check_name(self, ast: Ast, entry: Tree) -> None:
        """Refuse another relation, or WITH query, than Postgres has."""
        self._walk.take(ast.node("this"))
        parts = list(ast.data.get("parts") or ())
        if ast.kind != "Table" or not parts:
            refuse(ast, "Postgres has a table here")
        if entry.number("rtekind") == CTE:
            found = entry.text("ctename") or ""
        else:
            found = self._walk.names.name("relation", entry.number("relid"))
        if parts[-1] != found:
            refuse(ast, f'it is "{found}" for Postgres')

    def _functions(self, ast: Ast, entry: Tree) -> list[Tree]:
        """Compose the functions of an item."""
        calls_, found = [ast], entry.nodes("functions")
        if ast.kind in ("Table", "Lateral"):
            calls_ = [ast.child("this")]
        made = []
        if len(calls_) != len(found):
            refuse(ast, "ROWS FROM is not compared")
        for one, function in zip(calls_, found, strict=True):
            composed = self._walk.expr(one, function.child("funcexpr"), self._level)
            made.append(shell(function, funcexpr=composed))
        return made


def _around(ast: Ast) -> list[Ast]:
    """Return an item of FROM, and the call inside of it."""
    inner = ast.node("this")
    return [ast] if inner is None else [ast, inner]


def _holds_joins(inner: Ast) -> bool:
    """Return whether parentheses hold joins, and not a query."""
    return inner.kind == "Table" or (
        inner.kind == "Subquery" and bool(inner.nodes("joins") or inner.fact("name"))
    )


def _is_comma(join: Ast) -> bool:
    return not any(join.args.get(n) for n in ("kind", "side", "method", "on", "using"))


def _from(walk: Walk, ast: Ast, level: QueryLevel) -> tuple[list[Tree], dict[int, Tree]]:
    made = _From(walk, level)
    items = made.items(ast, level.query.child("jointree").nodes("fromlist"))
    return items, made.entries


# -- the select list


def _output(walk: Walk, ast: Ast, level: QueryLevel) -> None:
    """Compose the output columns; * stands for the columns of items of FROM."""
    entries = [e for e in level.query.nodes("targetList") if not e.flag("resjunk")]
    waiting = list(entries)
    for item in ast.nodes("expressions"):
        stars = _star(item, level)
        if stars is None:
            if not waiting:
                refuse(item, "Postgres has fewer output columns")
            _column(walk, item, waiting.pop(0), level)
            continue
        walk.take(item)
        for name in stars:
            entry = waiting.pop(0) if waiting else None
            if entry is None or entry.text("resname") != name:
                refuse(item, f'column "{name}" is not there for Postgres')
            expr = entry.child("expr")
            if expr.kind != "VAR":
                refuse(item, "a column is computed for Postgres")
            level.targets[id(entry)] = shell(expr)
    if waiting:
        refuse(ast, "Postgres has more output columns")


def _column(walk: Walk, item: Ast, entry: Tree, level: QueryLevel) -> None:
    expr = item
    if item.kind == "Alias":
        walk.take(item.node("alias"))
        if item.fact("name") != entry.text("resname"):
            refuse(item, f'it is called "{entry.text("resname")}" by Postgres')
        expr = item.child("this")
    elif bare(item).kind == "Column" and bare(item).fact("column") != entry.text("resname"):
        refuse(item, f'it is called "{entry.text("resname")}" by Postgres')
    level.targets[id(entry)] = walk.expr(expr, entry.child("expr"), level)
    walk.bind(item, entry.child("expr"))


def _star(item: Ast, level: QueryLevel) -> list[str] | None:
    """Return the names of the columns that an item with * stands for; None: it has none."""
    if item.kind == "Star":
        tops = level.query.child("jointree").nodes("fromlist")
        indexes = [top.number("rtindex") for top in tops]
        entries = [level.entry(index) for index in indexes]
    elif item.kind == "Column" and item.fact("column") == "*":
        called = item.fact("of")
        entries = []
        home: QueryLevel | None = level
        while home is not None and not entries:
            all_ = home.query.nodes("rtable")[_first(home) - 1 :]
            entries = [e for e in all_ if e.child("eref").text("aliasname") == called][:1]
            home = home.outer
    else:
        return None
    names = (n for e in entries for n in e.child("eref").items("colnames"))
    return [n for n in names if isinstance(n, str) and n]


def _targets(node: Tree, level: QueryLevel) -> list[Tree] | None:
    """Return the target list of composed expressions."""
    found = node.nodes("targetList")
    return [shell(entry, expr=level.targets.get(id(entry))) for entry in found] or None


# -- GROUP BY, DISTINCT, ORDER BY, LIMIT


def _group(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    node, clause = level.query, ast.node("group")
    if clause is None:
        made.fields["groupingSets"] = made.fields["groupClause"] = None
        return
    walk.mark(clause.id)
    items = clause.nodes("expressions")
    flat = [one for item in items for one in _flat(walk, item)]
    grouped = clauses(
        walk, flat, node.nodes("groupClause"), node.nodes("targetList"), level, named=True
    )
    made.fields["groupClause"] = grouped or None
    if node.nodes("groupingSets"):
        made.fields["groupingSets"] = _sets(walk, items, node.nodes("groupingSets"), node, level)


def _flat(walk: Walk, item: Ast) -> list[Ast]:
    """Return the expressions of an item of GROUP BY, in order."""
    item = bare(item)
    if item.kind in (*words.SETS, "Tuple"):
        walk.mark(item.id)
        return [one for part in item.nodes("expressions") for one in _flat(walk, part)]
    return [item]


def _sets(
    walk: Walk, items: list[Ast], found: list[Tree], node: Tree, level: QueryLevel
) -> list[Tree]:
    """Compose grouping sets."""
    if len(items) != len(found):
        refuse(items[0], "Postgres has other grouping sets")
    out = []
    for item, one in zip(items, found, strict=True):
        inner = bare(item)
        made = shell(one)
        if inner.kind in words.SETS:
            made.fields["kind"] = words.SETS[inner.kind]
            below = _unnested(walk, inner)
            made.fields["content"] = _sets(walk, below, one.nodes("content"), node, level)
        else:
            parts = inner.nodes("expressions") if inner.kind == "Tuple" else [inner]
            made.fields["kind"] = "1" if parts else "0"
            refs = [str(_reference(walk, part, node, level)) for part in parts]
            made.fields["content"] = refs or None
        out.append(made)
    return out


def _unnested(walk: Walk, sets: Ast) -> list[Ast]:
    """Return the parts of ROLLUP, CUBE or GROUPING SETS; sets inside of sets are their own."""
    out = []
    for part in sets.nodes("expressions"):
        if sets.kind == part.kind == "GroupingSets":
            walk.mark(part.id)
            out += _unnested(walk, part)
        else:
            out.append(part)
    return out


def _reference(walk: Walk, part: Ast, node: Tree, level: QueryLevel) -> int:
    """Return the number by which the target list has a grouped expression."""
    found = [c for c in node.nodes("groupClause") if _is_clause(walk, part, c, node, level)]
    if not found:
        refuse(part, "Postgres groups by other expressions")
    return found[0].number("tleSortGroupRef")


def _is_clause(walk: Walk, part: Ast, clause: Tree, node: Tree, level: QueryLevel) -> bool:
    """Return whether an expression is that of a clause."""
    try:
        clauses(walk, [part], [clause], node.nodes("targetList"), level, named=True)
    except Different:
        return False
    return True


def _distinct(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    node, clause = level.query, ast.node("distinct")
    made.fields["distinctClause"] = None
    made.fields["hasDistinctOn"] = "false"
    if clause is None:
        return
    walk.mark(clause.id)
    found, on = node.nodes("distinctClause"), clause.node("on")
    targets = node.nodes("targetList")
    if on is not None:
        walk.mark(on.id)
        made.fields["hasDistinctOn"] = "true"
        inner = bare(on)
        walk.mark(inner.id)
        wanted = inner.nodes("expressions") if inner.kind == "Tuple" else [inner]
        pairs = [[_is_clause(walk, one, c, node, level) for c in found] for one in wanted]
        if not pairs or not all(map(any, pairs)) or not all(map(any, zip(*pairs, strict=True))):
            refuse(clause, "Postgres has other expressions in DISTINCT ON")
    else:
        refs = {c.number("tleSortGroupRef") for c in found}
        shown = {e.number("ressortgroupref") for e in targets if not e.flag("resjunk")}
        if refs != shown:
            refuse(clause, "Postgres has other expressions in DISTINCT")
    made.fields["distinctClause"] = found or None


def _ordered(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    """Compose ORDER BY, LIMIT, OFFSET and FETCH."""
    node, order = level.query, ast.node("order")
    items: list[Ast] = []
    if order is not None:
        walk.mark(order.id)
        items = order.nodes("expressions")
    found, targets = node.nodes("sortClause"), node.nodes("targetList")
    made.fields["sortClause"] = clauses(walk, items, found, targets, level, named=True) or None
    windows = [level.windows.get(w.number("winref")) for w in node.nodes("windowClause")]
    made.fields["windowClause"] = [w for w in windows if w is not None] or None
    limit, offset = ast.node("limit"), ast.node("offset")
    count = None
    made.fields["limitOption"] = node.text("limitOption") if not node.node("limitCount") else "0"
    if limit is not None:
        walk.mark(limit.id)
        count = limit.node("count") if limit.kind == "Fetch" else limit.node("expression")
        options = limit.node("limit_options")
        walk.take(options)
        if options is not None and options.text("with_ties"):
            made.fields["limitOption"] = "1"
    if offset is not None:
        walk.mark(offset.id)
        offset = offset.child("expression")
    made.fields["limitCount"] = walk.maybe(count, node.node("limitCount"), level, limit or ast)
    made.fields["limitOffset"] = walk.maybe(offset, node.node("limitOffset"), level, ast)


# -- set operations, VALUES


def _set_operation(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    node = level.query
    leaves = itertools.count(_first(level))
    entries: dict[int, Tree] = {}

    def arm(one: Ast, found: Tree) -> Tree:
        inner = one
        while inner.kind in ("Subquery", "Paren") and not any(inner.args.get(n) for n in _AROUND):
            walk.mark(inner.id)
            inner = inner.child("this")
        if found.kind == "SETOPERATIONSTMT":
            if inner.kind not in _OPERATIONS:
                refuse(inner, "Postgres has a set operation here")
            return operation(inner, found)
        index = found.number("rtindex")
        if index != next(leaves):
            refuse(inner, "Postgres has the queries in another order")
        entry = level.entry(index)
        composed = walk.query(walk, inner, entry.child("subquery"), level)
        entries[index] = _copied(entry, subquery=composed)
        return shell(found)

    def operation(one: Ast, found: Tree) -> Tree:
        walk.bind(one, found)
        left = arm(one.child("this"), found.child("larg"))
        right = arm(one.child("expression"), found.child("rarg"))
        composed = shell(found, larg=left, rarg=right, groupClauses=found.nodes("groupClauses"))
        kinds = _OPERATIONS[one.kind]
        composed.fields["op"] = found.text("op") if found.text("op") in kinds else kinds[0]
        composed.fields["all"] = "false" if one.text("distinct") else "true"
        return composed

    operations = node.node("setOperations")
    if operations is None:
        refuse(ast, "Postgres has no set operation here")
    made.fields["setOperations"] = operation(ast, operations)
    made.fields["jointree"] = shell(node.child("jointree"))
    made.fields["rtable"] = _entries(walk, entries, level)
    first = _first(level)
    for place, entry in enumerate(node.nodes("targetList"), 1):
        expr = entry.child("expr")
        if expr.kind == "VAR" and (expr.number("varno"), expr.number("varattno")) == (first, place):
            level.targets[id(entry)] = shell(expr)


def _values(walk: Walk, ast: Ast, made: Tree, level: QueryLevel) -> None:
    node = level.query
    index = _first(level)
    entries = node.nodes("rtable")
    if len(entries) < index or entries[index - 1].number("rtekind") != VALUES:
        refuse(ast, "Postgres has no VALUES here")
    entry = entries[index - 1]
    rows, found = ast.nodes("expressions"), entry.items("values_lists")
    if len(rows) != len(found):
        refuse(ast, "VALUES has another number of rows for Postgres")
    lists = []
    for row, trees in zip(rows, found, strict=True):
        walk.mark(row.id)
        inner = row.nodes("expressions") if row.kind == "Tuple" else [bare(row)]
        there = trees if isinstance(trees, list) else []
        lists.append(walk.all(inner, [n for n in there if isinstance(n, Tree)], level, row))
    walk.take(ast.node("alias"))
    made.fields["rtable"] = _entries(walk, {index: _copied(entry, values_lists=lists)}, level)
    [item] = node.child("jointree").nodes("fromlist")
    made.fields["jointree"] = shell(node.child("jointree"), fromlist=[shell(item)])
    for place, target in enumerate(node.nodes("targetList"), 1):
        expr = target.child("expr")
        if expr.kind == "VAR" and (expr.number("varno"), expr.number("varattno")) == (index, place):
            level.targets[id(target)] = shell(expr)
