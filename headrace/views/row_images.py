"""SQL expressions by which verify_view compares rows: their images, and values that are close."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from headrace.types import FLOAT4, FLOAT8

CLOSE: Final = {FLOAT4: 1e-5, FLOAT8: 1e-11}
"""Relative difference of float sums that the order of summation alone can cause."""
_TINY: Final = 1e-9
"""Absolute difference from zero that such a sum may have."""


def fields(alias: str, columns: list[str]) -> sql.Composed:
    """Return ``columns`` of the row ``alias.v``, separated by commas."""
    return sql.SQL(", ").join(
        sql.SQL("({}.v).{}").format(sql.Identifier(alias), sql.Identifier(c)) for c in columns
    )


def field(column: str) -> sql.Composed:
    """Return ``column`` of the row ``d.v``."""
    return sql.SQL("(d.v).{}").format(sql.Identifier(column))


def near(column: str, close: float) -> sql.Composed:
    """Return a test that ``column`` of x and y differ by no more than summation order explains."""
    # With equal signs a difference cannot overflow. The difference of infinities is not close to
    # any.
    return sql.SQL(
        "({a} IS NOT DISTINCT FROM {b} OR CASE WHEN sign({a}) = sign({b})"
        " THEN abs({a} - {b}) <= greatest({close} * greatest(abs({a}), abs({b})), {tiny})"
        " ELSE abs({a}) <= {tiny} AND abs({b}) <= {tiny} END)"
    ).format(
        a=sql.SQL("(x.v).{}::float8").format(sql.Identifier(column)),
        b=sql.SQL("(y.v).{}::float8").format(sql.Identifier(column)),
        close=sql.Literal(close),
        tiny=sql.Literal(_TINY),
    )


def image(qualifier: str, columns: list[str]) -> sql.Composed:
    """Return the text of a row, under the pinned settings."""
    return sql.SQL('ROW({})::text COLLATE "C"').format(
        sql.SQL(", ").join(sql.Identifier(qualifier, c) for c in columns)
    )
