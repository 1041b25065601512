"""Two-step reduce without keys, for a population: partial aggregates of shares, then the total.

A share adds up the numbers of the aggregates, and returns them in one row with its least and
greatest values.  Only the final step rounds and checks type ranges.  The values stay in the
share's state: no two shares have the same one (``divided_by``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.aggregate_traits import NATIVE, Partial
from headrace.collections.base import columns_of
from headrace.collections.reduce import Reduce
from headrace.collections.retained_values import Extreme
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import aggregate, packed
from headrace.kernels.aggregate import Numbers
from headrace.types import TEXT, Field, Schema, arrow_type, diff_batch


def divided_by(node: plan.ReduceSpec) -> tuple[int, ...] | None:
    """Return the columns to partition the rows by; () for any partitioning, None if impossible.

    Where an aggregate keeps values, each value must be in one share only.
    """
    columns: set[int] = set()
    for each in node.aggregates:
        kept = each.distinct or _extreme(each)
        if each.row or NATIVE[each.function].partial is None:
            return None
        if kept and each.argument is not None:
            columns.add(each.argument)
    return None if node.keys or len(columns) > 1 else tuple(columns)


def _extreme(spec: plan.AggregateSpec) -> bool:
    return NATIVE[spec.function].partial is Partial.EXTREME


def schema(node: plan.ReduceSpec, in_schema: Schema) -> Schema:
    """Return the columns of a share's row: numbers, and a value per min, max or any."""
    found = [each for each in node.aggregates if _extreme(each)]
    arguments = [in_schema[each.argument] for each in found if each.argument is not None]
    return (
        Field("numbers", TEXT),
        *(Field(f"value{i}", a.oid, a.typmod, a.collation) for i, a in enumerate(arguments)),
    )


class PartialReduce(Reduce):
    """Partial aggregate of some rows of a reduce without keys.

    Meaning, shape: one row of ``schema``, also without input rows.
    State: ``id.values`` as in ``Reduce``, for its own rows.
    """

    def __init__(
        self, node: plan.ReduceSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node, in_schema, remote)
        self._says = schema(node, in_schema)

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        size = self._groups()
        self._end(size)
        numbers: list[Numbers] = [self._counts.take(np.zeros(1, np.int64))]
        numbers += [a.gathered() for a in self._accumulators if a is not None]
        said = b"".join(map(aggregate.encode_numbers, numbers))
        values = [part.column(packed.empty(1)) for part in self._parts if isinstance(part, Extreme)]
        self._clear()
        columns = [pa.array([said.hex()], arrow_type(TEXT)), *values]
        return [diff_batch(self._says, columns, pa.array([1], pa.int64()))]


class FinalReduce(Reduce):
    """Final aggregate over all shares of a reduce without keys.

    Meaning, shape: rows of ``schema`` -> the row of ``Reduce``.
    State: ``id`` as in ``Reduce``; the content of ``id.values`` is not used.
    """

    def __init__(
        self, node: plan.ReduceSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node, in_schema, remote)
        self._said: list[bytes] = []

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        numbers, *values = columns_of(batch)
        self._said += map(bytes.fromhex, numbers.to_pylist())
        extremes = [part for part in self._parts if isinstance(part, Extreme)]
        for part, column in zip(extremes, values, strict=True):
            there = column.drop_null()
            part.add(packed.empty(len(there)), [there], np.ones(len(there), np.int64))
        return []

    def _end(self, size: int) -> None:
        for data in self._said:
            found, at = aggregate.decode_numbers(data, 0)
            self._counts.add_one(0, found[0])
            for accumulator in self._accumulators:
                if accumulator is not None:
                    found, at = aggregate.decode_numbers(data, at)
                    accumulator.join(found)
        self._said = []
        super()._end(size)
