"""Functions of tasks, called by Spark's ``mapInArrow``: a scan of block ranges, or a segment.

A scan uses the builder's reader.  It runs the source collection and the stateless ones after it
before a row leaves Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Generator, Iterable, Iterator

import msgspec
import psycopg
import pyarrow as pa

from headrace.collections.plan import FeedSpec, SourceSpec, ValuesSpec
from headrace.errors import BugError, HeadraceError, SparkUnavailable
from headrace.kernels import rows
from headrace.population import reader, returned_files, segments
from headrace.population.reader import Blocks, TableOrigin
from headrace.population.segments import BlockStream, Exit, Segment, Spec
from headrace.postgres import connect
from headrace.postgres.connect import Connection
from headrace.postgres.failures import as_headrace


def run(
    given: str, segment: Segment, exit_: Exit, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task of a segment that reads no table."""
    from pyspark import TaskContext  # only there is a task

    context = TaskContext.get()
    if context is None:
        raise BugError("not in a Spark task")
    part = f"p{context.partitionId()}"
    spec = segments.load_spec(given)
    with _errors_told(spec):
        yield from returned_files.with_files(
            spec, exit_, batches, lambda own, rows: segments.run(own, segment, exit_, part, rows)
        )


def scan(
    given: str, segment: Segment, exit_: Exit, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task of a segment that begins with a table, or with constant rows.

    ``batches``: the numbers of the block ranges to read, one in each row.
    """
    spec = segments.load_spec(given)
    with _errors_told(spec):
        for batch in batches:
            for number in batch.column(0).to_pylist():
                read = functools.partial(_scan, segment, exit_, number)
                yield from returned_files.with_files(spec, exit_, (), read)


def _scan(
    segment: Segment, exit_: Exit, number: int, spec: Spec, _: Iterable[pa.RecordBatch]
) -> BlockStream:
    node = segment.head or segment.schema_of
    if node in spec.origins:
        _check_reachable(spec.origins[node])
    return scan_range(spec, segment, exit_, number)


def _check_reachable(origin: TableOrigin) -> None:
    """Raise SparkUnavailable if the database of ``origin`` cannot be reached from here."""
    try:
        connect.session(origin.dsn, name="headrace spark").close()
    except (psycopg.Error, HeadraceError) as error:
        host = socket.gethostname()
        raise SparkUnavailable(
            f'Spark\'s executors on {host} cannot connect to source "{origin.source}"'
        ) from error


class ExecutorReport(msgspec.Struct):
    """Report of a task about its executor."""

    host: str
    compiled: bool
    staging: bool
    """Whether it sees the directory of the files of a population."""
    source: str = ""
    """Why it cannot connect to the source."""


def probe(marker: str, dsn: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return what is found here; a Python worker that has run it has imported all modules.

    ``marker``: a file in the directory of the files of a population.  ``dsn``: the source.
    """
    segments.load_spec.cache_info()
    for _ in batches:
        pass
    failed = ""
    try:
        connect.session(dsn, name="headrace spark").close()
    except (psycopg.Error, HeadraceError) as error:
        failed = str(error).strip() or type(error).__name__
    compiled = not str(rows.__file__).endswith(".py")
    shared = os.access(marker, os.R_OK)
    told = ExecutorReport(socket.gethostname(), compiled, shared, failed)
    texts = [msgspec.json.encode(told).decode()]
    yield pa.RecordBatch.from_pydict({"told": texts})


def scan_range(spec: Spec, segment: Segment, exit_: Exit, number: int) -> BlockStream:
    """Run a segment that begins with a table over block range ``number``, or with constant rows."""
    # A table without a key is read separately from its collection.
    node = spec.plan.node(segment.head or segment.schema_of)
    if isinstance(node, ValuesSpec):
        yield from segments.run(spec, segment, exit_, str(number), ())
        return
    if not isinstance(node, SourceSpec | FeedSpec):
        raise BugError(f'node "{node.id}" cannot be read')
    table = spec.fed[node.id].source if isinstance(node, FeedSpec) else node
    first, last = spec.blocks[node.id][number]
    blocks = Blocks(first or 0, last)
    origin = spec.origins.get(node.id)
    dsn, ref = (spec.dsn, spec.ref) if origin is None else (origin.dsn, origin.ref)
    with (
        reader.joined(dsn, ref) as conn,
        contextlib.closing(_rows(conn, table, origin, blocks)) as found,
    ):
        batches = _counted(spec, f"{node.id}-{number}", found)
        if segment.head:
            yield from segments.run_source(spec, segment, exit_, number, batches)
        else:
            yield from segments.scan_source(spec, node, exit_.parts, number, batches)
        with contextlib.suppress(StopIteration):
            next(iter(batches))
            raise BugError("a reading task left rows unread")
        reader.prove(conn, ref)


def _rows(
    conn: Connection, node: SourceSpec, origin: TableOrigin | None, blocks: Blocks
) -> Generator[list[pa.Array], None, None]:
    if origin is None:
        return reader.read(conn, node, blocks)
    return reader.read(conn, origin.table, blocks, plain=True)


def _counted(spec: Spec, name: str, batches: Iterator[list[pa.Array]]) -> Iterator[list[pa.Array]]:
    """Yield the batches, and report the number of rows so far to the builder."""
    done = 0
    for batch in batches:
        done += len(batch[0])
        spec.staging.write_progress(name, done)
        yield batch


@contextlib.contextmanager
def _errors_told(spec: Spec) -> Iterator[None]:
    """Save an error of the block for the builder, because Spark passes on only its text."""
    try:
        yield
    except (HeadraceError, psycopg.Error) as error:
        mine = as_headrace(error) if isinstance(error, psycopg.Error) else error
        segments.save_error(spec, mine)
        raise
