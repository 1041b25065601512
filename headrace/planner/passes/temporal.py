"""The clock in queries: ``now()`` and similar functions in comparisons.

``now()`` is lowered to ``scalar.CLOCK``, a reference that no node has, and ``current_date`` to a
cast of it.  The rules move such expressions like any others, as the clock is constant within a
transaction.  After them ``extract`` moves every comparison of a row's value with a function of the
clock out of its expression into a ``Temporal`` node below, which computes it as a boolean column:

Filter[k < f(now) and p](x)  =  Project(Filter[c](Temporal[c: k < f(now)](Filter[p](x))))

``f`` need not be monotone: the collection reads all rows between f at the last timestamp and f at
the current one.  ``now() - k > interval`` is compared as ``k`` with ``now()`` minus the interval in
microseconds, as Postgres compares such intervals (a day is 24 hours, a month 30 days).  The test
itself stays as written.

Counter-example: ``SELECT now() - k`` changes in every row at every timestamp, so it is refused.  So
is ``age(k) < …``, because the time at which it changes cannot be computed for a row.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from fractions import Fraction
from typing import Final, NoReturn

from headrace import types as t
from headrace.expressions import keys
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.node_names import construct
from headrace.planner.logical.scalar import (
    CLOCK,
    CONDITIONAL,
    Call,
    Const,
    Expr,
    Ref,
    any_call,
    reads_clock,
    refs,
    show,
)
from headrace.planner.passes import calendar
from headrace.planner.scalars.coercions import convert
from headrace.planner.scalars.lower import Lowering

_ORDER: Final = {"=", "<>", "<", "<=", ">", ">="}
_EQUAL: Final = {"=", "<>"}
_TIMES: Final = (t.DATE, t.TIMESTAMP, t.TIMESTAMPTZ)
"""Two of these types are compared in the later one."""
_PLAIN: Final = {"and", "or", "not"}
_FIRST_ID: Final = -2_000_000
_DIVISOR: Final = re.compile(r"[1-9][0-9]{0,6}")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DETAIL: Final = (
    "The clock may stand on one side of a comparison whose other side is a value of the row,"
    " as in: ts > now() - interval '1 hour', now() BETWEEN a AND b, now() - ts < interval '1 day'."
)
_UNIT: Final = "A calendar unit of the clock may stand anywhere: date_trunc('minute', now())."
_SHOWN: Final = (
    "A value that changes continuously cannot be stored. Use a calendar unit of the clock, as in"
    " current_date or date_trunc('minute', now()); or select the row's timestamp, and compare it"
    " with the clock when the view is read."
)
_WORDS: Final = (
    r"\bnow\s*\(|\btransaction_timestamp\s*\(|\bcurrent_(date|timestamp)\b"
    r"|\blocaltimestamp\b"
)
_DAY: Final = 86_400_000_000
_WEEK: Final = 7 * _DAY
_TIME_ONLY: Final = re.compile(r"-?\d+:\d\d:\d\d(\.\d+)?")
_UNITS: Final = {
    "microseconds": 1, "milliseconds": 1, "second": 1, "minute": 1, "hour": 1, "day": 2,
    "week": 8, "month": 32, "quarter": 93, "year": 367,
}  # fmt: skip
"""Upper bounds of the days in a unit."""
_MICROS: Final = """
    SELECT ((extract(year FROM i) * 12 + extract(month FROM i)) * 30 * 86400000000
            + extract(day FROM i) * 86400000000 + extract(hour FROM i) * 3600000000
            + extract(minute FROM i) * 60000000 + extract(microseconds FROM i))::bigint
      FROM (SELECT %s::interval AS i) s
"""


def extract(plan: lg.Node, lowering: Lowering) -> lg.Node:
    """Return ``plan`` with ``Temporal`` nodes for the expressions that read the clock.

    Raises:
        UnsupportedError: the clock is used otherwise than in comparisons.
    """
    return _Extraction(lowering).node(plan)


@dataclasses.dataclass(frozen=True, slots=True)
class LowerBound:
    """The comparison ``column >= bound + offset`` (or ``>``), which is true of each shown row."""

    column: Ref
    """Of type date, timestamp or timestamptz."""
    bound: Expr
    """Reads the clock alone; its type is that of ``column``, or a later one of these."""
    offset: int
    """Microseconds, or days of a date; less by how far ``bound`` may fall back."""


def lower_bound(expr: Expr, lowering: Lowering) -> LowerBound | None:
    """Return the lower bound of a column that ``expr`` is; None if it is something else."""
    test = _Extraction(lowering).test(expr)
    if test is None or not test.ordered or test.slack is None:
        return None
    assert isinstance(expr, Call), "it is a comparison"
    first, second = expr.args
    clock, row = (first, second) if reads_clock(first) else (second, first)
    above = expr.symbol in ((">", ">=") if row is first else ("<", "<="))
    if refs(clock):
        # now() - k < x means k > now() - x.
        same = expr.symbol in ((">", ">=") if clock is first else ("<", "<="))
        below = expr.symbol in (("<", "<=") if clock is first else (">", ">="))
        row, above = test.key, same if _subtracted(clock) else below
    if not above or not isinstance(row, Ref):
        return None
    return LowerBound(row, test.bound, test.shift - test.slack)


class _Columns:
    """Columns of the clock over one node: tests of its rows, and values of the calendar."""

    def __init__(self, counter: itertools.count[int]) -> None:
        self._counter = counter
        self._tests: dict[Expr, lg.TimeTest] = {}
        self._values: dict[Expr, lg.Col] = {}

    def test(self, test: lg.TimeTest) -> Ref:
        """Return the column of ``test``."""
        if test.test not in self._tests:
            column = dataclasses.replace(test.column, id=next(self._counter))
            self._tests[test.test] = dataclasses.replace(test, column=column)
        return self._tests[test.test].column.ref

    def value(self, expr: Expr) -> Ref:
        """Return the column of a calendar value."""
        if expr not in self._values:
            name = show(expr)
            self._values[expr] = lg.Col(
                next(self._counter), name, expr.oid, expr.typmod, expr.collation
            )
        return self._values[expr].ref

    def over(self, node: lg.Node) -> lg.Node:
        """Return ``node`` with the columns."""
        if self._values:
            node = lg.CalendarNode(node, tuple((c, e) for e, c in self._values.items()))
        tests = tuple(self._tests.values())
        return lg.TemporalNode(node, tests) if tests else node


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """Where the columns of an expression are computed: below a node, or one of its sides."""

    left: _Columns
    right: _Columns | None = None
    join: lg.JoinNode | None = None
    values: _Columns | None = None
    """For values of the calendar; None: ``left``."""

    def test(self, test: lg.TimeTest) -> Ref:
        """Return the column of ``test``, on the side whose columns it reads."""
        if self.join is None or self.right is None:
            return self.left.test(test)
        return (self.left if refs(test.test) <= lg.ids(self.join.left) else self.right).test(test)

    def value(self, expr: Expr) -> Ref:
        """Return the column of a calendar value."""
        return (self.values or self.left).value(expr)


class _Extraction:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._catalog: Catalog = lowering.catalog
        self._counter = itertools.count(_FIRST_ID, -1)

    # --- nodes

    def node(self, node: lg.Node) -> lg.Node:
        """Take the clock out of ``node`` and all nodes below."""
        if isinstance(node, lg.RecursiveNode) and _anywhere(node.step):
            self._refuse("now() and related functions inside WITH RECURSIVE")
        below = tuple(self.node(child) for child in lg.children(node))
        node = lg.with_children(node, below)
        if not any(map(reads_clock, _expressions(node))):
            return node
        match node:
            case lg.ScanNode():
                return self._scan(node)
            case lg.FilterNode():
                return self._filter(node)
            case lg.JoinNode():
                return self._join(node)
            case lg.ProjectNode():
                made = _Columns(self._counter)
                items = tuple((c, self._out(e, _Places(made))) for c, e in node.items)
                return lg.ProjectNode(made.over(node.input), items)
            case lg.AggregateNode():
                return self._aggregate(node)
            case lg.FunctionsNode():
                made = _Columns(self._counter)
                calls = tuple(self._out(e, _Places(made)) for e in node.calls)
                columns = node.columns
                over = dataclasses.replace(node, input=made.over(node.input), calls=calls)
                return lg.ProjectNode(over, tuple((c, c.ref) for c in columns))
            case _:
                return self._refuse("the clock here")

    def _scan(self, node: lg.ScanNode) -> lg.Node:
        rest = tuple(p for p in node.predicates if not reads_clock(p))
        mine = tuple(p for p in node.predicates if reads_clock(p))
        fields = (*node.fields, *node.hidden)
        scan = dataclasses.replace(node, fields=fields, hidden=(), predicates=rest)
        return _only(self._filter(lg.FilterNode(scan, mine)), node.columns)

    def _filter(self, node: lg.FilterNode) -> lg.Node:
        rest = tuple(p for p in node.predicates if not reads_clock(p))
        made = _Columns(self._counter)
        places = _Places(made)
        mine = tuple(self._out(p, places) for p in node.predicates if reads_clock(p))
        below = lg.FilterNode(node.input, rest) if rest else node.input
        return _only(lg.FilterNode(made.over(below), mine), node.columns)

    def _join(self, node: lg.JoinNode) -> lg.Node:
        left, right = _Columns(self._counter), _Columns(self._counter)
        condition: list[Expr] = []
        above: list[Expr] = []
        for predicate in node.condition:
            values = right if refs(predicate) <= lg.ids(node.right) else left
            places = _Places(left, right, node, values)
            if self._sided(predicate, node):
                condition.append(self._out(predicate, places))
            elif node.kind == "inner":
                above.append(predicate)
            elif calendar.only(predicate):
                condition.append(self._out(predicate, places, tested=False))
            else:
                self._refuse(
                    f"a condition of {construct(node)} that compares columns of both"
                    " sides with the clock"
                )
        made = dataclasses.replace(
            node,
            left=left.over(node.left),
            right=right.over(node.right),
            condition=tuple(condition),
        )
        if above:
            return _only(self._filter(lg.FilterNode(made, tuple(above))), node.columns)
        return _only(made, node.columns)

    def _sided(self, expr: Expr, node: lg.JoinNode) -> bool:
        """Return whether each comparison with the clock reads one side alone."""
        if not reads_clock(expr) or calendar.shown(expr):
            return True
        if (test := self.test(expr)) is not None:
            used = refs(test.test)
            return used <= lg.ids(node.left) or used <= lg.ids(node.right)
        return isinstance(expr, Call) and all(self._sided(a, node) for a in expr.args)

    def _aggregate(self, node: lg.AggregateNode) -> lg.Node:
        made = _Columns(self._counter)
        places = _Places(made)
        aggs = lg.over(node.aggs, lambda e: self._out(e, places))
        grouped = tuple((c, self._out(e, places)) for c, e in node.keys)
        return dataclasses.replace(node, input=made.over(node.input), keys=grouped, aggs=aggs)

    # --- expressions

    def _out(
        self, expr: Expr, places: _Places, *, guarded: bool = False, tested: bool = True
    ) -> Expr:
        """Replace comparisons and calendar values in ``expr`` by columns.

        ``guarded``: a conditional decides whether it is computed.  Without ``tested``, comparisons
        stay.
        """
        if not reads_clock(expr):
            return expr
        if tested and (test := self.test(expr)) is not None:
            fails = guarded and any_call(expr, lambda c: c.raises and bool(refs(c)))
            if not fails:
                return places.test(test)
            if not calendar.only(expr):
                self._refuse("a comparison with the clock that may fail, inside CASE or the like")
            tested = False
        if calendar.shown(expr):
            return places.value(expr)
        if not isinstance(expr, Call) or expr.args == (CLOCK,):
            return self._refuse(
                f"{_name(expr)} outside of a comparison with a value of a row", _SHOWN
            )
        if expr.symbol in _ORDER and not calendar.only(expr):
            self._refuse(f"the comparison {show(expr)}", _UNIT)
        inner = guarded or (expr.symbol in CONDITIONAL and expr.symbol not in _PLAIN)
        args = tuple(self._out(a, places, guarded=inner, tested=tested) for a in expr.args)
        return dataclasses.replace(expr, args=args)

    def test(self, expr: Expr) -> lg.TimeTest | None:
        """Return the comparison of a row with the clock that ``expr`` is."""
        if not isinstance(expr, Call) or expr.symbol not in _ORDER:
            return None
        if "OPERATOR(pg_catalog." not in expr.sql or any_call(expr, _is_subtle):
            return None
        first, second = expr.args
        if reads_clock(first) == reads_clock(second):
            return None
        clock, row = (first, second) if reads_clock(first) else (second, first)
        shift = 0
        if refs(clock):
            found = self._difference(clock, row)
            if found is None:
                return None
            row, clock, shift = found
        ordered = row.oid in _TIMES and clock.oid in _TIMES
        if ordered and row.oid != clock.oid:
            wanted = max(row.oid, clock.oid, key=_TIMES.index)
            row, clock = (convert(self._lowering, e, wanted, 0) for e in (row, clock))
        if not ordered and not self._equated(expr, row, clock):
            return None
        column = lg.Col(0, "when", t.BOOL)
        ranged = expr.symbol not in _EQUAL
        slack = _slack(clock) if ordered else None
        if slack is not None and row.oid == t.DATE:
            slack = -(-slack // _DAY)
        return lg.TimeTest(
            column, expr, row, clock, shift, ordered, ranged, slack, calendar.is_calendar(clock)
        )

    def _equated(self, expr: Call, row: Expr, clock: Expr) -> bool:
        """Return whether only rows equal to one of two values of the clock can change."""
        if expr.symbol not in _EQUAL or row.oid != clock.oid:
            return False
        kind = self._catalog.types[row.oid].kind
        sharp = self._catalog.collations.deterministic(expr.input_collation)
        return keys.key_class(row.oid, kind=kind, deterministic=sharp) is not None

    def _difference(self, clock: Expr, other: Expr) -> tuple[Expr, Expr, int] | None:
        """Return k, now() and the offset for ``now() - k`` or ``k - now()`` against a constant.

        Also its seconds, ``extract(epoch FROM now() - k)``, and these divided by a whole number.
        """
        if not isinstance(other, Const) or other.text is None:
            return None
        seconds = _seconds(clock)
        clock, unit = seconds or (clock, 1)
        if not isinstance(clock, Call) or clock.symbol != "-" or len(clock.args) != 2:
            return None
        first, second = clock.args
        if "OPERATOR(pg_catalog." not in clock.sql:
            return None
        if first.oid != second.oid or first.oid not in _TIMES:
            return None
        if seconds is None:
            size = self._size(other, first.oid)
        else:
            size = _whole(other, unit) if first.oid != t.DATE else None
        if size is None:
            return None
        if reads_clock(first) and not refs(first) and not reads_clock(second):
            return second, first, -size
        if reads_clock(second) and not refs(second) and not reads_clock(first):
            return first, second, size
        return None

    def _size(self, value: Const, oid: int) -> int | None:
        """Return a length of time in microseconds; of dates, in days."""
        assert value.text is not None, "asked by the caller"
        if oid == t.DATE:
            return int(value.text) if value.oid in (t.INT2, t.INT4) else None
        if value.oid != t.INTERVAL or "infinity" in value.text:
            return None
        row = self._lowering.fetch(_MICROS, value.text)
        return int(row)

    def _refuse(self, what: str, hint: str | None = None) -> NoReturn:
        self._lowering.refuse(what, pattern=_WORDS, detail=_DETAIL, hint=hint)


def _seconds(expr: Expr) -> tuple[Expr, int] | None:
    """Return an interval and n if ``expr`` is the n-th part of the interval in seconds."""
    unit = 1
    if isinstance(expr, Call) and expr.symbol == "/" and expr.oid == t.NUMERIC:
        expr, divisor = expr.args
        if not isinstance(divisor, Const) or not _DIVISOR.fullmatch(divisor.text or ""):
            return None
        unit = int(divisor.text or "")
    if not isinstance(expr, Call) or expr.symbol != 'pg_catalog."extract"':
        return None
    field, value = expr.args
    if not isinstance(field, Const) or (field.text or "").lower() != "epoch":
        return None
    return value, unit


def _subtracted(clock: Expr) -> bool:
    """Return whether ``clock`` is k - now(), and not now() - k; or its seconds."""
    inner, _ = _seconds(clock) or (clock, 1)
    return isinstance(inner, Call) and not reads_clock(inner.args[0])


def _whole(value: Const, unit: int) -> int | None:
    """Return ``value`` times ``unit`` seconds in microseconds, if that is a whole number."""
    if value.oid != t.NUMERIC or not _NUMBER.fullmatch(value.text or ""):
        return None
    size = Fraction(value.text or "") * unit * 1_000_000
    return int(size) if size.denominator == 1 and abs(size) < 2**62 else None


def _slack(clock: Expr) -> int | None:
    """Return by how many microseconds at most ``clock`` may go back; None: unknown.

    A time zone's clocks are set back, and a month before the 31st may be a month before the 28th;
    a week is more than the sum of these.  A value truncated to a unit may go back by the unit.
    """
    if clock == CLOCK:
        return 0
    if not isinstance(clock, Call) or not clock.trusted or clock.oid not in _TIMES:
        return None
    inner = [a for a in clock.args if reads_clock(a)]
    rest = [a for a in clock.args if not reads_clock(a)]
    if len(inner) != 1 or inner[0].oid not in _TIMES:
        return None
    slack = _slack(inner[0])
    if slack is None:
        return None
    if not rest:
        return slack + _WEEK
    if len(rest) > 1 or not isinstance(rest[0], Const) or rest[0].text is None:
        return None
    if clock.symbol in ("+", "-") and "OPERATOR(pg_catalog." in clock.sql:
        if clock.symbol == "-" and clock.args[0] != inner[0]:
            return None
        if rest[0].oid == t.INTERVAL and _TIME_ONLY.fullmatch(rest[0].text):
            return slack
        return slack + _WEEK if rest[0].oid in (t.INTERVAL, t.INT2, t.INT4) else None
    if clock.symbol == "pg_catalog.timezone":
        return slack + _WEEK
    unit = rest[0].text.lower()
    if clock.symbol == "pg_catalog.date_trunc" and unit in _UNITS:
        return slack + _UNITS[unit] * _DAY + _WEEK
    return None


def _is_subtle(call: Call) -> bool:
    """Return whether ``call`` is untrusted and has an argument that reads the clock."""
    return not call.trusted and any(map(reads_clock, call.args))


def _name(expr: Expr) -> str:
    """Return the SQL name of the clock function in ``expr``, for messages."""
    names = {t.DATE: "current_date", t.TIMESTAMP: "localtimestamp"}
    return f'"{names.get(expr.oid, "now()")}"'


def _only(node: lg.Node, columns: tuple[lg.Col, ...]) -> lg.Node:
    """Return ``node`` with ``columns`` alone."""
    if node.columns == columns:
        return node
    return lg.ProjectNode(node, tuple((c, c.ref) for c in columns))


def _expressions(node: lg.Node) -> tuple[Expr, ...]:
    return () if isinstance(node, lg.TemporalNode | lg.CalendarNode) else lg.expressions(node)


def _anywhere(node: lg.Node) -> bool:
    return any(map(reads_clock, _expressions(node))) or any(map(_anywhere, lg.children(node)))
