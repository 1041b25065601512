"""A naive evaluator of physical plans over whole tables, deliberately not optimised.

Rows are tuples of the values that ``Array.to_pylist`` yields; a result is a ``Counter`` of rows.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from headrace.collections import plan
from headrace.collections.plan import Node, PhysicalPlan
from headrace.collections.source import load_columns
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.types import BOOL, FLOAT8, INT2, INT4, INT8, NUMERIC, Schema

Row = tuple[Any, ...]
Tables = dict[int, Sequence[Row]]
"""Table OID -> its rows, with the columns in the order of ``load_columns``."""


def evaluate(physical: PhysicalPlan, tables: Tables) -> Counter[Row]:
    """Return the rows of the view over ``tables``."""
    results: dict[str, Counter[Row]] = {}
    for node in physical.nodes:
        inputs = [results[name] for name in plan.inputs(node)]
        schemas = [physical.node(name).schema for name in plan.inputs(node)]
        results[node.id] = _node(node, inputs, schemas, tables)
        assert all(weight > 0 for weight in results[node.id].values())
    return results[physical.sink.id]


def _node(  # noqa: C901  one case per node
    node: Node, inputs: list[Counter[Row]], schemas: list[Schema], tables: Tables
) -> Counter[Row]:
    match node:
        case plan.SourceSpec():
            width = len(node.columns)
            assert len(load_columns(node)) >= width
            shown = Counter(row[:width] for row in tables.get(node.table_oid, ()))
            return _filter(node.wanted, shown)
        case plan.FilterSpec():
            return _filter(node.predicates, inputs[0])
        case plan.MapSpec():
            return _map(node.expressions, inputs[0])
        case plan.FusedSpec():
            return _fused(node, inputs[0], tables)
        case plan.JoinSpec():
            return _join(node, inputs, schemas)
        case plan.ExpandSpec():
            return _expand(node, inputs[0])
        case plan.ReduceSpec():
            return _reduce(node, inputs[0], schemas[0])
        case plan.DistinctSpec():
            return _distinct(node, inputs[0])
        case plan.UnionSpec():
            return sum(inputs, Counter())
        case plan.SetOpSpec():
            return _setop(node, inputs)
        case plan.RecursiveSpec():
            return _recursive(node, inputs, schemas, tables)
        case plan.ValuesSpec():
            return Counter(
                tuple(value(text, f.oid) for text, f in zip(row, node.schema, strict=True))
                for row in node.rows
            )
        case plan.TopKSpec():
            return _topk(node, inputs[0])
        case plan.SinkSpec():
            return inputs[0]
        case _:
            raise AssertionError(f"{node} has no reference")


def _distinct(node: plan.DistinctSpec, rows: Counter[Row]) -> Counter[Row]:
    groups = _group(rows, range(len(node.schema)), node.schema)
    return Counter(min(members, key=_representation) for members in groups.values())


def _recursive(
    node: plan.RecursiveSpec, inputs: list[Counter[Row]], schemas: list[Schema], tables: Tables
) -> Counter[Row]:
    """Evaluate the step over the rows of the previous iteration, as in the manual (7.8.2)."""
    outer = dict(zip(node.outer, inputs[1:], strict=True))
    shapes = dict(zip(node.outer, schemas[1:], strict=True))
    shapes |= {each.id: each.schema for each in node.step}
    now = _once(inputs[0], node)
    total: Counter[Row] = Counter(now)
    while now:
        found = outer | {node.step[0].id: Counter({(*r, 0): w for r, w in now.items()})}
        for each in node.step[1:]:
            names = plan.inputs(each)
            found[each.id] = _node(
                each, [found[n] for n in names], [shapes[n] for n in names], tables
            )
        rows: Counter[Row] = Counter()
        for row, weight in found[node.step[-1].id].items():
            rows[row[:-1]] += weight
        now = _once(rows, node)
        if node.distinct:
            now = Counter({row: 1 for row in now if row not in total})
        total.update(now)
    return total


def _once(rows: Counter[Row], node: plan.RecursiveSpec) -> Counter[Row]:
    return Counter(rows.keys()) if node.distinct else rows


def _setop(node: plan.SetOpSpec, inputs: list[Counter[Row]]) -> Counter[Row]:
    places = range(len(node.schema))
    left, right = (_group(rows, places, node.schema) for rows in inputs)
    out: Counter[Row] = Counter()
    for key, members in left.items():
        mine, others = len(members), len(right.get(key, ()))
        count = min(mine, others) if node.op == "intersect" else mine - others
        if not node.all:
            count = int((others > 0) == (node.op == "intersect"))
        out.update(sorted(members, key=_representation)[: max(count, 0)])
    return out


def _fused(node: plan.FusedSpec, rows: Counter[Row], tables: Tables) -> Counter[Row]:
    for step in node.steps:
        rows = _node(step, [rows], [()], tables)
    return rows


def _values(node: plan.ValuesSpec) -> Counter[Row]:
    return Counter(
        tuple(value(text, f.oid) for text, f in zip(row, node.schema, strict=True))
        for row in node.rows
    )


def _filter(predicates: tuple[Expr, ...], rows: Counter[Row]) -> Counter[Row]:
    return Counter({r: w for r, w in rows.items() if all(scalar(p, r) is True for p in predicates)})


def _map(expressions: tuple[Expr, ...], rows: Counter[Row]) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for row, weight in rows.items():
        out[tuple(scalar(e, row) for e in expressions)] += weight
    return out


def _join(node: plan.JoinSpec, inputs: list[Counter[Row]], schemas: list[Schema]) -> Counter[Row]:
    pairs: Counter[Row] = Counter()
    met: tuple[set[Row], set[Row]] = (set(), set())
    safe = node.null_safe or (False,) * len(node.left_keys)
    for left, left_weight in inputs[0].items():
        a = [canonical(left[i], schemas[0][i].oid) for i in node.left_keys]
        for right, right_weight in inputs[1].items():
            b = [canonical(right[i], schemas[1][i].oid) for i in node.right_keys]
            good = all(
                x == y and (x is not None or null_is_equal)
                for x, y, null_is_equal in zip(a, b, safe, strict=True)
            )
            if (
                good
                and _filter(node.residual, Counter([left + right]))
                and _compared(node, left, right, schemas)
            ):
                pairs[left + right] += left_weight * right_weight
                met[0].add(left)
                met[1].add(right)
    if node.op in ("semi", "anti"):
        shown = node.op == "semi"
        return Counter({r: w for r, w in inputs[0].items() if (r in met[0]) == shown})
    nulls = [(None,) * len(schema) for schema in schemas]
    if node.op in ("left", "full"):
        for row, weight in inputs[0].items():
            if row not in met[0]:
                pairs[row + nulls[1]] += weight
    if node.op == "full":
        for row, weight in inputs[1].items():
            if row not in met[1]:
                pairs[nulls[0] + row] += weight
    return pairs


def _compared(node: plan.JoinSpec, left: Row, right: Row, schemas: list[Schema]) -> bool:
    if node.compared is None:
        return True
    places = (left, node.compared.left, schemas[0]), (right, node.compared.right, schemas[1])
    a, b = (canonical(row[place], schema[place].oid) for row, place, schema in places)
    return a is not None and b is not None and _OPERATORS[node.compared.operator](a, b)


def _group(rows: Counter[Row], places: Sequence[int], schema: Schema) -> dict[Row, list[Row]]:
    groups: dict[Row, list[Row]] = {}
    for row, weight in rows.items():
        key = tuple(canonical(row[i], schema[i].oid) for i in places)
        groups.setdefault(key, []).extend([row] * weight)
    return groups


def _expand(node: plan.ExpandSpec, rows: Counter[Row]) -> Counter[Row]:
    out: Counter[Row] = Counter()
    for row, weight in rows.items():
        for number, chosen in enumerate(node.sets):
            keys = [row[k] if i in chosen else None for i, k in enumerate(node.keys)]
            out[(*row, *keys, number)] += weight
    return out


def _reduce(node: plan.ReduceSpec, rows: Counter[Row], schema: Schema) -> Counter[Row]:
    groups = _group(rows, node.keys, schema)
    if not node.keys and not groups:
        groups = {(): []}
    for texts in node.always:
        typed = (value(t, schema[i].oid) for t, i in zip(texts, node.keys, strict=True))
        groups.setdefault(tuple(typed), [])
    out: Counter[Row] = Counter()
    for found, members in groups.items():
        key = tuple(
            min((row[i] for row in members), key=lambda v: (v is None, len(str(v)), v))
            if members
            else found[place]
            for place, i in enumerate(node.keys)
        )
        out[key + tuple(_aggregate(a, members) for a in node.aggregates)] += 1
    return out


def _topk(node: plan.TopKSpec, rows: Counter[Row]) -> Counter[Row]:
    """Sort rows by ORDER BY, then by their other values, then by their text."""
    fields = range(len(node.schema))
    used = {item.column for item in node.order} | {*node.keys}
    rest = [i for i in fields if i not in used]

    def sort_key(row: Row) -> list[_Sortable]:
        return [
            _Sortable(
                canonical(row[o.column], node.schema[o.column].oid), o.descending, o.nulls_first
            )
            for o in node.order
        ]

    def tiebreak(row: Row) -> list[Any]:
        values = [canonical(row[i], node.schema[i].oid) for i in rest]
        looks = [(len(str(row[i])), str(row[i])) for i in fields]
        return [*(_Sortable(v, False, False) for v in values), looks]

    out: Counter[Row] = Counter()
    for members in _group(rows, node.keys, node.schema).values():
        ordered = sorted(members, key=lambda row: (sort_key(row), tiebreak(row)))
        end = len(ordered) if node.limit is None else node.offset + node.limit
        out.update(ordered[node.offset : end])
        if node.ties and node.limit and 0 < end <= len(ordered):
            last = sort_key(ordered[end - 1])
            out.update(row for row in ordered[end:] if sort_key(row) == last)
    return out


@functools.total_ordering
class _Sortable:
    """A value or NULL that sorts in one direction."""

    def __init__(self, value: Any, descending: bool, nulls_first: bool) -> None:
        self.value, self.descending = value, descending
        self.nulls = -1 if nulls_first else 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Sortable) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __lt__(self, other: _Sortable) -> bool:
        if self.value is None or other.value is None:
            mine = self.nulls if self.value is None else 0
            theirs = other.nulls if other.value is None else 0
            return mine < theirs
        if self.descending:
            return self.value > other.value
        return self.value < other.value


def _aggregate(aggregate: plan.AggregateSpec, members: list[Row]) -> Any:
    if aggregate.filter is not None:
        members = [row for row in members if row[aggregate.filter] is True]
    if aggregate.function == "count_star":
        return len(members)
    values = [row[aggregate.argument] for row in members]
    values = [v for v in values if v is not None]
    if aggregate.distinct:
        values = list(dict.fromkeys(values))
    if aggregate.function == "count":
        return len(values)
    if not values:
        return None
    functions: dict[str, Callable[[list[Any]], Any]] = {"sum": sum, "min": min, "max": max}
    result = functions[aggregate.function](values)
    return str(result) if aggregate.result.oid == NUMERIC else result


def canonical(value: Any, oid: int) -> Any:
    """Return ``value`` such that values equal in Postgres are equal in Python."""
    if value is not None and oid == NUMERIC:
        return Decimal(value)
    return value


def value(text: str | None, oid: int) -> Any:
    """Convert a Postgres text to the value that Arrow would yield."""
    if text is None:
        return None
    if oid in {INT2, INT4, INT8}:
        return int(text)
    if oid == BOOL:
        return text == "t"
    return float(text) if oid == FLOAT8 else text


def _representation(row: Row) -> tuple[int, Row]:
    # Rows that compare equal differ only in the text of equal values.
    return len("".join(map(str, row))), row


def scalar(expr: Expr, row: Row) -> Any:
    """Return the value of ``expr`` for one row; only the operators that the tests use."""
    match expr:
        case Column(index=index):
            return row[index]
        case Literal(text=text, oid=oid):
            return value(text, oid)
        case Native(op="is_null", args=(arg,)):
            return scalar(arg, row) is None
        case Native(op=op, args=(left, right)):
            a, b = scalar(left, row), scalar(right, row)
            if a is None or b is None:
                return None
            return _OPERATORS[op](a, b)
        case _:
            raise NotImplementedError(expr)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
}
