"""The rows of a feeding view at a position, read from its table by one reader or by many tasks.

    table in the snapshot ─► rows ─► each removed row dropped once ─► and the added rows

Tasks read block ranges, and a removed row may be in any of them.  So if there are removed rows, all
rows are divided by their content: a row and its removals meet in one task.

* Invariant: a part of which the table lacks a removed row fails.  Its task runs, because the
  removed rows are sent to their parts, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections.base import columns_of, cut, decode, encode
from headrace.collections.plan import SourceSpec
from headrace.errors import StateDamaged
from headrace.kernels import copytext, packed, text
from headrace.postgres import tokens
from headrace.types import Schema, diff_batch

ROWS: Final = 0
"""Port of rows."""
REMOVED: Final = 1
"""Port of removed rows."""


@dataclass(frozen=True, slots=True)
class FedRows:
    """A feeding view's table, and how the view's rows differ from it at the position."""

    source: SourceSpec
    view: str
    """The view's name, qualified and quoted, for errors."""
    added: bytes = b""
    """COPY text of the rows that the table lacks."""
    removed: bytes = b""
    """COPY text of the rows that the view has retracted; each as often as it was retracted."""


def typed(lines: bytes, schema: Schema) -> list[pa.Array]:
    """Parse COPY text into columns."""
    values = copytext.split(lines, len(schema))
    return [text.parse(v, f.oid) for v, f in zip(values, schema, strict=True)]


def rendered(columns: list[pa.Array], schema: Schema) -> bytes:
    """Return the COPY text of rows."""
    values = [text.render(v, f.oid) for v, f in zip(columns, schema, strict=True)]
    return bytes(copytext.join(values))


def read(
    fed: FedRows, batches: Iterable[list[pa.Array]], *, first: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (port, diffs) of a block range of the table.

    ``first``: whether it is the first range; its task also sends the added and removed rows.
    """
    schema = fed.source.schema
    for columns in batches:
        for batch in _inserts(columns, schema):
            yield ROWS, batch
    if first:
        for port, lines in ((ROWS, fed.added), (REMOVED, fed.removed)):
            for batch in _inserts(typed(lines, schema), schema):
                yield port, batch


class Remaining:
    """The rows of a table, or of a part of its rows, without the removed ones.

    A row that is equal to a removed one waits until all rows were read.
    """

    def __init__(self, fed: FedRows) -> None:
        self._fed = fed
        self._schema = fed.source.schema
        self._left = self._counted(typed(fed.removed, self._schema))
        self._waiting: Counter[bytes] = Counter()

    def of(self, columns: list[pa.Array]) -> list[pa.Array]:
        """Return the rows of which none is removed."""
        if not self._left:
            return columns
        encoded = encode(columns, len(columns[0])).strings()
        removed = self._left.keys()
        keep = np.array([row not in removed for row in encoded], np.bool_)
        if keep.all():
            return columns
        self._waiting.update(row for row, kept in zip(encoded, keep, strict=True) if not kept)
        mask = pa.array(keep)
        return [column.filter(mask) for column in columns]

    def end(self, removed: Counter[bytes] | None = None) -> list[pa.Array]:
        """Return the rows that waited, except those that are removed.

        ``removed``: those of this part; None means all.

        Raises:
            StateDamaged: the table lacks a removed row.
        """
        gone = self._left if removed is None else removed
        if any(count > self._waiting[row] for row, count in gone.items()):
            raise StateDamaged(
                f"the table of view {self._fed.view} lacks rows that the view has written",
                hint=f"CALL headrace.resync_view({tokens.argument(self._fed.view)}).",
            )
        rows = [*(self._waiting - gone).elements()]
        weights = np.ones(len(rows), np.int64)
        return columns_of(decode(packed.pack(rows), self._schema, weights))

    def run(
        self, inputs: Iterable[tuple[int, pa.RecordBatch]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield what is left of a part; ``inputs``: (port, diffs), as from ``read``."""
        removed: Counter[bytes] = Counter()
        for port, batch in inputs:
            columns = columns_of(batch)
            if port == REMOVED:
                removed += self._counted(columns)
                continue
            for rest in _inserts(self.of(columns), self._schema):
                yield ROWS, rest
        for rest in _inserts(self.end(removed), self._schema):
            yield ROWS, rest

    def _counted(self, columns: list[pa.Array]) -> Counter[bytes]:
        return Counter(encode(columns, len(columns[0])).strings())


def _inserts(columns: list[pa.Array], schema: Schema) -> list[pa.RecordBatch]:
    ones = pa.array(np.ones(len(columns[0]), np.int64))
    return cut(diff_batch(schema, columns, ones))
