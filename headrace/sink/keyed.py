"""Changes of a table with a key: old and new rows with equal keys are paired into updates.

An update keeps the row in place, so that references to it, above all foreign keys, stay valid.

* Invariant: paired rows have equal keys.  Where a type's equality is unknown here, equal means
  identical.  Then a row may be deleted and inserted again, which is also correct, and the key
  holds after each statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from psycopg import sql

from headrace.kernels import rows
from headrace.kernels.numbering import group
from headrace.sink import table
from headrace.sink.rows import Arrays
from headrace.sink.table import ResultTable
from headrace.types import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    OID,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)

Places = npt.NDArray[np.int64]

_CANONICAL: Final = frozenset(
    {
        *(BOOL, INT2, INT4, INT8, OID, FLOAT4, FLOAT8, NUMERIC, UUID, BYTEA),
        *(DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TEXT, VARCHAR, BPCHAR),
    }
)
"""Types whose values are equal if their ``encode_keys`` are; a collation may make more equal."""


_VARIANTS_MAX: Final = 4
"""Maximum sets of columns with a cached statement per table; other updates set all columns."""


@dataclass(frozen=True, slots=True)
class KeyedChanges:
    """Positions of rows in the diffs of a view."""

    old: Places
    """Rows to update to the rows ``new``, one to one."""
    new: Places
    gone: Places
    come: Places


def changes(target: ResultTable, diffs: pa.RecordBatch) -> tuple[Places, KeyedChanges]:
    """Return the weights of ``diffs``, and the changes to the table."""
    # By position, because a view may have a column of that name.
    weights = diffs.column(len(target.schema)).to_numpy()
    gone, come = np.flatnonzero(weights < 0), np.flatnonzero(weights > 0)
    if target.key and len(gone) and len(come):
        return weights, _paired(target, diffs, weights, gone, come)
    none = gone[:0]
    return weights, KeyedChanges(none, none, gone, come)


def unpaired(found: KeyedChanges) -> KeyedChanges:
    """Return ``found`` with deletes and inserts in place of the updates."""
    none = found.old[:0]
    return KeyedChanges(
        none, none, np.union1d(found.gone, found.old), np.union1d(found.come, found.new)
    )


def _paired(
    target: ResultTable, diffs: pa.RecordBatch, weights: Places, gone: Places, come: Places
) -> KeyedChanges:
    """Pair the rows of ``gone`` and ``come`` with equal keys; each is in ``diffs`` once."""
    single = len(gone) == len(come) == 1 and (weights[gone[0]], weights[come[0]]) == (-1, 1)
    if single and _alike(target, diffs, int(gone[0]), int(come[0])):
        # Fast path without grouping, which costs more than everything else.
        return KeyedChanges(gone, come, gone[:0], come[:0])
    ids, count = _numbers(target, diffs)
    old, new = _first(ids, gone, count), _first(ids, come, count)
    both = np.flatnonzero((old >= 0) & (new >= 0))
    # Copies of a row cannot have a key: do not pair them, so that the table reports the error.
    both = both[(weights[old[both]] == -1) & (weights[new[both]] == 1)]
    old, new = old[both], new[both]
    return KeyedChanges(
        old,
        new,
        np.setdiff1d(gone, old, assume_unique=True),
        np.setdiff1d(come, new, assume_unique=True),
    )


def _numbers(target: ResultTable, diffs: pa.RecordBatch) -> tuple[Places, int]:
    """Return the number of each row's key, and how many keys there are."""
    places = _places(target)
    columns = [diffs.column(i) for i in places]
    oids = [target.schema[i].oid for i in places]
    canonical = _CANONICAL.issuperset(oids)
    distinct, ids = group(rows.pack_keys(columns, oids) if canonical else rows.pack_rows(columns))
    return ids, len(distinct)


def _places(target: ResultTable) -> list[int]:
    names = [field.name for field in target.schema]
    return [names.index(name) for name in target.key]


def _alike(target: ResultTable, diffs: pa.RecordBatch, one: int, other: int) -> bool:
    """Return whether two rows have identical values in the key."""
    columns = [diffs.column(i) for i in _places(target)]
    return all(c.slice(one, 1).equals(c.slice(other, 1)) for c in columns)


def _first(ids: Places, places: Places, count: int) -> Places:
    """Return per key number the first of ``places`` with that key, or -1."""
    found = np.full(count, -1, np.int64)
    found[ids[places[::-1]]] = places[::-1]
    return found


class Update:
    """UPDATE statements of a table, one per set of changed columns.

    Columns that no row changes are not set: then TOAST values are not stored again, and fewer
    values are sent.  The whole old row is compared nevertheless.
    """

    def __init__(
        self,
        mark: sql.Composed,
        target: ResultTable,
        found: Sequence[table.ResultColumn],
        arrays: Arrays,
        equal: Sequence[sql.Composable],
    ) -> None:
        """Begin statements with ``mark``; ``equal``: conditions that row ``t`` is the old ``g``."""
        self._mark = mark
        self._target = target
        self._names = [a.name for a in found]
        self._arrays = arrays
        self._equal = sql.SQL(" AND ").join(equal)
        self._made: dict[tuple[int, ...], bytes] = {}

    def of(self, diffs: pa.RecordBatch, old: Places, new: Places) -> tuple[bytes, list[str]]:
        """Return the statement that updates the rows ``old`` to ``new``, and its parameters."""
        every = tuple(range(len(self._names)))
        chosen = every
        if not self._arrays.by_row:
            chosen = self._arrays.columns.changed(diffs, old, new)
            if chosen not in self._made and len(self._made) >= _VARIANTS_MAX:
                chosen = every
        text = self._made.get(chosen)
        if text is None:
            text = self._made[chosen] = self._compose(chosen).as_bytes(None)
        arrays, target = self._arrays, self._target
        return text, [
            *arrays.literals(target, diffs, old),
            *arrays.literals(target, diffs, new, chosen),
        ]

    def _compose(self, chosen: tuple[int, ...]) -> sql.Composed:
        names = self._names
        fresh: list[str] = []
        for place in chosen:
            name = f"new{place}"
            while name in names:
                name += "_"
            fresh.append(name)
        arrays = self._arrays
        return self._mark + sql.SQL(
            "UPDATE ONLY {table} t SET {values} FROM (SELECT * FROM unnest({old}, {new})"
            " AS u({names}) OFFSET 0) g WHERE {equal}"
        ).format(
            table=self._target.identifier,
            values=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(names[i]), sql.Identifier("g", f))
                for i, f in zip(chosen, fresh, strict=True)
            ),
            old=arrays.parameters(),
            new=arrays.parameters(len(arrays.kinds) + 1, chosen),
            names=sql.SQL(", ").join(map(sql.Identifier, [*names, *fresh])),
            equal=self._equal,
        )
