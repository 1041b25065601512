"""Aggregates that keep their groups' values, in a state that all parts of a reduce share.

``min``, ``max``, ``any``: the values in order; one value is read per group.  ``remote``: Postgres
evaluates the rows of the touched groups; several aggregates may share these rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections.plan import AggregateSpec
from headrace.errors import BugError, RowError
from headrace.expressions.remote import AggregateCall, RemoteEvaluator
from headrace.kernels import aggregate, buffers, rows
from headrace.state.contract import IndexState, StateStore
from headrace.types import Field, Schema, arrow_type

Int64s = npt.NDArray[np.int64]


class Multiset:
    """One aggregate's part of an index state; ``check`` detects multiplicities below zero.

    All aggregates of a reduce share one state, because even an empty state costs files and
    memory.  Keys begin with the number of the aggregate.
    """

    def __init__(self, name: str, number: int, store: StateStore) -> None:
        self._name = name
        self._prefix = number.to_bytes(2, "big")
        self._state: IndexState = store.index(name)
        self._retracted: dict[tuple[bytes, bytes], None] = {}

    def add(self, keys: Sequence[bytes], values: Sequence[bytes], weights: Int64s) -> None:
        """Add ``weights`` to the multiplicities of ``values``."""
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
        """Raise BugError if an absent value was retracted."""
        if not self._retracted:
            return
        keys, values = zip(*self._retracted, strict=True)
        self._retracted = {}
        if min(self._state.weight_many(keys, values)) < 0:
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
    def add(self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s) -> None:
        """Add values of the groups ``keys``, a column per argument."""

    def check(self) -> None:
        """Raise BugError if an absent value was retracted."""
        self._values.check()

    @abstractmethod
    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """Return the aggregate of each group now."""


class Extreme(RetainedValues):
    """``min``, ``max`` and ``any``: the values in order, in their original representation."""

    def __init__(
        self, name: str, number: int, function: str, argument: Field, result: Field
    ) -> None:
        super().__init__(name, number, (argument,), result)
        self._function = function

    def add(self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        values = rows.encode_rows(columns)
        orders: list[bytes]
        if self._function == "any":
            orders = [len(value).to_bytes(4, "big") for value in values]
        else:
            found = rows.encode_keys(columns, [self._arguments[0].oid], nulls=True)
            orders = [key for key in found if key is not None]
        self._values.add(keys, aggregate.join_ordered(orders, values), weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """See ``RetainedValues``."""
        last = self._function == "max"
        found = self._values.extremes(keys, last=last)
        values = [_NULL_ROW if r is None else aggregate.ordered_value(r) for r in found]
        return rows.decode_rows(values, self._types)[0]


_NULL_ROW: Final = b"\x01"
"""Encoding of one NULL by ``kernels.rows.encode_rows``."""


class Single(RetainedValues):
    """``single``: the value of the only row of the group; NULLs are rows too."""

    def add(self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        self._values.add(keys, rows.encode_rows(columns), weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """Return the value of each group; raise RowError if a group has more than one row."""
        at, found, weights = self._values.scan(keys)
        if len(set(at)) < len(at) or any(weight > 1 for weight in weights):
            raise RowError(
                "more than one row returned by a subquery used as an expression", sqlstate="21000"
            )
        values = [_NULL_ROW] * len(keys)
        for place, row in zip(at, found, strict=True):
            values[place] = row
        return rows.decode_rows(values, self._types)[0]


class First(RetainedValues):
    """``any`` with a row: the first value that is not NULL, in canonical order of the rows."""

    def __init__(self, name: str, number: int, row: Schema, place: int, result: Field) -> None:
        """Initialise the aggregate of the value at position ``place`` of ``row``."""
        super().__init__(name, number, row, result)
        self._oids = [f.oid for f in row]
        self._place = place

    def add(self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s) -> None:
        """See ``RetainedValues``."""
        found = rows.encode_keys(columns, self._oids, nulls=True)
        orders = [key for key in found if key is not None]
        values = rows.encode_rows(columns)
        self._values.add(keys, aggregate.join_ordered(orders, values), weights)

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """See ``RetainedValues``."""
        found = self._values.extremes(keys, last=False)
        there = [aggregate.ordered_value(row) for row in found if row is not None]
        values = rows.decode_rows(there, self._types)[self._place]
        numbers = iter(range(len(there)))
        taken = [None if row is None else next(numbers) for row in found]
        return values.take(pa.array(taken, pa.int64()))


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

    def add(self, keys: Sequence[bytes], columns: list[pa.Array], weights: Int64s) -> None:
        """Add rows of the groups ``keys``."""
        encoded = rows.encode_rows(columns) if columns else [b""] * len(keys)
        self._values.add(keys, encoded, weights)

    def check(self) -> None:
        """Raise BugError if an absent row was retracted."""
        self._values.check()

    def read(self, keys: Sequence[bytes]) -> tuple[Int64s, list[pa.Array], Int64s]:
        """Return position in ``keys``, columns and weights of the rows; cached until ``forget``."""
        if self._read is None:
            at, found, weights = self._values.scan(keys)
            columns = rows.decode_rows(found, self._types) if self._types else []
            order = self._canonical(at, found, columns)
            taken = pa.array(order)
            self._read = (
                np.array(at, np.int64)[order],
                [column.take(taken) for column in columns],
                np.array(weights, np.int64)[order],
            )
        return self._read

    def forget(self) -> None:
        """Drop the cache of ``read``."""
        self._read = None

    def _canonical(self, at: list[int], found: list[bytes], columns: list[pa.Array]) -> Int64s:
        order = list(range(len(at)))
        if columns and len(at) > 1:
            keys = rows.encode_keys(columns, self._oids, nulls=True)
            order.sort(key=lambda i: (at[i], keys[i], found[i]))
        return np.array(order, np.int64)


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

    def column(self, keys: Sequence[bytes]) -> pa.Array:
        """Return the aggregate of each group now."""
        at, columns, weights = self._kept.read(keys)
        own = [columns[i] for i in self._places]
        if self._filter is not None:
            condition = pc.fill_null(columns[self._filter], False)
            mask = buffers.values(condition).astype(bool)
            at, weights = at[mask], weights[mask]
            own = [column.filter(condition) for column in own]
        return self._remote.aggregate(self._call, at, own, weights, len(keys))
