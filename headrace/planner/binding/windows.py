"""Window functions of one query level: from WINDOWFUNC and WINDOW clauses to ``Window`` nodes.

Calls over the same partitions and order become one node, even if their frames differ: Postgres
promises that they see tied rows in the same order, which holds within a node.  Calls over other
partitions or orders become nodes on top of each other.  The inputs of a call are columns below it.
An argument that may fail on a row becomes part of the call's SQL instead.  Postgres then computes
it exactly for the rows that the function reads (lag reads other rows, FILTER skips rows).

Postgres parses the generated SQL of every call, and the result must equal the query's call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import psycopg

from headrace.collections.plan import RunningSpec
from headrace.errors import BugError, UnsupportedError
from headrace.expressions import placeholders
from headrace.expressions.keys import order_native
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetree import same
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.binding.ordering import KeyOf, orders, sorted_by, sorted_by_fields
from headrace.planner.logical.nodes import Col, Node, ProjectNode, WindowCall, WindowNode
from headrace.planner.logical.scalar import (
    SINGLE,
    Const,
    Expr,
    Ref,
    any_call,
    plain,
    quote,
    raises,
    references,
    show,
    substitute,
    trusted,
)
from headrace.planner.scalars import build, xml_values
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.types import INT2, INT4, INT8, NUMERIC

_NONDEFAULT, _RANGE, _ROWS, _GROUPS, _BETWEEN = 1, 2, 4, 8, 16
_STARTS: Final = (
    (0x20, "UNBOUNDED PRECEDING"),
    (0x80, "UNBOUNDED FOLLOWING"),
    (0x200, "CURRENT ROW"),
    (0x800, "{} PRECEDING"),
    (0x2000, "{} FOLLOWING"),
)
_ENDS: Final = (
    (0x40, "UNBOUNDED PRECEDING"),
    (0x100, "UNBOUNDED FOLLOWING"),
    (0x400, "CURRENT ROW"),
    (0x1000, "{} PRECEDING"),
    (0x4000, "{} FOLLOWING"),
)
_EXCLUDES: Final = (
    (0x8000, " EXCLUDE CURRENT ROW"),
    (0x10000, " EXCLUDE GROUP"),
    (0x20000, " EXCLUDE TIES"),
)
"""Bits of ``frameOptions`` (parsenodes.h)."""

_NUMBERING: Final = ("row_number", "rank", "dense_rank")
_FRAMELESS: Final = (*_NUMBERING, "percent_rank", "cume_dist", "ntile", "lag", "lead")
_UP_TO_HERE: Final = (
    "",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
)
"""Frames that end at the row or its peers."""
_EVERY_ROW: Final = (
    *_UP_TO_HERE,
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
)
"""Frames with which each row is in the frame of at least one row."""
_DISTANCE_MAX: Final = 64
_CONSTANT_FRAME: Final = (
    "Give the offset as a constant, or join each row with the rows of its frame."
)
_OFFSETS: Final = ("startOffset", "endOffset")
_CLAUSE_FIELDS: Final = ("startInRangeFunc", "endInRangeFunc")
_CALL_FIELDS: Final = ("winfnoid", "wincollid", "inputcollid", "winstar")

NewColumn = Callable[[str, Expr], Col]


@dataclass(slots=True)
class _Call:
    """One window function, and the places of its trees among the targets."""

    tree: Tree
    column: Col
    args: slice
    condition: int | None
    clause: Tree


@dataclass(slots=True)
class _Definition:
    """Window definitions that differ only in their frames; the slices refer to the targets."""

    clause: Tree
    keys: slice
    order: tuple[slice, ...]
    rows: frozenset[int]
    """References of ORDER BY items that are sorted by the fields of a row."""
    calls: list[_Call] = field(default_factory=list)


class Windows:
    """Binds the window functions of one query level."""

    def __init__(self, lowering: Lowering, column: NewColumn, query: Tree, key: KeyOf) -> None:
        self._lowering = lowering
        self._column = column
        self._query = query
        self._key = key
        self._trees: list[Tree] = []
        self._definitions: list[_Definition] = []
        self._calls: list[_Call] = []
        if query.flag("hasWindowFuncs"):
            for entry in query.nodes("targetList"):
                for node in _own(entry):
                    if node.kind == "WINDOWFUNC":
                        self._collect(node)

    def targets(self) -> list[Tree]:
        """Return the keys, arguments and filters of the windows as target entries."""
        return [Tree("TARGETENTRY", {"expr": tree}) for tree in self._trees]

    def scope(self, scope: Scope) -> Scope:
        """Return ``scope`` with window functions resolved to columns."""
        if not self._calls:
            return scope
        before = scope.special

        def special(node: Tree) -> Expr | None:
            if node.kind == "WINDOWFUNC":
                call = self._known(node)
                return call.column.ref if call is not None else None
            return before(node) if before is not None else None

        later = scope.later | {c.column.id for c in self._calls}
        return dataclasses.replace(scope, special=special, later=later)

    def bind(self, node: Node, exprs: list[Expr]) -> tuple[Node, list[Expr]]:
        """Add the windows over ``node``; return it and the expressions other than ``targets``."""
        count = len(exprs) - len(self._trees)
        mine = exprs[count:]
        for definition in self._definitions:
            node = self._window(node, definition, mine)
        return node, exprs[:count]

    def _known(self, node: Tree) -> _Call | None:
        return next((c for c in self._calls if same(c.tree, node)), None)

    # -- what there is

    def _collect(self, node: Tree) -> None:
        if self._known(node) is not None:
            return
        [clause] = [
            c
            for c in self._query.nodes("windowClause")
            if c.number("winref") == node.number("winref")
        ]
        definition = self._definition(clause)
        args = self._add(node.nodes("args"))
        condition = node.node("aggfilter")
        place = self._add([condition]).start if condition is not None else None
        result = Const(
            None,
            self._lowering.catalog.types.base(node.number("wintype")),
            -1,
            node.number("wincollid"),
        )
        name = self._lowering.catalog.functions[node.number("winfnoid")].name
        call = _Call(node, self._column(name, result), args, place, clause)
        self._calls.append(call)
        definition.calls.append(call)

    def _definition(self, clause: Tree) -> _Definition:
        for known in self._definitions:
            if _same_rows(known.clause, clause):
                return known
        by_ref = {
            e.number("ressortgroupref"): e.child("expr")
            for e in self._query.nodes("targetList")
            if e.number("ressortgroupref")
        }
        keys, order = (
            [sorted_by(by_ref[c.number("tleSortGroupRef")], [c]) for c in clause.nodes(n)]
            for n in ("partitionClause", "orderClause")
        )
        every = self._add([key for parts in keys for key in parts])
        rows = frozenset(
            reference
            for c in clause.nodes("orderClause")
            if sorted_by_fields(by_ref[reference := c.number("tleSortGroupRef")], [c])
        )
        made = _Definition(clause, every, tuple(map(self._add, order)), rows)
        self._definitions.append(made)
        return made

    def _frameless(self, call: _Call) -> bool:
        """Return whether the call ignores its frame, and the frame has no offset that may fail."""
        function = self._lowering.catalog.functions[call.tree.number("winfnoid")]
        offsets = any(call.clause.node(name) for name in _OFFSETS)
        return function.builtin and function.name in _FRAMELESS and not offsets

    def _add(self, trees: list[Tree]) -> slice:
        start = len(self._trees)
        self._trees.extend(trees)
        return slice(start, len(self._trees))

    # -- nodes

    def _window(self, node: Node, definition: _Definition, exprs: list[Expr]) -> Node:
        below = _Below(node, self._column)
        keys = [
            below.column(self._key(self._lowering, expr, "PARTITION BY"))
            for expr in exprs[definition.keys]
        ]
        clauses = definition.clause.nodes("orderClause")
        columns = [[below.column(expr) for expr in exprs[parts]] for parts in definition.order]
        references = [c.number("tleSortGroupRef") for c in clauses]
        by_ref = dict(zip(references, columns, strict=True))
        order = orders(self._lowering, clauses, by_ref, definition.rows)
        made = [self._call(c, below, exprs) for c in definition.calls]
        calls = tuple(call for call, _ in made)
        window = WindowNode(below.node(), tuple(keys), order, calls)
        self._prove(definition, window, [parts for _, parts in made])
        return window

    def _call(self, call: _Call, below: _Below, exprs: list[Expr]) -> tuple[WindowCall, list[Expr]]:
        """Return the call, and its arguments and filter as they appear in its SQL."""
        lowering = self._lowering
        function = lowering.catalog.functions[call.tree.number("winfnoid")]
        self._require_function(function, call.tree)
        if call.tree.fields.get("ignore_nulls") not in (None, "0"):
            lowering.refuse("IGNORE NULLS", call.tree)
        args = exprs[call.args]
        xml_values.check_aggregate(lowering, function.name, args)
        condition = None if call.condition is None else exprs[call.condition]
        every = [*args, *([condition] if condition is not None else [])]
        frame = "" if self._frameless(call) else self._frame(call.clause)
        every = self._without_singles(call, function, every, frame, below)
        if any(map(raises, every)):
            parts = list(map(below.reading, every))
            if condition is not None and not raises(every[-1]):
                # As a column it also guards arguments that are deferred to the window.
                parts[-1] = below.column(every[-1])
        else:
            parts = [e if isinstance(e, Const) else below.column(e) for e in every]
        used: list[Ref] = []

        def sql(expr: Expr) -> str:
            return lowering.sql(expr, lambda ref: f"${_place(used, ref)}")

        listed = "*" if call.tree.flag("winstar") else ", ".join(map(sql, parts[: len(args)]))
        shown = "*" if call.tree.flag("winstar") else ", ".join(map(show, args))
        text = f"{function.quoted}({listed})"
        if condition is not None:
            text += f" FILTER (WHERE {sql(parts[-1])})"
            shown += f") FILTER (WHERE {show(condition)}"
        built_in = function.builtin and all(
            lowering.plain_type(oid) for oid in (call.column.oid, *(e.oid for e in every))
        )
        made = WindowCall(
            call.column,
            function.name,
            tuple(used),
            text,
            f"{function.name}({shown})",
            built_in and all(map(trusted, every)),
            self._running(call, parts, used, frame),
            frame,
        )
        return made, parts

    def _without_singles(
        self, call: _Call, function: Function, every: list[Expr], frame: str, below: _Below
    ) -> list[Expr]:
        """Replace scalar subqueries that may have several rows in ``every`` by columns.

        SQL cannot express their check, so they are computed for each row.  This is exact if the
        function reads each row.
        """
        if not any(map(_checked, every)):
            return every
        condition = None if call.condition is None else every[-1]
        out: list[Expr] = []
        for place, expr in enumerate(every):
            sums = function.kind == "a" and frame in _EVERY_ROW
            offset = function.name in ("lag", "lead") and place == 1
            if not _checked(expr):
                out.append(expr)
                continue
            if not sums and not (offset and function.builtin):
                self._lowering.refuse(
                    f'a scalar subquery of possibly several rows in window function "{function.name}"',
                    call.tree,
                    hint="Compute it in a subquery in FROM.",
                )
            guarded = expr
            if condition is not None and expr is not condition:
                guarded = build.guarded(self._lowering, condition, expr)
            out.append(below.column(guarded))
        return out

    def _running(
        self, call: _Call, parts: list[Expr], used: list[Ref], frame: str
    ) -> RunningSpec | None:
        """Return the call for the native collection, or None if Postgres must evaluate it."""
        function = self._lowering.catalog.functions[call.tree.number("winfnoid")]
        name, condition = function.name, None
        if not function.builtin or not all(isinstance(e, Ref | Const) for e in parts):
            return None
        if call.condition is not None:
            *parts, filter_ = parts
            if not isinstance(filter_, Ref):
                return None
            condition = used.index(filter_)
        if frame and name in _FRAMELESS:
            return None
        if name in _NUMBERING:
            return RunningSpec(name)
        argument = used.index(parts[0]) if parts and isinstance(parts[0], Ref) else None
        if name in ("lag", "lead"):
            return _neighbour(name, argument, parts)
        moving = None if frame in _UP_TO_HERE else self._moving(call.clause)
        if (moving is None and frame not in _UP_TO_HERE) or len(parts) > 1:
            return None
        if name == "count" and not parts:
            return RunningSpec(name, None, condition, frame=moving)
        if argument is None or not self._summed(name, used[argument], call.tree):
            return None
        return RunningSpec(name, argument, condition, frame=moving)

    def _moving(self, clause: Tree) -> tuple[int, int] | None:
        """Return the frame of so many rows behind the row, or None if it is not such a frame."""
        options = clause.number("frameOptions")
        if not options & _ROWS or any(options & bit for bit, _ in _EXCLUDES):
            return None
        ends = [
            self._rows_behind(options, words, clause.node(name))
            for words, name in zip((_STARTS, _ENDS), _OFFSETS, strict=True)
        ]
        first, last = ends
        return None if first is None or last is None or first > last else (first, last)

    def _rows_behind(
        self, options: int, words: tuple[tuple[int, str], ...], offset: Tree | None
    ) -> int | None:
        text = next(word for bit, word in words if options & bit)
        if offset is None:
            return 0 if text == "CURRENT ROW" else None
        found = self._lowering.lower(offset, Scope(_no_column))
        if not isinstance(found, Const) or found.text is None:
            return None
        rows = int(found.text)
        if not 0 <= rows <= _DISTANCE_MAX:
            return None
        return -rows if text.endswith("PRECEDING") else rows

    def _summed(self, name: str, argument: Ref, tree: Tree) -> bool:
        """Return whether ``Running`` can aggregate values of that type."""
        if name in ("count", "first_value", "last_value"):
            return True
        if name in ("sum", "avg"):
            return argument.oid in (INT2, INT4, INT8, NUMERIC)
        bytewise = self._lowering.catalog.collations.bytewise(tree.number("inputcollid"))
        return name in ("min", "max") and order_native(argument.oid, bytewise=bytewise)

    def _require_function(self, function: Function, node: Tree) -> None:
        label = f'function "{function.name}"'
        if function.builtin and function.kind in ("a", "w"):
            return
        if function.kind != "a":
            self._lowering.refuse(f"window {label} is not supported", node)
        if self._lowering.catalog.functions.aggregate_volatility(function.oid) != "i":
            self._lowering.refuse(
                f"aggregate {label} is not supported because it is not immutable", node
            )

    def _frame(self, clause: Tree) -> str:
        options = clause.number("frameOptions")
        if not options & _NONDEFAULT:
            return ""
        mode = next(
            word
            for bit, word in ((_RANGE, "RANGE"), (_ROWS, "ROWS"), (_GROUPS, "GROUPS"))
            if options & bit
        )
        start = self._bound(options, _STARTS, clause, "startOffset")
        end = self._bound(options, _ENDS, clause, "endOffset")
        frame = f"{mode} BETWEEN {start} AND {end}"
        return frame + "".join(word for bit, word in _EXCLUDES if options & bit)

    def _bound(
        self, options: int, words: tuple[tuple[int, str], ...], clause: Tree, name: str
    ) -> str:
        text = next(word for bit, word in words if options & bit)
        tree = clause.node(name)
        if tree is None:
            return text
        parts = list(tree.walk())
        varies = any(part.kind in ("SUBLINK", "PARAM", "VAR") for part in parts)
        expr = None if varies else self._lowering.lower(tree, Scope(_no_column))
        if not isinstance(expr, Const):
            self._lowering.refuse("a frame offset that is not constant", tree, hint=_CONSTANT_FRAME)
        return text.format(quote(expr.text, self._lowering.type_name(expr.oid)).strip())

    # -- proof

    def _prove(self, definition: _Definition, window: WindowNode, meant: list[list[Expr]]) -> None:
        """Raise an error unless Postgres parses the generated SQL of the calls as in the query."""
        lowering = self._lowering
        columns = window.input.columns
        places = {c.id: i for i, c in enumerate(columns, 1)}
        inputs = ", ".join(
            f"{quote(None, lowering.type_name(c.oid))} AS a{i}" for i, c in enumerate(columns, 1)
        )
        calls = []
        for i, made in enumerate(window.calls):
            names = [f"s.a{places[ref.id]}" for ref in made.args]
            over = f"w {self._frame(definition.calls[i].clause)}".rstrip()
            calls.append(f"{_named(made.sql, names)} OVER ({over}) AS c{i}")
        items = ", ".join(
            f"{lowering.sql(o.column, lambda r: f's.a{places[r.id]}')} USING {o.operator}"
            f" NULLS {'FIRST' if o.nulls_first else 'LAST'}"
            for o in window.order
        )
        order = f"ORDER BY {items}" if items else ""
        # Generated text over names that are already quoted.
        query = f"SELECT {', '.join(calls)} FROM (SELECT {inputs}) s WINDOW w AS ({order})"  # noqa: S608
        try:
            tree = lowering.analysed(query)
        except psycopg.ProgrammingError as error:
            raise UnsupportedError(
                "a window function of the query cannot be converted to SQL text",
                detail=error.diag.message_primary,
            ) from error
        scope = Scope(lambda _, attno: columns[attno - 1].ref)
        clauses = {c.number("winref"): c for c in tree.nodes("windowClause")}
        targets = [e for e in tree.nodes("targetList") if not e.flag("resjunk")]
        equal = True
        for target, call, parts in zip(targets, definition.calls, meant, strict=True):
            again = target.child("expr")
            trees = [*again.nodes("args"), *filter(None, [again.node("aggfilter")])]
            equal = equal and (
                again.kind == "WINDOWFUNC"
                and self._same_clause(clauses[again.number("winref")], call.clause, window)
                and self._same_call(again, call.tree)
                and [plain(lowering.lower(t, scope)) for t in trees]
                == [plain(part) for part in parts]
            )
        if not equal:
            lowering.refuse("a window function that cannot be reproduced exactly")

    def _same_call(self, one: Tree, other: Tree) -> bool:
        """Return whether both are the same call; a domain result equals its base type (lag)."""
        base = self._lowering.catalog.types.base
        same_type = base(one.number("wintype")) == base(other.number("wintype"))
        return same_type and all(one.text(name) == other.text(name) for name in _CALL_FIELDS)

    def _same_clause(self, one: Tree, other: Tree, window: WindowNode) -> bool:
        catalog = self._lowering.catalog

        def offsets(clause: Tree) -> list[Expr]:
            found = [clause.node(name) for name in _OFFSETS]
            scope = Scope(_no_column)
            return [plain(self._lowering.lower(t, scope)) for t in found if t]

        def options(clause: Tree) -> int:
            return clause.number("frameOptions") & ~_BETWEEN

        order = [
            (catalog.operators[c.number("sortop")].quoted, c.flag("nulls_first"))
            for c in one.nodes("orderClause")
        ]
        return (
            all(one.text(name) == other.text(name) for name in _CLAUSE_FIELDS)
            and options(one) == options(other)
            and order == [(o.operator, o.nulls_first) for o in window.order]
            and offsets(one) == offsets(other)
        )


class _Below:
    """Columns that a window reads: columns of its input, and computed columns."""

    def __init__(self, input_: Node, column: NewColumn) -> None:
        self._input = input_
        self._column = column
        self._there = {c.id for c in input_.columns}
        self._made: dict[Expr, Col] = {}
        self._own: set[int] = set()

    def column(self, expr: Expr) -> Ref:
        """Return a column with the value of ``expr``."""
        if isinstance(expr, Ref) and expr.id in self._there | self._own:
            return expr
        if expr not in self._made:
            self._made[expr] = self._column(show(expr), expr)
            self._own.add(self._made[expr].id)
        return self._made[expr].ref

    def reading(self, expr: Expr) -> Expr:
        """Return ``expr`` over columns of the node; columns of an outer query become computed."""
        return substitute(expr, {ref.id: self.column(ref) for ref in references(expr)})

    def node(self) -> Node:
        """Return the input with the computed columns."""
        if not self._made:
            return self._input
        items: list[tuple[Col, Expr]] = [(c, c.ref) for c in self._input.columns]
        items += [(c, e) for e, c in self._made.items()]
        return ProjectNode(self._input, tuple(items))


def _own(tree: Tree) -> Iterator[Tree]:
    """Yield the nodes of ``tree`` that belong to its query level."""
    stack: list[object] = [tree]
    while stack:
        value = stack.pop()
        if isinstance(value, Tree):
            if value.kind == "QUERY":
                continue
            yield value
            stack.extend(reversed(list(value.fields.values())))
        elif isinstance(value, list):
            stack.extend(reversed(value))


def _same_rows(one: Tree, other: Tree) -> bool:
    """Return whether two window definitions have the same partitions and order."""

    def items(clause: Tree, name: str) -> list[tuple[str | None, ...]]:
        names = ("tleSortGroupRef", "sortop", "nulls_first")
        return [tuple(c.text(n) for n in names) for c in clause.nodes(name)]

    return all(
        items(one, name) == items(other, name) for name in ("partitionClause", "orderClause")
    )


def _neighbour(name: str, argument: int | None, parts: list[Expr]) -> RunningSpec | None:
    distance, default = 1, None
    if argument is None:
        return None
    if len(parts) > 1:
        found = parts[1]
        if not isinstance(found, Const) or found.text is None:
            return None
        distance = int(found.text)
        if not 0 < distance <= _DISTANCE_MAX:
            return None
    if len(parts) > 2:
        if not isinstance(parts[2], Const) or parts[2].oid != parts[0].oid:
            return None
        default = xml_values.printed(parts[2])
    return RunningSpec(name, argument, None, distance, default)


def _checked(expr: Expr) -> bool:
    return any_call(expr, lambda c: c.symbol == SINGLE)


def _place(used: list[Ref], ref: Ref) -> int:
    """Return the number of ``ref`` among the arguments, and add it if new."""
    if ref not in used:
        used.append(ref)
    return used.index(ref) + 1


def _named(sql: str, names: list[str]) -> str:
    return placeholders.substitute(sql, lambda n: names[n - 1])


def _no_column(varno: int, attno: int) -> Expr:
    raise BugError(f"column {attno} of entry {varno} in a frame offset")
