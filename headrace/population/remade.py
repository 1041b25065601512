"""The rows of an altered view, made of those that its table has.

The table is locked, and the view stands still: so its rows are of the moment of the states that
are kept.  They are computed and written some at a time, for nothing is kept of them.  Where none of
them stays they are all read first, and the server deletes them while they are computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Final, Self

import pyarrow as pa

from headrace.collections.dataflow import Dataflow
from headrace.collections.keeping import Common
from headrace.collections.plan import SourceColumn, SourceSpec
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import reader, rows
from headrace.population.job import Job
from headrace.population.reshape import empty
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.sink.table import ResultTable
from headrace.state.memory import MemoryStore
from headrace.types import arrow_type

_PART: Final = "0"
_IN_MEMORY_BYTES: Final = 64 * 1024 * 1024


def remake(
    job: Job,
    conn: Connection,
    target: ResultTable,
    keeping: Common,
    remote: RemoteEvaluator | None,
    staging: Staging,
    *,
    emptying: bool,
) -> tuple[int, int]:
    """Stage the rows of the new query, of those of ``target``: how many they are, of how many.

    ``emptying``: the table has no rows then.

    REQUIRES: ``put_right`` in this transaction of ``conn``, which has the table locked.
    """
    source = _source(target, keeping)
    made = _Made(job, source, keeping, remote)
    with contextlib.ExitStack() as stack:
        pieces = stack.enter_context(contextlib.closing(reader.pieces(conn, source)))
        if not emptying:
            return staging.write_rows(_PART, made.of(pieces)), made.done
        read = stack.enter_context(_Read(staging.path))
        for piece in pieces:
            read.add(piece)
        beside = stack.enter_context(ThreadPoolExecutor(1, "headrace-emptying"))
        removed = beside.submit(empty, conn, target)
        rows = staging.write_rows(_PART, made.of(read))
        if removed.result() != made.done:
            raise BugError(f"{removed.result()} rows were deleted, {made.done} were read")
        return rows, made.done


class _Read:
    """What was read, in memory as long as it is little."""

    def __init__(self, folder: Path) -> None:
        # On disk it has no name: it is gone with the process.
        self._file = SpooledTemporaryFile(  # noqa: SIM115  closed on leaving
            max_size=_IN_MEMORY_BYTES, dir=str(folder)
        )
        self._sizes: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, piece: bytes) -> None:
        """Append a piece."""
        self._file.write(piece)
        self._sizes.append(len(piece))

    def __iter__(self) -> Iterator[bytes]:
        """The pieces."""
        self._file.seek(0)
        for size in self._sizes:
            yield self._file.read(size)


@dataclass(slots=True)
class _Made:
    """COPY text of new rows, of those that the table has."""

    job: Job
    source: SourceSpec
    keeping: Common
    remote: RemoteEvaluator | None
    done: int = 0
    """Of so many."""

    def of(self, pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        """Those of the table's rows, some at a time."""
        keeping = self.keeping
        numbers = {column.attnum: at for at, column in enumerate(self.source.columns)}
        schema = keeping.upper.node(keeping.top).schema
        for piece in pieces:
            columns = reader.typed(self.source, piece)
            count = len(columns[0])
            given = [
                pa.nulls(count, arrow_type(field.oid))
                if place is None
                else columns[numbers[place + 1]]
                for field, place in zip(schema, keeping.places, strict=True)
            ]
            # One for each: it keeps what it gives until its end.
            flow = Dataflow(keeping.upper, MemoryStore(undo=False), self.remote, 0, repeats=True)
            flow.load_feed(keeping.top, given)
            yield from rows.render(keeping.upper.sink.schema, flow.end(0))
            bounds.progress()
            self.done += count
            self.job.rows(self.done)
        self.job.complete(self.done)


def _source(target: ResultTable, keeping: Common) -> SourceSpec:
    """The columns of the table that are needed, and one at least, as those of a source."""
    places = sorted({place for place in keeping.places if place is not None}) or [0]
    fields = [target.schema[place] for place in places]
    columns = tuple(
        SourceColumn(place + 1, f.name, f.oid, f.typmod, f.collation)
        for place, f in zip(places, fields, strict=True)
    )
    return SourceSpec(
        *(keeping.top, target.oid, target.schema_name, target.table_name, columns, ()),
        full_identity=True,
        schema=tuple(fields),
    )
