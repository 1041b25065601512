"""Functions in FROM and set-returning functions in the select list, as logical ``Functions``.

A function in FROM runs over one row without columns, with free references if it is lateral.
In the select list all set-returning calls of a nesting level run in lockstep, as one ROWS FROM per
level, inner levels first (manual, 38.5.9).  A call in GROUP BY runs below the grouping; any other
call runs above grouping and windows, and below DISTINCT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Final

import psycopg

from headrace.errors import UnsupportedError
from headrace.planner.analyse import check
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import same
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.nodes import Col, FunctionsNode, Node, ProjectNode
from headrace.planner.logical.scalar import (
    ARG,
    SINGLE,
    Call,
    Const,
    Expr,
    Ref,
    plain,
    quote,
    references,
    show,
)
from headrace.planner.scalars import casts, functions
from headrace.planner.scalars.calls import arguments, require_constant_defaults
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.rowtypes import composite
from headrace.planner.scalars.scope import Scope, Site
from headrace.postgres import tokens
from headrace.types import INT8, TEXT

NewColumn = Callable[[str, Expr], Col]

_STABLE: Final = frozenset({"generate_series", "jsonb_path_query_tz"})
"""Stable functions whose results depend only on their arguments and captured settings."""
_RECORDS: Final = frozenset(
    f"json{b}_{name}"
    for b in ("", "b")
    for name in (*("to_record", "to_recordset", "populate_record", "populate_recordset"),)
)
"""Functions that are stable only because the input functions of their column types may be."""
_CALLS: Final = ("FUNCEXPR", "OPEXPR")


def is_set(node: Tree) -> bool:
    """Return whether ``node`` itself is a set-returning call."""
    return node.flag("funcretset") or node.flag("opretset")


def lower_call(lowering: Lowering, node: Tree, scope: Scope, columns: str = "") -> Call:
    """Lower a function in FROM or a set-returning call; ``columns``: SQL of its definition list."""
    if node.kind != "FUNCEXPR":
        lowering.refuse("this expression in FROM", node)
    function = lowering.catalog.functions[node.number("funcid")]
    if (reason := _refusal(function)) is not None:
        lowering.refuse_call(function, reason, node)
    args, names = arguments(lowering, node.nodes("args"), scope)
    if len(args) < function.arguments:
        require_constant_defaults(lowering, function, node)
    for argument in args:
        if lowering.catalog.types[argument.oid].kind == "p":
            name = lowering.type_name(argument.oid)
            lowering.refuse(f"an argument of pseudo-type {name} in FROM", node)
    oid = node.number("funcresulttype")
    marks = [f"{name} => {ARG}" if name else ARG for name in names]
    symbol = function.quoted
    if any(names):
        symbol += f" {', '.join(names)}"
    if node.flag("funcvariadic"):
        marks[-1] = f"VARIADIC {ARG}"
        symbol += " variadic"
    users = (oid, *(a.oid for a in args))
    return Call(
        symbol=symbol,
        args=args,
        oid=oid,
        typmod=-1,
        collation=node.number("funccollid"),
        sql=f"{function.quoted}({', '.join(marks)}){columns}",
        show=f"{function.name}({', '.join(marks)})",
        native=None,
        raises=True,
        input_collation=node.number("inputcollid"),
        immutable=function.volatility == "i",
        trusted=function.builtin and all(lowering.plain_type(u) for u in users),
    )


def _refusal(function: Function) -> str | None:
    """Return why ``function`` may not be called in FROM, or ``None``."""
    known = function.name in _STABLE and function.returns_set
    if function.builtin and (known or function.name in _RECORDS):
        return None
    return functions.refusal(dataclasses.replace(function, returns_set=False))


_Shape = tuple[str, int, int, int]
"""Name, type, typmod and collation of a column."""


# -- FROM


def bind_calls(lowering: Lowering, entry: Tree, scope: Scope) -> tuple[Call, ...]:
    """Lower the calls of a range-table entry of functions."""
    return tuple(_from_item(lowering, f, scope) for f in entry.nodes("functions"))


def bind_functions(
    lowering: Lowering, entry: Tree, calls: tuple[Call, ...], column: NewColumn, below: Node
) -> Node:
    """Return a plan of ``calls`` over ``below``, without the columns of ``below``."""
    shapes: list[_Shape | None] = []
    dated: list[int] = []
    for call, item in zip(calls, entry.nodes("functions"), strict=True):
        mine = _numbered_shape(lowering, call, item.number("funccolcount"))
        _refuse_clock(lowering, item.child("funcexpr"), [s[1] for s in mine if s is not None])
        dated += _dated(lowering, item) or [0] * len(mine)
        shapes += mine
    names = [n for n in entry.child("eref").items("colnames") if isinstance(n, str)]
    outputs: list[Col] = []
    shown: list[tuple[Col, Expr]] = []
    for number, shape in enumerate(shapes):
        if shape is None:
            dropped = Const(None, TEXT)
            shown.append((column("", dropped), dropped))
            continue
        name, oid, typmod, collation = shape
        label = names[number] if number < len(names) else name
        made = Const(None, lowering.catalog.types.base(oid), typmod, collation)
        outputs.append(column(label, made))
        shown.append((outputs[-1], outputs[-1].ref))
        if dated[number]:
            cast = casts.cast(lowering, outputs[-1].ref, dated[number], -1, 0)
            shown[-1] = (column(label, cast), cast)
    ordinality = None
    if entry.flag("funcordinality"):
        ordinality = column(names[-1], Const(None, INT8))
        shown.append((ordinality, ordinality.ref))
    node = FunctionsNode(below, calls, tuple(outputs), ordinality)
    if any(dated) or None in shapes:
        return ProjectNode(node, tuple(shown))
    return with_only(node, tuple(c for c, _ in shown))


def _dated(lowering: Lowering, item: Tree) -> list[int]:
    """Return, per column of a definition list, the date or time type that is read as text, or 0.

    A string in JSON may denote the current time.  So it is read as text and then cast.
    """
    tree = item.child("funcexpr")
    if lowering.catalog.functions[tree.number("funcid")].name not in _RECORDS:
        return []
    types = zip(item.numbers("funccoltypes"), item.items("funccoltypmods"), strict=True)
    return [
        oid if functions.clock_guarded(oid) and int(str(typmod)) == -1 else 0
        for oid, typmod in types
    ]


def _refuse_clock(lowering: Lowering, tree: Tree, oids: list[int]) -> None:
    """Refuse a column type whose input may read the clock, since JSON may contain 'now'."""
    function = lowering.catalog.functions[tree.number("funcid")]
    if function.name not in _RECORDS:
        return
    for oid in oids:
        if functions.reads_clock(lowering.catalog, oid):
            lowering.refuse(
                f'function "{function.name}" with a column of type'
                f" {lowering.type_name(oid)}, whose input may read the clock,",
                tree,
                hint="Declare the column as text, and cast it.",
            )


def bind_scalar(
    lowering: Lowering, entry: Tree, scope: Scope, column: NewColumn
) -> tuple[Col, Expr] | None:
    """Return the column of an entry that is an expression (COALESCE, CURRENT_DATE), or None."""
    items = entry.nodes("functions")
    if len(items) != 1 or entry.flag("funcordinality"):
        return None
    tree = items[0].child("funcexpr")
    if tree.kind == "FUNCEXPR" or items[0].number("funccolcount") != 1:
        return None
    expr = lowering.lower(tree, scope)
    return column(str(entry.child("eref").items("colnames")[0]), expr), expr


def _from_item(lowering: Lowering, item: Tree, scope: Scope) -> Call:
    return lower_call(lowering, item.child("funcexpr"), scope, _definitions(lowering, item))


def _definitions(lowering: Lowering, item: Tree) -> str:
    """Return the column definition list, as SQL, of a function that returns ``record``."""
    names = item.items("funccolnames")
    if not names:
        return ""
    columns = []
    for name, oid, typmod, collation, dated in zip(
        names,
        item.numbers("funccoltypes"),
        item.items("funccoltypmods"),
        item.numbers("funccolcollations"),
        _dated(lowering, item) or [0] * len(names),
        strict=True,
    ):
        found = lowering.catalog.collations.get(collation)
        own = lowering.catalog.types[oid].collation
        declared = TEXT if dated else oid
        text = lowering.catalog.types.declaration(declared, int(str(typmod)))
        if found is not None and collation != own:
            text += f" COLLATE {found.quoted}"
        columns.append(f"{tokens.identifier(str(name))} {text}")
    return f" AS ({', '.join(columns)})"


def _numbered_shape(lowering: Lowering, call: Call, count: int = 0) -> list[_Shape | None]:
    """Return ``_shape`` by column number; None for the dropped columns of a row type.

    ``count`` is the number of columns, if known.
    """
    found = _shape(lowering, call)
    base = lowering.catalog.types.base(call.oid)
    if lowering.catalog.types[base].kind != "c":
        return list(found)
    numbers = [a.number for a in lowering.catalog.types.attributes(base)]
    known = dict(zip(numbers, found, strict=True))
    return [known.get(n) for n in range(1, max((count, *numbers)) + 1)]


def _shape(lowering: Lowering, call: Call) -> list[_Shape]:
    """Return (name, type, typmod, collation) of the columns of ``call``."""
    query, _ = _query(lowering, "f.*", (_unchecked(call),))
    try:
        return lowering.described(query)
    except psycopg.ProgrammingError as error:
        raise UnsupportedError(
            "a function in FROM cannot be converted to SQL text",
            detail=error.diag.message_primary,
        ) from error


def _unchecked(call: Call) -> Call:
    """Remove the checks of scalar subqueries, which SQL cannot express; the type stays the same."""
    args = tuple(_unchecked(a) if isinstance(a, Call) else a for a in call.args)
    args = tuple(a.args[1] if isinstance(a, Call) and a.symbol == SINGLE else a for a in args)
    return dataclasses.replace(call, args=args)


def _query(lowering: Lowering, targets: str, calls: tuple[Call, ...]) -> tuple[str, list[Ref]]:
    """Return generated SQL of ``calls``, and the references that its input columns stand for."""
    found = list({r.id: r for c in calls for r in references(c)}.values())
    places = {ref.id: place for place, ref in enumerate(found, 1)}
    sqls = ", ".join(lowering.sql(c, lambda r: f"s.a{places[r.id]}") for c in calls)
    inputs = ", ".join(
        f"{quote(None, lowering.type_name(ref.oid))} AS a{place}"
        for place, ref in enumerate(found, 1)
    )
    # Both lists are generated text over names that are already quoted.
    source = f"(SELECT {inputs}) s, LATERAL " if found else ""
    return f"SELECT {targets} FROM {source}ROWS FROM ({sqls}) f", found  # noqa: S608


def prove(lowering: Lowering, sets: list[tuple[Call, ...]]) -> None:
    """Raise an error unless Postgres parses the generated SQL of every call as in the query."""
    for calls in dict.fromkeys(sets):
        query, found = _query(lowering, "1 AS one", calls)
        tree = lowering.analysed(query)
        # Up to Postgres 15 a view's own old and new rows are entries too.
        entry = next(e for e in tree.nodes("rtable") if e.nodes("functions"))
        scope = Scope(_numbered(found))
        items = entry.nodes("functions")
        for expr, item in zip(calls, items, strict=True):
            again = _from_item(lowering, item, scope)
            if plain(again) != plain(expr):
                raise UnsupportedError(
                    f"function {show(expr)} cannot be reproduced exactly and is not supported"
                )


def _numbered(found: list[Ref]) -> Callable[[int, int], Expr]:
    return lambda _, attno: found[attno - 1]


# -- the select list


@dataclasses.dataclass(slots=True)
class _SetCall:
    """A set-returning call of the select list.

    ``fields`` are the needed columns of its composite result, by number; a result that is not
    composite is number 0.
    """

    tree: Tree
    fields: dict[int, Col]
    args: list[Tree]
    level: int


class TargetSets:
    """The set-returning calls of a query's select list (ORDER BY included).

    Must be created before the list is lowered: it enters every call in ``Lowering.known`` as a
    reference to a column that ``below`` or ``above`` makes later.
    """

    def __init__(self, lowering: Lowering, column: NewColumn, query: Tree) -> None:
        self._lowering = lowering
        self._column = column
        self._below: list[_SetCall] = []
        self._above: list[_SetCall] = []
        if not query.flag("hasTargetSRFs"):
            return
        grouped = _grouped(query)
        self._grouped: list[Tree] = []
        """Expressions of the select list in GROUP BY."""
        self._keys = _group_keys(query)
        # Beside another call its rows may run out, which differs from a row of NULLs.
        self._alone = sum(map(_count_sets, (*query.nodes("targetList"), *self._keys.values()))) == 1
        windowed = {
            c.number("tleSortGroupRef")
            for w in query.nodes("windowClause")
            for c in (*w.nodes("partitionClause"), *w.nodes("orderClause"))
        }
        entries = query.nodes("targetList")
        # GROUP BY first: an equal expression elsewhere in the list is its value, not another call.
        for entry in sorted(entries, key=lambda e: e.number("ressortgroupref") not in grouped):
            place = entry.number("ressortgroupref")
            mine = self._below if place and place in grouped else self._above
            before = len(mine)
            if mine is self._below:
                self._grouped.append(entry.child("expr"))
            self._register(entry.child("expr"), mine)
            if mine is self._above and place in windowed and len(mine) > before:
                lowering.refuse("a set-returning function in a window definition")

    def _register(self, tree: Tree, mine: list[_SetCall]) -> int:
        """Register the calls in ``tree``, and return their nesting depth."""
        if tree.kind in ("SUBLINK", "AGGREF", "WINDOWFUNC"):
            return 0  # calls inside do not belong to this list
        if tree.kind == "VAR" and not tree.number("varlevelsup"):
            # It may be the value of a GROUP BY expression, which has one call for all references.
            key = self._keys.pop((tree.number("varno"), tree.number("varattno")), None)
            return 0 if key is None else self._register(key, self._below)
        if mine is self._above:
            for key in self._grouped:
                if same(key, tree):
                    self._share(key, tree)
                    return 0
        target, field = tree, 0
        if tree.kind == "FIELDSELECT" and is_set(tree.child("arg")):
            target, field = tree.child("arg"), tree.number("fieldnum")
        if not is_set(target):
            return max((self._register(t, mine) for t in _parts(target)), default=0)
        inner = [a.child("arg") if a.kind == "NAMEDARGEXPR" else a for a in target.nodes("args")]
        level = max((self._register(t, mine) for t in inner), default=0)
        function = self._lowering.catalog.functions[target.number("funcid")]
        if field:
            oid, collation = tree.number("resulttype"), tree.number("resultcollid")
        else:
            oid, collation = (target.number("funcresulttype"), target.number("funccollid"))
            if target.kind != "FUNCEXPR" or _composite(self._lowering.catalog, oid):
                mine.append(_SetCall(target, self._whole(target, function), inner, level))
                return level + 1
        made = Const(None, self._lowering.catalog.types.base(oid), -1, collation)
        column = self._column(function.name, made)
        self._lowering.known[id(tree)] = column.ref
        mine.append(_SetCall(target, {field: column}, inner, level))
        return level + 1

    def _share(self, key: Tree, tree: Tree) -> None:
        """Give the calls in ``tree`` the columns of those in ``key``, which is equal."""
        known = self._lowering.known.get(id(key))
        if known is not None:
            self._lowering.known[id(tree)] = known
        for one, other in zip(_parts(key), _parts(tree), strict=True):
            self._share(one, other)

    def _whole(self, target: Tree, function: Function) -> dict[int, Col]:
        """Return the columns of the row that a call returns, and enter their row as its value."""
        catalog = self._lowering.catalog
        oid = catalog.types.base(target.number("funcresulttype"))
        known = target.kind == "FUNCEXPR" and catalog.types[oid].kind == "c"
        if not known or not self._alone or not catalog.functions.gives_rows(function.oid):
            self._lowering.refuse(
                "a set-returning function of composite type in the select list",
                target,
                hint=f"Call function {function.quoted} in FROM, and select its rows there.",
            )
        columns = {
            a.number: self._column(
                a.name, Const(None, catalog.types.base(a.oid), a.typmod, a.collation)
            )
            for a in catalog.types.attributes(oid)
        }
        row = composite(self._lowering, oid, [column.ref for column in columns.values()])
        self._lowering.known[id(target)] = row
        return columns

    def below(self, site: Site, scope: Scope) -> None:
        """Put the calls that GROUP BY needs over the node of ``site``."""
        calls = [(c, lower_call(self._lowering, c.tree, scope)) for c in self._below]
        site.node = self._layers(site.node, calls)

    @property
    def arguments(self) -> list[Tree]:
        """Arguments of the calls above the grouping, as entries of the select list."""
        return [Tree("TARGETENTRY", {"expr": a}) for c in self._above for a in c.args]

    def above(self, node: Node, arguments: list[Expr]) -> Node:
        """Add the calls above the grouping to ``node``; ``arguments`` are lowered."""
        given = iter(arguments)
        calls: list[tuple[_SetCall, Call]] = []
        for call in self._above:
            mine = [next(given) for _ in call.args]
            known = self._lowering.known
            before = {id(t): known.get(id(t)) for t in call.args}
            known.update({id(t): e for t, e in zip(call.args, mine, strict=True)})
            calls.append((call, lower_call(self._lowering, call.tree, Scope(_nowhere))))
            for tree, old in before.items():
                if old is None:
                    del known[tree]
                else:
                    known[tree] = old
        return self._layers(node, calls)

    def _layers(self, node: Node, calls: list[tuple[_SetCall, Call]]) -> Node:
        """Add one ``Functions`` node per nesting level, the innermost first."""
        for level in range(1 + max((c.level for c, _ in calls), default=-1)):
            mine = [(c, e) for c, e in calls if c.level == level]
            outputs: list[Col] = []
            for call, expr in mine:
                if 0 in call.fields:
                    outputs.append(call.fields[0])
                    continue
                for number, shape in enumerate(_numbered_shape(self._lowering, expr), 1):
                    if shape is None:
                        continue
                    name, oid, typmod, collation = shape
                    base = self._lowering.catalog.types.base(oid)
                    made = self._column(name, Const(None, base, typmod, collation))
                    outputs.append(call.fields.get(number, made))
            node = FunctionsNode(node, tuple(e for _, e in mine), tuple(outputs))
        return node


def _grouped(query: Tree) -> set[int]:
    """Return the numbers of the select-list entries in GROUP BY."""
    return {c.number("tleSortGroupRef") for c in query.nodes("groupClause")}


def _group_keys(query: Tree) -> dict[tuple[int, int], Tree]:
    """Return the expressions of GROUP BY by (varno, attno); empty before Postgres 18.

    From 18 on, the select list refers to them as columns of an entry of the range table.
    """
    return {
        (varno, attno): key
        for varno, entry in enumerate(query.nodes("rtable"), 1)
        if entry.number("rtekind") == check.GROUP
        for attno, key in enumerate(entry.items("groupexprs"), 1)
        if isinstance(key, Tree)
    }


def _count_sets(tree: Tree) -> int:
    """Return the number of set-returning calls of this query in ``tree``."""
    if tree.kind in ("SUBLINK", "AGGREF", "WINDOWFUNC"):
        return 0
    return is_set(tree) + sum(map(_count_sets, _parts(tree)))


def _composite(catalog: Catalog, oid: int) -> bool:
    """Return whether values of the type are rows."""
    return catalog.types[catalog.types.base(oid)].kind in ("c", "p")


def _parts(tree: Tree) -> Iterator[Tree]:
    """Yield the child nodes of ``tree``."""
    for value in tree.fields.values():
        if isinstance(value, Tree):
            yield value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Tree):
                    yield item
                elif isinstance(item, list):
                    yield from (i for i in item if isinstance(i, Tree))


def _nowhere(varno: int, attno: int) -> Expr:
    raise AssertionError(f"column {attno} of entry {varno} is known already")


def with_only(node: Node, columns: tuple[Col, ...]) -> Node:
    """Return ``node`` with only ``columns``."""
    if node.columns == columns:
        return node
    return ProjectNode(node, tuple((c, c.ref) for c in columns))
