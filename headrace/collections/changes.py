"""A change batch of one table (``kernels/pgoutput.py``), as its sources read it.

Several sources may read the same batch: columns and keys that they share are computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections.plan import SourceColumn
from headrace.errors import RESYNC, DefiniteFailure, StructureChanged
from headrace.kernels import buffers, rows, source, text
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Packed
from headrace.process import bounds
from headrace.types import arrow_type

WHOLE_ROW: Final = 2
"""Value of ``olds`` where the stream carries the whole old row."""
_KEY_ONLY: Final = 1


@dataclass(frozen=True, slots=True)
class KeySlots:
    """The distinct keys of a change batch: a key's number is its *slot*."""

    keys: Packed
    olds: Int64s
    """Per change the slot of its old row's key, where the stream carries it; else -1."""
    news: Int64s
    """Per change the slot of its new row's key; -1: it has none."""
    lost: bool
    """Whether a change lacks a key that it must name."""

    def part(self, some: slice) -> KeySlots:
        """Return the keys of some changes, numbered anew."""
        olds, news = self.olds[some], self.news[some]
        used, numbers = np.unique(np.concatenate((olds, news)), return_inverse=True)
        if len(used) and used[0] < 0:
            used, numbers = used[1:], numbers - 1
        news, olds = numbers[len(olds) :], numbers[: len(olds)]
        return KeySlots(self.keys.take(used), olds, news, lost=self.lost)


class TableChanges:
    """A change batch with cached columns and keys; callers must not modify the results.

    Threads may share one: at worst two threads compute the same result.
    """

    def __init__(
        self, batch: pa.RecordBatch, table: str = "", made: TableChanges | None = None
    ) -> None:
        """Wrap ``batch`` of ``table``; share the cache of ``made`` if that is of the same batch."""
        self.batch: Final = batch
        self._table = table
        self.made: dict[tuple[object, ...], Any] = {}
        if made is not None and made.batch is batch:
            self.made = made.made

    @property
    def ops(self) -> np.ndarray:
        """Operation of each change, a constant of ``kernels.source``."""
        return cast("np.ndarray", self._once(self._numbers, "__op"))

    @property
    def truncated(self) -> bool:
        """Whether a change is a TRUNCATE."""
        return bool(self._once(self._truncated))

    @property
    def only_inserts(self) -> bool:
        """Whether every change inserts a row."""
        return bool(self._once(self._only_inserts))

    @property
    def olds(self) -> np.ndarray:
        """How much of each old row the stream carries: nothing, the key or all."""
        return cast("np.ndarray", self._once(self._numbers, "__old"))

    @property
    def first_lsn(self) -> int:
        """The least position of a change's transaction."""
        return cast("int", self._once(self._first_lsn))

    @property
    def places(self) -> dict[str, int]:
        """Index of each of the batch's columns, by name."""
        return cast("dict[str, int]", self._once(self._places))

    @property
    def nbytes(self) -> int:
        """Bytes of the batch."""
        return cast("int", self._once(self._nbytes))

    def text(self, kind: str, column: SourceColumn) -> pa.Array:
        """Return the new (``n``) or old (``o``) values of a column, unparsed.

        Raises:
            StructureChanged: the batch has no column of that number.
        """
        place = self.places.get(f"{kind}:{column.attnum}")
        if place is None:
            raise StructureChanged(
                f'column "{column.name}" of table {self._table} cannot be identified',
                detail="The table was altered several times while rows were written.",
                hint=RESYNC,
            )
        return self.batch.column(place)

    def unchanged(self, column: SourceColumn) -> np.ndarray | None:
        """Return a mask of the changes whose new value is an unsent TOAST value; None: none."""
        place = self.places.get(f"u:{column.attnum}")
        if place is None:
            return None
        flags = pc.fill_null(self.batch.column(place), fill_value=False)
        found: np.ndarray = flags.to_numpy(zero_copy_only=False)
        return found if found.any() else None

    def parse(self, column: SourceColumn, values: pa.Array) -> pa.Array:
        """Return the values parsed to the column's type.

        Raises:
            DefiniteFailure: the values are of another type.
        """
        if values.type == arrow_type(column.oid):
            return values  # parsed once for all views
        try:
            return text.parse(values, column.oid)
        except ValueError as error:
            raise DefiniteFailure(
                f'column "{column.name}" of table {self._table} has another type now',
                detail=str(error),
                hint=RESYNC,
            ) from error

    def value(self, column: SourceColumn, of_key: bool) -> tuple[pa.Array, np.ndarray | None]:
        """Return the typed new values, and a mask of those that only the stored row has."""
        return cast("tuple[pa.Array, np.ndarray | None]", self._once(self._value, column, of_key))

    def came(self, columns: tuple[SourceColumn, ...]) -> tuple[list[pa.Array], int] | None:
        """Return the typed values of inserted and updated rows, and their number; None: no rows.

        REQUIRES: no value is an unsent TOAST value.
        """
        return cast("tuple[list[pa.Array], int] | None", self._once(self._came, columns))

    def distinct(self, column: SourceColumn) -> frozenset[object]:
        """Return the values of a column in inserted and updated rows; None is NULL.

        REQUIRES: no value is an unsent TOAST value.
        """
        return cast("frozenset[object]", self._once(self._distinct, column))

    def packed(self, columns: tuple[SourceColumn, ...]) -> Packed:
        """Return the new rows, with these columns.

        REQUIRES: no value is an unsent TOAST value.
        """
        return cast("Packed", self._once(self._packed, columns))

    def slots(self, key: tuple[SourceColumn, ...]) -> KeySlots:
        """Return the distinct keys that the changes name, and which change names which."""
        return cast("KeySlots", self._once(self._slots, key))

    def _once(self, make: Callable[..., Any], *of: object) -> Any:
        name = (make.__name__, *of)
        if name not in self.made:
            self.made[name] = make(*of)
        return self.made[name]

    def _numbers(self, name: str) -> np.ndarray:
        found: np.ndarray = self.batch.column(self.places[name]).to_numpy()
        return found

    def _truncated(self) -> bool:
        return bool((self.ops == source.TRUNCATE).any())

    def _only_inserts(self) -> bool:
        return bool((self.ops == source.INSERT).all())

    def _first_lsn(self) -> int:
        lsns = self._numbers("__lsn")
        return buffers.least(lsns) if len(lsns) else 0

    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.batch.schema.names)}

    def _nbytes(self) -> int:
        return bounds.size_of(self.batch)

    def _value(self, column: SourceColumn, of_key: bool) -> tuple[pa.Array, np.ndarray | None]:
        new, missing = self.text("n", column), None
        flags = self.unchanged(column)
        if flags is not None:
            told = flags & (self.olds >= (_KEY_ONLY if of_key else WHOLE_ROW))
            new = pc.if_else(pa.array(told), self.text("o", column), new)
            missing = flags & ~told
        return self.parse(column, new), missing if missing is not None and missing.any() else None

    def _came(self, columns: tuple[SourceColumn, ...]) -> tuple[list[pa.Array], int] | None:
        places = np.flatnonzero(self.ops <= source.UPDATE)
        if len(places) == 0:
            return None
        values = [self.value(column, False)[0] for column in columns]
        if len(places) < self.batch.num_rows:
            values = [value.take(pa.array(places)) for value in values]
        return values, len(places)

    def _distinct(self, column: SourceColumn) -> frozenset[object]:
        came = self.came((column,))
        return frozenset() if came is None else frozenset(came[0][0].to_pylist())

    def _packed(self, columns: tuple[SourceColumn, ...]) -> Packed:
        # The values of key columns are the same without the old row (``_value``).
        return rows.pack_rows([self.value(column, False)[0] for column in columns])

    def _slots(self, key: tuple[SourceColumn, ...]) -> KeySlots:
        count, oids = self.batch.num_rows, [column.oid for column in key]
        keys = Numbering()
        olds = buffers.minus_ones(count)
        lost = False
        if buffers.some(self.olds.view(np.uint8)):
            places = np.flatnonzero(self.olds)
            texts = [self.text("o", column) for column in key]
            if len(places) < count:
                texts = [column.take(pa.array(places)) for column in texts]
            typed = [self.parse(column, array) for column, array in zip(key, texts, strict=True)]
            found = _numbered(keys, typed, oids)
            # The stream carries another key: the table's replica identity was another for a while.
            lost = buffers.negative(found)
            olds = found
            if len(places) < count:
                olds = np.full(count, -1, np.int64)
                olds[places] = found
        news = _numbered(keys, [self.value(column, True)[0] for column in key], oids)
        lost = lost or source.keyless(self.ops, olds, news)
        return KeySlots(keys.strings(), olds, news, lost=lost)


def _numbered(keys: Numbering, columns: list[pa.Array], oids: list[int]) -> Int64s:
    """Add the keys of rows without a NULL; return their numbers, and -1 for the other rows."""
    there = rows.whole(columns)
    if buffers.every(there):
        return keys.add(rows.pack_keys(columns, oids))[0]
    chosen = np.flatnonzero(there)
    out = np.full(len(there), -1, np.int64)
    if len(chosen):
        kept = [column.take(pa.array(chosen)) for column in columns]
        out[chosen], _ = keys.add(rows.pack_keys(kept, oids))
    return out
