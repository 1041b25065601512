"""Diff batches written and read as lines: ``+2 1 x`` is row (1, x) with weight 2."""

from __future__ import annotations

import re

import pyarrow as pa

from headrace.kernels import text
from headrace.types import Schema, diff_batch


def diffs(schema: Schema, *lines: str) -> pa.RecordBatch:
    """Make a diff batch of the lines; ``+`` and ``-`` stand for a weight of one, a dot for NULL."""
    weights, rows = [], []
    for line in lines:
        sign, rest = re.match(r"([+-]\d*)\s*(.*)", line).groups()
        weights.append(int(sign + "1" if sign in {"+", "-"} else sign))
        rows.append([None if word == "." else word for word in rest.split()])
    columns = [
        text.parse(pa.array([row[i] for row in rows], pa.string()), field.oid)
        for i, field in enumerate(schema)
    ]
    return diff_batch(schema, columns, pa.array(weights, pa.int64()))


def lines(*batches: pa.RecordBatch) -> list[str]:
    """Return the sorted lines of the batches: the inverse of ``diffs``, without adding up rows."""
    out = []
    for batch in batches:
        for *row, weight in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            words = ["." if value is None else str(value) for value in row]
            sign = {1: "+", -1: "-"}.get(weight, f"{weight:+d}")
            out.append(" ".join([sign, *words]))
    return sorted(out)
