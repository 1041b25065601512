"""Logical plans as SQL, so that Postgres itself defines their meaning, node by node.

Columns are called ``c<id>``. ``FUNCTIONS`` creates the functions ``single`` and ``least_look``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import psycopg
import pytest

from headrace.expressions import placeholders
from headrace.planner import PlanRequest
from headrace.planner.logical.nodes import ApplyNode, Node, children, free, kind
from headrace.planner.logical.scalar import quote
from headrace.planner.passes.decorrelate import decorrelate
from headrace.planner.passes.optimise import optimise
from headrace.planner.plan import plan
from headrace.planner.scalars.lower import Lowering

FUNCTIONS = """
CREATE SCHEMA IF NOT EXISTS plan_sql;
CREATE OR REPLACE FUNCTION plan_sql.single(bigint, anyelement) RETURNS anyelement
    LANGUAGE plpgsql AS $$ BEGIN
    IF $1 > 1 THEN RAISE cardinality_violation; END IF; RETURN $2; END $$;
CREATE OR REPLACE FUNCTION plan_sql.least_look(anyarray) RETURNS anyelement LANGUAGE sql AS
    'SELECT x FROM unnest($1) x ORDER BY length(x::text), x::text COLLATE "C" LIMIT 1';
"""


class Renderer:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering
        self._names = (f"q{i}" for i in itertools.count())

    def sql(self, node: Any) -> str:
        """Return a SELECT whose columns are those of ``node``, in order."""
        return getattr(self, f"_{kind(node).lower()}")(node)

    def _from(self, node: Any) -> str:
        return f"({self.sql(node)}) {next(self._names)}"

    def _expr(self, expr: Any) -> str:
        text = self._lowering.sql(expr, lambda ref: f"c{ref.id}")
        return text.replace("single(", "plan_sql.single(")

    def _all(self, exprs: Iterable[Any]) -> str:
        return " AND ".join(self._expr(e) for e in exprs) or "true"

    def _columns(self, node: Any) -> str:
        return ", ".join(f"c{c.id}" for c in node.columns)

    def _select(self, node: Any, rest: str, *more: str) -> str:
        return f"SELECT {', '.join([*filter(None, [self._columns(node)]), *more])} FROM {rest}"

    def _scan(self, node: Any) -> str:
        name = f'"{node.table.schema}"."{node.table.name}"'
        every = ", ".join(f'"{f.name}" AS c{c.id}' for c, f in (*node.fields, *node.hidden))
        rows = f"(SELECT {every} FROM ONLY {name}) {next(self._names)}"
        return self._select(node, f"{rows} WHERE {self._all(node.predicates)}")

    def _values(self, node: Any) -> str:
        def row(values: Sequence[str | None]) -> str:
            return "SELECT " + ", ".join(
                f"{quote(v, self._lowering.type_name(c.oid))} AS c{c.id}"
                for v, c in zip(values, node.columns, strict=True)
            )

        if not node.rows:
            return row([None] * len(node.columns)) + " WHERE false"
        return " UNION ALL ".join(map(row, node.rows))

    def _filter(self, node: Any) -> str:
        return self._select(node, f"{self._from(node.input)} WHERE {self._all(node.predicates)}")

    def _project(self, node: Any) -> str:
        items = ", ".join(f"{self._expr(e)} AS c{c.id}" for c, e in node.items)
        # Columns that keep their ids are not ambiguous beside their new values.
        return f"SELECT {items} FROM {self._from(node.input)}"

    def _join(self, node: Any, lateral: str = "") -> str:
        left, right = self._from(node.left), lateral + self._from(node.right)
        condition = self._all(node.condition)
        match node.kind:
            case "inner":
                return self._select(node, f"{left} JOIN {right} ON {condition}")
            case "left":
                return self._select(node, f"{left} LEFT JOIN {right} ON {condition}")
            case "semi" | "anti":
                no = "NOT " if node.kind == "anti" else ""
                right = self._from(node.right)
                test = f"{no}EXISTS (SELECT FROM {right} WHERE {condition})"
                return self._select(node, f"{left} WHERE {test}")
        # Postgres merges or hashes a FULL JOIN, and NULL-safe keys allow neither.
        both = self._select(node, f"{left} LEFT JOIN {right} ON {condition}")
        nulls = [f"NULL::{self._lowering.type_name(c.oid)}" for c in node.left.columns]
        mine = [f"c{c.id}" for c in node.right.columns]
        left, right = self._from(node.left), self._from(node.right)
        rest = f"SELECT {', '.join([*nulls, *mine])} FROM {right}"
        return f"{both} UNION ALL {rest} WHERE NOT EXISTS (SELECT FROM {left} WHERE {condition})"

    def _apply(self, node: Any) -> str:
        return self._join(node, "LATERAL ")

    def _aggregate(self, node: Any) -> str:
        items = [f"{self._expr(e)} AS c{c.id}" for c, e in node.keys]
        items += [f"{self._agg(a)} AS c{a.column.id}" for a in node.aggs]
        keys = ", ".join(str(i + 1) for i in range(len(node.keys)))
        group = f" GROUP BY {keys}" if keys else ""
        arms = [f"SELECT {', '.join(items)} FROM {self._from(node.input)}{group}"]
        for texts in node.always:
            # Grouping sets without keys have a row also for no input.
            for place, (text, (column, _)) in enumerate(zip(texts, node.keys, strict=True)):
                kind = self._lowering.type_name(column.oid)
                items[place] = f"{quote(text, kind)} AS c{column.id}"
            there = f"EXISTS (SELECT FROM {self._from(node.input)})"
            nothing = f"{self._from(node.input)} WHERE false HAVING NOT {there}"
            arms.append(f"SELECT {', '.join(items)} FROM {nothing}")
        return " UNION ALL ".join(arms)

    def _agg(self, agg: Any) -> str:
        inputs = [self._expr(e) for e in agg.inputs]
        argument = self._expr(agg.argument) if agg.argument is not None else "*"
        where = "" if agg.filter is None else f" FILTER (WHERE {self._expr(agg.filter)})"
        if agg.function == "count_star":
            return f"count(*){where}"
        if agg.function == "any":
            return f"plan_sql.least_look(array_agg({argument}){where})"
        if agg.sql:
            text = agg.sql.replace(", $0", "").replace(" ORDER BY $0", "")
            for number in range(len(inputs), 0, -1):
                text = text.replace(f"${number}", inputs[number - 1])
            return text + where
        distinct = "DISTINCT " if agg.distinct else ""
        return f"{agg.function}({distinct}{argument}){where}"

    def _distinct(self, node: Any) -> str:
        return f"SELECT DISTINCT {self._columns(node)} FROM {self._from(node.input)}"

    def _arm(self, node: Any, arm: Any) -> str:
        pairs = zip(arm.columns, node.columns, strict=True)
        return f"SELECT {', '.join(f'c{a.id} AS c{b.id}' for a, b in pairs)} FROM {self._from(arm)}"

    def _union(self, node: Any) -> str:
        return " UNION ALL ".join(self._arm(node, arm) for arm in node.inputs)

    def _setop(self, node: Any) -> str:
        word = node.kind.upper() + (" ALL" if node.all else "")
        return f"{self._arm(node, node.left)} {word} {self._arm(node, node.right)}"

    def _again(self, node: Any) -> str:
        items = ", ".join(f"c{i} AS c{c.id}" for c, i in node.pairs)
        return f"SELECT {items} FROM {self._from(node.plan)}"

    def _order(self, order: Iterable[Any]) -> str:
        return ", ".join(
            f"c{o.column.id} USING {o.operator} NULLS {'FIRST' if o.nulls_first else 'LAST'}"
            for o in order
        )

    def _topk(self, node: Any) -> str:
        keys = ", ".join(self._expr(k) for k in node.keys)
        every = ", ".join(f"c{c.id}" for c in node.columns)
        order = ", ".join(filter(None, [self._order(node.order), every]))
        over = f"({f'PARTITION BY {keys} ' if keys else ''}ORDER BY {order})"
        rows = self._select(node, self._from(node.input), f"row_number() OVER {over} AS place")
        end = "true" if node.limit is None else f"place <= {node.offset + node.limit}"
        assert not node.ties, "not needed here"
        return self._select(
            node, f"({rows}) {next(self._names)} WHERE place > {node.offset} AND {end}"
        )

    def _window(self, node: Any) -> str:
        keys = ", ".join(self._expr(k) for k in node.keys)
        partition = f"PARTITION BY {keys} " if keys else ""
        order = f"ORDER BY {self._order(node.order)} " if node.order else ""
        calls = []
        for call in node.calls:
            args = [self._expr(a) for a in call.args]
            text = placeholders.substitute(call.sql, _nth(args))
            over = f"({partition}{order}{call.frame})"
            calls.append(f"{text} OVER {over} AS c{call.column.id}")
        inputs = ", ".join(f"c{c.id}" for c in node.input.columns)
        shown = ", ".join([*filter(None, [inputs]), *calls])
        return f"SELECT {shown} FROM {self._from(node.input)}"

    def _expand(self, node: Any) -> str:
        arms = []
        for number, members in enumerate(node.sets):
            items = [f"c{c.id}" for c in node.input.columns]
            for place, (column, ref) in enumerate(node.keys):
                kind = self._lowering.type_name(column.oid)
                shown = self._expr(ref) if place in members else f"NULL::{kind}"
                items.append(f"{shown} AS c{column.id}")
            items.append(f"{number} AS c{node.number.id}")
            arms.append(f"SELECT {', '.join(items)} FROM {self._from(node.input)}")
        return " UNION ALL ".join(arms)

    def _functions(self, node: Any) -> str:
        assert len(node.calls) == 1, "one call is enough here"
        [call] = node.calls
        columns = ", ".join(f"c{c.id}" for c in node.outputs)
        ordinal = ""
        if node.ordinality is not None:
            ordinal = " WITH ORDINALITY"
            columns += f", c{node.ordinality.id}"
        join = "LEFT JOIN" if node.outer else "JOIN"
        name = next(self._names)
        call = f"LATERAL {self._expr(call)}{ordinal} {name} ({columns}) ON true"
        return self._select(node, f"{self._from(node.input)} {join} {call}")


def _nth(texts: Sequence[str]) -> Callable[[int], str]:
    return lambda number: texts[number - 1]


class Seen(Exception):
    """Ends planning after its logical stages: the plan need not become physical."""


def texts(
    conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, query: str, **settings: str
) -> dict[str, str]:
    """Return the plans of ``query`` as SQL, by stage."""
    out: dict[str, str] = {}

    def spy(bound: Node, lowering: Lowering) -> NoReturn:
        render = Renderer(lowering)
        flat = decorrelate(bound, lowering)
        assert not any(isinstance(n, ApplyNode) for n in walk(flat))
        assert not free(flat)
        assert [c.id for c in flat.columns] == [c.id for c in bound.columns]
        out["bound"] = render.sql(bound)
        out["decorrelated"] = render.sql(flat)
        out["optimised"] = render.sql(optimise(flat))
        raise Seen

    monkeypatch.setitem(plan.__globals__, "decorrelate", spy)
    with pytest.raises(Seen):
        plan(conn, PlanRequest(query, settings=settings))
    return out


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from walk(child)
