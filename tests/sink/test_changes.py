"""Changes for a history: parts of a bounded size that hold all rows once, in their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.sink import changes
from headrace.sink.table import ResultTable
from headrace.sql.history import PART_BYTES
from headrace.types import INT8, TEXT, WEIGHT, Field, Schema


@pytest.mark.parametrize(
    "lengths", [[1], [3, 0, 5], [PART_BYTES, 1, 2 * PART_BYTES, 7], [40_000] * 70]
)
def test_parts_hold_all_rows_in_their_order(lengths):
    schema: Schema = (Field("id", INT8), Field("t", TEXT))
    target = ResultTable(1, "s", "t", 1, schema)
    count = len(lengths)
    diffs = pa.record_batch(
        [
            pa.array(range(count), pa.int64()),
            pa.array(["x" * n for n in lengths]),
            pa.array([(-1) ** i * (i + 1) for i in range(count)], pa.int64()),
        ],
        names=["id", "t", WEIGHT],
    )
    parts = list(changes.parts(target, diffs))
    assert [w for p in parts for w in p.weights] == diffs.column(2).to_pylist()
    assert all(p.weights for p in parts)
    for part in parts:
        assert len(part.data) < 1.01 * PART_BYTES + max(lengths) + 100
    if sum(lengths) > 2 * PART_BYTES:
        assert len(parts) > 1
