"""Recomputes the rows of an altered view from the rows of its result table.

The table is locked and the view is paused, so its rows match the txid of the reused states.  The
rows are processed batch by batch, because no state of them is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import SourceColumn, SourceSpec
from headrace.collections.state_reuse import Common
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import reader, rows
from headrace.population.job import Job
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.sink.table import ResultTable
from headrace.state.memory import MemoryStore
from headrace.types import arrow_type

_PART = "0"


def remake(
    job: Job,
    conn: Connection,
    target: ResultTable,
    keeping: Common,
    remote: RemoteEvaluator | None,
    staging: Staging,
) -> tuple[int, int]:
    """Stage the rows of the new query, computed from ``target``; return (new rows, old rows).

    REQUIRES: ``conn`` is in a transaction that has locked the table.
    """
    source = _source(target, keeping)
    had = 0

    def read() -> Iterator[list[pa.Array]]:
        nonlocal had
        with contextlib.closing(reader.read(conn, source)) as batches:
            for columns in batches:
                yield columns
                had += len(columns[0])
                job.rows(had)
        job.complete(had)

    return staging.write_rows(_PART, _made(source, keeping, remote, read())), had


def _made(
    source: SourceSpec,
    keeping: Common,
    remote: RemoteEvaluator | None,
    batches: Iterator[list[pa.Array]],
) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, COPY text) of the new rows, computed from ``batches``."""
    numbers = {column.attnum: at for at, column in enumerate(source.columns)}
    schema = keeping.upper.node(keeping.top).schema
    for columns in batches:
        count = len(columns[0])
        given = [
            pa.nulls(count, arrow_type(field.oid)) if place is None else columns[numbers[place + 1]]
            for field, place in zip(schema, keeping.places, strict=True)
        ]
        # Use one dataflow for each batch: it holds its output until its end.
        flow = Dataflow(keeping.upper, MemoryStore(undo=False), remote, 0, repeats=True)
        flow.load_feed(keeping.top, given)
        yield from rows.render(keeping.upper.sink.schema, flow.end(0))
        bounds.progress()


def _source(target: ResultTable, keeping: Common) -> SourceSpec:
    """Return the needed columns of the table, at least one, as a source."""
    places = sorted({place for place in keeping.places if place is not None}) or [0]
    fields = [target.schema[place] for place in places]
    columns = tuple(
        SourceColumn(place + 1, f.name, f.oid, f.typmod, f.collation)
        for place, f in zip(places, fields, strict=True)
    )
    return SourceSpec(
        keeping.top,
        target.oid,
        target.schema_name,
        target.table_name,
        columns,
        (),
        full_identity=True,
        schema=tuple(fields),
    )
