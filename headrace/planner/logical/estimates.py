"""Row count estimates of plan nodes, from the statistics of Postgres.

Only the order of joins and the output of EXPLAIN depend on them: a wrong estimate makes a view
slower, never wrong.  Where a table was never analysed, the estimate is unknown (None).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.planner.analyse.tables import Table, TableColumn
from headrace.planner.logical import nodes
from headrace.planner.logical.scalar import Call, Const, Expr, Ref, core, refs

_WIDTH: Final = 8
"""Bytes of a value of which nothing is known."""
_OTHER: Final = 1 / 3
"""The part of the rows for which a predicate is true of which nothing is known."""
_PER_CALL: Final = 10.0
"""Rows of a set-returning function."""


@dataclass(frozen=True, slots=True)
class ExpectedSize:
    """Expected number and width of the rows of a node."""

    rows: float
    width: int
    """Bytes per row."""


def table_size(table: Table, fields: Iterable[TableColumn]) -> ExpectedSize | None:
    """Return the expected size of those columns of a table."""
    stats = table.statistics
    if stats is None:
        return None
    return ExpectedSize(stats.rows, sum(stats.width.get(f.attnum, _WIDTH) for f in fields))


def _width(node: nodes.Node, ref: Ref) -> int:
    match node:
        case nodes.ScanNode():
            places = {c.id: f.attnum for c, f in node.fields}
            stats = node.table.statistics
            return _WIDTH if stats is None else stats.width.get(places[ref.id], _WIDTH)
        case nodes.ProjectNode():
            expr = next(e for c, e in node.items if c.id == ref.id)
            return _width(node.input, expr) if isinstance(expr, Ref) else _WIDTH
        case nodes.AgainNode():
            return _width(node.plan, _inner(node, ref))
        case nodes.AggregateNode():
            expr = dict((c.id, e) for c, e in node.keys).get(ref.id, ref)
            if not isinstance(expr, Ref) or expr.id not in nodes.ids(node.input):
                return _WIDTH
            return _width(node.input, expr)
        case _:
            for child in nodes.children(node):
                if ref.id in nodes.ids(child):
                    return _width(child, ref)
            return _WIDTH


def _inner(node: nodes.AgainNode, ref: Ref) -> Ref:
    """Return the column of the named plan that ``ref`` stands for."""
    number = next(i for c, i in node.pairs if c.id == ref.id)
    return dataclasses.replace(ref, id=number)


class Estimates:
    """Estimates for the nodes of plans, cached.

    Without the cache the time would grow exponentially with the depth of a plan: the rows of a join
    depend on the distinct values of its sides, and those on the rows of the sides.
    """

    def __init__(self) -> None:
        # By id(): comparing plans costs as much as estimating them.  The node is kept alive, so
        # that no other node gets the same id.
        self._known: dict[int, tuple[nodes.Node, float | None]] = {}
        self._distinct: dict[tuple[int, int], tuple[nodes.Node, float | None]] = {}

    def size(self, node: nodes.Node) -> ExpectedSize | None:
        """Return the expected size of ``node``; None if a table below was never analysed."""
        found = self.rows(node)
        if found is None:
            return None
        return ExpectedSize(found, sum(_width(node, c.ref) for c in node.columns))

    def rows(self, node: nodes.Node) -> float | None:
        """Return the expected rows, at least 1; None if a table below was never analysed."""
        known = self._known.get(id(node))
        if known is None:
            found = self._rows(node)
            known = (node, None if found is None else max(found, 1.0))
            self._known[id(node)] = known
        return known[1]

    def _rows(self, node: nodes.Node) -> float | None:
        match node:
            case nodes.ScanNode():
                stats = node.table.statistics
                return None if stats is None else stats.rows * self._share(node, node.predicates)
            case nodes.ValuesNode():
                return float(len(node.rows))
            case nodes.JoinNode():
                left, right = self.rows(node.left), self.rows(node.right)
                if left is None or right is None:
                    return None
                return self.joined(node, left, right)
            case nodes.UnionNode():
                parts = [self.rows(arm) for arm in node.inputs]
                return None if None in parts else sum(p for p in parts if p is not None)
            case nodes.SetOpNode():
                return self.rows(node.left)
            case nodes.AgainNode():
                return self.rows(node.plan)
            case _ if len(nodes.children(node)) == 1:
                [below] = nodes.children(node)
                found = self.rows(below)
                return None if found is None else self._over(node, found)
            case _:
                return None

    def _over(self, node: nodes.Node, below: float) -> float:
        """Return the rows of a node with one input of ``below`` rows."""
        match node:
            case nodes.FilterNode():
                return below * self._share(node.input, node.predicates)
            case nodes.AggregateNode():
                return min(below, self._groups(node.input, [e for _, e in node.keys]))
            case nodes.DistinctNode():
                return min(below, self._groups(node.input, [c.ref for c in node.columns]))
            case nodes.TopKNode():
                most = math.inf if node.limit is None else float(node.limit)
                return min(below, most * self._groups(node.input, node.keys))
            case nodes.FunctionsNode():
                return below * _PER_CALL
            case nodes.ExpandNode():
                return below * len(node.sets)
            case _:
                return below

    def joined(self, join: nodes.JoinNode, left: float, right: float) -> float:
        """Return the rows of a join whose sides have ``left`` and ``right`` rows."""
        matches = left * right
        for predicate in join.condition:
            pair = _equality(predicate)
            if pair is None:
                matches *= _OTHER
                continue
            sides = [
                self.distinct(join.left, ref) or self.distinct(join.right, ref) for ref in pair
            ]
            known = [n for n in sides if n is not None]
            matches /= max(known, default=max(min(left, right), 1.0))
        partners = min(left, matches)
        return {
            "inner": matches,
            "left": max(left, matches),
            "full": max(left, matches) + max(right - matches, 0.0),
            "semi": partners,
            "anti": left - partners,
        }.get(join.kind, matches)

    def distinct(self, node: nodes.Node, ref: Ref) -> float | None:
        """Return the expected distinct values of a column of ``node``; None if unknown."""
        if ref.id not in nodes.ids(node):
            return None
        key = (id(node), ref.id)
        if key not in self._distinct:
            self._distinct[key] = (node, self._values(node, ref))
        return self._distinct[key][1]

    def _values(self, node: nodes.Node, ref: Ref) -> float | None:
        match node:
            case nodes.ScanNode():
                found = dict((c.id, f.attnum) for c, f in node.fields)
                stats = node.table.statistics
                number = None if stats is None else stats.distinct.get(found[ref.id])
            case nodes.ProjectNode():
                expr = next(e for c, e in node.items if c.id == ref.id)
                number = self.distinct(node.input, expr) if isinstance(expr, Ref) else None
            case nodes.AgainNode():
                number = self.distinct(node.plan, _inner(node, ref))
            case nodes.AggregateNode():
                keys = {c.id: e for c, e in node.keys}
                expr = keys.get(ref.id, ref)
                number = self.distinct(node.input, expr) if isinstance(expr, Ref) else None
                if len(keys) == 1 and ref.id in keys:
                    return self.rows(node)
            case _:
                tries = (self.distinct(child, ref) for child in nodes.children(node))
                number = next((n for n in tries if n is not None), None)
        most = self.rows(node)
        return number if number is None or most is None else max(min(number, most), 1.0)

    def _groups(self, node: nodes.Node, keys: Iterable[Expr]) -> float:
        found = 1.0
        for key in keys:
            number = self.distinct(node, key) if isinstance(key, Ref) else None
            if number is None:
                return math.inf
            found *= number
        return found

    def _share(self, node: nodes.Node, predicates: Iterable[Expr]) -> float:
        """Return the fraction of the rows of ``node`` for which all ``predicates`` are true."""
        share = 1.0
        for predicate in predicates:
            share *= self._one(node, predicate)
        return share

    def _one(self, node: nodes.Node, predicate: Expr) -> float:
        if not isinstance(predicate, Call) or not refs(predicate):
            return 1.0
        if predicate.symbol == "is_not_null":
            return 1.0
        if predicate.symbol == "or":
            return min(sum(self._one(node, a) for a in predicate.args), 1.0)
        if predicate.symbol == "and":
            return self._share(node, predicate.args)
        if predicate.symbol == "=":
            sides = [core(a) for a in predicate.args]
            column = next((s for s in sides if isinstance(s, Ref)), None)
            if column is not None and any(isinstance(s, Const) for s in sides):
                # Not by way of ``distinct``: it would ask for the rows of this very node.
                number = self._constants(node, column)
                return _OTHER if number is None else 1 / max(number, 1.0)
        return _OTHER

    def _constants(self, node: nodes.Node, ref: Ref) -> float | None:
        if not isinstance(node, nodes.ScanNode):
            return self.distinct(node, ref)
        stats = node.table.statistics
        every = {c.id: f.attnum for c, f in (*node.fields, *node.hidden)}
        return None if stats is None else stats.distinct.get(every[ref.id])


def _equality(predicate: Expr) -> tuple[Ref, Ref] | None:
    if not isinstance(predicate, Call) or predicate.symbol != "=":
        return None
    left, right = (core(a) for a in predicate.args)
    if isinstance(left, Ref) and isinstance(right, Ref):
        return left, right
    return None
