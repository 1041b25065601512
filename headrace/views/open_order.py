"""Columns of a view that depend on the order in which aggregates see their rows.

If a query does not fully determine that order, Postgres and Headrace may use different ones. Two
correct answers may then differ: in the order of the elements of ``array_agg``, or in the row that
``any_value`` shows. ``trace`` follows such columns through the plan. ``Open.keys`` gives
expressions that are equal in any two correct answers:

    array_agg(a), array_agg(b)   the multiset of their elements, side by side
    string_agg(a, ', ')          the multiset of its characters
    any_value(a), f(array_agg)   nothing
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from headrace.collections import plan
from headrace.expressions.ir import Column, Expr, Literal, Native, columns_of
from headrace.types import TEXT, Schema

ELEMENTS, CHARACTERS, NOTHING = "elements", "characters", "nothing"

_LISTS: Final = {
    "array_agg": "unnest",
    "json_agg": "pg_catalog.json_array_elements",
    "jsonb_agg": "pg_catalog.jsonb_array_elements",
}
"""Aggregates with one element per row, and the function that expands each."""
_CALL: Final = re.compile(r"pg_catalog\.(\w+)\((\$\d+(?:, \$)?)?")


@dataclass(frozen=True, slots=True)
class Mark:
    """How a column depends on an order."""

    kind: str
    function: str = ""
    """For ELEMENTS: the function that expands it."""
    source: object = None
    """For ELEMENTS: columns of equal source have their elements side by side."""


_LOST: Final = Mark(NOTHING)
Marks = tuple[Mark | None, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """The parts of a result that the query leaves open."""

    marks: Marks
    """One per column; None: the query determines it."""
    decides: bool
    """Whether the order also decides which rows there are."""

    def __bool__(self) -> bool:
        return any(self.marks)

    def places(self, kind: str) -> list[int]:
        """Return the indexes of the columns with a mark of ``kind``."""
        return [i for i, m in enumerate(self.marks) if m is not None and m.kind == kind]

    def keys(self, columns: Sequence[sql.Composable]) -> list[sql.Composable]:
        """Return SQL expressions over ``columns`` that are equal in any two correct answers."""
        out: list[sql.Composable] = [
            sql.SQL(
                '(SELECT pg_catalog.array_agg(c ORDER BY c COLLATE "C")'
                " FROM pg_catalog.regexp_split_to_table({}, '') c)"
            ).format(columns[place])
            for place in self.places(CHARACTERS)
        ]
        together: dict[object, list[int]] = {}
        for place in self.places(ELEMENTS):
            mark = self.marks[place]
            assert mark is not None, "it has a kind"
            together.setdefault(mark.source, []).append(place)
        return out + [self._elements(columns, places) for places in together.values()]

    def _elements(self, columns: Sequence[sql.Composable], places: list[int]) -> sql.Composable:
        calls = [
            sql.SQL("{}({})").format(sql.SQL(mark.function), columns[place])
            for place in places
            if (mark := self.marks[place]) is not None
        ]
        names = sql.SQL(", ").join(sql.Identifier(f"e{n}") for n in range(len(places)))
        return sql.SQL(
            "(SELECT pg_catalog.array_agg(ROW({names})::text ORDER BY ROW({names})::text"
            ' COLLATE "C") FROM ROWS FROM ({calls}) u ({names}))'
        ).format(names=names, calls=sql.SQL(", ").join(calls))


def trace(physical: plan.PhysicalPlan, fed: Mapping[str, Open] | None = None) -> Open:
    """Return the columns of a plan whose values depend on an order that the query leaves open.

    ``fed``: such columns of the views that feed the plan, by node.
    """
    tracer = _Tracer(fed or {})
    for node in physical.nodes:
        tracer.visit(node)
    return Open(tracer.marks[physical.sink.id], tracer.decides)


class _Tracer:
    def __init__(self, fed: Mapping[str, Open]) -> None:
        self.marks: dict[str, Marks] = {}
        self.decides = False
        self._fed = fed
        self._schemas: dict[str, Schema] = {}

    def visit(self, node: plan.Node) -> None:
        below = [self.marks[name] for name in plan.inputs(node)]
        self.marks[node.id] = self._marks(node, below)
        self._schemas[node.id] = node.schema

    def _decided_by(self, marks: Sequence[Mark | None]) -> None:
        self.decides = self.decides or any(marks)

    def _marks(self, node: plan.Node, below: list[Marks]) -> Marks:  # noqa: C901  one case per node
        match node:
            case plan.FilterSpec():
                self._decided_by([_mark(e, below[0]) for e in node.predicates])
                return below[0]
            case plan.MapSpec():
                return tuple(_mark(e, below[0]) for e in node.expressions)
            case plan.FusedSpec():
                marks = below[0]
                for step in node.steps:
                    marks = self._marks(step, [marks])
                return marks
            case plan.JoinSpec():
                return self._join(node, *below)
            case plan.ReduceSpec():
                self._decided_by([below[0][i] for i in node.keys])
                made = [self._aggregate(node, a, below[0]) for a in node.aggregates]
                return (*(below[0][i] for i in node.keys), *made)
            case plan.ExpandSpec():
                return (*below[0], *(below[0][i] for i in node.keys), None)
            case plan.UnionSpec():
                return tuple(_same(marks) for marks in zip(*below, strict=True))
            case plan.TopKSpec():
                self._decided_by([below[0][i] for i in node.keys])
                self._decided_by([below[0][item.column] for item in node.order])
                return below[0]
            case plan.WindowSpec():
                self._decided_by([below[0][i] for i in node.keys])
                self._decided_by([below[0][item.column] for item in node.order])
                calls = (_LOST if any(below[0][i] for i in c.args) else None for c in node.calls)
                return (*below[0], *calls)
            case plan.FlatMapSpec():
                self._decided_by([below[0][i] for i in node.arguments])
                return below[0] + (None,) * (len(node.schema) - len(below[0]))
            case plan.TemporalSpec():
                exprs = [e for test in node.tests for e in (test.test, test.key)]
                # They also read the clock, which is one more column.
                self._decided_by([_mark(e, (*below[0], None)) for e in exprs])
                return below[0] + (None,) * len(node.tests)
            case plan.CalendarSpec():
                return below[0] + (None,) * len(node.values)
            case plan.SinkSpec():
                return below[0]
            case plan.FeedSpec() if node.id in self._fed:
                found = self._fed[node.id]
                self.decides = self.decides or found.decides
                # Nodes of another plan may have the same names.
                return tuple(m and replace(m, source=(node.id, m.source)) for m in found.marks)
            case plan.RecursiveSpec() if any(map(_shows_order, node.step)):
                self.decides = True
        # Any other node distinguishes rows by such a column.
        for marks in below:
            self._decided_by(marks)
        return (None,) * len(node.schema)

    def _join(self, node: plan.JoinSpec, left: Marks, right: Marks) -> Marks:
        self._decided_by([left[i] for i in node.left_keys])
        self._decided_by([right[i] for i in node.right_keys])
        self._decided_by([_mark(e, left + right) for e in node.residual])
        if node.compared is not None:
            self._decided_by([left[node.compared.left], right[node.compared.right]])
        return left if node.left_only else left + right

    def _aggregate(
        self, node: plan.ReduceSpec, spec: plan.AggregateSpec, below: Marks
    ) -> Mark | None:
        filters = () if spec.filter is None else (spec.filter,)
        if any(below[i] for i in (*spec.columns, *filters)):
            return _LOST
        if not spec.shows_order:
            return None
        found = _CALL.match(spec.sql)
        name = found[1] if found else ""
        if name == "string_agg" and spec.result.oid == TEXT:
            # The delimiter of the first row is left out, and the order decides which row is first.
            return _LOST if found and (found[2] or "").endswith(", $") else Mark(CHARACTERS)
        fields = self._schemas[node.input]
        if name not in _LISTS or spec.argument is None:
            return _LOST
        if fields[spec.argument].oid == spec.result.oid:
            return _LOST  # array_agg of arrays: expanding it gives the elements of the arrays
        return Mark(ELEMENTS, _LISTS[name], (node.id, spec.filter))


def _shows_order(node: plan.Node) -> bool:
    return isinstance(node, plan.ReduceSpec) and any(a.shows_order for a in node.aggregates)


def _mark(expr: Expr, below: Marks) -> Mark | None:
    match expr:
        case Column():
            return below[expr.index]
        case Native(op="coalesce", args=(first, Literal())):
            return _mark(first, below)
    return _LOST if any(below[i] for i in columns_of(expr)) else None


def _same(marks: Sequence[Mark | None]) -> Mark | None:
    found = [m for m in marks if m is not None]
    if not found:
        return None
    if len(found) < len(marks) or len({(m.kind, m.function) for m in found}) > 1:
        return _LOST
    return Mark(found[0].kind, found[0].function, tuple(m.source for m in found))
