# cython: language_level=3, boundscheck=False, wraparound=False
"""Exact sums of value x weight per group over a txid.

A group has a *slot* (0, 1, …) within a txid.  Sums are returned as Python integers, which cannot
overflow.  No value is rounded: a float is an integer multiple of 2**-1152, a numeric an integer at
its own scale.  So subtracting an added value restores exactly the previous sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import cython
import numpy as np
import numpy.typing as npt

from headrace.kernels import buffers

if cython.compiled:
    from cython.cimports.headrace.kernels.pointers import longs_of, new_longs
else:
    longs_of = new_longs = buffers.view

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

FLOAT_UNIT_BITS: Final = 1152
"""Sums of floats are in units of 2**-1152 (the least double is 2**-1074)."""
_MASK: Final = 0xFFFFFFFF
_HIGH_MAX: Final = 2**28
_WEIGHTS_MAX: Final = 2**29
"""Sum of absolute weights up to which 33-bit limbs cannot overflow 64 bits."""


_EMPTY: Final = {count: np.zeros((count, 0), np.int64) for count in (2, 4)}


class IntSums:
    """Exact sums per slot of 64-bit values times their weights."""

    power: int = 1
    _limb_count: int = 2

    def __init__(self) -> None:
        self._limbs = _EMPTY[self._limb_count]
        """Sums of 32-bit parts of the values, the lowest first."""
        self._weights = 0.0
        self._folded: dict[int, int] = {}

    @property
    def used(self) -> bool:
        """Whether something was added."""
        return self._weights > 0 or len(self._folded) > 0

    def add(self, slots: Int64s, values: Int64s, weights: Int64s, slot_count: int) -> None:
        """Add ``values[i] ** power * weights[i]`` to ``slots[i]``; all slots < ``slot_count``."""
        weight = _size(longs_of(weights), len(weights))
        if weight > _WEIGHTS_MAX:
            rows = zip(slots.tolist(), values.tolist(), weights.tolist(), strict=True)
            for slot, value, times in rows:
                self.add_one(slot, value**self.power * times)
            return
        if self._weights + weight > _WEIGHTS_MAX:
            self._fold()
        self._weights += weight
        self._grow(slot_count)
        self._add(slots, values, weights)

    def add_one(self, slot: int, amount: int) -> None:
        """Add ``amount``, of any size, to a slot."""
        self._folded[slot] = self._folded.get(slot, 0) + amount

    def _add(self, slots: Int64s, values: Int64s, weights: Int64s) -> None:
        low, high = self._limbs
        _add_split(
            longs_of(slots),
            longs_of(values),
            longs_of(weights),
            len(slots),
            new_longs(low),
            new_longs(high),
        )

    def _grow(self, size: int) -> None:
        held = self._limbs.shape[1]
        if held < size:
            limbs = np.zeros((self._limb_count, max(size, 2 * held)), np.int64)
            if held:
                limbs[:, :held] = self._limbs
            self._limbs = limbs

    def _fold(self) -> None:
        for slot in np.flatnonzero(self._limbs.any(axis=0)).tolist():
            self.add_one(slot, _joined(self._limbs[:, slot].tolist()))
        self._limbs[:] = 0
        self._weights = 0.0

    def end(self, slot_count: int) -> None:
        """End the additions: there are ``slot_count`` slots."""
        self._grow(slot_count)

    def take(self, slots: Int64s) -> list[int]:
        """Return the sums of ``slots``, after ``end``."""
        if len(slots) == 1:
            limbs = [[limb] for limb in self._limbs[:, slots[0]].tolist()]
        else:
            limbs = self._limbs[:, slots].tolist()
        if len(limbs) == 2:
            out = [(high << 32) + low for low, high in zip(*limbs, strict=True)]
        else:
            out = [_joined(each) for each in zip(*limbs, strict=True)]
        if self._folded:
            for place, slot in enumerate(slots.tolist()):
                out[place] += self._folded.get(slot, 0)
        return out

    def fitting(self, low: int, high: int) -> tuple[Int64s, Bytes]:
        """Return the sums of slots ``low`` … ``high`` - 1, after ``end``, and which of them fit.

        Those that may be above 2**62, or below its negative, do not; their numbers mean nothing.
        """
        limbs = self._limbs[:, low:high]
        first, second = limbs[0], limbs[1]
        if len(limbs) > 2:
            first, second = first & _MASK, second + (first >> 32)
        fits = (second < _HIGH_MAX) & (second > -_HIGH_MAX)
        for limb in limbs[2:]:
            fits &= limb == 0
        for slot in self._folded:
            if low <= slot < high:
                fits[slot - low] = False
        return (second << 32) + first, fits.view(np.uint8)


class SquareSums(IntSums):
    """Exact sums per slot of squares of 64-bit values times their weights."""

    power = 2
    _limb_count = 4

    def _add(self, slots: Int64s, values: Int64s, weights: Int64s) -> None:
        first, second, third, fourth = self._limbs
        _add_squares(
            longs_of(slots),
            longs_of(values),
            longs_of(weights),
            len(slots),
            new_longs(first),
            new_longs(second),
            new_longs(third),
            new_longs(fourth),
        )


def _joined(limbs: Sequence[int]) -> int:
    return sum(limb << (32 * place) for place, limb in enumerate(limbs))


class FloatSums:
    """Exact sums per slot of finite doubles times their weights, in units of 2**-1152.

    A superaccumulator, sparse by exponent: values in the same bucket of 32 exponents share three
    limbs of 32 bits per slot.
    """

    def __init__(self) -> None:
        self._limbs: dict[int, tuple[IntSums, IntSums, IntSums]] = {}

    def add(self, slots: Int64s, values: Floats, weights: Int64s, slot_count: int) -> None:
        """Add ``values[i] * weights[i]`` to slot ``slots[i]``; all values are finite."""
        fractions, exponents = np.frexp(values)
        mantissas = (fractions * 2.0**53).astype(np.int64)
        places = exponents.astype(np.int64) + (FLOAT_UNIT_BITS - 53)
        buckets, shifts = places >> 5, places & 31
        for bucket in np.unique(buckets[mantissas != 0]).tolist():
            chosen = (buckets == bucket) & (mantissas != 0)
            sums = self._limbs.setdefault(bucket, (IntSums(), IntSums(), IntSums()))
            limbs = _limbs(mantissas[chosen], shifts[chosen])
            for one, limb in zip(sums, limbs, strict=True):
                one.add(slots[chosen], limb, weights[chosen], slot_count)

    def end(self, slot_count: int) -> None:
        """See ``IntSums``."""
        for one in itertools.chain(*self._limbs.values()):
            one.end(slot_count)

    def take(self, slots: Int64s) -> list[int]:
        """See ``IntSums``."""
        out = [0] * len(slots)
        for bucket, sums in self._limbs.items():
            for place, one in enumerate(sums):
                shift = 32 * (bucket + place)
                for i, value in enumerate(one.take(slots)):
                    if value:
                        out[i] += value << shift
        return out


def _limbs(mantissas: Int64s, shifts: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Split ``mantissas << shifts`` (up to 84 bits) into signed limbs of up to 33 bits."""
    signs = np.sign(mantissas)
    sizes = np.abs(mantissas)
    mask = np.int64(0xFFFFFFFF)
    low = (sizes & mask) << shifts
    high = (sizes >> 32) << shifts
    return (signs * (low & mask), signs * ((low >> 32) + (high & mask)), signs * (high >> 32))


@cython.cfunc
@cython.exceptval(check=False)
def _size(weights: cython.p_longlong, count: cython.Py_ssize_t) -> cython.double:
    """Return the sum of absolute weights."""
    i: cython.Py_ssize_t
    total: cython.double = 0.0
    for i in range(count):
        weight: cython.double = weights[i]
        total += weight if weight >= 0 else -weight
    return total


@cython.cfunc
@cython.exceptval(check=False)
def _add_split(
    slots: cython.p_longlong,
    values: cython.p_longlong,
    weights: cython.p_longlong,
    count: cython.Py_ssize_t,
    low: cython.p_longlong,
    high: cython.p_longlong,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        slot: cython.Py_ssize_t = slots[i]
        value: cython.longlong = values[i]
        weight: cython.longlong = weights[i]
        low[slot] += (value & 0xFFFFFFFF) * weight
        high[slot] += (value >> 32) * weight


@cython.cfunc
@cython.exceptval(check=False)
def _add_squares(
    slots: cython.p_longlong,
    values: cython.p_longlong,
    weights: cython.p_longlong,
    count: cython.Py_ssize_t,
    limb0: cython.p_longlong,
    limb1: cython.p_longlong,
    limb2: cython.p_longlong,
    limb3: cython.p_longlong,
) -> cython.void:
    i: cython.Py_ssize_t
    for i in range(count):
        slot: cython.Py_ssize_t = slots[i]
        weight: cython.longlong = weights[i]
        signed: cython.longlong = values[i]
        size: cython.ulonglong = signed
        if signed < 0:
            size = 0 - size
        high: cython.ulonglong = size >> 32  # up to 2**31
        low: cython.ulonglong = size & 0xFFFFFFFF
        # size**2 = high**2 * 2**64 + 2 * cross * 2**32 + low**2; no sum exceeds 64 bits
        square: cython.ulonglong = low * low
        cross: cython.ulonglong = high * low
        top: cython.ulonglong = high * high
        limb: cython.longlong = square & 0xFFFFFFFF
        limb0[slot] += limb * weight
        square = (square >> 32) + 2 * (cross & 0xFFFFFFFF)
        limb = square & 0xFFFFFFFF
        limb1[slot] += limb * weight
        square = (square >> 32) + 2 * (cross >> 32) + (top & 0xFFFFFFFF)
        limb = square & 0xFFFFFFFF
        limb2[slot] += limb * weight
        limb = (square >> 32) + (top >> 32)
        limb3[slot] += limb * weight
