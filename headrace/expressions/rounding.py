"""Native round, trunc, ceil and floor of numeric and float8, and casts that round.

Source: ``numeric.c`` (``numeric_round``, ``numeric_trunc``, ``apply_typmod``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.expressions.ir import Expr, Literal, Native
from headrace.expressions.kernels import INT_NAMES, OUT_OF_RANGE, FailingRow, fail
from headrace.expressions.signature import FLOATS, INTS, Args, Builder, Kernel, NativeOp, Resolver
from headrace.kernels import buffers, decimals, numeric
from headrace.types import FLOAT4, FLOAT8, INT4, NUMERIC, arrow_type

Int64s = npt.NDArray[np.int64]

_PLACES_MAX: Final = 17
"""Maximum decimal places, on either side of the point, that are rounded in 64 bits."""
_HEADER: Final = 4
_UNSUPPORTED: Final = "0A000"
_FIELD_OVERFLOW: Final = "numeric field overflow"


# --- resolvers


def _round(name: str, args: Args) -> NativeOp | None:
    if len(args) == 1 and args[0].oid == FLOAT8:
        return NativeOp(name, FLOAT8)
    if not args or args[0].oid != NUMERIC or len(args) > 2:
        return None
    if len(args) == 2 and (name not in ("round", "trunc") or _places(args) is None):
        return None
    # Rounding may add a digit to the maximum of 131072 before the point.
    return NativeOp(name, NUMERIC, may_raise=name != "trunc" and args[0].typmod == -1)


def _places(args: Args) -> int | None:
    if args[1].oid != INT4 or args[1].literal is None:
        return None
    places = int(args[1].literal)
    return places if abs(places) <= _PLACES_MAX else None


def _sized(name: str, args: Args) -> NativeOp | None:
    if len(args) != 2 or args[0].oid != NUMERIC or args[1].oid != INT4:
        return None
    if args[1].literal is None or _precision(int(args[1].literal)) is None:
        return None
    return NativeOp(name, NUMERIC, may_raise=True)


def _precision(typmod: int) -> tuple[int, int] | None:
    """Return (precision, scale) of a modifier; None if the scale is negative or too large."""
    precision, scale = (typmod - _HEADER) >> 16, (typmod - _HEADER) & 0x7FF
    return (precision, scale) if 0 <= scale <= min(_PLACES_MAX, precision) else None


RESOLVERS: Final[dict[str, Resolver]] = {
    **dict.fromkeys(("round", "trunc", "floor"), _round),
    **dict.fromkeys(("ceil", "ceiling"), lambda _, args: _round("ceil", args)),
    "numeric": _sized,
}


# --- kernels

_FLOATS: Final[dict[str, Callable[..., npt.NDArray[Any]]]] = {
    "round": np.rint,
    "trunc": np.trunc,
    "ceil": np.ceil,
    "floor": np.floor,
}


def _constant(expr: Expr) -> int:
    assert isinstance(expr, Literal), "resolved with a constant"
    assert expr.text is not None, "resolved with a constant that is not NULL"
    return int(expr.text)


def _build_round(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    if expr.oid == FLOAT8:
        function = _FLOATS[expr.op]

        def run(args: list[pa.Array]) -> pa.Array:
            out = function(buffers.values(args[0]))
            return buffers.make_fixed(out, buffers.validity(args[0]), pa.float64())

        return run, expr.args
    places = _constant(expr.args[1]) if len(expr.args) == 2 else 0
    return (lambda args: _rounded(expr.op, args[0], places)), expr.args[:1]


def _build_sized(expr: Native) -> tuple[Kernel, Sequence[Expr]]:
    known = _precision(_constant(expr.args[1]))
    assert known is not None, "resolved with a modifier of the usual kind"
    precision, scale = known
    limit = 10**precision
    return (lambda args: _rounded("round", args[0], scale, limit)), expr.args[:1]


def _rounded(
    op: str, column: pa.StringArray, places: int, limit: int | None = None
) -> pa.StringArray:
    """Round ``column`` to ``places`` digits; raise where a mantissa reaches ``limit``."""
    parsed = numeric.parse(column)
    scales = parsed.scales.astype(np.int64)
    kinds = parsed.kinds.copy()
    cut = np.clip(scales - places, 0, 18)
    unit = np.power(10, cut)
    out = _ROUND[op](parsed.mantissas, unit)
    out[scales - places > 18] = 0
    if op in ("ceil", "floor"):
        assert places == 0, "and a mantissa has 18 digits at most after the point"
    grown = np.power(10, np.clip(places - scales, 0, 18))
    fits = np.abs(out) <= np.int64(10**18) // grown
    out = np.where(fits, out, 0) * grown
    kinds[(kinds == decimals.SMALL) & ~fits] = decimals.BIG
    if places < 0:
        out *= 10**-places
    if limit is not None and limit <= 2**63 - 1:
        kinds[(kinds == decimals.SMALL) & (np.abs(out) >= limit)] = decimals.BIG
    shown = np.full(len(out), max(places, 0), np.int32)
    done = numeric.render(kinds, out, shown)
    rest = np.flatnonzero(kinds > decimals.SMALL)
    if not len(rest):
        return done
    texts = [_slowly(op, column[i].as_py(), places, limit, i) for i in rest.tolist()]
    mask = pa.array(kinds > decimals.SMALL)
    return pc.replace_with_mask(done, mask, pa.array(texts, pa.string()))


def _half_away(mantissas: Int64s, unit: Int64s) -> Int64s:
    size: Int64s = (np.abs(mantissas) + unit // 2) // unit
    return np.sign(mantissas) * size


def _towards_zero(mantissas: Int64s, unit: Int64s) -> Int64s:
    size: Int64s = np.abs(mantissas) // unit
    return np.sign(mantissas) * size


_ROUND: Final[dict[str, Callable[[Int64s, Int64s], Int64s]]] = {
    "round": _half_away,
    "trunc": _towards_zero,
    "floor": lambda mantissas, unit: mantissas // unit,
    "ceil": lambda mantissas, unit: -(-mantissas // unit),
}


def _slowly(op: str, text: str, places: int, limit: int | None, row: int) -> str:
    """Round one value of any size."""
    kind, mantissa, scale = decimals.read(text)
    if kind != decimals.SMALL:
        if limit is not None and kind != decimals.NAN:
            raise _too_large(row, limit, places, "cannot hold an infinite value")
        return text
    if scale > places:
        mantissa = _IN_PYTHON[op](mantissa, 10 ** (scale - places))
    else:
        mantissa *= 10 ** (places - scale)
    if limit is not None and abs(mantissa) >= limit:
        digits = len(str(limit)) - 1 - places
        least = f"10^{digits}" if digits else "1"
        what = f"must round to an absolute value less than {least}"
        raise _too_large(row, limit, places, what)
    if places < 0:
        mantissa *= 10**-places
    try:
        return decimals.write((kind, mantissa, max(places, 0)))
    except OverflowError as error:
        raise FailingRow(str(error), row, OUT_OF_RANGE) from None


def _too_large(row: int, limit: int, scale: int, what: str) -> FailingRow:
    field = f"A field with precision {len(str(limit)) - 1}, scale {scale} {what}."
    return FailingRow(_FIELD_OVERFLOW, row, OUT_OF_RANGE, detail=field)


def _cut(mantissa: int, unit: int, *, half: int) -> int:
    size = (abs(mantissa) * 2 + half * unit) // (2 * unit)
    return -size if mantissa < 0 else size


_IN_PYTHON: Final[dict[str, Callable[[int, int], int]]] = {
    "round": partial(_cut, half=1),
    "trunc": partial(_cut, half=0),
    "floor": lambda mantissa, unit: mantissa // unit,
    "ceil": lambda mantissa, unit: -(-mantissa // unit),
}

BUILDERS: Final[dict[str, Builder]] = {
    **dict.fromkeys(("round", "trunc", "ceil", "floor"), _build_round),
    "numeric": _build_sized,
}


# --- casts that round


def casts(source: int, target: int) -> bool:
    """Return whether ``cast`` supports this pair of types."""
    if source == NUMERIC:
        return target in INTS or target in FLOATS
    return source in FLOATS and (target in INTS or (source, target) == (FLOAT8, FLOAT4))


def cast(column: pa.Array, source: int, target: int) -> pa.Array:
    """Cast ``column`` from ``source`` to ``target``, a pair that ``casts`` allows."""
    if source == NUMERIC:
        if target in INTS:
            return _numeric_to_int(column, target)
        return _numeric_to_float(column, target)
    return _float_to_int(column, target) if target in INTS else _narrowed(column)


def _numeric_to_int(column: pa.StringArray, target: int) -> pa.Array:
    kinds = numeric.parse(column).kinds
    for kind, word in (
        (decimals.NAN, "NaN"),
        (decimals.PLUS_INF, "infinity"),
        (decimals.MINUS_INF, "infinity"),
    ):
        message = f"cannot convert {word} to {INT_NAMES[target]}"
        fail(kinds == kind, message, _UNSUPPORTED)
    whole = _rounded("round", column, 0)
    parsed = numeric.parse(whole)
    limits = np.iinfo(buffers.dtype(arrow_type(target)))
    values = parsed.mantissas.copy()
    big = parsed.kinds == decimals.BIG
    bad = (values < limits.min) | (values > limits.max)
    for i in np.flatnonzero(big).tolist():
        value = decimals.read(whole[i].as_py())[1]
        if limits.min <= value <= limits.max:
            values[i] = value
        else:
            bad[i] = True
    fail(bad, f"{INT_NAMES[target]} out of range", OUT_OF_RANGE)
    return buffers.make_fixed(values, buffers.validity(column), arrow_type(target))


def _numeric_to_float(column: pa.StringArray, target: int) -> pa.Array:
    # Arrow and Postgres both parse the decimal digits and round once, to the nearest.
    parsed = numeric.parse(column)
    out = pc.cast(column, arrow_type(target))
    values = buffers.values(out)
    finite = (parsed.kinds == decimals.SMALL) | (parsed.kinds == decimals.BIG)
    bad = finite & ~np.isfinite(values)
    zero = finite & (values == 0) & (parsed.kinds == decimals.BIG)
    for i in np.flatnonzero(zero).tolist():
        bad[i] = decimals.read(column[i].as_py())[1] != 0
    name = "real" if target == FLOAT4 else "double precision"
    if bad.any():
        row = int(np.argmax(bad))
        message = f'"{column[row].as_py()}" is out of range for type {name}'
        raise FailingRow(message, row, OUT_OF_RANGE)
    return out


def _float_to_int(column: pa.Array, target: int) -> pa.Array:
    values = np.rint(buffers.values(column).astype(np.float64))
    valid = buffers.validity(column)
    least = float(np.iinfo(buffers.dtype(arrow_type(target))).min)
    with np.errstate(invalid="ignore"):
        good = (values >= least) & (values < -least)
    fail(~good & (valid == 1), f"{INT_NAMES[target]} out of range", OUT_OF_RANGE)
    content = np.where(good, values, 0).astype(buffers.dtype(arrow_type(target)))
    return buffers.make_fixed(content, valid, arrow_type(target))


def _narrowed(column: pa.Array) -> pa.Array:
    values, valid = buffers.values(column), buffers.validity(column)
    with np.errstate(all="ignore"):
        out = values.astype(np.float32)
    over = np.isinf(out) & ~np.isinf(values) & (valid == 1)
    fail(over, "value out of range: overflow", OUT_OF_RANGE)
    under = (out == 0) & (values != 0) & (valid == 1)
    fail(under, "value out of range: underflow", OUT_OF_RANGE)
    return buffers.make_fixed(out, valid, pa.float32())
