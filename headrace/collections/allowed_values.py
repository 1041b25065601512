"""Values that equality with constants allows in a column: ``k = 7``, ``k IN (1, 2)``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace import types
from headrace.expressions.arrays import elements
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.expressions.signature import INTS, TEXTS
from headrace.kernels import text

AllowedValues = tuple[int, frozenset[object]]
"""Index of a column, and the only values with which a row may be wanted."""

_ARRAYS: Final = {
    **dict.fromkeys((1005, 1007, 1016), INTS),
    **dict.fromkeys((1009, 1015), TEXTS),
    1182: (types.DATE,),
    2951: (types.UUID,),
}
"""OID of an array type -> types of columns whose values equal its elements if ``==`` says so."""
_CONSTANTS: Final = {
    **dict.fromkeys(INTS, INTS),
    **dict.fromkeys(TEXTS, TEXTS),
    types.DATE: (types.DATE,),
    types.UUID: (types.UUID,),
}
"""The same for a constant, by its type."""


def allowed_values(predicates: Sequence[Expr]) -> tuple[AllowedValues, ...]:
    """Return what the equalities among ``predicates`` allow.

    A row for which all predicates are true has an allowed value in each of these columns.
    """
    return tuple(_found(predicates))


def _found(predicates: Sequence[Expr]) -> Iterator[AllowedValues]:
    for expr in predicates:
        match expr:
            case Native(op="and", args=args):
                yield from _found(args)
            case (
                Native(op="=", args=(Column() as column, Literal() as value))
                | Native(op="=", args=(Literal() as value, Column() as column))
            ):
                if column.oid in _CONSTANTS.get(value.oid, ()):
                    yield column.index, _values([value.text], column.oid)
            case Native(op="= ANY", args=(Column() as column, Literal() as value)):
                if column.oid in _ARRAYS.get(value.oid, ()):
                    yield column.index, _values(elements(value.text or "") or [], column.oid)


def _values(texts: Sequence[str | None], oid: int) -> frozenset[object]:
    """Return values of a column's type; a constant beyond the range of integers stays itself."""
    known = [one for one in texts if one is not None]
    if oid in INTS:
        return frozenset(map(int, known))
    return frozenset(text.parse(pa.array(known, pa.string()), oid).to_pylist())
