"""Inner join on equal keys."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import (
    ROWS_PER_BATCH_MAX,
    Collection,
    Diffed,
    columns_of,
    cut,
    encode,
    weights_of,
)
from headrace.collections.pairs import pairs
from headrace.collections.steps import FilterStep
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import rows
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_type, diff_batch

_LOOKUP_ROWS_MAX: Final = 4096
"""Incoming rows that are looked up at once: bounds the matches held as Python objects."""


class Join(Collection):
    """Rows of left x right with equal, non-NULL keys and all residual predicates true.

    Meaning: d(A >< B) = dA >< B + A >< dB + dA >< dB: each batch meets the other side as it is
        now, then becomes part of its own side, so the last term is counted once.  Weights are
        multiplied, so negative ones are taken care of (E-12).
    Shape: left, right -> columns of the left, then of the right.
    State: ``id.left`` and ``id.right``: key -> row -> weight.  As large as both inputs, less the
        rows with a NULL in the key, which never meet anything.
    Time: emits on apply; on TimeEnd if a residual predicate may fail on a row (see ``steps``).
    Errors: RowError of a residual predicate.
    """

    def __init__(
        self,
        node: plan.Join,
        left: Schema,
        right: Schema,
        remote: RemoteEvaluator | None,
    ) -> None:
        super().__init__(node.id, node.schema, 2)
        self._inputs_schema = (left, right)
        self._keys = (node.left_keys, node.right_keys)
        self._residual = FilterStep(node.residual, remote)
        self._held = Diffed(node.schema) if self._residual.may_raise else None
        self._states: tuple[IndexState, IndexState]

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._states = (store.index(f"{self.id}.left"), store.index(f"{self.id}.right"))

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        out: list[pa.RecordBatch] = []
        for piece in cut(batch, _LOOKUP_ROWS_MAX):
            for joined in self._apply(port, piece):
                if self._held is not None and not self.insert_only:
                    self._held.add(joined)
                else:
                    out.append(self._residual.run(joined))
        return out

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self._held is None:
            return []
        return [self._residual.run(batch) for batch in self._held.take()]

    def describe(self) -> str:
        """See ``Collection``."""
        names = [
            [schema[i].name for i in keys]
            for schema, keys in zip(self._inputs_schema, self._keys, strict=True)
        ]
        on = ", ".join(f"{a} = {b}" for a, b in zip(*names, strict=True))
        return f"Join ({on})" if on else "Join (cross product)"

    def _apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        batch, keys = self._with_keys(port, batch)
        if not keys:
            return []
        columns = columns_of(batch)
        encoded = encode(columns, batch.num_rows)
        self._states[port].add_many(keys, encoded, weights_of(batch))
        distinct, groups = rows.group(keys)
        at, found, found_weights = self._states[1 - port].scan_many(distinct)
        if not found:
            return []
        counts = np.bincount(np.array(at, np.int64), minlength=len(distinct))
        starts = np.cumsum(counts) - counts
        matched = rows.decode_rows(found, self._other_types(port))
        incoming_weights = batch.columns[-1].to_numpy()
        matched_weights = np.array(found_weights, np.int64)
        out: list[pa.RecordBatch] = []
        for left, right in pairs(groups, starts, counts, ROWS_PER_BATCH_MAX):
            mine = _take(columns, left)
            theirs = _take(matched, right)
            weights = pa.array(incoming_weights[left] * matched_weights[right])
            both = [*mine, *theirs] if port == 0 else [*theirs, *mine]
            out.append(diff_batch(self.schema, both, weights))
        return out

    def _with_keys(
        self, port: int, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, list[bytes]]:
        """The rows of ``batch`` without a NULL in the key, and their keys."""
        places = self._keys[port]
        if not places:
            return batch, [b""] * batch.num_rows
        schema = self._inputs_schema[port]
        columns = [batch.column(i) for i in places]
        oids = [schema[i].oid for i in places]
        keys = rows.encode_keys(columns, oids, nulls=False)
        kept = [key for key in keys if key is not None]
        if len(kept) < len(keys):
            batch = batch.filter(pa.array([key is not None for key in keys]))
        return batch, kept

    def _other_types(self, port: int) -> list[pa.DataType]:
        return [arrow_type(field.oid) for field in self._inputs_schema[1 - port]]


def _take(columns: list[pa.Array], index: np.ndarray) -> list[pa.Array]:
    if not columns:
        return columns
    n = len(index)
    if n == len(columns[0]) and index[0] == 0 and (np.diff(index) == 1).all():
        return columns
    places = pa.array(index)
    return [column.take(places) for column in columns]
