"""Window functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import split
from headrace.collections.by_key import ByKey, Found, demand_none_negative, difference, nothing
from headrace.collections.sorting import Sorter
from headrace.errors import BugError
from headrace.expressions.placeholders import renumber
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.windows import Over, Sorting
from headrace.kernels import rows
from headrace.kernels.packed import Packed
from headrace.process import bounds
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_type


class Window(ByKey):
    """Each row with the values of window functions, computed by Postgres.

    Meaning: Window(A) = {(row, values of the calls at that row) : each row of A as often as its
        weight}; the values are computed over the rows of A in the row's partition.  Peers have the
        order of ``sorting``.  A negative weight at a TimeEnd is a bug.
    Shape: input -> its columns, one per call; key: ``keys``.
    State: ``id``: key -> row -> weight; ``id.out``: key -> row, values -> weight, the output.
    Time: emits on TimeEnd the difference of each touched partition, which it reads whole.
    Errors: BugError on a negative weight; RowError or TransientError of Postgres.
    """

    words = "a window function"

    def __init__(
        self, node: plan.WindowSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, node.keys)
        if remote is None:
            raise BugError("window functions need an evaluator")
        self._node = node
        self._remote = remote
        self._in_schema = in_schema
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._sorter = Sorter(in_schema, node.keys, (), None)
        used = [item.column for item in node.order]
        used += [i for call in node.calls for i in call.args]
        self._places = list(dict.fromkeys(used))
        self._trusted = all(c.trusted for c in node.calls) and all(
            item.trusted for item in node.order
        )
        self._over = Over(
            tuple(self._sql(call) for call in node.calls),
            tuple(
                Sorting(self._number(item.column), item.operator, item.nulls_first)
                for item in node.order
            ),
            tuple(call.frame for call in node.calls),
            tuple(in_schema[i] for i in self._places),
            tuple(call.result for call in node.calls),
        )
        self._state: IndexState
        self._out: IndexState

    def _number(self, column: int) -> int:
        """Return the argument number of input column ``column``."""
        return self._places.index(column) + 1

    def _sql(self, call: plan.WindowCallSpec) -> str:
        numbers = {n: self._number(column) for n, column in enumerate(call.args, 1)}
        return renumber(call.sql, numbers)

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.index(self.id)
        self._out = store.index(f"{self.id}.out")

    def describe(self) -> str:
        """See ``Collection``."""
        keys = ", ".join(self.schema[i].name for i in self._node.keys)
        order = ", ".join(
            self.schema[i.column].name + (" DESC" if i.descending else "") for i in self._node.order
        )
        calls = ", ".join(f.name for f in self.schema[len(self._in_types) :])
        return f"Window by ({keys}) order ({order}): {calls}"

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        self._state.add_many(keys, *split(self._in_schema, batch))

    def before(self, keys: Packed) -> Found:
        """See ``ByKey``: the state contains the output."""
        return nothing()

    def advance(self, keys: Packed, before: Found) -> list[pa.RecordBatch]:
        """See ``ByKey``."""
        changed = difference(self._out.scan_many(keys), self.shown(keys))
        at, encoded, weights = changed
        self._out.add_many(keys.take(at), encoded, weights)
        return self.diffs(changed)

    def shown(self, keys: Packed) -> Found:
        """See ``ByKey``."""
        at, found, weights = self._state.scan_many(keys)
        if not len(at):
            return nothing()
        bounds.expect(self, len(at))
        demand_none_negative(weights, self.id)
        columns = rows.decode_rows(found, self._in_types)
        rests, strings = self._sorter.rests(columns, len(at)).strings(), found.strings()
        order = sorted(range(len(at)), key=lambda i: (at[i], rests[i], strings[i]))
        columns = _take(columns, order)
        places = at[order]
        at_rows, values = self._remote.windows(
            self._over,
            [columns[i] for i in self._places],
            places,
            weights[order],
            self._trusted,
        )
        shown = _take(columns, at_rows.tolist())
        return places[at_rows], rows.pack_rows([*shown, *values]), np.ones(len(at_rows), np.int64)


def _take(columns: Sequence[pa.Array], places: Sequence[int]) -> list[pa.Array]:
    chosen = pa.array(places, pa.int64())
    return [column.take(chosen) for column in columns]
