"""Expected state size of a plan, and expected cost of a change of each of its tables.

    rows of a node        Postgres' statistics (logical/estimates.py)
    state of a node       entries x (an entry's own bytes + its keys and rows)
    a change of a table   the rows that result from one inserted or deleted row, node by node, each
                          at the cost of a row there; an update is two

The figures are from ``bench costs`` (100 000 orders, one thread, calibration 5 ms): CPU µs per row
in large batches, and per call if a batch has one row.  Estimates that depend on a table that was
never analysed are unknown (None).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.collections import plan as p
from headrace.collections.aggregate_traits import NATIVE
from headrace.expressions import ir
from headrace.planner.analyse.tables import Statistics
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.estimates import ExpectedSize

ENTRY_BYTES: Final = 56
"""Of an entry of a state in memory, besides its key and its row."""
KEY_BYTES: Final = 1
"""Bytes of a value in a key in addition to the value."""
BATCH_US: Final = 300.0
"""Cost of a view per batch: decoding and its store, without the calls of its collections."""
WRITE_US: Final = 3.3
"""Cost of a row of the result table, written with many others (``bench sink``)."""
REMOTE_CALL_US: Final = 250.0
"""A question to Postgres, and its answer."""
_ROW_US: Final = {
    "Source": 1.2,
    "Filter": 0.05,
    "Map": 0.1,
    "Fused": 0.05,
    "Join": 0.5,
    "Reduce": 0.2,
    "Distinct": 1.4,
    "SetOp": 2.3,
    "TopK": 0.8,
    "Window": 0.8,
    "FlatMap": 2.0,
    "Temporal": 1.5,
    "Calendar": 1.0,
    "Sink": 0.35,
}
"""Cost of an incoming row."""
_CALL_US: Final = {
    "Source": 105.0,
    "Filter": 25.0,
    "Map": 20.0,
    "Fused": 30.0,
    "Join": 125.0,
    "Reduce": 190.0,
    "Distinct": 55.0,
    "SetOp": 90.0,
    "TopK": 150.0,
    "Window": 250.0,
    "FlatMap": 300.0,
    "Temporal": 100.0,
    "Calendar": 80.0,
    "Sink": 95.0,
}
_PAIR_US: Final = 1.2
"""Of a pair of rows that meet in a join."""
_TURNED_ROWS: Final = 1.0
"""Rows that gain or lose their match where a value of a comparison changes (``Threshold``)."""
_GROUP_US: Final = 5.5
"""Of a group whose numbers change."""
_KEPT_US: Final = 1.0
"""Of a value that an aggregate keeps (min, max, DISTINCT)."""
_HEAD_US: Final = 7.0
"""Of a group whose first rows are looked at."""
_MOVED_US: Final = 5.0
"""Of a row that a window function is computed for again."""
_ASKED_US: Final = 1.0
"""Cost of a row that is sent to Postgres, without the work of Postgres itself."""
_REMOTE_US: Final = 2.0
"""Of a row for which Postgres computes an expression."""


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """Expected state of a node."""

    rows: float
    bytes: float


@dataclass(slots=True)
class ChangeCost:
    """Cost of one inserted or deleted row of a table."""

    rows: float = 0.0
    """Rows that arrive at any node, or are read again for the change."""
    us: float = 0.0
    """CPU µs per row in a large batch."""
    alone_us: float = BATCH_US
    """CPU µs for the only row of a batch."""
    result_rows: float = 0.0
    by_node: dict[str, float] = field(default_factory=dict)
    """CPU µs of each node, of ``us``."""
    touched: dict[str, float] = field(default_factory=dict)
    """Rows of each node, of ``rows``."""


def statistics(node: lg.Node) -> dict[int, Statistics]:
    """Return the known statistics of each table of a logical plan, by OID."""
    found: dict[int, Statistics] = {}
    seen: set[int] = set()
    left = [node]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, lg.ScanNode) and each.table.statistics is not None:
            found[each.table.oid] = each.table.statistics
        left += [each.plan] if isinstance(each, lg.AgainNode) else lg.children(each)
    return found


class ExpectedCosts:
    """Of one plan; see the module."""

    def __init__(
        self,
        plan: p.PhysicalPlan,
        sizes: Mapping[str, ExpectedSize],
        tables: Mapping[int, Statistics],
    ) -> None:
        """Take the known ``sizes`` of the nodes' rows, and statistics of ``tables`` by OID."""
        self._plan = plan
        self._sizes = sizes
        self._tables = tables
        self._nodes = {node.id: node for node in plan.nodes}

    def rows(self, name: str) -> float | None:
        """Return the expected rows of a node."""
        node = self._nodes[name]
        if isinstance(node, p.SinkSpec):
            return self.rows(node.input)
        if isinstance(node, p.ValuesSpec):
            return float(len(node.rows))
        size = self._sizes.get(name)
        return None if size is None else size.rows

    @property
    def result_rows(self) -> float | None:
        """Of the view."""
        return self.rows(self._plan.sink.id)

    # --- states

    def states(self) -> dict[str, ExpectedState | None]:
        """Return the expected state of each node that has one; None: unknown."""
        out: dict[str, ExpectedState | None] = {}
        for node in self._plan.nodes:
            found = list(self._kept(node))
            if found:
                known = [each for each in found if each is not None]
                whole = ExpectedState(sum(s.rows for s in known), sum(s.bytes for s in known))
                out[node.id] = whole if len(known) == len(found) else None
        return out

    def _kept(self, node: p.Node) -> Iterator[ExpectedState | None]:  # noqa: C901  one case per node
        """Yield each state of a node."""
        match node:
            case p.SourceSpec():
                key = self._width(node.id, len(node.columns) if node.full_identity else 1)
                yield self._state(node.id, key)
            case p.JoinSpec():
                yield self._state(node.left, self._width(node.left, len(node.left_keys)))
                yield self._others(node)
            case p.ReduceSpec():
                # The row that is out, beside counts and sums.
                yield self._state(node.id, self._width(node.id, len(node.keys)), 2)
                for aggregate in node.aggregates:
                    if NATIVE[aggregate.function].retained or aggregate.distinct:
                        yield self._values(node, aggregate)
            case p.TopKSpec():
                yield self._state(node.input, self._width(node.input, len(node.keys)), 3)
            case p.WindowSpec():
                yield self._state(node.input, self._width(node.input, len(node.keys)), 3)
                yield self._state(node.id, self._width(node.id, len(node.keys)), 3)
            case p.DistinctSpec():
                yield self._state(node.id, self._width(node.id, len(node.schema)))
            case p.SetOpSpec():
                for side in (node.left, node.right):
                    yield self._state(side, self._width(side, len(node.schema)))
            case p.TemporalSpec():
                yield self._state(node.input, 0, 2)
            case p.CalendarSpec():
                yield self._state(node.input, 0)
            case p.RecursiveSpec():
                yield None
            case _:
                return

    def _others(self, node: p.JoinSpec) -> ExpectedState | None:
        """Return the state of a join's right side; one entry per key if only matches are tested."""
        key = self._width(node.right, len(node.right_keys))
        if not node.left_only or node.residual or node.compared:
            return self._state(node.right, key)
        if self.rows(node.right) is None:
            return None
        keys = self.groups(node.right, node.right_keys)
        return ExpectedState(keys, keys * (ENTRY_BYTES + key))

    def _values(self, node: p.ReduceSpec, aggregate: p.AggregateSpec) -> ExpectedState | None:
        """Return the state of an aggregate: ordered values under their group."""
        size = self._sizes.get(node.input)
        if size is None:
            return None
        columns = max(len(self._nodes[node.input].schema), 1)
        width = size.width / columns * (len(aggregate.columns) or columns)
        key = self._width(node.id, len(node.keys))
        return ExpectedState(size.rows, size.rows * (ENTRY_BYTES + key + 2 * width))

    def _state(self, name: str, key: float, times: int = 1) -> ExpectedState | None:
        """Return a state with the rows of a node, each stored ``times`` times."""
        size = self._sizes.get(name)
        if size is None:
            return None
        rows = 1.0 if isinstance(self._nodes[name], p.ValuesSpec) else size.rows
        return ExpectedState(rows, rows * (ENTRY_BYTES + key + times * size.width))

    def _width(self, name: str, columns: int) -> float:
        """Return the bytes of a key of ``columns`` columns."""
        size = self._sizes.get(name)
        there = max(len(self._nodes[name].schema), 1)
        return 0.0 if size is None else columns * (size.width / there + KEY_BYTES)

    # --- changes

    def change(self, source: str) -> ChangeCost | None:
        """Return the cost of one row more or less of a source; None: unknown.

        ``source`` is the id of a ``SourceSpec`` or ``FeedSpec``.
        """
        cost, sent = ChangeCost(), {source: self._passes(source)}
        if sent[source] is None:
            return None
        self._add(cost, self._nodes[source], 1.0, _ROW_US["Source"])
        for node in self._plan.nodes:
            ports = [(number, sent[name]) for number, name in _ports(node) if name in sent]
            if not ports:
                continue
            out = 0.0
            for port, rows in ports:
                if rows is None:
                    return None
                step = self._step(node, port, rows)
                if step is None:
                    return None
                gives, reads, us = step
                out += gives
                self._add(cost, node, rows + reads, us)
            sent[node.id] = out
            if isinstance(node, p.SinkSpec):
                cost.result_rows = out
                cost.us += out * WRITE_US
                cost.alone_us += out * WRITE_US
        return cost

    def _add(self, cost: ChangeCost, node: p.Node, rows: float, us: float) -> None:
        kind = p.kind(type(node))
        remote = is_remote(node)
        cost.rows += rows
        cost.us += us
        call = _CALL_US.get(kind, 20.0) + (REMOTE_CALL_US if remote else 0.0)
        # If rows are rare, so are batches.
        cost.alone_us += call * min(rows, 1.0) + us
        cost.by_node[node.id] = cost.by_node.get(node.id, 0.0) + us
        cost.touched[node.id] = cost.touched.get(node.id, 0.0) + rows

    def _passes(self, source: str) -> float | None:
        """Return the fraction of a table's rows that a source sends."""
        node = self._nodes[source]
        if not isinstance(node, p.SourceSpec):
            return 1.0
        table = self._tables.get(node.table_oid)
        size = self._sizes.get(source)
        if table is None or size is None:
            return None
        return min(size.rows / max(table.rows, 1.0), 1.0)

    def _step(self, node: p.Node, port: int, rows: float) -> tuple[float, float, float] | None:
        """Return, for ``rows`` rows on a port, output rows, rows read again, and CPU µs."""
        before, after = self.rows(p.inputs(node)[port]), self.rows(node.id)
        if before is None or after is None:
            return None
        us = rows * _ROW_US.get(p.kind(type(node)), 0.1)
        share = after / max(before, 1.0)
        match node:
            case p.FilterSpec() | p.MapSpec() | p.FusedSpec():
                us += rows * _REMOTE_US * is_remote(node)
                return rows * min(share, 1.0), 0.0, us
            case p.JoinSpec():
                return self._meets(node, port, rows, us)
            case p.ReduceSpec():
                return self._regroups(node, rows, us)
            case p.TopKSpec():
                return self._reorders(node, rows, us)
            case p.WindowSpec():
                return self._recounts(node, rows, us)
            case p.ExpandSpec():
                return rows * len(node.sets), 0.0, us
            case p.UnionSpec() | p.SinkSpec():
                return rows, 0.0, us
            case _:
                return rows * share, 0.0, us

    def _meets(
        self, node: p.JoinSpec, port: int, rows: float, us: float
    ) -> tuple[float, float, float] | None:
        """Return the step of a join: each row has the average number of matches."""
        sides = [self.rows(node.left), self.rows(node.right)]
        own, other = sides[port], sides[1 - port]
        if own is None or other is None:
            return None
        keys = (node.left_keys, node.right_keys)[1 - port]
        name = (node.left, node.right)[1 - port]
        partners = other / self.groups(name, keys) if keys else other
        if node.compared:
            partners = min(partners, _TURNED_ROWS)
        whole = self.rows(node.id) or 0.0
        gives = rows * (whole / max(own, 1.0))
        met = max(partners * rows, gives if not node.left_only else 0.0)
        return gives, met, us + met * _PAIR_US

    def _regroups(
        self, node: p.ReduceSpec, rows: float, us: float
    ) -> tuple[float, float, float] | None:
        """Return the step of groups: the old row of each is replaced by a new one."""
        before, after = self.rows(node.input), self.rows(node.id)
        if before is None or after is None:
            return None
        touched = min(rows, after)
        kept = sum(NATIVE[a.function].retained or a.distinct for a in node.aggregates)
        asked = touched * before / max(after, 1.0) * is_remote(node)
        us += touched * _GROUP_US + rows * kept * _KEPT_US + asked * _ASKED_US
        return 2 * touched, asked, us

    def _reorders(
        self, node: p.TopKSpec, rows: float, us: float
    ) -> tuple[float, float, float] | None:
        """Return the step of a TopK: a row that enters or leaves the head replaces another."""
        before, after = self.rows(node.input), self.rows(node.id)
        if before is None or after is None:
            return None
        head = before if node.limit is None else float(node.offset + node.limit)
        groups = self.groups(node.input, node.keys)
        looked = min(before / groups, head) if is_remote(node) else 0.0
        us += rows * _HEAD_US * min(groups / max(rows, 1.0), 1.0) + rows * looked * _ASKED_US
        return 2 * rows * min(after / max(before, 1.0), 1.0), rows * looked, us

    def _recounts(
        self, node: p.WindowSpec, rows: float, us: float
    ) -> tuple[float, float, float] | None:
        """Return the step of a window: on average half the partition follows a row.

        A window that Postgres evaluates reads the whole partition.
        """
        before = self.rows(node.input)
        if before is None:
            return None
        partition = before / self.groups(node.input, node.keys)
        if not node.native:
            moved = rows * partition
            return 2 * moved, moved, us + moved * (_ASKED_US + _MOVED_US)
        near = all(
            c.running is not None and c.running.function in ("lag", "lead") for c in node.calls
        )
        moved = rows * (2.0 if near else max(partition / 2, 1.0))
        return 2 * moved, moved, us + moved * _MOVED_US

    def groups(self, name: str, columns: tuple[int, ...]) -> float:
        """Return the expected number of distinct values of some columns of a node, at least 1."""
        rows = self.rows(name) or 1.0
        found = 1.0
        for column in columns:
            traced = self._traced(self._nodes[name], column)
            table = None if traced is None else self._tables.get(traced[0])
            number = None if table is None or traced is None else table.distinct.get(traced[1])
            found *= rows if number is None else number
        return max(min(found, rows), 1.0) if columns else 1.0

    def _traced(self, node: p.Node, column: int) -> tuple[int, int] | None:
        """Return the table and column number that a column comes from unchanged."""
        match node:
            case p.SourceSpec():
                return node.table_oid, node.columns[column].attnum
            case p.MapSpec():
                return self._through(node.input, node.expressions[column])
            case p.FusedSpec():
                place: int | None = column
                for step in reversed(node.steps):
                    if isinstance(step, p.MapSpec) and place is not None:
                        expr = step.expressions[place]
                        place = expr.index if isinstance(expr, ir.Column) else None
                return None if place is None else self._traced(self._nodes[node.input], place)
            case p.JoinSpec():
                left = len(self._nodes[node.left].schema)
                side, at = (node.left, column) if column < left else (node.right, column - left)
                return self._traced(self._nodes[side], at)
            case p.ReduceSpec():
                if column >= len(node.keys):
                    return None
                return self._traced(self._nodes[node.input], node.keys[column])
            case (
                p.FilterSpec() | p.TopKSpec() | p.DistinctSpec() | p.WindowSpec() | p.CalendarSpec()
            ):
                below = self._nodes[node.input]
                return self._traced(below, column) if column < len(below.schema) else None
            case _:
                return None

    def _through(self, name: str, expr: ir.Expr) -> tuple[int, int] | None:
        return self._traced(self._nodes[name], expr.index) if isinstance(expr, ir.Column) else None


def _ports(node: p.Node) -> Iterator[tuple[int, str]]:
    return enumerate(p.inputs(node))


def is_remote(node: p.Node) -> bool:
    """Return whether Postgres is asked for the rows of a node."""
    match node:
        case p.FilterSpec():
            return any(map(_asks, node.predicates))
        case p.MapSpec():
            return any(map(_asks, node.expressions))
        case p.FusedSpec():
            return any(map(is_remote, node.steps))
        case p.JoinSpec():
            return any(map(_asks, node.residual))
        case p.ReduceSpec():
            return any(a.function == "remote" for a in node.aggregates)
        case p.TopKSpec():
            return not all(item.native for item in node.order)
        case p.WindowSpec():
            return not node.native
        case p.FlatMapSpec():
            return True
        case _:
            return False


def asked(node: p.Node) -> list[str]:
    """Return the expressions of a node that Postgres computes, as SQL."""
    match node:
        case p.FilterSpec():
            exprs = node.predicates
        case p.MapSpec():
            exprs = node.expressions
        case p.FusedSpec():
            return [text for step in node.steps for text in asked(step)]
        case p.JoinSpec():
            exprs = node.residual
        case p.ReduceSpec():
            return [a.sql for a in node.aggregates if a.function == "remote"]
        case p.WindowSpec():
            return [c.sql for c in node.calls if c.running is None]
        case _:
            return []
    return [text for expr in exprs for text in _texts(expr)]


def _asks(expr: ir.Expr) -> bool:
    return next(_texts(expr), None) is not None


def _texts(expr: ir.Expr) -> Iterator[str]:
    match expr:
        case ir.Remote():
            yield expr.sql
        case ir.Native():
            for arg in expr.args:
                yield from _texts(arg)


def finite(value: float | None) -> float | None:
    """Return ``value`` if it is finite."""
    return value if value is not None and math.isfinite(value) else None
