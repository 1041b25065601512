"""Splits a txid's diffs for the history into parts of about a megabyte, in their order.

Diffs are handled in batches (A-29, A-31).  Rows are passed as literals of the table's row type, and
Postgres prints them, so that a row always has the same text (our own kernels write floats
differently).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import copytext
from headrace.sink import rows as rows_of
from headrace.sink.table import ResultTable
from headrace.sql.history import PART_BYTES, Part

_ROWS_AT_ONCE: Final = 65_536


def parts(target: ResultTable, diffs: pa.RecordBatch) -> Iterator[Part]:
    """Yield the parts of ``diffs``, which are consolidated."""
    weights = diffs.column(len(target.schema)).to_numpy()
    for start in range(0, diffs.num_rows, _ROWS_AT_ONCE):
        piece = diffs.slice(start, _ROWS_AT_ONCE)
        literals = rows_of.row_literals(rows_of.texts(target, piece))
        ends = np.cumsum(pc.binary_length(literals).to_numpy(zero_copy_only=False) + 16)
        cuts = np.searchsorted(ends, np.arange(PART_BYTES, ends[-1], PART_BYTES))
        bounds = np.unique([0, *cuts, piece.num_rows])
        for first, last in itertools.pairwise(bounds.tolist()):
            yield Part(
                weights[start + first : start + last].tolist(),
                copytext.array_literal(literals.slice(first, last - first)),
            )
