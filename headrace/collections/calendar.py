"""Columns that the clock alone determines, and that change only at known timestamps."""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections import base, plan
from headrace.collections.listed import ListedMap
from headrace.errors import BugError, RowError
from headrace.expressions.calendar import CalendarRun, CalendarValues
from headrace.expressions.kernels import FailingRow
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import packed, rows
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_schema, arrow_type

ROWS_MAX: Final = 1_000
"""Maximum number of rows that ``rows`` counts, so that it takes little time."""
_NOW: Final = b"now"
_INSTANT: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">I")

Values = tuple[bytes, ...]


def calendar_run(values: CalendarValues, instant: int) -> CalendarRun:
    """Return the values at ``instant``.

    Raises:
        RowError: one cannot be computed.
    """
    try:
        return values.at(instant)
    except FailingRow as error:
        raise RowError(error.message, detail=error.detail, sqlstate=error.code) from error


class Calendar(base.Collection):
    """Each row with the values of the calendar.

    Meaning: at timestamp T the rows of the input with one more column per value, computed for T.
        When a value changes, every row is retracted and sent again.  T is the timestamp in the
        batch's record, never less than that of the previous batch.  So a replay has the same T.
    Shape: input -> input columns, then the values.  Key: none; rows may be partitioned in any way.
    State: ``id``: the rows, under one key; ``id.clock``: the values that the output shows, and the
        timestamp at which they were computed.  A change retracts the stored values, so it is exact
        even if Postgres has other rules of a time zone by now.
    Time: holds the txid's diffs until TimeEnd.  A batch in which no value changes and that has no
        rows need not reach it (``due``).
    Errors: RowError when a value cannot be computed.
    """

    begins = True

    def __init__(
        self, node: plan.CalendarSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        self.instant = 0
        """As ``Temporal.instant``."""
        self._in_schema = in_schema
        self._count = len(node.values)
        self._types = [arrow_type(f.oid) for f in node.schema[len(in_schema) :]]
        self._values = CalendarValues(node.values, remote)
        self._held = base.Diffed(in_schema)
        self._output: tuple[int, Values] | None = None
        """Timestamp and values of the output, once they were read."""
        self._rows: IndexState
        self._clock: ListedMap

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._rows = store.index(self.id)
        self._clock = ListedMap(store.map(f"{self.id}.clock"))
        self._output = None

    def describe(self) -> str:
        """See ``Collection``."""
        return f"Calendar ({self._count} values)"

    # --- the clock

    @property
    def now(self) -> int | None:
        """The timestamp of the last change; None before the first txid."""
        shown = self._shown()
        return None if shown is None else shown[0]

    def until(self, instant: int) -> int:
        """Return until when no value changes, from ``instant`` on; itself if one has."""
        shown = self._shown()
        if shown is None or instant <= shown[0]:
            return instant + 1
        run = self._values_at(instant)
        return run.until if run.values == shown[1] else instant

    def rows(self, instant: int) -> int:
        """Return how many rows ``instant`` changes, counted up to ``ROWS_MAX``."""
        if not self.changed(instant):
            return 0
        return len(self._rows.first_many(packed.empty(1), ROWS_MAX)[2])

    def near(self, instant: int) -> int:
        """Return 0: rows that change at one timestamp cannot be divided over several."""
        del instant
        return 0

    crossing = near

    def changed(self, instant: int) -> int:
        """Return when the values at ``instant`` began, if the output shows others; else 0."""
        return self._values_at(instant).since if self.until(instant) <= instant else 0

    def _shown(self) -> tuple[int, Values] | None:
        """Return the timestamp and the values of the output."""
        if self._output is not None:
            return self._output
        [stored] = self._clock.get_many([_NOW])
        if stored is None:
            return None
        at, values = _INSTANT.size, []
        while at < len(stored):
            [length] = _LENGTH.unpack_from(stored, at)
            at += _LENGTH.size
            values.append(stored[at : at + length])
            at += length
        self._output = int(_INSTANT.unpack_from(stored)[0]), tuple(values)
        return self._output

    def _values_at(self, instant: int) -> CalendarRun:
        return calendar_run(self._values, instant)

    # --- verbs

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if self.insert_only:
            return self._enter(batch, self._values_at(self.instant).values)
        self._held.add(batch)
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        out: list[pa.RecordBatch] = []
        shown = self._shown()
        now = self.instant if shown is None else max(shown[0], self.instant)
        run = self._values_at(now)
        if shown is None or shown[1] != run.values:
            if shown is not None:
                out = self._all_again(shown[1], run.values)
            stored = b"".join(_LENGTH.pack(len(v)) + v for v in run.values)
            self._clock.put_many([_NOW], [_INSTANT.pack(now) + stored])
            self._output = now, run.values
        for batch in self._held.take():
            out += self._enter(batch, run.values)
        return out

    def _enter(self, batch: pa.RecordBatch, values: Values) -> list[pa.RecordBatch]:
        """Return diffs of the input with the values; store the rows."""
        encoded, weights = base.split(self._in_schema, batch)
        keys = packed.empty(batch.num_rows)
        if self.insert_only:
            self._rows.load(keys, encoded, weights)
        else:
            self._rows.add_many(keys, encoded, weights)
        return base.cut(self._wide(batch, values))

    def _all_again(self, old: Values, new: Values) -> list[pa.RecordBatch]:
        """Return diffs that replace the values in all rows."""
        _, found, weights = self._rows.scan_many(packed.empty(1))
        if not len(weights):
            return []
        if weights.min() < 0:
            raise BugError(f'a row in state "{self.id}" has a negative weight')
        out: list[pa.RecordBatch] = []
        for batch in base.cut(base.decode(found, self._in_schema, weights)):
            gone = self._wide(batch, old)
            minus = pc.negate(gone.columns[-1])
            out.append(pa.RecordBatch.from_arrays([*gone.columns[:-1], minus], schema=gone.schema))
            out.append(self._wide(batch, new))
        return out

    def _wide(self, batch: pa.RecordBatch, values: Values) -> pa.RecordBatch:
        made = []
        for value, kind in zip(values, self._types, strict=True):
            [column] = rows.decode_rows(packed.pack([value]), [kind])
            made.append(pa.repeat(column[0], batch.num_rows))
        columns = [*base.columns_of(batch), *made, batch.columns[-1]]
        return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(self.schema))
