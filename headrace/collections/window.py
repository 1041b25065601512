"""Window functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import (
    Collection,
    columns_of,
    cut,
    encode,
    keys_of,
    weights_of,
)
from headrace.collections.sorting import Sorter
from headrace.errors import BugError
from headrace.expressions.placeholders import renumber
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.windows import Over, Sorting
from headrace.kernels import rows
from headrace.process import bounds
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_type, diff_batch

_ROWS_PER_STEP: Final = 65_536
"""Rows of partitions held at once, one partition at least."""


class Window(Collection):
    """Each row beside the values of window functions.

    Meaning: Window(A) = {(row, values of the calls at that row) : each row of A as often as its
        weight}; the values are those over the rows of A in the row's partition.  Peers stand in the
        order of ``sorting``.  A negative weight at a TimeEnd is a bug.
    Shape: input -> its columns, one per call; key: ``keys``.
    State: ``id``: key -> row -> weight; ``id.out``: key -> row, values -> weight, what is out.
    Time: emits on TimeEnd, per touched partition, what became different; reads all of it.
    Errors: BugError on a negative weight; RowError or TransientError of Postgres, which computes.
    """

    words = "a window function"

    def __init__(
        self, node: plan.Window, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        if remote is None:
            raise BugError("window functions need an evaluator")
        self._node = node
        self._remote = remote
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._out_types = [arrow_type(f.oid) for f in node.schema]
        self._oids = [in_schema[i].oid for i in node.keys]
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
        self._touched: dict[bytes, None] = {}
        self._state: IndexState
        self._out: IndexState

    def _number(self, column: int) -> int:
        """Number of the argument that column ``column`` is."""
        return self._places.index(column) + 1

    def _sql(self, call: plan.WindowCall) -> str:
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
            self.schema[i.column].name + (" DESC" if i.descending else "")
            for i in self._node.order
        )
        calls = ", ".join(f.name for f in self.schema[len(self._in_types) :])
        return f"Window by ({keys}) order ({order}): {calls}"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        count = batch.num_rows
        if count == 0:
            return []
        columns = columns_of(batch)
        keys = keys_of([columns[i] for i in self._node.keys], self._oids, count)
        self._state.add_many(keys, encode(columns, count), weights_of(batch))
        self._touched.update(dict.fromkeys(keys))
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        keys = list(self._touched)
        self._touched = {}
        out: list[pa.RecordBatch] = []
        for step in self._steps(keys):
            out.extend(self._advance(step))
        return out

    def _steps(self, keys: list[bytes]) -> list[list[bytes]]:
        """Partitions that are computed together."""
        return [
            keys[low : low + _ROWS_PER_STEP]
            for low in range(0, len(keys), _ROWS_PER_STEP)
        ]

    def _advance(self, keys: list[bytes]) -> list[pa.RecordBatch]:
        diff: dict[tuple[bytes, bytes], int] = {}
        at, old, old_weights = self._out.scan_many(keys)
        for place, row, weight in zip(at, old, old_weights, strict=True):
            diff[keys[place], row] = -weight
        for place, row in self._computed(keys):
            key = keys[place], row
            diff[key] = diff.get(key, 0) + 1
        changed = [(key, row, w) for (key, row), w in diff.items() if w]
        if not changed:
            return []
        encoded = [row for _, row, _ in changed]
        weights = [weight for _, _, weight in changed]
        self._out.add_many([key for key, _, _ in changed], encoded, weights)
        columns = rows.decode_rows(encoded, self._out_types)
        return cut(diff_batch(self.schema, columns, pa.array(weights, pa.int64())))

    def _computed(self, keys: list[bytes]) -> list[tuple[int, bytes]]:
        """(position in ``keys``, output row), a row as often as it is there."""
        at, found, weights = self._state.scan_many(keys)
        if not found:
            return []
        bounds.expect(self, len(found))
        if min(weights) < 0:
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        columns = rows.decode_rows(found, self._in_types)
        rests = self._sorter.rests(columns, len(found))
        order = sorted(range(len(found)), key=lambda i: (at[i], rests[i], found[i]))
        columns = _take(columns, order)
        places = np.array(at, np.int64)[order]
        at_rows, values = self._remote.windows(
            self._over,
            [columns[i] for i in self._places],
            places,
            np.array(weights, np.int64)[order],
            self._trusted,
        )
        shown = _take(columns, at_rows.tolist())
        encoded = rows.encode_rows([*shown, *values])
        return list(zip(places[at_rows].tolist(), encoded, strict=True))


def _take(columns: Sequence[pa.Array], places: Sequence[int]) -> list[pa.Array]:
    chosen = pa.array(places, pa.int64())
    return [column.take(chosen) for column in columns]
