"""Binds aggregate functions: from Postgres' parse tree to ``logical.Agg``.

Only counts, sums of numbers, variances of exact numbers, extremes and booleans are native. All
other aggregates are *remote*: the engine keeps the group's multiset of arguments, and Postgres
evaluates ``fn(DISTINCT $1, $2 ORDER BY $3 …)`` for the groups that a transaction touched. Arguments
are computed as columns below the aggregate. Constants and rows (``ROW(a, b)``, which no array can
carry) are written into the SQL itself.

Input that the query does not order completely gets a canonical order, common to all aggregates of
the level (``alignment``).  So the same rows always give the same result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import psycopg

from headrace import types as t
from headrace.collections.aggregate_traits import COMPILED, AggregateFunction, built_in
from headrace.errors import UnsupportedError
from headrace.expressions import keys
from headrace.expressions.placeholders import substitute
from headrace.planner.analyse.catalog import Catalog
from headrace.planner.analyse.nodetree import Node as Tree
from headrace.planner.analyse.nodetypes import targets, type_of
from headrace.planner.analyse.pg_functions import Function
from headrace.planner.logical.alignment import shows_order
from headrace.planner.logical.nodes import PLAIN_ORDERS, Agg, ArgumentOrder, Col
from headrace.planner.logical.scalar import Call, Const, Expr, quote, raises, show, trusted
from headrace.planner.scalars import build, functions, xml_values
from headrace.planner.scalars.lower import Lowering
from headrace.planner.scalars.scope import Scope
from headrace.planner.scalars.typekeys import key_class

NewColumn = Callable[[str, Expr], Col]

_EXACT: Final = frozenset({t.INT2, t.INT4, t.INT8, t.NUMERIC})
_ELEMENTS: Final = _EXACT | {
    *(t.FLOAT4, t.FLOAT8, t.TEXT, t.VARCHAR, t.BOOL, t.UUID, t.DATE, t.TIMESTAMP, t.TIMESTAMPTZ)
}
"""Types whose values in an array are printed as kernels print them alone."""
_NUMBERS: Final = _EXACT | {t.FLOAT4, t.FLOAT8}
_OF_RECORDS: Final = frozenset(
    {
        *("to_json", "to_jsonb", "array_to_json", "array_to_string", "cardinality"),
        *("array_length", "array_lower", "array_upper", "array_ndims", "array_dims"),
    }
)
"""Functions that turn an array of records into text, JSON or a number."""


@dataclass(slots=True)
class _Inputs:
    """The columns that the SQL of an aggregate reads: ``$1`` …."""

    exprs: list[Expr] = field(default_factory=list)

    first: int = 0
    """Columns before this index are not shared with columns added from now on."""

    domains: Mapping[Expr, int] = field(default_factory=dict)
    """Domains that values must have in the SQL, because the result type derives from them."""

    def place(self, expr: Expr) -> str:
        """Return the placeholder of ``expr``, added if new."""
        if expr not in self.exprs[self.first :]:
            self.exprs.append(expr)
        return f"${self.exprs.index(expr, self.first) + 1}"


@dataclass(frozen=True, slots=True)
class _Call:
    """The parts of a call, lowered."""

    function: Function
    name: str
    args: tuple[Expr, ...]
    """The arguments; for an ordered-set aggregate, the items of WITHIN GROUP (ORDER BY …)."""
    order: tuple[tuple[Expr, str], ...]
    """(expression, ``USING … NULLS …``)."""
    direct: tuple[Expr, ...]
    filter: Expr | None
    distinct: bool
    within: bool
    domains: Mapping[Expr, int]
    """See ``_Inputs``."""


class AggregateCalls:
    """Lowers the aggregate calls of one query level."""

    def __init__(
        self, lowering: Lowering, column: NewColumn, group: Callable[[Expr], Expr]
    ) -> None:
        """``group`` translates a direct argument, which reads only keys, to below the groups."""
        self._lowering = lowering
        self._column = column
        self._group = group

    def bind(self, node: Tree, scope: Scope, converted: Tree | None = None) -> Agg:
        """Return the aggregate of an AGGREF; ``scope`` is that of its arguments.

        ``converted`` is the conversion computed with the aggregate (``converted_records``).
        """
        call = self._lower(node, scope)
        if converted is not None:
            oid, collation = (
                type_of(converted) or 0,
                converted.number(
                    "resultcollid" if converted.kind == "COERCEVIAIO" else "funccollid"
                ),
            )
            column = self._column(_label(call), Const(None, oid, -1, collation))
            return self._remote(call, column, node, converted)
        result = Const(
            None,
            self._lowering.catalog.types.base(node.number("aggtype")),
            -1,
            node.number("aggcollid"),
        )
        column = self._column(_label(call), result)
        if call.name == "xmlagg":
            # Other arguments have been refused.
            self._lowering.whole_xml.add(column.id)
        known = self._native(call, column, node.number("inputcollid"))
        return known if known is not None else self._concatenated(call, column, node)

    def _lower(self, node: Tree, scope: Scope) -> _Call:
        lowering = self._lowering
        function = self._function(node)
        condition = node.node("aggfilter")
        filter_ = lowering.lower(condition, scope) if condition else None
        if filter_ is not None:
            scope = scope.only("is_true", filter_)
        by_ref: dict[int, Expr] = {}
        args: list[Expr] = []
        for entry in node.nodes("args"):
            expr = lowering.lower(entry.child("expr"), scope)
            if filter_ is not None and raises(expr) and not self._inline(expr):
                # Postgres evaluates the filter first.
                expr = build.guarded(lowering, filter_, expr)
            by_ref[entry.number("ressortgroupref")] = expr
            if not entry.flag("resjunk"):
                args.append(expr)
        order = tuple(
            (by_ref[c.number("tleSortGroupRef")], self._ordering(c, node))
            for c in node.nodes("aggorder")
        )
        for clause in node.nodes("aggdistinct"):
            self._operator(clause.number("eqop"), node)
        xml_values.check_aggregate(lowering, function.name, [*args, *(e for e, _ in order)])
        within = node.text("aggkind") != "n"
        direct = tuple(self._group(lowering.lower(d, scope)) for d in node.nodes("aggdirectargs"))
        distinct = bool(node.nodes("aggdistinct"))
        return _Call(
            function,
            function.name,
            tuple(e for e, _ in order) if within else tuple(args),
            order,
            direct,
            filter_,
            distinct,
            within,
            self._domains(node, args),
        )

    def _domains(self, node: Tree, args: list[Expr]) -> dict[Expr, int]:
        """Return the domain of arguments whose array is the result.

        An array of the domain differs from an array of its base type: its values are checked.  So
        a domain whose check may fail on existing values (NOT NULL in an outer join, NOT VALID) is
        refused later.
        """
        types = self._lowering.catalog.types
        domain = types[node.number("aggtype")].element
        if not domain or types[domain].kind != "d" or types.checked_again(domain):
            return {}
        shown = (e for e in node.nodes("args") if not e.flag("resjunk"))
        pairs = zip(shown, args, strict=True)
        return {expr: domain for e, expr in pairs if type_of(e.child("expr")) == domain}

    def _function(self, node: Tree) -> Function:
        """Return the aggregate; refuse it if a support function may not be called."""
        lowering = self._lowering
        function = lowering.catalog.functions[node.number("aggfnoid")]
        if not function.builtin:
            for part in lowering.catalog.functions.aggregate_support(function.oid):
                support = lowering.catalog.functions[part]
                if (reason := functions.refusal(support)) is not None:
                    reason = f'aggregate function "{function.name}" is not supported: {reason}'
                    lowering.refuse_call(support, reason, node)
        return function

    def _ordering(self, clause: Tree, node: Tree) -> str:
        operator = self._operator(clause.number("sortop"), node)
        nulls = "FIRST" if clause.flag("nulls_first") else "LAST"
        return f"USING {operator} NULLS {nulls}"

    def _operator(self, oid: int, node: Tree) -> str:
        catalog = self._lowering.catalog
        operator = catalog.operators[oid]
        self._lowering.function(operator.function, node)
        return operator.quoted

    def _operators_trusted(self, node: Tree) -> bool:
        clauses = [*node.nodes("aggorder"), *node.nodes("aggdistinct")]
        oids = {c.number(name) for c in clauses for name in ("eqop", "sortop")} - {0}
        return all(self._lowering.catalog.operators[oid].builtin for oid in oids)

    # -- native

    def _native(self, call: _Call, column: Col, collation: int) -> Agg | None:
        """Return the aggregate in the form that ``collections.reduce`` computes, or None."""
        name = call.name
        if not call.function.builtin or call.direct:
            return None
        traits = built_in(name)
        if any(raises(e) or traits.ordered for e, _ in call.order):
            return None
        function = self._native_function(call, collation)
        if function is None:
            return None
        argument = call.args[0] if call.args else None
        distinct = call.distinct and not traits.idempotent
        if distinct and argument is not None and self._key(argument) is None:
            return None
        first = function == "any" and not call.distinct
        return Agg(
            column,
            function,
            argument,
            call.filter,
            distinct,
            "",
            name,
            shows_order=first and not isinstance(argument, Const),
        )

    def _native_function(self, call: _Call, collation: int) -> AggregateFunction | None:
        """Return the function that computes ``call`` over arguments of these types, or None."""
        function = COMPILED.get(call.name)
        if not call.args:
            return "count_star" if function == "count" else None
        [argument, *others] = call.args
        if others or self._inline(argument):
            return None
        if function in ("sum", "avg"):
            return function if argument.oid in _NUMBERS else None
        if function in ("stddev_samp", "stddev_pop", "var_samp", "var_pop"):
            # Of floats, Postgres' last digits depend on the order of its rows.
            return function if argument.oid in _EXACT else None
        if function in ("min", "max"):
            collations = self._lowering.catalog.collations
            native = collations.deterministic(collation) and keys.order_native(
                argument.oid, bytewise=collations.bytewise(collation)
            )
            return function if native else None
        return function

    def _key(self, expr: Expr) -> keys.KeyClass | None:
        return key_class(self._lowering.catalog, expr.oid, expr.collation)

    def _concatenated(self, call: _Call, column: Col, node: Tree) -> Agg:
        """Return a list of plain values in a native order as such, any other as remote."""
        agg = self._remote(call, column, node)
        delimiter = self._delimiter(call)
        if delimiter is None or agg.argument != call.args[0]:
            return agg
        order: list[ArgumentOrder] = []
        for expr, how in call.order:
            item = self._argument_order(agg, expr, how)
            if item is None:
                return agg
            order.append(item)
        function: AggregateFunction = "array_agg" if call.name == "array_agg" else "string_agg"
        return dataclasses.replace(agg, function=function, delimiter=delimiter, order=tuple(order))

    def _delimiter(self, call: _Call) -> str | None:
        """Return what is between two values; None if kernels cannot list them."""
        if not call.function.builtin or call.distinct or call.domains:
            return None
        if call.name == "array_agg":
            return "" if call.args[0].oid in _ELEMENTS else None
        if call.name != "string_agg" or call.args[0].oid != t.TEXT:
            return None
        delimiter = call.args[1]
        return delimiter.text or "" if isinstance(delimiter, Const) else None

    def _argument_order(self, agg: Agg, expr: Expr, how: str) -> ArgumentOrder | None:
        """Return an ORDER BY item of ``agg``; None if our keys do not sort as Postgres does."""
        operator, nulls = how.removeprefix("USING ").split(" NULLS ")
        collations = self._lowering.catalog.collations
        native = keys.order_native(expr.oid, bytewise=collations.bytewise(expr.collation))
        if not native or operator not in PLAIN_ORDERS or expr not in agg.arguments:
            return None
        return ArgumentOrder(
            agg.arguments.index(expr), operator, operator == PLAIN_ORDERS[1], nulls == "FIRST"
        )

    # -- remote

    def _remote(self, call: _Call, column: Col, node: Tree, converted: Tree | None = None) -> Agg:
        lowering = self._lowering
        if lowering.catalog.types[column.oid].kind == "p":
            kind = lowering.type_name(column.oid)
            hint = f"Convert it: to_jsonb({call.name}(…)), or {call.name}(…)::text."
            what = f'aggregate function "{call.name}" with a result of type {kind}'
            lowering.refuse(what, node, hint=hint if column.oid == t.RECORD_ARRAY else None)
        inputs = _Inputs(domains=call.domains)
        args = [self._write(e, inputs, node) for e in call.args]
        if args and node.flag("aggvariadic") and not call.within:
            args[-1] = f"VARIADIC {args[-1]}"
        ordered = [f"{self._write(e, inputs, node)} {how}" for e, how in call.order]
        inputs.first = len(inputs.exprs)
        direct = [self._write(e, inputs, node) for e in call.direct]
        sql = _sql(call, args, ordered, direct, variadic=node.flag("aggvariadic"))
        if converted is not None:
            sql = self._conversion(converted, sql)
        exprs = inputs.exprs
        users = [column.oid, *(e.oid for e in exprs)]
        agg = Agg(
            column,
            "remote",
            exprs[0] if exprs else None,
            call.filter,
            False,
            sql,
            call.name,
            tuple(exprs[1:]),
            len(exprs) - inputs.first,
            call.function.builtin
            and self._operators_trusted(node)
            and all(map(self._plain_type, users))
            and all(map(trusted, (*call.args, *(e for e, _ in call.order), *call.direct))),
            shows_order=bool(exprs)
            and not (call.distinct or call.within)
            and shows_order(call.function),
        )
        self._prove(node, agg, converted)
        return agg

    def _conversion(self, node: Tree, sql: str) -> str:
        """Return the SQL of the conversion ``node`` applied to the aggregate ``sql``."""
        lowering = self._lowering
        if node.kind == "COERCEVIAIO":
            return f"({sql})::{lowering.type_name(node.number('resulttype'))}"
        function = lowering.catalog.functions[node.number("funcid")]
        args = [
            sql
            if arg.kind == "AGGREF"
            else lowering.sql(lowering.lower(arg, Scope(_nowhere)), lambda _: "")
            for arg in node.nodes("args")
        ]
        return f"{function.quoted}({', '.join(args)})"

    def _inline(self, expr: Expr) -> bool:
        """Return whether ``expr`` is a row, which is built inside the aggregate's SQL."""
        kind = self._lowering.catalog.types[expr.oid].kind
        return kind in ("p", "c") and isinstance(expr, Call)

    def _write(self, expr: Expr, inputs: _Inputs, node: Tree) -> str:
        written = self._written(expr, inputs, node)
        domain = inputs.domains.get(expr)
        return f"(({written})::{self._lowering.type_name(domain)})" if domain else written

    def _written(self, expr: Expr, inputs: _Inputs, node: Tree) -> str:
        lowering = self._lowering
        if isinstance(expr, Const):
            return lowering.sql(expr, lambda _: "")
        if self._inline(expr):
            return lowering.sql(expr, inputs.place)
        kind = lowering.catalog.types[expr.oid]
        if kind.kind == "p":
            lowering.refuse(f"an aggregate over type {kind.name}", node)
        if functions.is_reg_type(expr.oid):
            lowering.refuse(f"an aggregate over type {kind.name}", node)
        return inputs.place(expr)

    def _plain_type(self, oid: int) -> bool:
        kind = self._lowering.catalog.types[oid]
        return self._lowering.plain_type(kind.element or oid)

    def _prove(self, node: Tree, agg: Agg, converted: Tree | None) -> None:
        """Raise an error unless Postgres parses the generated SQL as it did the query's call."""
        lowering = self._lowering
        exprs = [e for e in (agg.argument, *agg.more) if e is not None]
        columns = []
        for place, expr in enumerate(exprs, 1):
            value = quote(None, lowering.type_name(expr.oid))
            found = lowering.catalog.collations.get(expr.collation)
            if found is not None:
                value = f"({value}) COLLATE {found.quoted}"
            columns.append(f"{value} AS a{place}")
        columns.append("1::int8 AS i")
        direct = [f"s.a{n}" for n in range(len(exprs) - agg.direct + 1, len(exprs) + 1)]
        call = substitute(agg.sql, lambda n: f"s.a{n}" if n else "s.i")
        # Generated text over names that are already quoted.
        query = f"SELECT {call} AS c FROM (SELECT {', '.join(columns)}) s" + (  # noqa: S608
            f" GROUP BY {', '.join(direct)}" if direct else ""
        )
        try:
            tree = lowering.analysed(query)
        except psycopg.ProgrammingError as error:
            raise UnsupportedError(
                f'aggregate function "{agg.name}" cannot be converted to SQL text',
                detail=error.diag.message_primary,
                position=lowering.position(node),
            ) from error
        [found_node] = [n for n in tree.walk() if n.kind == "AGGREF"][:1]
        if _signature(found_node, placed="$0" in agg.sql) != _signature(node):
            lowering.refuse(f'this call of aggregate function "{agg.name}"', node)
        if converted is not None:
            [shown] = targets(tree)
            names = ("funcid", "funcresulttype", "resulttype", "inputcollid")
            if [shown.number(n) for n in names] != [converted.number(n) for n in names]:
                lowering.refuse(f'this conversion of aggregate function "{agg.name}"', node)


def converted_records(catalog: Catalog, node: Tree) -> Tree | None:
    """Return the record[] aggregate that ``node`` converts to text, JSON or a number, or None.

    An array of untyped records exists only inside Postgres, so the conversion is computed with
    the aggregate.
    """
    if node.kind == "COERCEVIAIO":
        args = [node.child("arg")] if node.number("resulttype") in (t.TEXT, t.VARCHAR) else []
    elif node.kind == "FUNCEXPR":
        function = catalog.functions[node.number("funcid")]
        known = function.builtin and function.strict and function.name in _OF_RECORDS
        args = node.nodes("args") if known else []
    else:
        return None
    found = [a for a in args if a.kind == "AGGREF" and a.number("aggtype") == t.RECORD_ARRAY]
    others = [a for a in args if a.kind != "AGGREF"]
    plain = (
        len(found) == 1
        and not found[0].number("agglevelsup")
        and all(a.kind == "CONST" for a in others)
    )
    return found[0] if plain and len(found) + len(others) == len(args) else None


def _nowhere(varno: int, attno: int) -> Expr:
    raise AssertionError(f"column {attno} of entry {varno} in a constant")


def _sql(
    call: _Call, args: list[str], ordered: list[str], direct: list[str], *, variadic: bool
) -> str:
    name = call.function.quoted
    if call.within:
        if variadic and direct:
            direct[-1] = f"VARIADIC {direct[-1]}"
        return f"{name}({', '.join(direct)}) WITHIN GROUP (ORDER BY {', '.join(ordered)})"
    if not args:
        return f"{name}(*)"
    if ordered and not call.distinct:
        ordered = [*ordered, "$0"]
    order = f" ORDER BY {', '.join(ordered)}" if ordered else ""
    return f"{name}({'DISTINCT ' if call.distinct else ''}{', '.join(args)}{order})"


def _signature(node: Tree, *, placed: bool = False) -> tuple[object, ...]:
    """Return the meaning of an AGGREF without its arguments.

    ``placed``: the planner added its last ORDER BY item.
    """
    order = [
        (c.number("eqop"), c.number("sortop"), c.flag("nulls_first"))
        for c in node.nodes("aggorder")
    ]
    return (
        *(node.number(n) for n in ("aggfnoid", "aggtype", "inputcollid")),
        *(node.flag(n) for n in ("aggstar", "aggvariadic")),
        node.text("aggkind"),
        order[:-1] if placed else order,
        [c.number("eqop") for c in node.nodes("aggdistinct")],
    )


def _label(call: _Call) -> str:
    order = ", ".join(f"{show(e)}{_words(how)}" for e, how in call.order)
    if call.within:
        direct = ", ".join(map(show, call.direct))
        return f"{call.name}({direct}) WITHIN GROUP (ORDER BY {order})"
    args = ", ".join(map(show, call.args)) or "*"
    order = f" ORDER BY {order}" if order else ""
    return f"{call.name}({'DISTINCT ' if call.distinct else ''}{args}{order})"


def _words(how: str) -> str:
    """Return ``USING … NULLS …`` as ASC, DESC and NULLS FIRST or LAST."""
    operator = how.split("(")[-1].split(")")[0].rsplit(".", 1)[-1]
    last = how.endswith("LAST")
    if operator == "<":
        return "" if last else " NULLS FIRST"
    if operator == ">":
        return " DESC NULLS LAST" if last else " DESC"
    return f" {how}"
