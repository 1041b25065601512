"""Equal rows that leave a task are added up first, if there are many of them.

All values of a frequent key go to one task.  So its rows are sent once for each distinct content,
with the sum of their weights; columns that a reduce does not read do not count.  A collection takes
a row of weight n as n rows.

A task holds a bounded number of distinct rows, and stops as soon as few rows are equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Set
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import columns_of, cut, decode, encode, weights_of
from headrace.collections.plan import Node
from headrace.kernels.numbering import Consolidator, Numbering
from headrace.types import Schema

HELD_MAX: Final = 65_536
"""Distinct rows that are held, about."""
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of rows, equal ones included, after which those held are sent."""
_SAMPLED: Final = 4096
_DISTINCT_MAX: Final = 15 / 16
"""Share of distinct rows in a sample, from which on rows are not added up."""
_ROWS_PER_SENT: Final = 2
"""Smallest ratio of rows to rows sent, for which rows are added up further."""
_SEED: Final = 34


def _read_by(node: Node, columns: int) -> frozenset[int]:
    """Return which of the ``columns`` of its input ``node`` reads."""
    if not isinstance(node, plan.ReduceSpec):
        return frozenset(range(columns))
    read = set(node.keys)
    for spec in node.aggregates:
        read.update(spec.columns, spec.row, () if spec.filter is None else (spec.filter,))
    return frozenset(read)


def added_up(
    node: Node, schema: Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``batches``, of ``schema``, for ``node``; equal ones may be added up.

    Columns that ``node`` does not read are NULL.
    """
    if not isinstance(node, plan.JoinSpec | plan.ReduceSpec | plan.DistinctSpec | plan.SetOpSpec):
        yield from batches
        return
    read = _read_by(node, len(schema))
    coming: Iterator[pa.RecordBatch] = (reduced(batch, read) for batch in batches)
    first = next((batch for batch in coming if batch.num_rows), None)
    if first is None:
        return
    coming = itertools.chain((first,), coming)
    if _distinct(first):
        yield from coming
        return
    taken, size, held = 0, 0, Consolidator()
    for batch in coming:
        rows = encode(columns_of(batch), batch.num_rows)
        held.add(rows, weights_of(batch))
        taken, size = taken + batch.num_rows, size + rows.data.nbytes
        if len(held) >= HELD_MAX or size >= _BYTES_MAX:
            yield from _rows(held, schema)
            if taken < _ROWS_PER_SENT * len(held):
                yield from coming
                return
            taken, size, held = 0, 0, Consolidator()
    yield from _rows(held, schema)


def reduced(batch: pa.RecordBatch, read: Set[int]) -> pa.RecordBatch:
    """Return ``batch`` with NULLs in columns that are neither in ``read`` nor the weights."""
    kept = read | {batch.num_columns - 1}
    if len(kept) == batch.num_columns:
        return batch
    arrays = [
        column if place in kept else pa.nulls(len(column), column.type)
        for place, column in enumerate(batch.columns)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def _distinct(batch: pa.RecordBatch) -> bool:
    """Return whether few rows of ``batch`` are equal, judged by a sample of them."""
    count = min(batch.num_rows, _SAMPLED)
    places = np.random.default_rng(_SEED).permutation(batch.num_rows)[:count]
    numbers, _ = Numbering().add(encode(columns_of(batch.take(pa.array(places))), count))
    return bool(numbers.max() >= _DISTINCT_MAX * count)


def _rows(held: Consolidator, schema: Schema) -> list[pa.RecordBatch]:
    if not len(held):
        return []
    rows, weights = held.items()
    return cut(decode(rows, schema, weights))
