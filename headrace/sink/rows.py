"""Rows in statements: as parameters, and in exact comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, LiteralString

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.kernels import copytext, text
from headrace.sink import table
from headrace.sink.table import ResultTable
from headrace.types import BPCHAR, FIRST_USER_OID, FIXED, TEXT, VARCHAR

_TEXTS: Final = frozenset((TEXT, VARCHAR))


@dataclass(frozen=True, slots=True)
class Arrays:
    """Passes rows of a table to a statement: as arrays, for ``unnest``."""

    kinds: tuple[sql.Composable, ...]
    by_row: bool
    """True: one array of the table's row type; False: one array per column."""
    columns: copytext.ArrayColumns

    @classmethod
    def of(cls, target: ResultTable, found: Sequence[table.ResultColumn]) -> Arrays:
        """Return the arrays for a table with the columns ``found``."""
        columns = copytext.ArrayColumns([field.oid for field in target.schema])
        # An array of the row type holds every kind of column; element types of arrays are limited.
        # While the table is locked, its name is also the name of its row type.  The name of a
        # user's type may by now belong to another type, with code of that type's owner.
        if any(a.array_name is None or a.base_oid >= FIRST_USER_OID for a in found):
            return cls((target.identifier + sql.SQL("[]"),), True, columns)
        return cls(tuple(sql.SQL(a.array_name or "") for a in found), False, columns)

    def parameters(self, first: int = 1, columns: Sequence[int] | None = None) -> sql.Composed:
        """Return the arrays as parameters, numbered from ``first``; by column only ``columns``."""
        kinds = self.kinds
        if columns is not None and not self.by_row:
            kinds = tuple(kinds[i] for i in columns)
        return sql.SQL(", ").join(
            sql.SQL("${}::{}").format(n, kind) for n, kind in enumerate(kinds, first)
        )

    def literals(
        self,
        target: ResultTable,
        diffs: pa.RecordBatch,
        places: npt.NDArray[np.int64],
        columns: Sequence[int] | None = None,
    ) -> list[str]:
        """Return the values of the same ``parameters`` for the rows ``places`` of ``diffs``."""
        if self.by_row:
            return [copytext.array_literal(row_literals(texts(target, rows_at(diffs, places))))]
        chosen = range(len(target.schema)) if columns is None else columns
        return self.columns.literals(diffs, places, chosen)


def same(attribute: table.ResultColumn) -> sql.Composed:
    """Return the condition that column values of ``t`` and ``g`` are exactly the same."""
    name = attribute.name
    form: LiteralString = "{} IS NOT DISTINCT FROM {}"
    if attribute.base_oid == BPCHAR:
        # As text it would lose its trailing blanks.
        form = "pg_catalog.bpcharsend({}) IS NOT DISTINCT FROM pg_catalog.bpcharsend({})"
    elif attribute.base_oid in _TEXTS:
        form = '{} COLLATE "C" IS NOT DISTINCT FROM {} COLLATE "C"'
    elif attribute.base_oid not in FIXED:
        form = (
            "pg_catalog.format('%L', {}) COLLATE \"C\" = pg_catalog.format('%L', {}) COLLATE \"C\""
        )
    return sql.SQL(form).format(sql.Identifier("t", name), sql.Identifier("g", name))


def row_literals(columns: Sequence[pa.StringArray]) -> pa.StringArray:
    """Return rows as literals of a composite type; an empty field between commas is NULL."""
    fields = []
    for column in columns:
        escaped = pc.replace_substring(column, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '""')
        fields.append(pc.binary_join_element_wise('"', escaped, '"', ""))
    inner = pc.binary_join_element_wise(*fields, ",", null_handling="replace", null_replacement="")
    return pc.binary_join_element_wise("(", inner, ")", "")


def rows_at(diffs: pa.RecordBatch, places: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return the rows at ``places``, which must not be empty."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places) and (len(places) == 1 or (np.diff(places) == 1).all()):
        return diffs.slice(first, len(places))
    return diffs.take(pa.array(places))


def texts(target: ResultTable, diffs: pa.RecordBatch) -> list[pa.StringArray]:
    """Return the columns of ``diffs`` as text."""
    return [text.for_input(diffs.column(i), field.oid) for i, field in enumerate(target.schema)]
