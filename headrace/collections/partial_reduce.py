"""Two-step reduce without keys, for a population: partial aggregates of shares, then the total.

A share adds up the numbers of the aggregates, and returns them in one row with its least and
greatest values.  Only the final step rounds and checks type ranges.  The values stay in the
share's state: no two shares have the same one.  Where aggregates keep values of several columns, a
share has a port for each of them, and gets each row once per port, divided by the port's column.
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
from headrace.kernels import packed
from headrace.types import TEXT, Field, Schema, arrow_type, diff_batch


def divided_by(node: plan.ReduceSpec) -> tuple[int, ...] | None:
    """Return the column to partition the rows of each port by; None if shares are impossible.

    () means one port and any partitioning.  Where an aggregate keeps values, each value must be in
    one share only.
    """
    if node.keys or any(a.row or NATIVE[a.function].partial is None for a in node.aggregates):
        return None
    kept = {a.argument for a in node.aggregates if _by_value(a) and a.argument is not None}
    return tuple(sorted(kept))


def read_by(node: plan.ReduceSpec, port: int) -> set[int] | None:
    """Return the columns that a share reads at ``port``; None means all."""
    if port == 0:
        return None
    columns = divided_by(node) or ()
    own = [each for each in node.aggregates if _port(each, columns) == port]
    return {i for each in own for i in (each.argument, each.filter) if i is not None}


def _port(spec: plan.AggregateSpec, columns: tuple[int, ...]) -> int:
    """Return the port whose rows aggregate ``spec`` takes; ``columns``: ``divided_by``."""
    return columns.index(spec.argument) if _by_value(spec) and spec.argument is not None else 0


def _by_value(spec: plan.AggregateSpec) -> bool:
    return spec.distinct or _extreme(spec)


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

    Meaning, shape: one row of ``schema``, also without input rows.  The first port counts the rows.
    State: ``id.values`` as in ``Reduce``, for its own rows.
    """

    def __init__(
        self, node: plan.ReduceSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        columns = divided_by(node) or ()
        super().__init__(node, in_schema, remote, max(1, len(columns)))
        self._says = schema(node, in_schema)
        self._of_port = [
            [feed for feed in self._feeds if _port(feed.specs[0], columns) == port]
            for port in range(self.ports)
        ]

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        self._add(batch, self._of_port[port], counted=port == 0)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        size = self._groups()
        self._end(size)
        [said] = self._gathered(np.zeros(1, np.int64))
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
            self._join(0, data)
        self._said = []
        super()._end(size)
