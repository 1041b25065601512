"""Rendering of a population's result rows as COPY text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BugError
from headrace.kernels import copytext, text
from headrace.types import Schema

_ROWS_PER_PIECE: Final = 50_000


def render(schema: Schema, diffs: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, COPY text) pieces of ``diffs``, with each row repeated by its weight.

    Raises:
        BugError: a weight is not positive, which a first result cannot have.
    """
    if diffs.num_rows == 0:
        return
    # Take the weights by position: a view may have a column of that name.
    weights = diffs.column(diffs.num_columns - 1)
    least = pc.min(weights).as_py()
    if least <= 0:
        raise BugError(f"a population gave a row of weight {least}")
    ends = np.cumsum(weights.to_numpy())
    count = int(ends[-1])
    for start in range(0, count, _ROWS_PER_PIECE):
        if count == diffs.num_rows:
            piece = diffs.slice(start, _ROWS_PER_PIECE)
        else:  # a row may stand for more rows than fit into memory
            places = np.arange(start, min(start + _ROWS_PER_PIECE, count))
            piece = diffs.take(pa.array(np.searchsorted(ends, places, side="right")))
        columns = [text.for_input(piece.column(i), field.oid) for i, field in enumerate(schema)]
        yield piece.num_rows, copytext.join(columns)
