"""Columns of logical plans as positions and fields of physical ones."""

from __future__ import annotations

from typing import Final

from headrace.collections import plan as p
from headrace.expressions import ir
from headrace.planner.analyse.tables import TableColumn
from headrace.planner.logical import nodes as lg
from headrace.planner.logical.scalar import Expr, Ref
from headrace.types import Field, Schema

KEY_COLUMN: Final = -100_000
"""The highest id of columns that one node only knows."""


def key_column(place: int, expr: Expr) -> lg.Col:
    """Return a column local to this node; its id is outside of the binder's range."""
    return lg.Col(KEY_COLUMN - place, f"key_{place}", expr.oid, expr.typmod, expr.collation)


def place(order: list[Ref], ref: Ref) -> int:
    """Return the number of ``ref`` among the parameters ``order``, appending it if it is new."""
    if ref not in order:
        order.append(ref)
    return order.index(ref) + 1


def column(ref: Ref, places: dict[int, int]) -> ir.Column:
    """Return the column as an expression over rows with the positions ``places``."""
    return ir.Column(places[ref.id], ref.oid, ref.typmod, ref.collation)


def field_of(column: lg.Col) -> Field:
    """Return the column as a schema field."""
    return Field(column.name, column.oid, column.typmod, column.collation)


def schema(columns: tuple[lg.Col, ...]) -> Schema:
    """Return the fields of ``columns``."""
    return tuple(field_of(c) for c in columns)


def source_column(column: TableColumn) -> p.SourceColumn:
    """Return the column of a table as a source reads it."""
    return p.SourceColumn(column.attnum, column.name, column.oid, column.typmod, column.collation)
