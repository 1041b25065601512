"""The kernels behind ``ir.Native``; each computes one column exactly as Postgres does.

Every function takes columns of equal length, already widened to the type in which Postgres
computes, and returns a column.  A row that fails raises ``FailingRow``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import types
from headrace.errors import RowError
from headrace.expressions.signature import FLOATS, INTS
from headrace.kernels import buffers, numeric, text

Mask = npt.NDArray[np.bool_]

OUT_OF_RANGE, DIVISION_BY_ZERO, DATETIME_OVERFLOW = "22003", "22012", "22008"
CARDINALITY: Final = "21000"
INT_NAMES: Final = {types.INT2: "smallint", types.INT4: "integer", types.INT8: "bigint"}
_DATE_MIN, _DATE_END = -2451545, 2145031949
_DATE_MINUS_INF, _DATE_PLUS_INF = -(2**31), 2**31 - 1
_STAMP_MINUS_INF, _STAMP_PLUS_INF = -(2**63), 2**63 - 1
_DATE_END_OF_TIMESTAMP: Final = 106751983
_DAY: Final = 86_400_000_000
"""Microseconds."""


class FailingRow(RowError):
    """An expression failed on row ``row`` (0-based) of the batch."""

    def __init__(self, message: str, row: int, code: str, *, detail: str | None = None) -> None:
        super().__init__(message, sqlstate=code, detail=detail)
        self.row = row


def fail(bad: Mask, message: str, code: str) -> None:
    """Raise FailingRow for the first row of ``bad``, if there is one."""
    if bad.any():
        raise FailingRow(message, int(np.argmax(bad)), code)


def single(count: pa.Array, value: pa.Array) -> pa.Array:
    """Return ``value``; raise FailingRow where ``count`` is more than one."""
    many = pc.fill_null(pc.greater(count, 1), False)
    fail(
        many.to_numpy(zero_copy_only=False),
        "more than one row returned by a subquery used as an expression",
        CARDINALITY,
    )
    return value


def valid_rows(*columns: pa.Array) -> npt.NDArray[np.uint8]:
    """Return one byte per row: 1 where no column is NULL."""
    valid = buffers.validity(columns[0])
    for column in columns[1:]:
        if column.null_count:
            valid = valid & buffers.validity(column)
    return valid


# --- comparison


def compare(op: str, a: pa.Array, b: pa.Array, oid: int) -> pa.Array:
    """Compare two columns of type ``oid``."""
    if oid == types.NUMERIC:
        order = numeric.compare(a, b)
        return buffers.make_fixed(
            _ORDERED[op](order).astype(np.uint8), valid_rows(a, b), pa.bool_()
        )
    if oid in FLOATS:
        return _compare_floats(op, a, b)
    if oid == types.BPCHAR:
        a = pc.ascii_rtrim(a, characters=" ")
        b = pc.ascii_rtrim(b, characters=" ")
    return _COMPARE[op](a, b)


def _compare_floats(op: str, a: pa.Array, b: pa.Array) -> pa.Array:
    x, y = buffers.values(a), buffers.values(b)
    nan_x, nan_y = np.isnan(x), np.isnan(y)
    if not nan_x.any() and not nan_y.any():
        return _COMPARE[op](a, b)
    # NaN equals NaN and is greater than any other number.
    with np.errstate(invalid="ignore"):
        order = (x > y).astype(np.int8) - (x < y).astype(np.int8)
    order[nan_x & ~nan_y] = 1
    order[~nan_x & nan_y] = -1
    order[nan_x & nan_y] = 0
    return buffers.make_fixed(_ORDERED[op](order).astype(np.uint8), valid_rows(a, b), pa.bool_())


_COMPARE: Final[dict[str, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_ORDERED: Final[dict[str, Callable[[npt.NDArray[np.int8]], npt.NDArray[Any]]]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def distinct_from(a: pa.Array, b: pa.Array, oid: int) -> pa.Array:
    """Compute ``a IS DISTINCT FROM b``, which is never NULL."""
    different = pc.fill_null(compare("<>", a, b, oid), False)
    return pc.or_(different, pc.not_equal(pc.is_null(a), pc.is_null(b)))


# --- integers


def arithmetic(op: str, a: pa.Array, b: pa.Array, oid: int) -> pa.Array:
    """Compute ``a op b`` for two columns of the numeric type ``oid``."""
    if oid in INTS:
        return _integers(op, a, b, oid)
    if oid == types.NUMERIC:
        return _numerics(op, a, b)
    return _floats(op, a, b)


def _integers(op: str, a: pa.Array, b: pa.Array, oid: int) -> pa.Array:
    if op in "/%":
        zero = (buffers.values(b) == 0) & (valid_rows(a, b) == 1)
        fail(zero, "division by zero", DIVISION_BY_ZERO)
        if op == "%":
            return _remainder(a, b)
    function = _CHECKED[op]
    try:
        return function(a, b)
    except pa.ArrowInvalid:
        raise _overflow(function, a, b, oid) from None


def _overflow(function: Callable[..., pa.Array], a: pa.Array, b: pa.Array, oid: int) -> FailingRow:
    message = f"{INT_NAMES[oid]} out of range"
    low, high = 0, len(a)  # the first failing row is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            function(a[low:middle], b[low:middle])
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return FailingRow(message, low, OUT_OF_RANGE)


def _remainder(a: pa.Array, b: pa.Array) -> pa.Array:
    x, y = buffers.values(a), buffers.values(b)
    # x % 1 and x % -1 are 0; the latter overflows in C for the least integer.
    safe = np.where((y == 0) | (y == -1), np.ones_like(y), y)
    return buffers.make_fixed(np.fmod(x, safe), valid_rows(a, b), a.type)


_CHECKED: Final[dict[str, Callable[..., pa.Array]]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": pc.divide_checked,
}


def negate(a: pa.Array, oid: int) -> pa.Array:
    """Compute ``-a``."""
    if oid in INTS:
        _least(a, oid)
        return pc.negate(a)
    return numeric.neg(a) if oid == types.NUMERIC else pc.negate(a)


def absolute(a: pa.Array, oid: int) -> pa.Array:
    """Compute ``abs(a)``."""
    if oid in INTS:
        _least(a, oid)
        return pc.abs(a)
    return numeric.absolute(a) if oid == types.NUMERIC else pc.abs(a)


def _least(a: pa.Array, oid: int) -> None:
    values = buffers.values(a)
    if len(values):
        bad = (values == np.iinfo(values.dtype).min) & (valid_rows(a) == 1)
        fail(bad, f"{INT_NAMES[oid]} out of range", OUT_OF_RANGE)


# --- floats and numerics


def _floats(op: str, a: pa.Array, b: pa.Array) -> pa.Array:
    x, y = buffers.values(a), buffers.values(b)
    valid = valid_rows(a, b)
    present = valid == 1
    if op == "/":
        zero = present & (y == 0) & ~np.isnan(x)
        fail(zero, "division by zero", DIVISION_BY_ZERO)
    with np.errstate(all="ignore"):
        out = _FLOAT[op](x, y)
    if not np.isfinite(out).all():
        over = present & np.isinf(out) & ~np.isinf(x)
        if op != "/":
            over &= ~np.isinf(y)
        fail(over, "value out of range: overflow", OUT_OF_RANGE)
    if op in "*/":
        under = present & (out == 0) & (x != 0)
        under &= ~np.isinf(y) if op == "/" else y != 0
        fail(under, "value out of range: underflow", OUT_OF_RANGE)
    return buffers.make_fixed(out, valid, a.type)


_FLOAT: Final[dict[str, Callable[..., npt.NDArray[Any]]]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
}


def _numerics(op: str, a: pa.Array, b: pa.Array) -> pa.Array:
    function = _NUMERIC[op]
    try:
        return function(a, b)
    except (OverflowError, ZeroDivisionError):
        pass
    for row in range(len(a)):
        one, other = a[row : row + 1], b[row : row + 1]
        try:
            function(one, other)
        except ZeroDivisionError as error:
            raise FailingRow(str(error), row, DIVISION_BY_ZERO) from None
        except OverflowError as error:
            raise FailingRow(str(error), row, OUT_OF_RANGE) from None
    raise AssertionError("a row that failed in the batch fails alone")


_NUMERIC: Final[dict[str, Callable[..., pa.Array]]] = {
    "+": numeric.add,
    "-": numeric.sub,
    "*": numeric.mul,
    "/": numeric.div,
}


# --- dates


def shift_date(days: pa.Array, by: pa.Array, sign: int) -> pa.Array:
    """Add (``sign`` 1) or subtract (-1) days; infinite dates are unchanged."""
    x = buffers.values(days)
    valid = valid_rows(days, by)
    out = x.astype(np.int64) + sign * buffers.values(by).astype(np.int64)
    finite = (x != _DATE_MINUS_INF) & (x != _DATE_PLUS_INF)
    bad = (valid == 1) & finite & ((out < _DATE_MIN) | (out >= _DATE_END))
    fail(bad, "date out of range", DATETIME_OVERFLOW)
    # NULL slots may hold any value, so they are cleared before they are narrowed.
    out = np.where(finite, np.where(valid == 1, out, 0), x)
    return buffers.make_fixed(out.astype(np.int32), valid, pa.int32())


def days_between(a: pa.Array, b: pa.Array) -> pa.Array:
    """Compute ``a - b`` of dates, in days."""
    x, y = buffers.values(a), buffers.values(b)
    valid = valid_rows(a, b)
    endless = np.isin(x, (_DATE_MINUS_INF, _DATE_PLUS_INF))
    endless |= np.isin(y, (_DATE_MINUS_INF, _DATE_PLUS_INF))
    fail(endless & (valid == 1), "cannot subtract infinite dates", DATETIME_OVERFLOW)
    out = x.astype(np.int64) - y.astype(np.int64)
    return buffers.make_fixed(out.astype(np.int32), valid, pa.int32())


# --- casts


def cast(a: pa.Array, source: int, target: int) -> pa.Array:
    """Cast ``a`` from ``source`` to ``target``, a pair that ``native.resolve_cast`` allows."""
    if source == target:
        return a
    if source in INTS and target in INTS:
        return _between_ints(a, target)
    if source in INTS and target in (types.NUMERIC, types.TEXT, types.VARCHAR):
        return text.render(a, source)
    if source in INTS and target in FLOATS:
        dtype = np.float32 if target == types.FLOAT4 else np.float64
        content = buffers.values(a).astype(dtype)
        return buffers.make_fixed(content, buffers.validity(a), types.arrow_type(target))
    if source == types.BOOL and target == types.INT4:
        return pc.cast(a, pa.int32())
    if source == types.BPCHAR:
        return pc.ascii_rtrim(a, characters=" ")
    if source == types.BOOL:
        return pc.if_else(a, "true", "false")
    if (source, target) == (types.DATE, types.TIMESTAMP):
        return _date_to_timestamp(a)
    if (source, target) == (types.TIMESTAMP, types.DATE):
        return _timestamp_to_date(a)
    return pc.cast(a, types.arrow_type(target))


def _between_ints(a: pa.Array, target: int) -> pa.Array:
    kind = types.arrow_type(target)
    try:
        return pc.cast(a, kind)
    except pa.ArrowInvalid:
        limits = np.iinfo(buffers.dtype(kind))
        values = buffers.values(a)
        bad = (values < limits.min) | (values > limits.max)
        message = f"{INT_NAMES[target]} out of range"
        fail(bad & (valid_rows(a) == 1), message, OUT_OF_RANGE)
        raise


def _date_to_timestamp(a: pa.Array) -> pa.Array:
    days = buffers.values(a).astype(np.int64)
    valid = buffers.validity(a)
    low, high = days == _DATE_MINUS_INF, days == _DATE_PLUS_INF
    bad = (days >= _DATE_END_OF_TIMESTAMP) & ~high & (valid == 1)
    fail(bad, "date out of range for timestamp", DATETIME_OVERFLOW)
    inside = ~(low | high) & (valid == 1)
    out = np.where(inside, days, 0) * _DAY
    out[low] = _STAMP_MINUS_INF
    out[high] = _STAMP_PLUS_INF
    return buffers.make_fixed(out, valid, pa.int64())


def date_to_timestamp(a: pa.Array) -> pa.Array:
    """Convert dates for a comparison; one after the last timestamp is still before infinity."""
    days = buffers.values(a).astype(np.int64)
    low, high = days == _DATE_MINUS_INF, days == _DATE_PLUS_INF
    late = (days >= _DATE_END_OF_TIMESTAMP) & ~high
    out = np.where(low | high | late, 0, days) * _DAY
    out[low] = _STAMP_MINUS_INF
    out[high] = _STAMP_PLUS_INF
    out[late] = _DATE_END_OF_TIMESTAMP * _DAY
    return buffers.make_fixed(out, buffers.validity(a), pa.int64())


def _timestamp_to_date(a: pa.Array) -> pa.Array:
    micros = buffers.values(a)
    out = (micros // _DAY).astype(np.int32)
    out[micros == _STAMP_MINUS_INF] = _DATE_MINUS_INF
    out[micros == _STAMP_PLUS_INF] = _DATE_PLUS_INF
    return buffers.make_fixed(out, buffers.validity(a), pa.int32())


# --- conditionals, logic, text


def case(args: Sequence[pa.Array]) -> pa.Array:
    """Return the first value whose condition is true, else the last argument."""
    out = args[-1]
    for i in range(len(args) - 3, -1, -2):
        condition = args[i]
        if condition.null_count:
            condition = pc.fill_null(condition, False)
        out = pc.if_else(condition, args[i + 1], out)
    return out


def nullif(a: pa.Array, equal: pa.Array) -> pa.Array:
    """Return ``a``, with NULL where ``equal`` is true."""
    return pc.if_else(pc.fill_null(equal, False), pa.scalar(None, a.type), a)


def concat(a: pa.Array, b: pa.Array) -> pa.Array:
    """Compute ``a || b``."""
    return pc.binary_join_element_wise(a, b, "")


_FEW: Final = 1024


@functools.cache
def _same(value: bool) -> pa.Array:
    # Not at import, as Arrow imports pandas for it.
    return pa.repeat(value, _FEW)


def _for_null(
    compute: Callable[[pa.Array], pa.Array], otherwise: bool, array: pa.Array
) -> pa.Array:
    """Return a test for NULL; ``otherwise`` without a computation for a few values without any."""
    few = len(array) <= _FEW and not array.null_count
    return _same(otherwise).slice(0, len(array)) if few else compute(array)


_IS_NULL: Final = functools.partial(_for_null, pc.is_null, False)
_IS_NOT_NULL: Final = functools.partial(_for_null, pc.is_valid, True)
LOGIC: Final[dict[str, Callable[..., pa.Array]]] = {"and": pc.and_kleene, "or": pc.or_kleene}
TESTS: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "not": pc.invert,
    "is_null": _IS_NULL,
    "is_not_null": _IS_NOT_NULL,
    "is_true": lambda a: pc.fill_null(a, False),
    "is_false": lambda a: pc.fill_null(pc.invert(a), False),
    "is_not_true": lambda a: pc.fill_null(pc.invert(a), True),
    "is_not_false": lambda a: pc.fill_null(a, True),
    "is_unknown": _IS_NULL,
    "is_not_unknown": _IS_NOT_NULL,
    "length": pc.utf8_length,
}
