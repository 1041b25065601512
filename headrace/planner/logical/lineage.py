"""Lineage: the table columns that the values of a query's columns come from.

Lineage is read from the bound plan, before any rule: there each column has an id and every name is
resolved.  A value comes from the columns that its expression reads: arguments, conditions of CASE
and FILTER, and for a window function PARTITION BY and ORDER BY.  Conditions that only select rows
(WHERE, ON, GROUP BY, HAVING, EXISTS as a condition) are no origin of a value.  ``count(*)`` depends
on rows, not on a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.planner.logical import nodes, repeats
from headrace.planner.logical.scalar import Const, Expr, Ref, references

SAME, COMPUTED, AGGREGATED = "same", "computed", "aggregated"
_RANKS: Final = (SAME, COMPUTED, AGGREGATED)
ROWS: Final = 0
"""In place of a column's number: the rows of the table."""

Place = tuple[int, int]
"""(OID of a table, number of a column)."""
Origins = Mapping[Place, int]
"""Where values come from, and how: a place in ``_RANKS``, the last of all ways to it."""
_NOTHING: Final[Origins] = {}


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """A table column that a column of the query comes from; ``name`` "": the table's rows."""

    schema: str
    table: str
    name: str
    oid: int
    attnum: int
    how: str


def lineage(plan: nodes.Node) -> list[tuple[ColumnOrigin, ...]]:
    """Return for each output column of a bound plan its origins, in the order of their names."""
    found = _Finder()
    found.visit(plan)
    return [found.named(found.of[c.id]) for c in plan.columns]


class _Finder:
    """``of``: the origins of each column, by id, of what was visited."""

    def __init__(self, tables: dict[int, nodes.ScanNode] | None = None) -> None:
        self.of: dict[int, Origins] = {}
        self._scans: dict[int, nodes.ScanNode] = {} if tables is None else tables
        self._work: dict[str, list[Origins]] = {}
        self._again: dict[int, _Finder] = {}

    def named(self, origins: Origins) -> tuple[ColumnOrigin, ...]:
        out = []
        for (oid, attnum), rank in origins.items():
            table = self._scans[oid].table
            name = "" if attnum == ROWS else table.column(attnum).name
            out.append(ColumnOrigin(table.schema, table.name, name, oid, attnum, _RANKS[rank]))
        return tuple(sorted(out, key=lambda o: (o.schema, o.table, o.name)))

    def visit(self, node: nodes.Node) -> None:  # noqa: C901  one case per node
        if isinstance(node, nodes.RecursiveNode):
            self._recursive(node)
            return
        for child in nodes.children(node):
            self.visit(child)
        match node:
            case nodes.ScanNode():
                self._scans.setdefault(node.table.oid, node)
                for column, field in (*node.fields, *node.hidden):
                    self.of[column.id] = {(node.table.oid, field.attnum): 0}
            case nodes.ValuesNode():
                self.of |= {c.id: _NOTHING for c in node.columns}
            case nodes.ProjectNode():
                self.of |= {c.id: self._value(e) for c, e in node.items}
            case nodes.AggregateNode():
                self._aggregate(node)
            case nodes.UnionNode():
                sides = [[self.of[c.id] for c in side.columns] for side in node.inputs]
                for place, column in enumerate(node.columns):
                    self.of[column.id] = _together(side[place] for side in sides)
            case nodes.SetOpNode():
                # The values come from the left side; the right side only selects rows.
                for column, left in zip(node.columns, node.left.columns, strict=True):
                    self.of[column.id] = self.of[left.id]
            case nodes.WindowNode():
                by = (*node.keys, *(o.column for o in node.order))
                for call in node.calls:
                    reads = self._values((*call.args, *by))
                    self.of[call.column.id] = _at_least(reads, AGGREGATED)
            case nodes.FunctionsNode():
                origins = _at_least(self._values(node.calls), COMPUTED)
                self.of |= {c.id: origins for c in node.outputs}
                if node.ordinality is not None:
                    self.of[node.ordinality.id] = origins
            case nodes.ExpandNode():
                self.of |= {c.id: self.of[ref.id] for c, ref in node.keys}
                self.of[node.number.id] = _NOTHING
            case nodes.TemporalNode():
                self.of |= {t.column.id: self._value(t.test) for t in node.tests}
            case nodes.CalendarNode():
                self.of |= {c.id: self._value(e) for c, e in node.values}
            case nodes.WorkTableNode():
                for column, origins in zip(node.columns, self._work[node.name], strict=True):
                    self.of[column.id] = origins
            case nodes.AgainNode():
                self._named_plan(node)

    # --- nodes

    def _aggregate(self, node: nodes.AggregateNode) -> None:
        self.of |= {c.id: self._value(e) for c, e in node.keys}
        for agg in node.aggs:
            if agg.function == "count_star":
                origins: Origins = {(oid, ROWS): 2 for oid in _tables(node.input)}
                if agg.filter is not None:
                    origins = _together((origins, self._value(agg.filter)))
            else:
                # Not ``row``: it settles in which order equal values are seen, for all alike.
                condition = () if agg.filter is None else (agg.filter,)
                origins = self._values((*agg.arguments, *condition))
            if agg.function not in ("any", "single"):
                origins = _at_least(origins, AGGREGATED)
            self.of[agg.column.id] = origins

    def _recursive(self, node: nodes.RecursiveNode) -> None:
        """Visit the step until an iteration adds no origin."""
        self.visit(node.base)
        found = [self.of[c.id] for c in node.base.columns]
        while True:
            self._work[node.name] = found
            self.visit(node.step)
            step = [self.of[c.id] for c in node.step.columns[: len(found)]]
            both = [_together(pair) for pair in zip(found, step, strict=True)]
            if both == found:
                break
            found = both
        for column, origins in zip(node.columns, found, strict=True):
            self.of[column.id] = origins

    def _named_plan(self, node: nodes.AgainNode) -> None:
        """Translate the origins of a named plan, whose ids are valid only inside it."""
        inner = self._again.get(node.number)
        if inner is None:
            inner = self._again[node.number] = _Finder(self._scans)
            inner._work, inner._again = self._work, self._again
            inner.of |= {number: self._value(ref) for number, ref in node.outer}
            inner.visit(node.plan)
        for column, number in node.pairs:
            self.of[column.id] = inner.of[number]

    # --- expressions

    def _value(self, expr: Expr) -> Origins:
        if isinstance(expr, Ref):
            return self.of.get(expr.id, _NOTHING)
        if isinstance(expr, Const):
            return _NOTHING
        return _at_least(self._values(references(expr)), COMPUTED)

    def _values(self, exprs: Iterable[Expr]) -> Origins:
        return _together(self._value(e) for e in exprs)


def _together(all_of: Iterable[Origins]) -> Origins:
    out: dict[Place, int] = {}
    for origins in all_of:
        for place, rank in origins.items():
            out[place] = max(out.get(place, 0), rank)
    return out


def _at_least(origins: Origins, how: str) -> Origins:
    least = _RANKS.index(how)
    return {place: max(rank, least) for place, rank in origins.items()}


def _tables(node: nodes.Node) -> set[int]:
    """Return the OIDs of the tables whose rows are below."""
    plans = [node, *repeats.named(node).values()]
    return {scan.table.oid for plan in plans for scan in _scans(plan)}


def _scans(node: nodes.Node) -> Iterator[nodes.ScanNode]:
    if isinstance(node, nodes.ScanNode):
        yield node
    for child in nodes.children(node):
        yield from _scans(child)
