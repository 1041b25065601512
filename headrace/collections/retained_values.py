"""Aggregates that keep their groups' values, in a state that all parts of a reduce share.

``min``, ``max``, ``any``: the values in order; one value is read per group.  ``string_agg``,
``array_agg``: all of them.  ``remote``: Postgres
evaluates the rows of the touched groups; several aggregates may share these rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from headrace.collections.base import encode
from headrace.collections.plan import AggregateSpec
from headrace.collections.sorting import Sorter
from headrace.errors import BugError, RowError
from headrace.expressions.remote import AggregateCall, RemoteEvaluator
from headrace.kernels import (
    aggregate,
    buffers,
    copytext,
    order,
    packed,
    packed_order,
    rows,
    strings,
    text,
)
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.state.contract import IndexState, Scanned, StateStore
from headrace.types import Field, Schema, arrow_type


class Multiset:
    """One aggregate's part of an index state; ``check`` detects multiplicities below zero.

    All aggregates of a reduce share one state, because even an empty state costs files and
    memory.  Keys begin with the number of the aggregate.
    """

    def __init__(self, name: str, number: int, store: StateStore) -> None:
        self._name = name
        self._prefix = number.to_bytes(2, "big")
        self._state: IndexState = store.index(name)
        self._retracted: list[tuple[Packed, Packed]] = []

    def add(self, keys: Packed, values: Packed, weights: Int64s) -> None:
        """Add ``weights`` to the multiplicities of ``values``."""
        own = self._own(keys)
        self._state.add_many(own, values, weights)
        gone = np.flatnonzero(weights < 0)
        if len(gone):
            self._retracted.append((own.take(gone), values.take(gone)))

    def scan(self, keys: Packed) -> Scanned:
        """See ``IndexState.scan_many``."""
        return self._state.scan_many(self._own(keys))

    def extremes(self, keys: Packed, *, last: bool) -> Nullable:
        """See ``IndexState.extreme_many``."""
        return self._state.extreme_many(self._own(keys), last=last)

    def _own(self, keys: Packed) -> Packed:
        return packed.appended(packed.repeat(self._prefix, len(keys)), keys)

    def check(self) -> None:
        """Raise BugError if an absent value was retracted."""
        retracted, self._retracted = self._retracted, []
        for keys, values in retracted:
            if self._state.weight_many(keys, values).min() < 0:
                raise BugError(f'a value in state "{self._name}" has a negative weight')


class RetainedValues(ABC):
    """An aggregate that keeps its group's values."""

    def __init__(self, name: str, number: int, arguments: Schema, result: Field) -> None:
        self.result: Final = result
        self._name = name
        self._number = number
        self._arguments = arguments
        self._types = [arrow_type(f.oid) for f in arguments]
        self._values: Multiset

    def open(self, store: StateStore) -> None:
        """Open its state in ``store``."""
        self._values = Multiset(self._name, self._number, store)

    @abstractmethod
    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """Add values of the groups ``keys``, a column per argument."""

    def check(self) -> None:
        """Raise BugError if an absent value was retracted."""
        self._values.check()

    @abstractmethod
    def column(self, keys: Packed) -> pa.Array:
        """Return the aggregate of each group now."""


class Extreme(RetainedValues):
    """``min``, ``max`` and ``any``: the values in order, in their original representation."""

    def __init__(
        self, name: str, number: int, function: str, argument: Field, result: Field
    ) -> None:
        super().__init__(name, number, (argument,), result)
        self._function = function

    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        values = rows.pack_rows(columns)
        if self._function == "any":
            orders = packed.fixed(np.diff(values.bounds).astype(">u4"))
        else:
            orders = rows.pack_keys(columns, [self._arguments[0].oid])
        self._values.add(keys, aggregate.join_ordered(orders, values), weights)

    def column(self, keys: Packed) -> pa.Array:
        """See ``RetainedValues``."""
        found = self._values.extremes(keys, last=self._function == "max")
        return rows.decode_rows(aggregate.ordered_values(found, _NULL_ROW), self._types)[0]


_NULL_ROW: Final = b"\x01"
"""Encoding of one NULL by ``kernels.rows.pack_rows``."""


class Single(RetainedValues):
    """``single``: the value of the only row of the group; NULLs are rows too."""

    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        self._values.add(keys, rows.pack_rows(columns), weights)

    def column(self, keys: Packed) -> pa.Array:
        """Return the value of each group; raise RowError if a group has more than one row."""
        at, found, weights = self._values.scan(keys)
        if (at[1:] == at[:-1]).any() or (weights > 1).any():
            raise RowError(
                "more than one row returned by a subquery used as an expression", sqlstate="21000"
            )
        order = np.full(len(keys), len(at), np.int64)
        order[at] = np.arange(len(at))
        values = packed.joined([found, packed.pack([_NULL_ROW])]).take(order)
        return rows.decode_rows(values, self._types)[0]


class First(RetainedValues):
    """``any`` with a row: the first value that is not NULL, in canonical order of the rows."""

    def __init__(self, name: str, number: int, row: Schema, place: int, result: Field) -> None:
        """Initialise the aggregate of the value at position ``place`` of ``row``."""
        super().__init__(name, number, row, result)
        self._oids = [f.oid for f in row]
        self._place = place

    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        orders, values = rows.pack_keys(columns, self._oids), rows.pack_rows(columns)
        self._values.add(keys, aggregate.join_ordered(orders, values), weights)

    def column(self, keys: Packed) -> pa.Array:
        """See ``RetainedValues``."""
        found = self._values.extremes(keys, last=False)
        there = found.packed.take(np.flatnonzero(found.valid))
        encoded = aggregate.ordered_values(packed.all_valid(there), b"")
        values = rows.decode_rows(encoded, self._types)[self._place]
        places = np.cumsum(found.valid, dtype=np.int64) - 1
        return values.take(pa.array(places, mask=found.valid == 0))


class Listed(RetainedValues):
    """``string_agg`` and ``array_agg``: the values in one text.

    They are in the order of the query, then in canonical order of the rows.
    """

    def __init__(self, name: str, number: int, row: Schema, spec: AggregateSpec) -> None:
        """Initialise the aggregate of rows that consist of ``spec.row``, or its columns."""
        super().__init__(name, number, row, spec.result)
        columns = spec.row or spec.columns
        assert spec.argument is not None, "the text"
        self._place = columns.index(spec.argument)
        self._delimiter = None if spec.function == "array_agg" else spec.delimiter.encode()
        """None: an array."""
        self._oids = [f.oid for f in row]
        order = [structs.replace(key, column=columns.index(key.column)) for key in spec.order]
        self._sorter = Sorter(row, (), order, None)

    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        orders = self._sorter.orders(columns, len(keys))
        ties = rows.pack_keys(columns, self._oids)
        self._values.add(keys, order.entries(orders, ties, rows.pack_rows(columns)), weights)

    def column(self, keys: Packed) -> pa.Array:
        """See ``RetainedValues``."""
        at, entries, weights = self._values.scan(keys)
        values = rows.decode_rows(order.split(entries)[1], self._types)[self._place]
        try:
            if self._delimiter is not None:
                return strings.concatenated(at, values, weights, self._delimiter, len(keys))
            elements = text.render(values, self._oids[self._place])
            return copytext.arrays(at, elements, weights, len(keys))
        except OverflowError as error:
            raise RowError(str(error), sqlstate="54000") from error


class Rows:
    """Rows of groups in canonical order, for aggregates that Postgres evaluates.

    The order is by canonical key, then bytes.  Without an order in the query, ``array_agg`` and
    similar aggregates use this order, and all that read the same rows agree.
    """

    def __init__(self, name: str, number: int, fields: Schema) -> None:
        self._name = name
        self._number = number
        self._oids = [f.oid for f in fields]
        self._types = [arrow_type(oid) for oid in self._oids]
        self._values: Multiset
        self._read: tuple[Int64s, list[pa.Array], Int64s] | None = None

    def open(self, store: StateStore) -> None:
        """Open its state in ``store``."""
        self._values = Multiset(self._name, self._number, store)

    def add(self, keys: Packed, columns: list[pa.Array], weights: Int64s) -> None:
        """Add rows of the groups ``keys``."""
        self._values.add(keys, encode(columns, len(keys)), weights)

    def check(self) -> None:
        """Raise BugError if an absent row was retracted."""
        self._values.check()

    def read(self, keys: Packed) -> tuple[Int64s, list[pa.Array], Int64s]:
        """Return position in ``keys``, columns and weights of the rows; cached until ``forget``."""
        if self._read is None:
            at, found, weights = self._values.scan(keys)
            columns = rows.decode_rows(found, self._types) if self._types else []
            order = self._canonical(at, found, columns)
            taken = pa.array(order)
            self._read = at[order], [column.take(taken) for column in columns], weights[order]
        return self._read

    def forget(self) -> None:
        """Drop the cache of ``read``."""
        self._read = None

    def _canonical(self, at: Int64s, found: Packed, columns: list[pa.Array]) -> Int64s:
        if not columns or len(at) < 2:
            return np.arange(len(at))
        places = packed.fixed(at.astype(">i8"))
        keys = packed.appended(rows.pack_keys(columns, self._oids), found)
        return packed_order.sorted_order(packed.appended(places, keys))


class Asked:
    """``remote``: an aggregate that Postgres evaluates over the rows of the touched groups."""

    def __init__(
        self,
        spec: AggregateSpec,
        kept: Rows,
        columns: Sequence[int],
        arguments: Schema,
        remote: RemoteEvaluator | None,
    ) -> None:
        """Initialise the aggregate over the rows ``kept``, which consist of ``columns``."""
        if remote is None:
            raise BugError("a remote aggregate needs an evaluator")
        self.result: Final = spec.result
        self._kept = kept
        self._places = [columns.index(i) for i in spec.columns]
        shared = spec.row and spec.filter is not None
        # Rows that the aggregate does not share are filtered before they are stored.
        self._filter = columns.index(spec.filter) if shared else None
        self._call = AggregateCall(
            spec.sql, tuple(arguments), spec.result, spec.trusted, spec.direct
        )
        self._remote = remote

    def column(self, keys: Packed) -> pa.Array:
        """Return the aggregate of each group now."""
        at, columns, weights = self._kept.read(keys)
        own = [columns[i] for i in self._places]
        if self._filter is not None:
            condition = pc.fill_null(columns[self._filter], False)
            mask = buffers.values(condition).astype(bool)
            at, weights = at[mask], weights[mask]
            own = [column.filter(condition) for column in own]
        return self._remote.aggregate(self._call, at, own, weights, len(keys))
