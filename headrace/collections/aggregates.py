"""The aggregates of a reduce: what each keeps per group, gathers per txid, and answers.

An ``Accumulator`` keeps a few integers per group (in the group's state value); a ``Kept``
aggregate keeps its values in a state of the reduce.  ``Unique`` puts DISTINCT before an accumulator.
Weights may be negative within a txid; at its end no multiplicity may be (BugError).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections.plan import Aggregate
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import aggregate, buffers, distinct, numeric, rows
from headrace.kernels.aggregate import Numbers
from headrace.state.contract import IndexState, StateStore
from headrace.types import (
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    Field,
    Schema,
    arrow_type,
)

Int64s = npt.NDArray[np.int64]


class Accumulator(ABC):
    """Integers per group, kept in the group's state value."""

    def __init__(self, result: Field) -> None:
        self.result: Final = result

    @abstractmethod
    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
        """Take up non-NULL values of this txid."""

    @abstractmethod
    def gather(self, slot_count: int) -> None:
        """The txid is over: make ready what it brought, per slot."""

    @abstractmethod
    def advance(
        self,
        olds: list[Numbers],
        at: list[int],
        slots: slice,
        news: list[Numbers],
    ) -> list[Any]:
        """Values of the groups ``slots`` after the txid, for ``pa.array``.

        The group's numbers go from ``olds``, where they begin at ``at``, to ``news`` (see
        ``kernels.aggregate``).

        Raises:
            NegativeError: a value was taken away that was not there.
            OverflowError: the value is out of its type's range.
        """


class Count(Accumulator):
    """``count``."""

    def __init__(self, result: Field) -> None:
        super().__init__(result)
        self._sums = aggregate.IntSums()
        self._gathered: list[int] = []

    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
        """See ``Accumulator``."""
        self._sums.add(slots, np.ones(len(slots), np.int64), weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered, self._sums = self._sums.take(slot_count), aggregate.IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        out: list[Any] = aggregate.advance_counts(olds, at, self._gathered[slots], news)
        return out


class Truth(Accumulator):
    """``bool_and`` and ``bool_or``: how many are true of how many."""

    def __init__(self, result: Field, *, every: bool) -> None:
        super().__init__(result)
        self._every = every
        self._counts, self._trues = aggregate.IntSums(), aggregate.IntSums()
        self._gathered: tuple[list[int], list[int]] = ([], [])

    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        self._counts.add(slots, np.ones_like(values), weights, slot_count)
        self._trues.add(slots, values, weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered = (self._counts.take(slot_count), self._trues.take(slot_count))
        self._counts, self._trues = aggregate.IntSums(), aggregate.IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, trues = (
            aggregate.advance_counts(olds, at, found[slots], news)
            for found in self._gathered
        )
        if any(true > count for count, true in zip(counts, trues, strict=True)):
            raise aggregate.NegativeError
        return [
            None if count == 0 else (true == count if self._every else true > 0)
            for count, true in zip(counts, trues, strict=True)
        ]


class IntSum(Accumulator):
    """``sum`` and ``avg`` of integers."""

    def __init__(self, result: Field, *, average: bool) -> None:
        super().__init__(result)
        self._kind = 2 if average else int(result.oid == NUMERIC)
        self._counts, self._sums = aggregate.IntSums(), aggregate.IntSums()
        self._gathered: tuple[list[int], list[int]] = ([], [])

    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
        """See ``Accumulator``."""
        values = buffers.values(column).astype(np.int64)
        self._counts.add(slots, np.ones_like(values), weights, slot_count)
        self._sums.add(slots, values, weights, slot_count)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        self._gathered = (self._counts.take(slot_count), self._sums.take(slot_count))
        self._counts, self._sums = aggregate.IntSums(), aggregate.IntSums()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, sums = self._gathered
        out: list[Any] = aggregate.advance_ints(
            olds, at, counts[slots], sums[slots], news, self._kind
        )
        return out


class NumericSum(Accumulator):
    """``sum`` and ``avg`` of numerics, one sum per display scale."""

    def __init__(self, result: Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average
        self._gathered: list[Numbers] = []
        self._reset()

    def _reset(self) -> None:
        self._scales: dict[int, tuple[aggregate.IntSums, aggregate.IntSums]] = {}
        self._special = [aggregate.IntSums() for _ in range(3)]
        self._seldom: dict[tuple[int, int], tuple[int, int]] = {}

    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
        """See ``Accumulator``."""
        parsed = numeric.parse(column)
        kinds = parsed.kinds
        small = kinds == numeric.SMALL
        for scale in np.unique(parsed.scales[small]).tolist():
            chosen = small & (parsed.scales == scale)
            counts, sums = self._scales.setdefault(
                scale, (aggregate.IntSums(), aggregate.IntSums())
            )
            values, where = parsed.mantissas[chosen], slots[chosen]
            counts.add(where, np.ones_like(values), weights[chosen], slot_count)
            sums.add(where, values, weights[chosen], slot_count)
        if small.all():
            return
        specials = (numeric.NAN, numeric.PLUS_INF, numeric.MINUS_INF)
        for counts, kind in zip(self._special, specials, strict=True):
            _count(counts, kinds == kind, slots, weights, slot_count)
        for i in np.flatnonzero(kinds == numeric.BIG).tolist():
            _, mantissa, scale = numeric.read(column[i].as_py())
            key, weight = (int(slots[i]), scale), int(weights[i])
            count, total = self._seldom.get(key, (0, 0))
            self._seldom[key] = (count + weight, total + weight * mantissa)

    def gather(self, slot_count: int) -> None:
        """See ``Accumulator``."""
        seldom = self._seldom
        special = [one.take(slot_count) for one in self._special]
        out = [[0, *counts] for counts in zip(*special, strict=True)]
        for scale in sorted(self._scales):
            counts, sums = self._scales[scale]
            found = zip(counts.take(slot_count), sums.take(slot_count), strict=True)
            for slot, (count, total) in enumerate(found):
                if count or total:
                    # One entry per scale: values too big for the fast path join it.
                    more = seldom.pop((slot, scale), (0, 0))
                    out[slot].extend((scale, count + more[0], total + more[1]))
        for (slot, scale), (count, total) in sorted(seldom.items()):
            out[slot].extend((scale, count, total))
        self._gathered = out
        self._reset()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        out: list[Any] = aggregate.advance_numerics(
            olds, at, self._gathered[slots], news, self._average
        )
        return out


class FloatSum(Accumulator):
    """``sum`` and ``avg`` of floats: exact, rounded once when shown."""

    def __init__(self, result: Field, *, average: bool) -> None:
        super().__init__(result)
        self._average = average
        self._gathered: tuple[list[list[int]], list[int]] = ([], [])
        self._reset()

    def _reset(self) -> None:
        self._counts = [aggregate.IntSums() for _ in range(5)]
        self._sums = aggregate.FloatSums()

    def add(
        self, slots: Int64s, column: pa.Array, weights: Int64s, slot_count: int
    ) -> None:
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
        self._gathered = (counts, self._sums.take(slot_count))
        self._reset()

    def advance(
        self, olds: list[Numbers], at: list[int], slots: slice, news: list[Numbers]
    ) -> list[Any]:
        """See ``Accumulator``."""
        counts, sums = self._gathered
        parts = [one[slots] for one in counts]
        found = aggregate.advance_floats(
            olds, at, parts, sums[slots], news, self._average
        )
        return _narrowed(found) if self.result.oid == FLOAT4 else found


def _count(
    sums: aggregate.IntSums,
    mask: npt.NDArray[np.bool_],
    slots: Int64s,
    weights: Int64s,
    slot_count: int,
) -> None:
    """Count the rows of ``mask``."""
    if mask.all():
        sums.add(slots, np.ones(len(slots), np.int64), weights, slot_count)
    elif mask.any():
        ones = np.ones(int(mask.sum()), np.int64)
        sums.add(slots[mask], ones, weights[mask], slot_count)


def _narrowed(values: list[float | None]) -> list[float | None]:
    """As float4; OverflowError if a finite one does not fit."""
    out: list[float | None] = []
    with np.errstate(over="ignore"):
        for value in values:
            small = None if value is None else float(np.float32(value))
            if small is not None and math.isinf(small) and value != small:
                raise OverflowError("value out of range: overflow")
            out.append(small)
    return out


# --- aggregates that keep values


class Multiset:
    """One aggregate's part of an index state; it notices multiplicities below zero.

    All aggregates of a reduce share one state, their keys begin with the number of theirs: a
    state costs files and memory even when it is empty.
    """

    def __init__(self, name: str, number: int, store: StateStore) -> None:
        self._name = name
        self._prefix = number.to_bytes(2, "big")
        self._state: IndexState = store.index(name)
        self._retracted: dict[tuple[bytes, bytes], None] = {}

    def add(
        self, keys: Sequence[bytes], values: Sequence[bytes], weights: Int64s
    ) -> None:
        """Add to the multiplicities."""
        own = self._own(keys)
        self._state.add_many(own, values, weights.tolist())
        for i in np.flatnonzero(weights < 0).tolist():
            self._retracted[own[i], values[i]] = None

    def scan(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes], list[int]]:
        """See ``IndexState.scan_many``."""
        return self._state.scan_many(self._own(keys))

    def extremes(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        """See ``IndexState.extreme_many``."""
        return self._state.extreme_many(self._own(keys), last=last)

    def _own(self, keys: Sequence[bytes]) -> list[bytes]:
        prefix = self._prefix
        return [prefix + key for key in keys]

    def check(self) -> None:
        """BugError if a value has been taken away that was not there."""
        if not self._retracted:
            return
        keys, values = zip(*self._retracted, strict=True)
        self._retracted = {}
        if min(self._state.weight_many(keys, values)) < 0:
            raise BugError(f'a value in state "{self._name}" has a negative weight')


class Kept(ABC):
    """An aggregate that keeps its group's values."""

    def __init__(
        self, name: str, number: int, arguments: Schema, result: Field
    ) -> None:
        self.result: Final = result
        self._name = name
        self._number = number
        self._arguments = arguments
        self._types = [arrow_type(f.oid) for f in arguments]
        self._values: Multiset

    def open(self, store: StateStore) -> None:
        """Take its state."""
        self._values = Multiset(self._name, self._number, store)

    @abstractmethod
    def add(
        self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s
    ) -> None:
        """Take up values of the groups ``keys``, a column per argument."""

    def check(self) -> None:
        """BugError if a value has been taken away that was not there."""
        self._values.check()

    @abstractmethod
    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """The aggregate of each group now."""


class Extreme(Kept):
    """``min``, ``max`` and ``any``: the values in order, in the form in which they came."""

    def __init__(
        self,
        name: str,
        number: int,
        function: str,
        argument: Field,
        result: Field,
    ) -> None:
        super().__init__(name, number, (argument,), result)
        self._function = function

    def add(
        self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s
    ) -> None:
        """See ``Kept``."""
        values = rows.encode_rows(columns)
        orders: list[bytes]
        if self._function == "any":
            orders = [len(value).to_bytes(4, "big") for value in values]
        else:
            found = rows.encode_keys(columns, [self._arguments[0].oid], nulls=True)
            orders = [key for key in found if key is not None]
        self._values.add(keys, aggregate.join_ordered(orders, values), weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """See ``Kept``."""
        last = self._function == "max"
        found = self._values.extremes(keys, last=last)
        values = [_NULL_ROW if r is None else aggregate.ordered_value(r) for r in found]
        return rows.decode_rows(values, self._types)[0]


_NULL_ROW: Final = b"\x01"
"""What ``kernels.rows.encode_rows`` makes of one NULL."""


class Single(Kept):
    """``single``: the value of the only row of the group; NULLs are rows too."""

    def add(
        self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s
    ) -> None:
        """See ``Kept``."""
        self._values.add(keys, rows.encode_rows(columns), weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """See ``Kept``; RowError if a group has more than one row."""
        at, found, weights = self._values.scan(keys)
        if len(set(at)) < len(at) or any(weight > 1 for weight in weights):
            raise RowError(
                "more than one row returned by a subquery used as an expression",
                sqlstate="21000",
            )
        values = [_NULL_ROW] * len(keys)
        for place, row in zip(at, found, strict=True):
            values[place] = row
        return rows.decode_rows(values, self._types)[0]


class Asked(Kept):
    """``remote``: the multiset, evaluated by Postgres for the groups that were touched."""

    def __init__(
        self,
        name: str,
        number: int,
        spec: Aggregate,
        arguments: Schema,
        remote: RemoteEvaluator | None,
    ) -> None:
        super().__init__(name, number, arguments, spec.result)
        if remote is None:
            raise BugError("a remote aggregate needs an evaluator")
        self._spec = spec
        self._remote = remote

    def add(
        self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s
    ) -> None:
        """See ``Kept``."""
        encoded = rows.encode_rows(columns) if columns else [b""] * len(keys)
        self._values.add(keys, encoded, weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """See ``Kept``."""
        at, found, weights = self._values.scan(keys)
        columns = rows.decode_rows(found, self._types) if self._types else []
        order = self._canonical(at, found, columns)
        taken = pa.array(order)
        spec = self._spec
        return self._remote.aggregate(
            spec.sql,
            self._arguments,
            np.array(at, np.int64)[order],
            [column.take(taken) for column in columns],
            np.array(weights, np.int64)[order],
            len(keys),
            self.result,
            spec.trusted,
            direct=spec.direct,
        )

    def _canonical(
        self, at: list[int], found: list[bytes], columns: list[pa.Array]
    ) -> Int64s:
        """The order in which a group's rows are handed over: by canonical key, then bytes.

        Where the query gives no order, array_agg and kin show this one.
        """
        order = list(range(len(at)))
        if columns and len(at) > 1:
            oids = [f.oid for f in self._arguments]
            keys = rows.encode_keys(columns, oids, nulls=True)
            order.sort(key=lambda i: (at[i], keys[i], found[i]))
        return np.array(order, np.int64)


class Unique:
    """DISTINCT: passes on to an accumulator each value when it appears and disappears.

    State: group key and canonical value key -> form of the value -> weight.  Of several forms of
    one value (1.0, 1.00) the least counts, by length, then bytes.
    """

    def __init__(
        self, name: str, number: int, argument: Field, inner: Accumulator
    ) -> None:
        self.inner: Final = inner
        self._name = name
        self._number = number
        self._argument = argument
        self._before: dict[bytes, tuple[int, bytes | None]] = {}
        self._values: Multiset

    def open(self, store: StateStore) -> None:
        """Take its state."""
        self._values = Multiset(self._name, self._number, store)

    def add(
        self, keys: Sequence[bytes], slots: Int64s, column: pa.Array, weights: Int64s
    ) -> None:
        """Take up non-NULL values of the groups ``keys``, which have these slots."""
        found = rows.encode_keys([column], [self._argument.oid], nulls=True)
        whole = [a + b for a, b in zip(keys, found, strict=True) if b is not None]
        slot_of = dict(zip(whole, slots.tolist(), strict=True))
        new = [key for key in slot_of if key not in self._before]
        if new:
            for key, form in zip(new, self._forms(new), strict=True):
                self._before[key] = (slot_of[key], form)
        self._values.add(whole, rows.encode_rows([column]), weights)

    def settle(self, slot_count: int) -> None:
        """At the end of a txid: pass on what has become different."""
        if not self._before:
            return
        self._values.check()
        slots: list[int] = []
        forms: list[bytes] = []
        weights: list[int] = []
        after = self._forms(list(self._before))
        for (slot, old), new in zip(self._before.values(), after, strict=True):
            if old == new:
                continue
            for form, weight in ((old, -1), (new, 1)):
                if form is not None:
                    slots.append(slot)
                    forms.append(form)
                    weights.append(weight)
        self._before = {}
        if slots:
            column = rows.decode_rows(forms, [arrow_type(self._argument.oid)])[0]
            self.inner.add(
                np.array(slots, np.int64),
                column,
                np.array(weights, np.int64),
                slot_count,
            )

    def _forms(self, keys: list[bytes]) -> list[bytes | None]:
        at, found, weights = self._values.scan(keys)
        return distinct.shown(at, found, weights, len(keys))[0]


Part = Accumulator | Kept | Unique


def make(
    spec: Aggregate,
    name: str,
    number: int,
    arguments: Schema,
    remote: RemoteEvaluator | None,
) -> Part:
    """The part that computes ``spec``, which is aggregate ``number`` of its reduce.

    ``name`` is that of the state that all parts share which need one.
    """
    function = spec.function
    if function == "count_star":
        return Count(spec.result)
    if function == "remote":
        return Asked(name, number, spec, arguments, remote)
    [argument] = arguments
    if function == "single":
        return Single(name, number, arguments, spec.result)
    if function in ("min", "max", "any"):
        return Extreme(name, number, function, argument, spec.result)
    inner = _accumulator(function, argument, spec.result)
    return Unique(name, number, argument, inner) if spec.distinct else inner


def _accumulator(function: str, argument: Field, result: Field) -> Accumulator:
    if function == "count":
        return Count(result)
    if function in ("bool_and", "bool_or"):
        return Truth(result, every=function == "bool_and")
    if function in ("sum", "avg"):
        average = function == "avg"
        if argument.oid in (INT2, INT4, INT8):
            return IntSum(result, average=average)
        if argument.oid == NUMERIC:
            return NumericSum(result, average=average)
        if argument.oid in (FLOAT4, FLOAT8):
            return FloatSum(result, average=average)
    raise BugError(f'no aggregate "{function}" over type OID {argument.oid}')


def chosen(
    spec: Aggregate, columns: Sequence[pa.Array], count: int
) -> npt.NDArray[np.bool_] | None:
    """The rows that take part in ``spec``: FILTER true, argument not NULL; None = all.

    ``remote`` gets NULLs too, for Postgres knows what it does with them; ``single`` counts them.
    """
    mask: npt.NDArray[np.bool_] | None = None
    if spec.filter is not None:
        mask = buffers.values(pc.fill_null(columns[spec.filter], False)).astype(bool)
    if spec.argument is not None and spec.function not in ("remote", "single"):
        column = columns[spec.argument]
        if column.null_count:
            valid = buffers.validity(column).astype(bool)
            mask = valid if mask is None else mask & valid
    return None if mask is None or mask.all() else mask
