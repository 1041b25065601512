"""The aggregates of a reduce: their state per group, their changes per txid, and their results.

An ``Accumulator`` keeps a few integers per group (in the group's state value).  A
``RetainedValues`` aggregate keeps its values in a state of the reduce; an ``Asked`` one reads
``Rows`` there. ``Unique`` applies DISTINCT before an accumulator.  Weights may be negative within a
txid; a negative multiplicity at its end is a bug (BugError).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import types
from headrace.collections.aggregate_traits import AggregateFunction
from headrace.collections.by_key import Found, Touched, difference, least
from headrace.collections.plan import AggregateSpec
from headrace.collections.retained_values import (
    Asked,
    Extreme,
    First,
    Multiset,
    RetainedValues,
    Rows,
    Single,
)
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import aggregate, buffers, decimals, numeric, packed, rows, variance
from headrace.kernels.aggregate import Numbers
from headrace.kernels.packed import Packed
from headrace.kernels.sums import FloatSums, IntSums, SquareSums
from headrace.state.contract import StateStore

Int64s = npt.NDArray[np.int64]


class Accumulator(ABC):
    """Integers per group, kept in the group's state value."""

    def __init__(self, result: types.Field) -> None:
        self.result: Final = result

    @abstractmethod
    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """Add non-NULL values of this txid."""

    @abstractmethod
    def gather(self, slot_count: int) -> None:
        """Sum the changes of the finished txid per slot."""

    @abstractmethod
    def gathered(self) -> Numbers:
        """Return the gathered numbers of the only slot, for ``join``."""

    @abstractmethod
    def join(self, numbers: Numbers) -> None:
        """Add the ``gathered`` numbers of another accumulator to the only slot."""

    @abstractmethod
    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """Return the values of the groups ``slots`` after the txid, for ``pa.array``.

        Read each group's numbers from ``olds``, beginning at ``at``, and add the new ones to
        ``news`` (see ``kernels.aggregate``).

        Raises:
            NegativeError: an absent value was retracted.
            OverflowError: the value is out of its type's range.
        """


class _Added(Accumulator):
    """An accumulator that adds up a few integers per slot."""

    def __init__(self, result: types.Field) -> None:
        super().__init__(result)
        self._gathered: list[list[int]] = []
        """Per integer, a list over the slots."""

    def gathered(self) -> Numbers:
        """See ``Accumulator``."""
        return [column[0] for column in self._gathered]

    def join(self, numbers: Numbers) -> None:
        """See ``Accumulator``."""
        for column, number in zip(self._gathered, numbers, strict=True):
            column[0] += number


class Count(_Added):
    """Aggregate ``count``."""

    def __init__(self, result: types.Field) -> None:
        super().__init__(result)
        self._sums = IntSums()

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._sums.add(slots, np.ones(len(slots), np.int64), weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered, self._sums = [self._sums.take(slot_count)], IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        [counts] = self._gathered
        out: list[Any] = aggregate.advance_counts(olds, at, counts[slots], news)
        return out


class Truth(_Added):
    """``bool_and`` and ``bool_or``: the number of values and of true values."""

    def __init__(self, result: types.Field, *, every: bool) -> None:
        super().__init__(result)
        self._every = every
        self._counts, self._trues = IntSums(), IntSums()

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        self._counts.add(slots, np.ones_like(values), weights, slot_count)
        self._trues.add(slots, values, weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered = [self._counts.take(slot_count), self._trues.take(slot_count)]
        self._counts, self._trues = IntSums(), IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, trues = (
            aggregate.advance_counts(olds, at, found[slots], news) for found in self._gathered
        )
        if any(true > count for count, true in zip(counts, trues, strict=True)):
            raise aggregate.NegativeError
        return [
            None if count == 0 else (true == count if self._every else true > 0)
            for count, true in zip(counts, trues, strict=True)
        ]


class IntSum(_Added):
    """``sum`` and ``avg`` of integers."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._kind = 2 if average else int(result.oid == types.NUMERIC)
        self._counts, self._sums = IntSums(), IntSums()

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        self._counts.add(slots, np.ones_like(values), weights, slot_count)
        self._sums.add(slots, values, weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered = [self._counts.take(slot_count), self._sums.take(slot_count)]
        self._counts, self._sums = IntSums(), IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, sums = self._gathered
        out: list[Any] = aggregate.advance_ints(
            olds, at, counts[slots], sums[slots], news, self._kind
        )
        return out


class _Scaled(Accumulator):
    """An accumulator of exact numbers: a few sums per display scale (``merged_scales``)."""

    _kinds: tuple[type[IntSums], ...] = (IntSums, IntSums)
    """Of the counts, and of the powers of the values."""

    def __init__(self, result: types.Field) -> None:
        super().__init__(result)
        self._gathered: list[Numbers] = []
        self._reset()

    def _reset(self) -> None:
        self._scales: dict[int, list[IntSums]] = {}
        self._special = [IntSums() for _ in range(3)]

    def add(self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int) -> None:
        """See ``Accumulator``."""
        if not pa.types.is_string(column.type):
            self._add_alike(0, slots, buffers.values(column).astype(np.int64), weights, slot_count)
            return
        parsed = numeric.parse(column)
        kinds, scales = parsed.kinds, parsed.scales
        small = kinds == decimals.SMALL
        if small.all() and (scales == scales[:1]).all():
            for scale in scales[:1].tolist():
                self._add_alike(scale, slots, parsed.mantissas, weights, slot_count)
            return
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

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        scales = {
            scale: [one.take(slot_count) for one in found] for scale, found in self._scales.items()
        }
        if len(scales) == 1 and not any(one.used for one in self._special):
            [(scale, columns)] = scales.items()
            self._gathered = aggregate.of_one_scale(scale, columns)
        else:
            special = [one.take(slot_count) for one in self._special]
            self._gathered = [[0, *counts] for counts in zip(*special, strict=True)]
            for scale in sorted(scales):
                for own, numbers in zip(
                    self._gathered, zip(*scales[scale], strict=True), strict=True
                ):
                    if any(numbers):
                        own.extend((scale, *numbers))
        self._reset()

    def gathered(self) -> Numbers:
        """See ``Accumulator``."""
        return self._gathered[0]

    def join(self, numbers: Numbers) -> None:
        """See ``Accumulator``."""
        merged: Numbers = []
        width = 1 + len(self._kinds)
        aggregate.merged_scales([self._gathered[0]], [0], 0, numbers, merged, width)
        self._gathered[0] = merged


class NumericSum(_Scaled):
    """``sum`` and ``avg`` of numerics."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        out: list[Any] = aggregate.advance_numerics(
            olds, at, self._gathered[slots], news, self._average
        )
        return out


class Variance(_Scaled):
    """Variances and standard deviations of integers and numerics."""

    _kinds = (IntSums, IntSums, SquareSums)

    def __init__(self, result: types.Field, *, sample: bool, root: bool) -> None:
        super().__init__(result)
        self._sample = sample
        self._root = root

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        out: list[Any] = variance.advance_variances(
            olds, at, self._gathered[slots], news, self._sample, self._root
        )
        return out


class FloatSum(_Added):
    """``sum`` and ``avg`` of floats: an exact sum, rounded once in the result."""

    def __init__(self, result: types.Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average
        self._reset()

    def _reset(self) -> None:
        self._counts = [IntSums() for _ in range(5)]
        self._sums = FloatSums()

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

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        counts = [one.take(slot_count) for one in self._counts]
        self._gathered = [*counts, self._sums.take(slot_count)]
        self._reset()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        *counts, sums = self._gathered
        parts = [one[slots] for one in counts]
        found = aggregate.advance_floats(olds, at, parts, sums[slots], news, self._average)
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


class Unique:
    """DISTINCT: passes each value to an accumulator when it appears and disappears.

    State: group key and canonical value key -> form of the value -> weight.  If one value has
    several forms (1.0, 1.00), the least by length, then bytes, counts.
    """

    def __init__(self, name: str, number: int, argument: types.Field, inner: Accumulator) -> None:
        self.inner: Final = inner
        self._name = name
        self._number = number
        self._argument = argument
        self._touched = Touched(self._forms)
        self._slots: list[Int64s] = []
        """Slots of the touched keys."""
        self._values: Multiset

    def open(self, store: StateStore) -> None:
        """Open its state in ``store``."""
        self._values = Multiset(self._name, self._number, store)

    def add(self, keys: Packed, slots: Int64s, column: pa.Array, weights: Int64s) -> None:
        """Add non-NULL values of the groups ``keys``, which have these slots."""
        whole = packed.appended(keys, rows.pack_keys([column], [self._argument.oid]))
        self._slots.append(slots[self._touched.touch(whole)])
        self._values.add(whole, rows.pack_rows([column]), weights)

    def end_txid(self, slot_count: int) -> None:
        """Pass the difference over the txid to the accumulator, at the end of the txid."""
        keys, before = self._touched.take()
        if not len(keys):
            return
        self._values.check()
        at, forms, weights = difference(before, self._forms(keys))
        slots, self._slots = np.concatenate(self._slots)[at], []
        if len(at):
            column = rows.decode_rows(forms, [types.arrow_type(self._argument.oid)])[0]
            self.inner.add(slots, column, weights, slot_count)

    def _forms(self, keys: Packed) -> Found:
        return least(self._values.scan(keys), np.ones(len(keys), np.int64))


Own = Accumulator | RetainedValues | Unique
"""A part that receives rows and computes an aggregate of them."""
Fed = Own | Rows
Part = Own | Asked


@dataclass(frozen=True, slots=True)
class PartFeed:
    """Route to ``part``: ``columns`` of the rows that count for at least one of ``specs``."""

    part: Fed
    columns: tuple[int, ...]
    specs: tuple[AggregateSpec, ...]

    def chosen(self, columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows of ``columns`` for the part; None = all."""
        mask = np.zeros(count, np.bool_)
        for spec in self.specs:
            own = _chosen(spec, columns)
            if own is None:
                return None
            mask |= own
        return None if mask.all() else mask


def make(
    specs: Sequence[AggregateSpec], name: str, fields: types.Schema, remote: RemoteEvaluator | None
) -> tuple[list[Part], list[PartFeed]]:
    """Return the part that computes each of ``specs``, the aggregates of one reduce, and the feeds.

    ``name`` is that of the state which parts with kept values share.
    """
    parts: list[Part] = []
    feeds: list[PartFeed] = []
    shared: dict[tuple[int, ...], Rows] = {}
    for number, spec in enumerate(specs):
        own = spec.row or spec.columns
        schema = tuple(fields[i] for i in own)
        if spec.function != "remote":
            part = _part(spec, name, number, schema)
            parts.append(part)
            feeds.append(PartFeed(part, own, (spec,)))
            continue
        kept = shared.get(spec.row)
        if kept is None:
            kept = Rows(name, number, schema)
            readers: tuple[AggregateSpec, ...] = (spec,)
            if spec.row:
                shared[spec.row] = kept
                readers = tuple(s for s in specs if s.function == "remote" and s.row == own)
            feeds.append(PartFeed(kept, own, readers))
        arguments = tuple(fields[i] for i in spec.columns)
        parts.append(Asked(spec, kept, own, arguments, remote))
    return parts, feeds


def _part(spec: AggregateSpec, name: str, number: int, fields: types.Schema) -> Own:
    """Return the part of aggregate ``number`` of its reduce, which receives ``fields``."""
    function = spec.function
    if function == "count_star":
        return Count(spec.result)
    if function == "any" and spec.row and spec.argument is not None:
        place = spec.row.index(spec.argument)
        return First(name, number, fields, place, spec.result)
    [argument] = fields
    if function == "single":
        return Single(name, number, fields, spec.result)
    if function in ("min", "max", "any"):
        return Extreme(name, number, function, argument, spec.result)
    inner = _accumulator(function, argument, spec.result)
    return Unique(name, number, argument, inner) if spec.distinct else inner


def _accumulator(
    function: AggregateFunction, argument: types.Field, result: types.Field
) -> Accumulator:
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


def _chosen(spec: AggregateSpec, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows that count for ``spec``; None = all.

    FILTER must be true and the argument not NULL.  ``remote`` also receives NULLs, because
    Postgres decides what they mean; ``single`` counts them.
    """
    mask: npt.NDArray[np.bool_] | None = None
    if spec.filter is not None:
        mask = buffers.values(pc.fill_null(columns[spec.filter], False)).astype(bool)
    if spec.argument is not None and spec.function not in ("remote", "single"):
        column = columns[spec.argument]
        if column.null_count:
            valid = buffers.validity(column).astype(bool)
            mask = valid if mask is None else mask & valid
    return mask
