"""Values that equality with constants allows in a column: ``k = 7``, ``k IN (1, 2)``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace import types
from headrace.expressions.arrays import ELEMENTS, elements
from headrace.expressions.ir import Column, Expr, Literal, Native
from headrace.expressions.signature import INTS, TEXTS
from headrace.kernels import text

_FAMILIES: Final = {
    **dict.fromkeys(INTS, INTS),
    **dict.fromkeys(TEXTS, TEXTS),
    types.DATE: (types.DATE,),
    types.UUID: (types.UUID,),
}
"""Type of a constant -> types of columns whose values are equal to it if ``==`` says so."""


def allowed_values(predicates: Sequence[Expr]) -> Iterator[tuple[int, frozenset[object]]]:
    """Yield indexes of columns, each with the values that an equality among ``predicates`` allows.

    A row for which all predicates are true has an allowed value in each of these columns.
    """
    for expr in predicates:
        match expr:
            case Native(op="and", args=args):
                yield from allowed_values(args)
            case (
                Native(op="=", args=(Column() as column, Literal() as value))
                | Native(op="=", args=(Literal() as value, Column() as column))
            ):
                if column.oid in _FAMILIES.get(value.oid, ()):
                    yield column.index, _values([value.text], column.oid)
            case Native(op="= ANY", args=(Column() as column, Literal() as value)):
                if column.oid in _FAMILIES.get(ELEMENTS.get(value.oid, 0), ()):
                    yield column.index, _values(elements(value.text or "") or [], column.oid)


def _values(texts: Sequence[str | None], oid: int) -> frozenset[object]:
    """Return values of a column's type; a constant beyond the range of integers stays itself."""
    known = [one for one in texts if one is not None]
    if oid in INTS:
        return frozenset(map(int, known))
    return frozenset(text.parse(pa.array(known, pa.string()), oid).to_pylist())
