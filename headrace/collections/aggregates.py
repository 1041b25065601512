"""The aggregates of a reduce: their state per group, their changes per txid, and their results.

An ``Accumulator`` keeps a few integers per group (in the group's state value).  A
``RetainedValues`` aggregate keeps its values in a state of the reduce; an ``Asked`` one reads
``Rows`` there. ``Unique`` applies DISTINCT before an accumulator.  Weights may be negative within a
txid; a negative multiplicity at its end is a bug (BugError).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace import types
from headrace.collections import accumulators
from headrace.collections.accumulators import Accumulator
from headrace.collections.by_key import Found, Touched, difference, least
from headrace.collections.plan import AggregateSpec
from headrace.collections.retained_values import (
    Asked,
    Extreme,
    First,
    Listed,
    Multiset,
    RetainedValues,
    Rows,
    Single,
)
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import buffers, packed, rows
from headrace.kernels.packed import Packed
from headrace.state.contract import StateStore

Int64s = npt.NDArray[np.int64]


_WITH_NULLS: Final = ("remote", "single", "array_agg")


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

    def chosen(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows of ``batch`` for the part; None = all."""
        found: npt.NDArray[np.bool_] | None = None
        for spec in self.specs:
            own = _chosen(spec, batch)
            if own is None:
                return None
            found = own if found is None else found | own
        return None if found is None or found.all() else found


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
        return accumulators.Count(spec.result)
    if function == "any" and spec.row and spec.argument is not None:
        place = spec.row.index(spec.argument)
        return First(name, number, fields, place, spec.result)
    if function in ("string_agg", "array_agg"):
        return Listed(name, number, fields, spec)
    [argument] = fields
    if function == "single":
        return Single(name, number, fields, spec.result)
    if function in ("min", "max", "any"):
        return Extreme(name, number, function, argument, spec.result)
    inner = accumulators.accumulator(function, argument, spec.result)
    return Unique(name, number, argument, inner) if spec.distinct else inner


def _chosen(spec: AggregateSpec, batch: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    """Return a mask of the rows that count for ``spec``; None = all.

    FILTER must be true and the argument not NULL.  ``remote`` also receives NULLs, because
    Postgres decides what they mean; ``single`` counts them; they are elements of an array.
    """
    mask: npt.NDArray[np.bool_] | None = None
    if spec.filter is not None:
        mask = buffers.values(pc.fill_null(batch.column(spec.filter), False)).astype(bool)
    if spec.argument is not None and spec.function not in _WITH_NULLS:
        column = batch.column(spec.argument)
        if column.null_count:
            valid = buffers.validity(column).astype(bool)
            mask = valid if mask is None else mask & valid
    return mask
