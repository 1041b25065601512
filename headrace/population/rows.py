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
    if pc.max(weights).as_py() > 1:
        numbers = np.repeat(np.arange(diffs.num_rows), weights.to_numpy())
        diffs = diffs.take(pa.array(numbers))
    for start in range(0, diffs.num_rows, _ROWS_PER_PIECE):
        piece = diffs.slice(start, _ROWS_PER_PIECE)
        columns = [text.render(piece.column(i), field.oid) for i, field in enumerate(schema)]
        yield piece.num_rows, copytext.join(columns)
