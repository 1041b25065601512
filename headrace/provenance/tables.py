"""Rows of tables at a snapshot, as far as equalities ask for them.

Equalities of built-in types become conditions of the query, so that Postgres can use an index; it
may return more rows, which are filtered here.  A table whose owner does not have the engine's
rights is read whole (``population/tables.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from headrace import types as t
from headrace.collections.plan import SourceSpec
from headrace.population import reader
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.job import Job
from headrace.population.snapshot import SnapshotRef
from headrace.process import bounds
from headrace.provenance.values import AllowedValues, Equalities, satisfied, sorted_texts

PIECE_ROWS: Final = 100_000
PIECE_BYTES: Final = 16 << 20
_PUSHED: Final = {
    t.BOOL: "bool",
    t.INT2: "int2",
    t.INT4: "int4",
    t.INT8: "int8",
    t.OID: "oid",
    t.TEXT: "text",
    t.VARCHAR: "text",
    t.NUMERIC: "numeric",
    t.DATE: "date",
    t.TIMESTAMP: "timestamp",
    t.TIMESTAMPTZ: "timestamptz",
    t.UUID: "uuid",
}
"""Types whose values Postgres compares: equal canonical keys are equal there."""
# Pieces must come in the same order each time.
_IN_ORDER: Final = (
    "SET LOCAL synchronize_seqscans = off",
    "SET LOCAL max_parallel_workers_per_gather = 0",
)


class TableReader:
    """Reads the tables of one query at one snapshot."""

    def __init__(
        self,
        job: Job,
        dsn: str,
        ref: SnapshotRef,
        elsewhere: SourceSnapshots | None,
        piece_rows: int = PIECE_ROWS,
    ) -> None:
        """``elsewhere``: snapshots of the sources that some of the tables are in."""
        self._job = job
        self._dsn = dsn
        self._ref = ref
        self._elsewhere = elsewhere
        self._piece_rows = piece_rows

    def read(self, source: SourceSpec, equalities: Equalities) -> Iterator[list[pa.Array]]:
        """Yield the rows that satisfy ``equalities``; see ``relations.Reader``.

        Raises:
            SnapshotLost: the snapshot is gone.
            TableChanged: the table was altered.
        """
        origin = None if self._elsewhere is None else self._elsewhere.origin(source)
        dsn, ref, table = self._dsn, self._ref, source
        if origin is not None:
            dsn, ref, table = origin.dsn, origin.ref, origin.table
        # Each reading has a connection, because one may be abandoned during another.
        with (
            reader.joined(dsn, ref, self._job.wanted) as conn,
            self._job.cancelling(lambda: conn.cancel_safe(timeout=5.0)),
        ):
            for setting in _IN_ORDER:
                conn.execute(setting)
            only = _condition(table, equalities) if origin is None else None
            batches = reader.read(conn, table, plain=origin is not None, only=only)
            with contextlib.closing(batches):
                yield from self._joined(source, equalities, batches)
            self._job.check()

    def _joined(
        self, source: SourceSpec, equalities: Equalities, batches: Iterator[list[pa.Array]]
    ) -> Iterator[list[pa.Array]]:
        """Yield the wanted rows in pieces of about ``piece_rows``; one even if it is empty."""
        held: list[list[pa.Array]] = []
        count = size = 0
        for columns in batches:
            self._job.check()
            bounds.progress()
            rows = len(columns[0])
            mask = satisfied(columns[: len(source.columns)], rows, equalities)
            mine = columns if mask.all() else [c.filter(pa.array(mask)) for c in columns]
            bounds.admit(len(mine[0]), sum(c.nbytes for c in mine))
            held.append(mine)
            count += int(np.count_nonzero(mask))
            size += sum(c.nbytes for c in mine)
            if count >= self._piece_rows or size >= PIECE_BYTES:
                yield _concatenated(held)
                held, count, size = [], 0, 0
        if count:
            yield _concatenated(held)


def _concatenated(pieces: list[list[pa.Array]]) -> list[pa.Array]:
    return [pa.concat_arrays(list(columns)) for columns in zip(*pieces, strict=True)]


def _condition(source: SourceSpec, equalities: Equalities) -> sql.Composable | None:
    """Return SQL that is true for all rows that satisfy ``equalities``; None: no condition."""
    parts = [
        _equal(source.columns[place].name, values)
        for place, values in equalities.items()
        if values.oid in _PUSHED
    ]
    return sql.SQL(" AND ").join(parts) if parts else None


def _equal(name: str, values: AllowedValues) -> sql.Composed:
    column = sql.Identifier(name)
    texts = [text for text in sorted_texts(values) if text is not None]
    kind = sql.SQL(_PUSHED[values.oid])
    among = sql.SQL("{} OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.{}[])").format(
        column, sql.Literal(texts), kind
    )
    if values.whole:
        return among
    return sql.SQL("({} OR {} IS NULL)").format(among, column)
