"""Two-step reduce by keys, for a population: partial aggregates of frequent groups, then all rows.

Without it, one task gets all rows of a frequent key.  So the task that sends rows to a reduce adds
up those of groups that are frequent in a batch, and sends one row for each such group at its end.
The other rows go as they are.  All numbers are exact, so the result does not depend on which rows
were added up where.  Only the final step rounds and checks type ranges.

Aggregates that keep values (min, max, DISTINCT, lists) need all values of a group in one task.
Keys whose equal values have several forms (1.0, 1.00) are left out, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.aggregate_traits import NATIVE, Partial
from headrace.collections.base import columns_of, cut, keys_of
from headrace.collections.reduce import Reduce
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import packed, rows
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Packed
from headrace.types import (
    BOOL,
    DATE,
    INT2,
    INT4,
    INT8,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    Field,
    Schema,
    arrow_type,
    diff_batch,
)

ROWS: Final = 0
"""Port of rows."""
PARTIALS: Final = 1
"""Port of partial aggregates."""
FREQUENT: Final = 128
"""Rows of a group in one batch from which they are added up before they are sent."""
_SAMPLED: Final = 8
"""One of so many rows of a batch is looked at first."""
_SEED: Final = 34
_GROUPS_PER_BATCH: Final = 16_384
_ONE_FORM: Final = frozenset(
    (BOOL, INT2, INT4, INT8, DATE, TIMESTAMP, TIMESTAMPTZ, TEXT, VARCHAR, UUID)
)


def is_combinable(node: plan.Node, in_schema: Schema) -> bool:
    """Return whether rows of a group may be added up before they reach ``node``."""
    return (
        isinstance(node, plan.ReduceSpec)
        and bool(node.keys)
        and all(in_schema[i].oid in _ONE_FORM for i in node.keys)
        and not any(
            a.row or a.distinct or NATIVE[a.function].partial is not Partial.NUMBERS
            for a in node.aggregates
        )
    )


def schema(node: plan.ReduceSpec, in_schema: Schema) -> Schema:
    """Return the columns of a partial aggregate: the keys, then the numbers."""
    keys = (in_schema[i] for i in node.keys)
    return (
        *(Field(f"key{i}", k.oid, k.typmod, k.collation) for i, k in enumerate(keys)),
        Field("numbers", TEXT),
    )


class FrequentGroups(Reduce):
    """Partial aggregates of the groups that are frequent in the rows of one task.

    It is no node of a dataflow: the task calls ``rest`` for each batch, and ``partials`` at the
    end.
    """

    def __init__(self, node: plan.ReduceSpec, in_schema: Schema) -> None:
        super().__init__(node, in_schema, None)
        self._says = schema(node, in_schema)

    def rest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add up the rows of frequent groups; return the other rows."""
        columns = columns_of(batch)
        keys = keys_of([columns[i] for i in self._node.keys], self._key_oids, batch.num_rows)
        frequent = _frequent(keys)
        if frequent is None:
            return batch
        chosen = pa.array(frequent)
        self._add(batch.filter(chosen), self._feeds, counted=True)
        return batch.filter(pa.array(~frequent))

    def partials(self) -> list[pa.RecordBatch]:
        """Return the partial aggregates of all rows that were added up."""
        size = len(self._slots)  # without the groups that always exist
        if not size:
            return []
        self._end(size)
        key_rows = packed.joined(self._key_rows)
        out: list[pa.RecordBatch] = []
        for low in range(0, size, _GROUPS_PER_BATCH):
            slots = np.arange(low, min(low + _GROUPS_PER_BATCH, size))
            said = [data.hex() for data in self._gathered(slots)]
            columns = rows.decode_rows(key_rows.take(slots), self._key_layout.types)
            columns.append(pa.array(said, arrow_type(TEXT)))
            ones = pa.array(np.ones(len(slots), np.int64))
            out += cut(diff_batch(self._says, columns, ones))
        self._clear()
        return out


class CombinedReduce(Reduce):
    """A reduce whose input consists of rows, and of partial aggregates of other rows.

    Meaning, state: those of ``Reduce`` over all rows.
    Shape: rows -> as ``Reduce``; rows of ``schema`` on the second port.
    """

    def __init__(
        self, node: plan.ReduceSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node, in_schema, remote, ports=2)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if port == ROWS:
            return super().apply(port, batch)
        *shown, numbers = columns_of(batch)
        slots = self._number(keys_of(shown, self._key_oids, batch.num_rows), shown)
        for slot, data in zip(slots.tolist(), numbers.to_pylist(), strict=True):
            self._join(slot, bytes.fromhex(data))
        return []


def _frequent(keys: Packed) -> np.ndarray | None:
    """Return a mask of the rows whose key is frequent among ``keys``; None: no key is."""
    if len(keys) < FREQUENT:
        return None
    # Regular places could miss a key that returns regularly.
    places = np.random.default_rng(_SEED).integers(0, len(keys), len(keys) // _SAMPLED)
    sample, _ = Numbering().add(keys.take(places))
    # Half of the expected number, so that chance hides few keys.
    if np.bincount(sample).max() < FREQUENT // _SAMPLED // 2:
        return None
    numbers, _ = Numbering().add(keys)
    frequent: np.ndarray = (np.bincount(numbers) >= FREQUENT)[numbers]
    return frequent if frequent.any() else None
