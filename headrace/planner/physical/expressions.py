"""Expressions of physical plans: native ones, and those that Postgres is asked for."""

from __future__ import annotations

from headrace.expressions import ir
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.scalar import CLOCK, Call, Const, Expr, Ref, native, trusted
from headrace.planner.physical.columns import column, place
from headrace.planner.scalars import xml_values
from headrace.planner.scalars.context import RECORDS, QueryContext


class Expressions:
    """Those of one plan."""

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self.remotes: list[Expr] = []
        """Every expression that Postgres will evaluate."""
        self.clock = lg.Col(CLOCK.id, "now()", CLOCK.oid)
        """``CLOCK`` as a column."""

    def of_clock(self, expr: Expr) -> ir.Expr:
        """Compile an expression over the clock alone."""
        return self.over(expr, (self.clock,))

    def over(self, expr: Expr, columns: tuple[lg.Col, ...]) -> ir.Expr:
        """Compile ``expr`` over rows of ``columns``: for kernels, or for Postgres as a whole."""
        places = {c.id: i for i, c in enumerate(columns)}
        if native(expr):
            return self.native(expr, places)
        if expr.oid in RECORDS:
            self._context.refuse(
                "a column of type record", hint="Cast the row to a composite type: ROW(...)::type."
            )
        self.remotes.append(expr)
        order: list[Ref] = []
        sql = self._context.sql(expr, lambda ref: f"${place(order, ref)}")
        args = tuple(column(ref, places) for ref in order)
        assert isinstance(expr, Call), "a leaf is native"
        return ir.Remote(sql, args, expr.oid, expr.typmod, expr.collation, trusted(expr))

    def native(self, expr: Expr, places: dict[int, int]) -> ir.Expr:
        """Compile ``expr``, which kernels can compute; ``places`` has the columns' positions."""
        match expr:
            case Ref():
                return column(expr, places)
            case Const():
                return ir.Literal(xml_values.printed(expr), expr.oid, expr.typmod, expr.collation)
            case Call():
                assert expr.native is not None, "asked by native()"
                args = tuple(self.native(a, places) for a in expr.args)
                if expr.symbol == "collate":
                    return args[0]
                return ir.Native(expr.native, args, expr.oid, expr.typmod, expr.collation)
