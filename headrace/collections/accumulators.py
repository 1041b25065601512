"""Aggregates of a few numbers per group: counts, sums, averages, variances, booleans.

Their numbers are exact, so subtracting a value restores the previous ones.  Weights may be negative
within a txid; a negative multiplicity at its end is a bug (BugError).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace import types
from headrace.collections.aggregate_traits import AggregateFunction
from headrace.errors import BugError
from headrace.kernels import aggregate, buffers, decimals, numeric, quotient, variance
from headrace.kernels.aggregate import Numbers
from headrace.kernels.groups import LEAST_SUM, Groups
from headrace.kernels.sums import FloatSums, IntSums, SquareSums

Int64s = npt.NDArray[np.int64]

_SCALE_MAX: Final = 18
"""Of numerics that are divided as machine integers."""


class Accumulator(ABC):
    """Integers per group, kept in the group's state value."""

    width: int = 0
    """Numbers in a plain group (``kernels.groups``); 0: there are no plain groups."""

    def __init__(self, result: types.Field) -> None:
        self.result: Final = result

    @abstractmethod
    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """Add non-NULL values of this txid."""

    @abstractmethod
    def end(self, slot_count: int) -> None:
        """End the txid's additions: there are ``slot_count`` slots."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the txid."""

    @abstractmethod
    def gathered(self, slots: Int64s) -> list[Numbers]:
        """Return the sums of each of ``slots`` after ``end``, for ``join``."""

    @abstractmethod
    def join(self, slot: int, numbers: Numbers) -> None:
        """Add to a slot what another accumulator has ``gathered``."""

    @abstractmethod
    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """Return the values of the groups ``slots`` after the txid, for ``pa.array``.

        Read each group's numbers from ``olds``, beginning at ``at``, and add the new ones to
        ``news`` (see ``kernels.aggregate``).

        Raises:
            NegativeError: an absent value was retracted.
            OverflowError: the value is out of its type's range.
        """

    def merge(self, groups: Groups, place: int, low: int, high: int) -> None:
        """Merge slots ``low`` … ``high`` - 1 into the plain groups' numbers from ``place`` on.

        Groups that are no longer plain, or for which ``advance`` would raise, are marked so.
        """
        groups.plain[:] = 0

    def column(self, groups: Groups, place: int) -> pa.Array:
        """Return the values of the groups with numbers from ``place`` on; none has large ones."""
        raise BugError("there are no plain groups")


class _Added(Accumulator):
    """An accumulator that adds up a count and a sum per slot."""

    width = 2

    def __init__(self, result: types.Field) -> None:
        super().__init__(result)
        self.clear()

    def clear(self) -> None:
        """See ``Accumulator``."""
        self._sums = [IntSums() for _ in range(self.width)]

    def end(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        for one in self._sums:
            one.end(slot_count)

    def gathered(self, slots: Int64s) -> list[Numbers]:
        """See ``Accumulator``."""
        return _by_slot([one.take(slots) for one in self._sums])

    def join(self, slot: int, numbers: Numbers) -> None:
        """See ``Accumulator``."""
        for one, number in zip(self._sums, numbers, strict=True):
            one.add_one(slot, number)

    def merge(self, groups: Groups, place: int, low: int, high: int) -> None:
        """See ``Accumulator``."""
        counts, *sums = self._sums
        groups.add(place, *counts.fitting(low, high))
        for one in sums:
            groups.add(place + 1, *one.fitting(low, high), LEAST_SUM)
            groups.demand(place, place + 1)


class Count(_Added):
    """Aggregate ``count``."""

    width = 1

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._sums[0].add(slots, np.ones(len(slots), np.int64), weights, slot_count)

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        out: list[Any] = aggregate.advance_counts(olds, at, self._sums[0].take(slots), news)
        return out

    def column(self, groups: Groups, place: int) -> pa.Array:
        """See ``Accumulator``."""
        return pa.array(groups.numbers[place])


class Truth(_Added):
    """``bool_and`` and ``bool_or``: the number of values and of true values."""

    def __init__(self, result: types.Field, *, every: bool) -> None:
        super().__init__(result)
        self._every = every

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        counts, trues = self._sums
        counts.add(slots, np.ones_like(values), weights, slot_count)
        trues.add(slots, values, weights, slot_count)

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, trues = (
            aggregate.advance_counts(olds, at, one.take(slots), news) for one in self._sums
        )
        if any(true > count for count, true in zip(counts, trues, strict=True)):
            raise aggregate.NegativeError
        return [
            None if count == 0 else (true == count if self._every else true > 0)
            for count, true in zip(counts, trues, strict=True)
        ]

    def merge(self, groups: Groups, place: int, low: int, high: int) -> None:
        """See ``Accumulator``."""
        for which, one in enumerate(self._sums):
            groups.add(place + which, *one.fitting(low, high))
        counts, trues = groups.numbers[place : place + 2]
        groups.plain &= (trues <= counts).view(np.uint8)

    def column(self, groups: Groups, place: int) -> pa.Array:
        """See ``Accumulator``."""
        counts, trues = groups.numbers[place : place + 2]
        return pa.array(trues == counts if self._every else trues > 0, mask=counts == 0)


class IntSum(_Added):
    """``sum`` and ``avg`` of integers."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._kind = 2 if average else int(result.oid == types.NUMERIC)

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        counts, sums = self._sums
        counts.add(slots, np.ones_like(values), weights, slot_count)
        sums.add(slots, values, weights, slot_count)

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, sums = (one.take(slots) for one in self._sums)
        out: list[Any] = aggregate.advance_ints(olds, at, counts, sums, news, self._kind)
        return out

    def column(self, groups: Groups, place: int) -> pa.Array:
        """See ``Accumulator``."""
        counts, sums = groups.numbers[place : place + 2]
        if self._kind == 0:
            return pa.array(sums, mask=counts == 0)
        return _numerics(counts, sums, np.zeros(len(sums), np.int32), average=self._kind == 2)


def _numerics(
    counts: Int64s, sums: Int64s, scales: npt.NDArray[np.int32], *, average: bool
) -> pa.Array:
    """Return sums of numerics, or averages; NULL over no value."""
    kinds = np.where(counts == 0, decimals.NULL, decimals.SMALL).astype(np.uint8)
    if not average:
        return numeric.render(kinds, sums, scales)
    found, texts = quotient.divide(
        (kinds, sums, scales), (kinds, counts, np.zeros(len(counts), np.int32))
    )
    if (found == decimals.SLOW).any():
        raise BugError("a quotient of small numbers is always computed")
    return texts


class _Scaled(Accumulator):
    """An accumulator of exact numbers: a few sums per display scale (``merged_scales``)."""

    _kinds: tuple[type[IntSums], ...] = (IntSums, IntSums)
    """Of the counts, and of the powers of the values."""

    width = 7

    def __init__(self, result: types.Field) -> None:
        super().__init__(result)
        self.clear()

    def clear(self) -> None:
        """See ``Accumulator``."""
        self._scales: dict[int, list[IntSums]] = {}
        self._special = [IntSums() for _ in range(3)]

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        if not pa.types.is_string(column.type):
            self._add_alike(0, slots, buffers.values(column).astype(np.int64), weights, slot_count)
            return
        parsed = numeric.parse(column)
        common = numeric.common_scale(parsed)
        if common is not None:
            self._add_alike(common, slots, parsed.mantissas, weights, slot_count)
            return
        kinds, scales = parsed.kinds, parsed.scales
        small = kinds == decimals.SMALL
        for scale in np.unique(scales[small]).tolist():
            chosen = small & (scales == scale)
            own = slots[chosen], parsed.mantissas[chosen], weights[chosen]
            self._add_alike(scale, *own, slot_count)
        specials = (decimals.NAN, decimals.PLUS_INF, decimals.MINUS_INF)
        for counts, kind in zip(self._special, specials, strict=True):
            _count(counts, kinds == kind, slots, weights, slot_count)
        for i in np.flatnonzero(kinds == decimals.BIG).tolist():
            _, mantissa, scale = decimals.read(column[i].as_py())
            for power, one in enumerate(self._of_scale(scale)):
                one.add_one(int(slots[i]), int(weights[i]) * mantissa**power)

    def _of_scale(self, scale: int) -> list[IntSums]:
        if scale not in self._scales:
            self._scales[scale] = [kind() for kind in self._kinds]
        return self._scales[scale]

    def _add_alike(
        self, scale: int, slots: Int64s, mantissas: Int64s, weights: Int64s, slot_count: int
    ) -> None:
        counts, *powers = self._of_scale(scale)
        counts.add(slots, np.ones_like(mantissas), weights, slot_count)
        for one in powers:
            one.add(slots, mantissas, weights, slot_count)

    def end(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        for one in itertools.chain(*self._scales.values()):
            one.end(slot_count)
        if self._are_special():
            for one in self._special:
                one.end(slot_count)

    def _are_special(self) -> bool:
        return any(one.used for one in self._special)

    def _taken(self, slots: Int64s) -> list[Numbers]:
        scales = {
            scale: [one.take(slots) for one in found] for scale, found in self._scales.items()
        }
        if not self._are_special() and len(scales) == 1:
            [(scale, columns)] = scales.items()
            out: list[Numbers] = aggregate.of_one_scale(scale, columns)
            return out
        if self._are_special():
            special = [one.take(slots) for one in self._special]
            out = [[0, *counts] for counts in zip(*special, strict=True)]
        else:
            out = [[0, 0, 0, 0] for _ in slots]
        for scale in sorted(scales):
            for own, numbers in zip(out, zip(*scales[scale], strict=True), strict=True):
                if any(numbers):
                    own.extend((scale, *numbers))
        return out

    def gathered(self, slots: Int64s) -> list[Numbers]:
        """See ``Accumulator``."""
        return self._taken(slots)

    def join(self, slot: int, numbers: Numbers) -> None:
        """See ``Accumulator``."""
        for one, number in zip(self._special, numbers[1:4], strict=True):
            if number:
                one.add_one(slot, number)
        width = 1 + len(self._kinds)
        for i in range(4, len(numbers), width):
            scale, *own = numbers[i : i + width]
            for one, number in zip(self._of_scale(scale), own, strict=True):
                one.add_one(slot, number)

    def merge(self, groups: Groups, place: int, low: int, high: int) -> None:
        """See ``Accumulator``."""
        if len(self._scales) > 1 or self._are_special():
            groups.plain[:] = 0
            return
        # As many numbers in all may also belong to other scales, or to none, of several aggregates.
        of_one_scale = groups.numbers[place] == 1
        special = groups.numbers[place + 1 : place + 4].any(axis=0)
        held = groups.keys.valid != 0
        groups.plain &= (~held | (of_one_scale & ~special)).view(np.uint8)
        for scale, (counts, *powers) in self._scales.items():
            change, fits = counts.fitting(low, high)
            groups.at_scale(place, scale, change)
            groups.add(place + 5, change, fits)
            for power, one in enumerate(powers, 6):
                groups.add(place + power, *one.fitting(low, high), LEAST_SUM)
        groups.plain &= (groups.numbers[place + 4] <= _SCALE_MAX).view(np.uint8)
        none = groups.numbers[place + 5] == 0
        if none.any():
            groups.numbers[place][none] = 0
            groups.numbers[place + 4][none] = 0
            # Without a value, a group has fewer numbers.
            there = groups.numbers[0] | groups.numbers[place + 6 : place + self.width].any(axis=0)
            groups.plain &= (~none | (there == 0)).view(np.uint8)


class NumericSum(_Scaled):
    """``sum`` and ``avg`` of numerics."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        taken = self._taken(slots)
        out: list[Any] = aggregate.advance_numerics(olds, at, taken, news, self._average)
        return out

    def column(self, groups: Groups, place: int) -> pa.Array:
        """See ``Accumulator``."""
        scales, counts, sums = groups.numbers[place + 4 : place + 7]
        return _numerics(counts, sums, scales.astype(np.int32), average=self._average)


class Variance(_Scaled):
    """Variances and standard deviations of integers and numerics."""

    width = 8
    _kinds = (IntSums, IntSums, SquareSums)

    def __init__(self, result: types.Field, *, sample: bool, root: bool) -> None:
        super().__init__(result)
        self._sample = sample
        self._root = root

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        taken = self._taken(slots)
        out: list[Any] = variance.advance_variances(olds, at, taken, news, self._sample, self._root)
        return out

    def column(self, groups: Groups, place: int) -> pa.Array:
        """See ``Accumulator``."""
        scales, *sums = groups.numbers[place + 4 : place + 8].tolist()
        found = variance.variances(scales, sums, self._sample, self._root)
        return pa.array(found, pa.string())


class FloatSum(Accumulator):
    """``sum`` and ``avg`` of floats: an exact sum, rounded once in the result."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average
        self.clear()

    def clear(self) -> None:
        """See ``Accumulator``."""
        self._counts = [IntSums() for _ in range(5)]
        self._sums = FloatSums()
        self._joined: dict[int, int] = {}
        """Sums that were joined, by slot."""

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.float64)
        finite = np.isfinite(values)
        kinds = [np.ones(len(values), np.bool_), (values == 0) & np.signbit(values)]
        if not finite.all():
            kinds += [np.isnan(values), values == np.inf, values == -np.inf]
            slots_finite, weights_finite = slots[finite], weights[finite]
        else:
            slots_finite, weights_finite = slots, weights
        for counts, mask in zip(self._counts, kinds, strict=False):
            _count(counts, mask, slots, weights, slot_count)
        self._sums.add(slots_finite, values[finite], weights_finite, slot_count)

    def end(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        for one in self._counts:
            one.end(slot_count)
        self._sums.end(slot_count)

    def gathered(self, slots: Int64s) -> list[Numbers]:
        """See ``Accumulator``."""
        return _by_slot([*(one.take(slots) for one in self._counts), self._totals(slots)])

    def join(self, slot: int, numbers: Numbers) -> None:
        """See ``Accumulator``."""
        *counts, total = numbers
        for one, number in zip(self._counts, counts, strict=True):
            one.add_one(slot, number)
        self._joined[slot] = self._joined.get(slot, 0) + total

    def _totals(self, slots: Int64s) -> Numbers:
        sums = self._sums.take(slots)
        if not self._joined:
            return sums
        joined = (self._joined.get(slot, 0) for slot in slots.tolist())
        return [one + other for one, other in zip(sums, joined, strict=True)]

    def advance(
        self, olds: list[Numbers], at: list[int], slots: Int64s, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, sums = [one.take(slots) for one in self._counts], self._totals(slots)
        found = aggregate.advance_floats(olds, at, counts, sums, news, self._average)
        return _narrowed(found) if self.result.oid == types.FLOAT4 else found


def _count(
    sums: IntSums,
    mask: npt.NDArray[np.bool_],
    slots: Int64s,
    weights: Int64s,
    slot_count: int,
) -> None:
    if mask.all():
        sums.add(slots, np.ones(len(slots), np.int64), weights, slot_count)
    elif mask.any():
        ones = np.ones(int(mask.sum()), np.int64)
        sums.add(slots[mask], ones, weights[mask], slot_count)


def _by_slot(columns: list[Numbers]) -> list[Numbers]:
    """Turn numbers by kind, each by slot, into numbers by slot."""
    return [list(numbers) for numbers in zip(*columns, strict=True)]


def _narrowed(values: list[float | None]) -> list[float | None]:
    """Round the values to float4; raise OverflowError if a finite one does not fit."""
    out: list[float | None] = []
    with np.errstate(over="ignore"):
        for value in values:
            small = None if value is None else float(np.float32(value))
            if small is not None and math.isinf(small) and value != small:
                raise OverflowError("value out of range: overflow")
            out.append(small)
    return out


def accumulator(
    function: AggregateFunction, argument: types.Field, result: types.Field
) -> Accumulator:
    """Return the accumulator of ``function`` over ``argument``."""
    integer = argument.oid in (types.INT2, types.INT4, types.INT8)
    exact = integer or argument.oid == types.NUMERIC
    if function == "count":
        return Count(result)
    if function in ("bool_and", "bool_or"):
        return Truth(result, every=function == "bool_and")
    if function in ("stddev_samp", "stddev_pop", "var_samp", "var_pop") and exact:
        name, over = function.split("_")
        return Variance(result, sample=over == "samp", root=name == "stddev")
    if function in ("sum", "avg"):
        average = function == "avg"
        if integer:
            return IntSum(result, average=average)
        if exact:
            return NumericSum(result, average=average)
        if argument.oid in (types.FLOAT4, types.FLOAT8):
            return FloatSum(result, average=average)
    raise BugError(f'no aggregate "{function}" over type OID {argument.oid}')
