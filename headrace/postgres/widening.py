"""Check whether a column's new type has every value of its old type.

If so, queries over the column stay valid with the same meaning.  The *text* of a value may change
(char(3) to char(5) pads, real to double precision shows more digits), so views are repopulated.
"""

from __future__ import annotations

from typing import Final

from headrace import types

_ARRAYS: Final = {
    1005: types.INT2, 1007: types.INT4, 1016: types.INT8, 1021: types.FLOAT4, 1022: types.FLOAT8, 1231: types.NUMERIC,
    1009: types.TEXT, 1014: types.BPCHAR, 1015: types.VARCHAR, 1182: types.DATE, 1115: types.TIMESTAMP,
    1185: types.TIMESTAMPTZ, 1183: types.TIME, 1270: types.TIMETZ, 1561: types.BIT, 1563: types.VARBIT,
}  # fmt: skip
"""Element types of array types."""
_FREE: Final = -1
"""The typmod of a type without bounds."""
_TYPMOD_HEAD: Final = 4
_EXACT: Final = {types.INT2: (5, 0), types.INT4: (10, 0), types.INT8: (19, 0)}
"""Maximum digits of an integer, before and after the decimal point."""
_WIDER: Final = {
    (types.INT2, types.INT4), (types.INT2, types.INT8), (types.INT4, types.INT8), (types.FLOAT4, types.FLOAT8), (types.INT2, types.FLOAT4), (types.INT2, types.FLOAT8),
    (types.INT4, types.FLOAT8), (types.DATE, types.TIMESTAMP),
}  # fmt: skip
_TEXTS: Final = (types.BPCHAR, types.VARCHAR, types.TEXT)
_TIMES: Final = (types.TIME, types.TIMETZ, types.TIMESTAMP, types.TIMESTAMPTZ)


def widens(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return whether type ``new`` (OID, typmod) has all values of ``old``."""
    (had, bound), (has, limit) = old, new
    if had in _ARRAYS and has in _ARRAYS:
        had, has = _ARRAYS[had], _ARRAYS[has]
    if (had, bound) == (has, limit):
        return True
    if (had, has) in _WIDER:
        return limit == _FREE
    longer = limit == _FREE or (bound != _FREE and limit >= bound)
    if had in _TEXTS and has in _TEXTS and (has != types.BPCHAR or had == types.BPCHAR):
        return longer
    if had in _TIMES and had == has:
        return longer
    if had in (types.BIT, types.VARBIT) and has == types.VARBIT:
        return longer
    if has == types.NUMERIC and (had == types.NUMERIC or had in _EXACT):
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
    """Return whether a numeric with ``typmod`` holds all numbers of ``digits`` (None: any)."""
    room = _digits(types.NUMERIC, typmod)
    if room is None or digits is None:
        return room is None
    return room[0] >= digits[0] and room[1] >= digits[1]
