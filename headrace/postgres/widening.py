"""Whether a column's new type has every value of its old one.

Then the queries over it stand, and mean the same; how a value is *written* may change (char(3) to
char(5) pads, real to double precision shows more digits), so views are filled anew.
"""

from __future__ import annotations

from typing import Final

from headrace.types import (
    BIT,
    BPCHAR,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARBIT,
    VARCHAR,
)  # fmt: skip

_ARRAYS: Final = {
    1005: INT2, 1007: INT4, 1016: INT8, 1021: FLOAT4, 1022: FLOAT8, 1231: NUMERIC,
    1009: TEXT, 1014: BPCHAR, 1015: VARCHAR, 1182: DATE, 1115: TIMESTAMP,
    1185: TIMESTAMPTZ, 1183: TIME, 1270: TIMETZ, 1561: BIT, 1563: VARBIT,
}  # fmt: skip
"""Element types of array types."""
_FREE: Final = -1
"""The typmod of a type without bounds."""
_TYPMOD_HEAD: Final = 4
_EXACT: Final = {INT2: (5, 0), INT4: (10, 0), INT8: (19, 0)}
"""Digits before the point, and after it, that an integer may have."""
_WIDER: Final = {
    (INT2, INT4), (INT2, INT8), (INT4, INT8), (FLOAT4, FLOAT8), (INT2, FLOAT4), (INT2, FLOAT8),
    (INT4, FLOAT8), (DATE, TIMESTAMP),
}  # fmt: skip
_TEXTS: Final = (BPCHAR, VARCHAR, TEXT)
_TIMES: Final = (TIME, TIMETZ, TIMESTAMP, TIMESTAMPTZ)


def widens(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Whether type ``new`` (OID, typmod) has all values of ``old``."""
    (had, bound), (has, limit) = old, new
    if had in _ARRAYS and has in _ARRAYS:
        had, has = _ARRAYS[had], _ARRAYS[has]
    if (had, bound) == (has, limit):
        return True
    if (had, has) in _WIDER:
        return limit == _FREE
    longer = limit == _FREE or (bound != _FREE and limit >= bound)
    if had in _TEXTS and has in _TEXTS and (has != BPCHAR or had == BPCHAR):
        return longer
    if had in _TIMES and had == has:
        return longer
    if had in (BIT, VARBIT) and has == VARBIT:
        return longer
    if has == NUMERIC and (had == NUMERIC or had in _EXACT):
        return _holds(_digits(had, bound), limit)
    return False


def _digits(oid: int, typmod: int) -> tuple[int, int] | None:
    if oid in _EXACT:
        return _EXACT[oid]
    if typmod == _FREE:
        return None
    packed = typmod - _TYPMOD_HEAD
    precision = packed >> 16 & 0xFFFF
    # Since Postgres 15 the scale is signed, of eleven bits.
    scale = (packed & 0x7FF ^ 0x400) - 0x400
    return precision - scale, scale


def _holds(digits: tuple[int, int] | None, typmod: int) -> bool:
    """Whether numeric of ``typmod`` has all numbers of so many digits (None: of any)."""
    room = _digits(NUMERIC, typmod)
    if room is None or digits is None:
        return room is None
    return room[0] >= digits[0] and room[1] >= digits[1]
