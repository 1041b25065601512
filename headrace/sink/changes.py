"""A txid's diffs as rows of the history: in parts of about a megabyte, in the order they stand in.

A row is written as Postgres prints a value of the table's row type, so ``data::v`` reads it back.
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

_QUOTED: Final = r'^$|["\\(),\t\n\x0b\f\r ]'
"""What makes Postgres put a field of a row into quotes."""
_ROWS_AT_ONCE: Final = 65_536


def parts(target: ResultTable, diffs: pa.RecordBatch) -> Iterator[Part]:
    """The changes ``diffs``, which are consolidated."""
    weights = diffs.column(len(target.schema)).to_numpy()
    for start in range(0, diffs.num_rows, _ROWS_AT_ONCE):
        piece = diffs.slice(start, _ROWS_AT_ONCE)
        images = _images(rows_of.texts(target, piece))
        ends = np.cumsum(pc.binary_length(images).to_numpy(zero_copy_only=False) + 16)
        cuts = np.searchsorted(ends, np.arange(PART_BYTES, ends[-1], PART_BYTES))
        bounds = np.unique([0, *cuts, piece.num_rows])
        for first, last in itertools.pairwise(bounds.tolist()):
            yield Part(
                weights[start + first : start + last].tolist(),
                copytext.array_literal(images.slice(first, last - first)),
            )


def _images(columns: list[pa.StringArray]) -> pa.StringArray:
    """Rows as ``record_out`` prints them."""
    fields = []
    for column in columns:
        escaped = pc.replace_substring(column, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '""')
        quoted = pc.binary_join_element_wise('"', escaped, '"', "")
        fields.append(pc.if_else(pc.match_substring_regex(column, _QUOTED), quoted, column))
    if len(fields) == 1:
        inner = pc.fill_null(fields[0], "")
    else:
        inner = pc.binary_join_element_wise(
            *fields, ",", null_handling="replace", null_replacement=""
        )
    return pc.binary_join_element_wise("(", inner, ")", "")
