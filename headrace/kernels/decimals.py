# cython: language_level=3, annotation_typing=False, boundscheck=False, wraparound=False
# mypy: disable-error-code="no-any-return"
# Annotations are not C types here: numbers are Python integers of any size.
"""Exact arithmetic on Postgres numerics in Python integers, with Postgres' display scale.

NaN and the infinities follow Postgres 14 and later.  ``OverflowError`` is a value that Postgres
cannot represent (22003), ``ZeroDivisionError`` a division by zero (22012).

Source of the scales: Postgres ``numeric.c`` (``add_var``, ``mul_var``, ``select_div_scale``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

NULL, SMALL, BIG, NAN, PLUS_INF, MINUS_INF, SLOW = 0, 1, 2, 3, 4, 5, 6

Number = tuple[int, int, int]
"""(kind, mantissa, scale); kind is ``SMALL`` for any finite value."""

SCALE_MAX: Final = 16383
DIGITS_MAX: Final = 131072
"""Maximum digits before the point."""
_LIMIT: Final = 10**DIGITS_MAX
_SPECIAL: Final = {"NaN": NAN, "Infinity": PLUS_INF, "-Infinity": MINUS_INF}
_WORDS: Final = {NAN: "NaN", PLUS_INF: "Infinity", MINUS_INF: "-Infinity"}
_ZERO: Final[Number] = (SMALL, 0, 0)


def read(text: str) -> Number:
    """Parse Postgres' text of a number."""
    special = _SPECIAL.get(text)
    if special is not None:
        return (special, 0, 0)
    whole, _, fraction = text.partition(".")
    return (SMALL, _integer(whole + fraction), len(fraction))


def _integer(digits: str) -> int:
    # int() refuses more than 4300 digits; Postgres' numerics have up to 147455.
    if len(digits) <= 4000:
        return int(digits)
    negative = digits.startswith("-")
    body = digits[1:] if negative else digits
    half = len(body) // 2
    value = _integer(body[:half]) * 10 ** (len(body) - half) + _integer(body[half:])
    return -value if negative else value


def _digits(value: int) -> str:
    """Return the decimal digits of ``value`` >= 0, of any size."""
    if value.bit_length() <= 13000:
        return str(value)
    half = int(value.bit_length() * 0.30103) // 2
    high, low = divmod(value, 10**half)
    return _digits(high) + _digits(low).zfill(half)


def write(number: Number) -> str:
    """Return Postgres' text of ``number``; OverflowError if Postgres cannot represent it."""
    kind, mantissa, scale = number
    if kind != SMALL:
        return _WORDS[kind]
    size = abs(mantissa)
    if size.bit_length() > 400000 and size >= _LIMIT * 10**scale:
        raise OverflowError("value overflows numeric format")
    text = _digits(size)
    if scale:
        text = text.zfill(scale + 1)
        point = len(text) - scale
        text = f"{text[:point]}.{text[point:]}"
    return "-" + text if mantissa < 0 else text


def rounded(mantissa: int, scale: int, target: int) -> int:
    """Round a mantissa to the lower scale ``target``, half away from zero."""
    unit = 10 ** (scale - target)
    size = (abs(mantissa) * 2 + unit) // (2 * unit)
    return -size if mantissa < 0 else size


def plus(a: Number, b: Number) -> Number:
    """Return ``a + b``."""
    if a[0] != SMALL or b[0] != SMALL:
        if a[0] == NAN or b[0] == NAN or {a[0], b[0]} == {PLUS_INF, MINUS_INF}:
            return (NAN, 0, 0)
        return a if a[0] != SMALL else b
    scale = max(a[2], b[2])
    total = a[1] * 10 ** (scale - a[2]) + b[1] * 10 ** (scale - b[2])
    return (SMALL, total, scale)


def negative(a: Number) -> Number:
    """Return ``-a``."""
    if a[0] == SMALL:
        return (SMALL, -a[1], a[2])
    return ({NAN: NAN, PLUS_INF: MINUS_INF, MINUS_INF: PLUS_INF}[a[0]], 0, 0)


def minus(a: Number, b: Number) -> Number:
    """Return ``a - b``."""
    return plus(a, negative(b))


def _sign(a: Number) -> int:
    if a[0] == SMALL:
        return (a[1] > 0) - (a[1] < 0)
    return 1 if a[0] == PLUS_INF else -1


def _infinity(sign: int) -> Number:
    return (PLUS_INF if sign > 0 else MINUS_INF, 0, 0)


def times(a: Number, b: Number) -> Number:
    """Return ``a * b``."""
    if a[0] != SMALL or b[0] != SMALL:
        if a[0] == NAN or b[0] == NAN or _sign(a) * _sign(b) == 0:
            return (NAN, 0, 0)
        return _infinity(_sign(a) * _sign(b))
    mantissa, scale = a[1] * b[1], a[2] + b[2]
    if scale > SCALE_MAX:
        mantissa, scale = rounded(mantissa, scale, SCALE_MAX), SCALE_MAX
    return (SMALL, mantissa, scale)


def _first_digit(a: Number) -> tuple[int, int]:
    """Return weight and value of the first non-zero base-10000 digit ((0, 0) for zero)."""
    if a[1] == 0:
        return 0, 0
    text = _digits(abs(a[1]))
    weight = (len(text) - a[2] - 1) // 4
    # Digits of that base-10000 digit: from the first one down to place 4 * weight.
    count = len(text) - a[2] - 4 * weight
    return weight, int(text[:count].ljust(count, "0"))


def quotient_scale(a: Number, b: Number) -> int:
    """Return the display scale of ``a / b``; Source: ``select_div_scale``."""
    weight_a, first_a = _first_digit(a)
    weight_b, first_b = _first_digit(b)
    weight = weight_a - weight_b - (1 if first_a <= first_b else 0)
    return min(max(16 - weight * 4, a[2], b[2], 0), 1000)


def divided(a: Number, b: Number) -> Number:
    """Return ``a / b``; ZeroDivisionError."""
    if a[0] == NAN or b[0] == NAN:
        return (NAN, 0, 0)
    if a[0] != SMALL:
        if b[0] != SMALL:
            return (NAN, 0, 0)
        if b[1] == 0:
            raise ZeroDivisionError("division by zero")
        return _infinity(_sign(a) * _sign(b))
    if b[0] != SMALL:
        return _ZERO
    if b[1] == 0:
        raise ZeroDivisionError("division by zero")
    scale = quotient_scale(a, b)
    shift = scale + b[2] - a[2]
    top, bottom = abs(a[1]), abs(b[1])
    if shift >= 0:
        top *= 10**shift
    else:
        bottom *= 10**-shift
    size = (2 * top + bottom) // (2 * bottom)
    return (SMALL, size if (a[1] < 0) == (b[1] < 0) else -size, scale)


def variance(sums: Sequence[int], scale: int, *, sample: bool, root: bool) -> Number:
    """Return the variance of values, or its square root.

    ``sums`` are the number of values, the sum of their mantissas at ``scale``, and that of the
    mantissas' squares; ``sample`` divides by one less than the number, which is at least two then.
    Source: ``numeric_stddev_internal``.
    """
    count, total, squares = sums
    top = count * squares - total * total
    if top <= 0:
        return _ZERO
    bottom = count * (count - 1 if sample else count)
    found = divided((SMALL, top, 2 * scale), (SMALL, bottom, 0))
    if not root:
        return found
    _, mantissa, places = found
    # The root at the same scale, rounded half up.
    return (SMALL, (math.isqrt(4 * mantissa * 10**places) + 1) // 2, places)


def order(a: Number, b: Number) -> int:
    """Compare as Postgres sorts (-Infinity, numbers, Infinity, NaN); return -1, 0 or 1."""
    if a[0] != SMALL or b[0] != SMALL:
        ranks = {MINUS_INF: 0, SMALL: 1, PLUS_INF: 2, NAN: 3}
        return (ranks[a[0]] > ranks[b[0]]) - (ranks[a[0]] < ranks[b[0]])
    scale = max(a[2], b[2])
    left, right = a[1] * 10 ** (scale - a[2]), b[1] * 10 ** (scale - b[2])
    return (left > right) - (left < right)
