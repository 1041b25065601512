# cython: language_level=3, boundscheck=False, wraparound=False
"""Numbers of groups: their encoding, and how a txid's sums (``sums``) change them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import cython
import numpy as np
import numpy.typing as npt

from headrace.kernels import buffers, decimals, packed
from headrace.kernels.packed import Nullable, Packed
from headrace.kernels.sums import FLOAT_UNIT_BITS

if cython.compiled:
    from cython.cimports.headrace.kernels.packed import same_at
    from cython.cimports.headrace.kernels.pointers import bytes_of, longs_of, new_longs
else:
    from headrace.kernels.packed import same_at

    bytes_of = longs_of = new_longs = buffers.view

Int64s = npt.NDArray[np.int64]

_VERSION: Final = 1
_SMALL: Final = 2**55
"""Integers below it, and above its negative, take at most seven bytes."""
_INT8_MIN, _INT8_MAX = -(2**63), 2**63 - 1
_NAN, _INFINITY = float("nan"), float("inf")

Numbers = list[int]
"""State of a group: its row count, then the numbers of each aggregate."""

# --- encoding of a group's numbers


def encode_numbers(numbers: Sequence[int]) -> bytes:
    """Encode integers of any size: their number, then length and bytes of each."""
    out: bytearray = bytearray()
    _append_numbers(out, list(numbers))
    return bytes(out)


@cython.cfunc
def _append_numbers(out: bytearray, numbers: list[int]) -> None:
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    _append_size(out, len(numbers))
    for i in range(len(numbers)):
        number = numbers[i]
        if not -_SMALL < number < _SMALL:
            size: cython.Py_ssize_t = (number.bit_length() >> 3) + 1
            _append_size(out, size)
            out += number.to_bytes(size, "little", signed=True)
            continue
        value: cython.longlong = number
        if value == 0:
            out.append(0)
            continue
        magnitude: cython.longlong = -value if value < 0 else value
        limit: cython.longlong = 128
        size = 1
        while magnitude >= limit:
            size += 1
            limit <<= 8
        out.append(size)
        for k in range(size):
            out.append((value >> (8 * k)) & 255)


@cython.cfunc
def _append_size(out: bytearray, size: cython.Py_ssize_t) -> None:
    if size < 255:
        out.append(size)
    else:
        out.append(255)
        out += size.to_bytes(4, "little")


def decode_numbers(data: bytes, at: cython.Py_ssize_t) -> tuple[list[int], int]:
    """Decode the output of ``encode_numbers`` at ``at``; also return the position after it."""
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    out = []
    count: cython.Py_ssize_t = 0
    source: cython.p_const_uchar = data
    for i in range(-1, 2**31 - 1):
        if i >= count:
            break
        size: cython.Py_ssize_t = source[at]
        at += 1
        if size == 255:
            size = int.from_bytes(data[at : at + 4], "little")
            at += 4
        if i < 0:
            count = size
        elif size == 0:
            out.append(0)
        elif size < 8:
            value: cython.longlong = 0
            for k in range(size):
                byte: cython.longlong = source[at + k]
                value |= byte << (8 * k)
            if source[at + size - 1] >= 128:
                limit: cython.longlong = 1
                value -= limit << (8 * size)
            out.append(value)
            at += size
        else:
            out.append(int.from_bytes(data[at : at + size], "little", signed=True))
            at += size
    return out, at


def decode_groups(values: Nullable) -> tuple[list[Numbers], Nullable, Nullable]:
    """Decode each group's state value into numbers, key row and result row.

    For None, no group, they are [], None and None.  ValueError if a value is of another version.
    """
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(values)
    data: bytes = values.data.tobytes()
    limits: cython.p_longlong = longs_of(values.bounds)
    valid: cython.p_uchar = bytes_of(values.valid)
    begins, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    firsts: cython.p_longlong = new_longs(begins)
    lasts: cython.p_longlong = new_longs(ends)
    all_numbers: list[Numbers] = []
    for i in range(count):
        if not valid[i]:
            all_numbers.append([])
            firsts[i] = lasts[i] = limits[i]
            continue
        at = limits[i]
        if data[at] != _VERSION:
            raise ValueError("a group's state is of an unknown version")
        numbers, at = decode_numbers(data, at + 1)
        firsts[i] = at
        lasts[i] = at + numbers.pop()
        all_numbers.append(numbers)
    keys = packed.spans(values.data, begins, ends)
    results = packed.spans(values.data, ends, values.bounds[1:])
    return (
        all_numbers,
        Nullable(keys.data, keys.bounds, values.valid),
        Nullable(results.data, results.bounds, values.valid),
    )


def encoded(heads: Packed, key_rows: Packed, results: Nullable) -> Nullable:
    """Return state values for ``decode_groups``; a group without a result row has None."""
    found = packed.appended(packed.appended(heads, key_rows), results.packed)
    return Nullable(found.data, found.bounds, results.valid)


def encode_heads(numbers: Sequence[Numbers], key_rows: Packed) -> Packed:
    """Encode state values up to their key rows."""
    i: cython.Py_ssize_t
    limits: cython.p_longlong = longs_of(key_rows.bounds)
    bounds = np.zeros(len(key_rows) + 1, np.int64)
    ends: cython.p_longlong = new_longs(bounds)
    out: bytearray = bytearray()
    for i in range(len(key_rows)):
        out.append(_VERSION)
        _append_numbers(out, [*numbers[i], limits[i + 1] - limits[i]])
        ends[i + 1] = len(out)
    return Packed(np.frombuffer(out, np.uint8), bounds)


def turned(olds: Nullable, news: Nullable) -> tuple[Int64s, Int64s, Int64s]:
    """Return the group of each old row that disappears and new one that appears, by group.

    Then follow the numbers of these rows, where new rows follow the old ones, and their weights.
    """
    groups, numbers = np.empty(2 * len(olds), np.int64), np.empty(2 * len(olds), np.int64)
    weights = np.empty(2 * len(olds), np.int64)
    count = _turned(
        bytes_of(olds.data),
        longs_of(olds.bounds),
        bytes_of(olds.valid),
        len(olds),
        bytes_of(news.data),
        longs_of(news.bounds),
        bytes_of(news.valid),
        new_longs(groups),
        new_longs(numbers),
        new_longs(weights),
    )
    return groups[:count], numbers[:count], weights[:count]


@cython.cfunc
@cython.exceptval(check=False)
def _turned(
    olds: cython.p_uchar,
    old_bounds: cython.p_longlong,
    old_valid: cython.p_uchar,
    total: cython.Py_ssize_t,
    news: cython.p_uchar,
    new_bounds: cython.p_longlong,
    new_valid: cython.p_uchar,
    groups: cython.p_longlong,
    numbers: cython.p_longlong,
    weights: cython.p_longlong,
) -> cython.Py_ssize_t:
    i: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    for i in range(total):
        if old_valid[i] and new_valid[i] and same_at(olds, old_bounds, i, news, new_bounds, i):
            continue
        if old_valid[i]:
            groups[count] = i
            numbers[count] = i
            weights[count] = -1
            count += 1
        if new_valid[i]:
            groups[count] = i
            numbers[count] = total + i
            weights[count] = 1
            count += 1
    return count


# --- advance groups
#
# Each function merges a txid's changes per group into the numbers of one aggregate.  The old
# numbers of group i begin at ``at[i]`` in ``olds[i]``, which is empty for a new group.  The merged
# numbers, listed at the beginning of each docstring, are appended to ``news[i]``.


class NegativeError(ArithmeticError):
    """A value was subtracted that had not been added."""


def advance_counts(
    olds: list[Numbers], at: list[int], counts: list[int], news: list[Numbers]
) -> list[int]:
    """Merge ``[count]``; return the counts."""
    i: cython.Py_ssize_t
    out = []
    for i in range(len(counts)):
        count = counts[i]
        old: list[int] = olds[i]
        if old:
            count = count + old[at[i]]
            at[i] += 1
        if count < 0:
            raise NegativeError
        news[i].append(count)
        out.append(count)
    return out


def advance_ints(
    olds: list[Numbers],
    at: list[int],
    counts: list[int],
    sums: list[int],
    news: list[Numbers],
    kind: int,
) -> list[int | str | None]:
    """Merge ``[count, sum]``; return sums as int8 (``kind`` 0) or numeric (1), or averages (2).

    OverflowError if an int8 does not hold the sum.
    """
    i: cython.Py_ssize_t
    out: list[int | str | None] = []
    for i in range(len(counts)):
        count = counts[i]
        total = sums[i]
        old: list[int] = olds[i]
        if old:
            p: cython.Py_ssize_t = at[i]
            count = count + old[p]
            total = total + old[p + 1]
            at[i] = p + 2
        if count < 0 or (count == 0 and total != 0):
            raise NegativeError
        news[i] += (count, total)
        if count == 0:
            out.append(None)
        elif kind == 2:
            out.append(_average(total, 0, count))
        elif kind == 1:
            out.append(str(total))
        elif _INT8_MIN <= total <= _INT8_MAX:
            out.append(total)
        else:
            raise OverflowError("bigint out of range")
    return out


def _average(total: int, scale: int, count: int) -> str:
    quotient = decimals.divided((decimals.SMALL, total, scale), (decimals.SMALL, count, 0))
    return decimals.write(quotient)


def of_one_scale(scale: int, columns: list[list[int]]) -> list[Numbers]:
    """Return the changes for ``merged_scales`` if all values of a txid have one scale."""
    out: list[Numbers] = []
    for numbers in zip(*columns, strict=True):
        if any(numbers):
            out.append([0, 0, 0, 0, scale, *numbers])
        else:
            out.append([0, 0, 0, 0])
    return out


def advance_numerics(
    olds: list[Numbers], at: list[int], gathered: list[Numbers], news: list[Numbers], average: bool
) -> list[str | None]:
    """Merge the numbers of ``merged_scales``, sums only; return sums or averages.

    OverflowError if Postgres cannot represent the result.
    """
    i: cython.Py_ssize_t
    out: list[str | None] = []
    for i in range(len(gathered)):
        new: list[int] = gathered[i]
        old: list[int] = olds[i]
        if _is_plain(new, 0, len(new)) and (
            not old
            or (_is_plain(old, at[i], at[i] + 4 + 3 * old[at[i]]) and old[at[i] + 4] == new[4])
        ):
            out.append(_advance_plain(old, at, i, new, news[i], average))
            continue
        specials, scale, totals = merged_scales(olds, at, i, new, news[i], 3)
        if any(specials):
            nans, plus, minus = specials
            infinity = "Infinity" if plus else "-Infinity"
            out.append("NaN" if nans or (plus and minus) else infinity)
        elif not totals[0]:
            out.append(None)
        elif average:
            out.append(_average(totals[1], scale, totals[0]))
        else:
            out.append(decimals.write((decimals.SMALL, totals[1], scale)))
    return out


def merged_scales(
    olds: list[Numbers], at: list[int], i: int, new: Numbers, merged: Numbers, width: int
) -> tuple[list[int], int, list[int]]:
    """Merge ``[entries, NaN, +Inf, -Inf, then the numbers of each entry]`` of group ``i``.

    There is one entry for each display scale, of ``width`` numbers: the scale, the count of its
    values, the sum of their mantissas, and of the mantissas' squares, if kept.  Returns the counts
    of special values, the greatest scale present, and the other numbers for all values at that
    scale, which is that of a sum.
    """
    k: cython.Py_ssize_t
    specials, entries = new[1:4], {}
    for k in range(4, len(new), width):
        entries[new[k]] = new[k + 1 : k + width]
    old = olds[i]
    if old:
        p: cython.Py_ssize_t = at[i]
        end: cython.Py_ssize_t = p + 4 + width * old[p]
        at[i] = end
        specials = [
            count + change for count, change in zip(old[p + 1 : p + 4], specials, strict=True)
        ]
        for k in range(p + 4, end, width):
            held = old[k + 1 : k + width]
            change = entries.get(old[k])
            if change is not None:
                held = [number + more for number, more in zip(held, change, strict=True)]
            entries[old[k]] = held
    start = len(merged)
    merged += (0, *specials)
    scale, totals = 0, [0] * (width - 1)
    for own_scale in sorted(entries):
        own = entries[own_scale]
        if own[0] < 0 or (own[0] == 0 and any(own)):
            raise NegativeError
        if own[0] == 0:
            continue
        merged += (own_scale, *own)
        merged[start] += 1
        unit = 10 ** (own_scale - scale)
        totals = [
            total * unit**power + more
            for power, (total, more) in enumerate(zip(totals, own, strict=True))
        ]
        scale = own_scale
    if min(specials) < 0:
        raise NegativeError
    return specials, scale, totals


@cython.cfunc
@cython.exceptval(-1, check=False)
def _is_plain(numbers: list[int], begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Return whether the numbers are of one scale, and none is a NaN or infinite."""
    if end - begin != 7:
        return False
    return not numbers[begin + 1] and not numbers[begin + 2] and not numbers[begin + 3]


@cython.cfunc
def _advance_plain(
    old: list[int],
    at: list[int],
    i: cython.Py_ssize_t,
    new: list[int],
    merged: list[int],
    average: cython.bint,
) -> str | None:
    """Merge numbers of the same only scale; as ``merged_scales`` does."""
    scale, count, total = new[4], new[5], new[6]
    if old:
        p: cython.Py_ssize_t = at[i]
        at[i] = p + 7
        count = count + old[p + 5]
        total = total + old[p + 6]
    if count < 0 or (count == 0 and total != 0):
        raise NegativeError
    if count == 0:
        merged += (0, 0, 0, 0)
        return None
    merged += (1, 0, 0, 0, scale, count, total)
    if average:
        return _average(total, scale, count)
    return decimals.write((decimals.SMALL, total, scale))


def advance_floats(
    olds: list[Numbers],
    at: list[int],
    counts: list[list[int]],
    sums: list[int],
    news: list[Numbers],
    average: bool,
) -> list[float | None]:
    """Merge ``[count, -0.0, NaN, +Inf, -Inf, shift, sum >> shift]``; return sums or averages.

    ``counts`` are the first five, one list each.  OverflowError if a double cannot hold the sum.
    """
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    out: list[float | None] = []
    for i in range(len(sums)):
        old: list[int] = olds[i]
        own = [column[i] for column in counts]
        total = sums[i]
        if old:
            p: cython.Py_ssize_t = at[i]
            at[i] = p + 7
            for k in range(5):
                own[k] += old[p + k]
            total += old[p + 6] << old[p + 5]
        if min(own) < 0 or (own[0] == 0 and total != 0):
            raise NegativeError
        news[i] += own
        shift = (total & -total).bit_length() - 1 if total else 0
        news[i] += (shift, total >> shift)
        out.append(_float(own, total, average=average))
    return out


def _float(counts: list[int], total: int, *, average: bool) -> float | None:
    count, zeros, nans, plus, minus = counts
    if count == 0:
        return None
    if nans or (plus and minus):
        return _NAN
    if plus or minus:
        return _INFINITY if plus else -_INFINITY
    try:
        value = total / (1 << FLOAT_UNIT_BITS)
    except OverflowError:
        raise OverflowError("value out of range: overflow") from None
    if average:
        return value / count
    return -0.0 if zeros == count else value


# --- rows of an ordered multiset


def join_ordered(orders: Packed, values: Packed) -> Packed:
    """Return rows that sort by ``orders`` (prefix-free) and contain their values."""
    sizes = packed.fixed(np.diff(orders.bounds).astype("<u4"))
    return packed.appended(packed.appended(orders, values), sizes)


def ordered_values(rows: Nullable, none: bytes) -> Packed:
    """Return the values of rows of ``join_ordered``; ``none`` for None."""
    size = len(rows.data)
    data = np.concatenate((rows.data, np.frombuffer(none, np.uint8)))
    starts = np.full(len(rows), size, np.int64)
    ends = np.full(len(rows), size + len(none), np.int64)
    there = np.flatnonzero(rows.valid)
    last = rows.bounds[there + 1] - 4
    sizes = np.zeros(len(there), np.int64)
    for place in range(4):
        sizes += rows.data[last + place].astype(np.int64) << (8 * place)
    starts[there] = rows.bounds[there] + sizes
    ends[there] = last
    return packed.spans(data, starts, ends)
