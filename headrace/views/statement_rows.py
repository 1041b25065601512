"""Rows before and after a statement, as change batches of the tables that hold them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headrace.errors import UserError
from headrace.forks.run import TableBatch
from headrace.postgres.connect import Connection
from headrace.views import captured

_INSERT, _DELETE = 0, 2
_WHOLE_ROW: Final = 2
_LSN: Final = (1 << 62) - 1
"""After every position at which a view begins."""
_NUMBERS: Final = """
SELECT a.attrelid::bigint, a.attname::text, a.attnum::int FROM pg_catalog.pg_attribute a
 WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped"""


@dataclass(frozen=True, slots=True)
class StatementRows:
    """The rows that a statement changes: before it, and after it."""

    rows: pa.Table
    """OIDs of the tables that had and have the row, then its columns before, then after."""
    columns: Sequence[str]
    numbers: dict[int, dict[str, int]]
    """Column numbers by name, of each table that may hold rows."""

    @classmethod
    def of(cls, conn: Connection, table: int, raw: bytes) -> StatementRows:
        """Return the changed rows of ``table`` or its partitions, from texts of records.

        Raises:
            UserError: 55006, they are not its rows: it may have been altered meanwhile.
        """
        columns, leaves = captured.table_columns(conn, table), captured.leaves(conn, [table])
        numbers: dict[int, dict[str, int]] = defaultdict(dict)
        for oid, name, number in conn.execute(_NUMBERS, (leaves,)).fetchall():
            numbers[int(oid)][str(name)] = int(number)
        rows = _read(raw, 2 + 2 * len(columns))
        if not {*_tables(rows, 0), *_tables(rows, 1)} <= {None, *numbers}:
            raise _misfit()
        return cls(rows, columns, dict(numbers))

    @property
    def rights(self) -> list[str]:
        """Names of the rights that the statement needs."""
        pairs = zip(_tables(self.rows, 0), _tables(self.rows, 1), strict=True)
        kinds = {(old is not None, new is not None) for old, new in pairs}
        names = {(True, True): "UPDATE", (False, True): "INSERT", (True, False): "DELETE"}
        return sorted(names[kind] for kind in kinds)

    def counts(self) -> dict[int, list[int]]:
        """Return how many rows are inserted, updated and deleted, by table."""
        out: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        pairs = Counter(zip(_tables(self.rows, 0), _tables(self.rows, 1), strict=True))
        for (old, new), count in pairs.items():
            if old is not None and old == new:
                out[old][1] += count
                continue
            if new is not None:
                out[new][0] += count
            if old is not None:
                out[old][2] += count
        return dict(out)

    def batches(self) -> list[TableBatch]:
        """Return a change batch for each table: its old rows are deleted, then new ones inserted.

        So any update of keys needs no order.
        """
        width = len(self.columns)
        olds, news = self.rows.columns[2 : 2 + width], self.rows.columns[2 + width :]
        out = []
        found = {*_tables(self.rows, 0), *_tables(self.rows, 1)}
        for table in sorted(table for table in found if table is not None):
            gone, came = (
                pc.fill_null(pc.equal(self.rows.column(place), table), fill_value=False)
                for place in (0, 1)
            )
            before = [column.filter(gone).combine_chunks() for column in olds]
            after = [column.filter(came).combine_chunks() for column in news]
            counts = pc.sum(gone).as_py(), pc.sum(came).as_py()
            out.append((table, self._batch(table, before, after, *counts)))
        return out

    def _batch(
        self, table: int, before: list[pa.Array], after: list[pa.Array], gone: int, came: int
    ) -> pa.RecordBatch:
        names = ["__op", "__lsn", "__old"]
        arrays = [
            pa.array([_DELETE] * gone + [_INSERT] * came, pa.int8()),
            pa.array([_LSN] * (gone + came), pa.int64()),
            pa.array([_WHOLE_ROW] * gone + [0] * came, pa.int8()),
        ]
        for name, old, new in zip(self.columns, before, after, strict=True):
            number = self.numbers[table][name]
            names += [f"n:{number}", f"o:{number}"]
            arrays.append(pa.concat_arrays([pa.nulls(gone, pa.string()), new]))
            arrays.append(pa.concat_arrays([old, pa.nulls(came, pa.string())]))
        return pa.RecordBatch.from_arrays(arrays, names)


def _tables(rows: pa.Table, place: int) -> list[int | None]:
    found: list[int | None] = rows.column(place).to_pylist()
    return found


def _read(raw: bytes, width: int) -> pa.Table:
    """Return records as columns; each ends with a line feed.

    The text of a record is a line of CSV in parentheses, in which backslashes are doubled.  (An
    empty value at the end of a file without a line feed would not be NULL.)
    """
    names = [str(place) for place in range(width)]
    types = [pa.int64(), pa.int64(), *[pa.string()] * (width - 2)]
    shape = pa.schema(zip(names, types, strict=True))
    if not raw:
        return shape.empty_table()
    try:
        found = csv.read_csv(
            pa.BufferReader(raw),
            csv.ReadOptions(column_names=names, block_size=len(raw)),
            csv.ParseOptions(newlines_in_values=True),
            csv.ConvertOptions(
                column_types=dict(zip(names, types, strict=True)),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        raise _misfit() from error
    columns = [
        column if place < 2 else pc.replace_substring(column, pattern="\\\\", replacement="\\")
        for place, column in enumerate(found.columns)
    ]
    return pa.table(columns, schema=shape)


def _misfit() -> UserError:
    return UserError(
        "the rows are not of the table",
        detail="It was altered since the statement ran.",
        hint="Call what_if again.",
        sqlstate="55006",
    )
