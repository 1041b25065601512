# cython: language_level=3, boundscheck=False, wraparound=False
"""Quotients of numerics of up to 18 digits, by long division, with Postgres' display scale.

Source of the scale: Postgres ``numeric.c`` (``select_div_scale``); its readable form is
``decimals.quotient_scale``.
"""

from __future__ import annotations

import cython
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.kernels import buffers

Numbers = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int32]]
"""Kinds, mantissas and scales, as in ``numeric.Parsed``."""

_POWERS = np.array([10**i for i in range(19)], np.int64)
_SMALL = 1


def divide(left: Numbers, right: Numbers) -> tuple[npt.NDArray[np.uint8], pa.Array]:
    """Divide; return the kinds of the quotients, and the texts of the ``SMALL`` ones.

    A row is ``SLOW`` if a number is special or has more digits, or if the divisor is zero.
    """
    n = len(left[0])
    kinds = np.zeros(n, np.uint8)
    scales = np.zeros(n, np.int32)
    signs = np.sign(left[1]) * np.sign(right[1])
    tops, bottoms = np.abs(left[1]), np.abs(right[1])
    _quotient_scales(
        buffers.view(left[0]),
        buffers.view(tops),
        buffers.view(left[2]),
        buffers.view(right[0]),
        buffers.view(bottoms),
        buffers.view(right[2]),
        buffers.view(_POWERS),
        buffers.view(kinds),
        buffers.view(scales),
    )
    shifts = scales + right[2] - left[2]
    valid = (kinds == _SMALL).astype(np.uint8)
    # Room for a carry, 19 digits, the shift, sign and point.
    room = 22 + shifts[valid == 1].astype(np.int64)
    content = np.empty(int(room.sum()), np.uint8)
    starts = np.zeros(n + 1, np.int32)
    used = _divide(
        buffers.view(valid),
        buffers.view(signs),
        buffers.view(tops.astype(np.uint64)),
        buffers.view(bottoms.astype(np.uint64)),
        buffers.view(shifts),
        buffers.view(scales),
        buffers.view(np.zeros(128, np.uint8)),
        buffers.view(content),
        buffers.view(starts),
    )
    return kinds, buffers.make_text(starts, content[:used], valid, pa.string())


@cython.cfunc
@cython.exceptval(check=False)
def _quotient_scales(
    ka: cython.const_uchar[::1],
    ma: cython.const_longlong[::1],
    sa: cython.const_int[::1],
    kb: cython.const_uchar[::1],
    mb: cython.const_longlong[::1],
    sb: cython.const_int[::1],
    powers: cython.const_longlong[::1],
    kinds: cython.uchar[::1],
    scales: cython.int[::1],
) -> cython.void:
    """Compute ``quotient_scale`` of rows that fit into 64 bits; mark the others ``SLOW``.

    ``ma`` and ``mb`` are absolute values.
    """
    i: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(kinds)
    for i in range(n):
        if ka[i] == 0 or kb[i] == 0:
            continue
        if ka[i] != 1 or kb[i] != 1 or mb[i] == 0:
            kinds[i] = 6
            continue
        weight: cython.int = _weight(ma[i], sa[i], powers)
        first: cython.longlong = _leading(ma[i], sa[i], weight, powers)
        weight_b: cython.int = _weight(mb[i], sb[i], powers)
        first_b: cython.longlong = _leading(mb[i], sb[i], weight_b, powers)
        weight -= weight_b
        if first <= first_b:
            weight -= 1
        scale: cython.int = 16 - weight * 4
        if scale < sa[i]:
            scale = sa[i]
        if scale < sb[i]:
            scale = sb[i]
        scales[i] = scale if scale > 0 else 0
        kinds[i] = 1


@cython.cfunc
@cython.exceptval(check=False)
def _weight(
    value: cython.longlong, scale: cython.int, powers: cython.const_longlong[::1]
) -> cython.int:
    """Return the weight of the first non-zero base-10000 digit."""
    if value == 0:
        return 0
    digits: cython.int = 1
    while digits < 18 and value >= powers[digits]:
        digits += 1
    return (digits - scale - 1) // 4


@cython.cfunc
@cython.exceptval(check=False)
def _leading(
    value: cython.longlong,
    scale: cython.int,
    weight: cython.int,
    powers: cython.const_longlong[::1],
) -> cython.longlong:
    """Return the first non-zero base-10000 digit, which has ``weight``."""
    below: cython.int = scale + 4 * weight  # decimal digits of the mantissa below it
    if below >= 0:
        return value // powers[below]
    return value * powers[-below]


@cython.cfunc
@cython.cdivision(True)
@cython.exceptval(check=False)
def _divide(
    valid: cython.const_uchar[::1],
    signs: cython.const_longlong[::1],
    tops: cython.const_ulonglong[::1],
    bottoms: cython.const_ulonglong[::1],
    shifts: cython.const_int[::1],
    scales: cython.const_int[::1],
    digits: cython.uchar[::1],
    content: cython.uchar[::1],
    starts: cython.int[::1],
) -> cython.Py_ssize_t:
    """Write texts of ``tops * 10**shifts / bottoms / 10**scales``, rounded half away from zero.

    Long division: a remainder is below 10**18, so ten times as much fits into 64 bits.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    n: cython.Py_ssize_t = len(valid)
    p: cython.Py_ssize_t = 0
    for i in range(n):
        starts[i] = p
        if not valid[i]:
            continue
        bottom: cython.ulonglong = bottoms[i]
        whole: cython.ulonglong = tops[i] // bottom
        rest: cython.ulonglong = tops[i] % bottom
        end: cython.Py_ssize_t = (
            20 + shifts[i]
        )  # digits[0] is for a carry, the next 19 for the whole part
        k: cython.Py_ssize_t = 19
        while k >= 0:
            digits[k] = whole % 10
            whole //= 10
            k -= 1
        for k in range(20, end):
            rest *= 10
            digits[k] = rest // bottom
            rest %= bottom
        if rest * 2 >= bottom:
            k = end - 1
            while digits[k] == 9:
                digits[k] = 0
                k -= 1
            digits[k] += 1
        point: cython.Py_ssize_t = end - scales[i]
        k = 0
        while k < point - 1 and digits[k] == 0:
            k += 1
        if signs[i] < 0:
            zero: cython.bint = True
            for j in range(k, end):
                if digits[j] != 0:
                    zero = False
                    break
            if not zero:
                content[p] = 45
                p += 1
        while k < end:
            if k == point:
                content[p] = 46
                p += 1
            content[p] = 48 + digits[k]
            p += 1
            k += 1
    starts[n] = p
    return p
