"""Functions of Spark tasks, called by ``mapInArrow``: a scan of block ranges, or a segment.

A scan uses the builder's reader.  It runs the source collection and the stateless ones after it
before a row leaves Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import psycopg
import pyarrow as pa

from headrace.collections.plan import SourceSpec, ValuesSpec
from headrace.errors import BugError, HeadraceError
from headrace.population import reader, segments
from headrace.population.segments import Exit, Segment, Spec
from headrace.postgres.failures import as_headrace


def run(
    spec_path: str, segment: Segment, exit_: Exit, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task of a segment that reads no table."""
    from pyspark import TaskContext  # only there is a task

    context = TaskContext.get()
    if context is None:
        raise BugError("not in a Spark task")
    spec = segments.load_spec(spec_path)
    with _errors_told(spec):
        yield from segments.run(spec, segment, exit_, f"p{context.partitionId()}", batches)


def scan(
    spec_path: str, segment: Segment, exit_: Exit, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task of a segment that begins with a table, or with constant rows.

    ``batches``: the numbers of the block ranges to read, one in each row.
    """
    spec = segments.load_spec(spec_path)
    with _errors_told(spec):
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _scan(spec, segment, exit_, number)


def ready(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass ``batches`` through; a Python worker that has run it has imported all modules."""
    segments.load_spec.cache_info()
    yield from batches


def _scan(spec: Spec, segment: Segment, exit_: Exit, number: int) -> Iterator[pa.RecordBatch]:
    # A table without a key is read separately from its collection.
    node = spec.plan.node(segment.head or segment.schema_of)
    if isinstance(node, ValuesSpec):
        yield from segments.run(spec, segment, exit_, str(number), ())
        return
    if not isinstance(node, SourceSpec):
        raise BugError(f'node "{node.id}" cannot be read')
    first, last = spec.blocks[node.id][number]
    blocks = reader.Blocks(first or 0, last)
    with (
        reader.joined(spec.dsn, spec.ref) as conn,
        contextlib.closing(reader.read(conn, node, blocks)) as found,
    ):
        batches = _counted(spec, f"{node.id}-{number}", found)
        if segment.head:
            yield from segments.run_source(spec, segment, exit_, number, batches)
        else:
            yield from segments.scan_source(node, exit_.parts, batches)
        with contextlib.suppress(StopIteration):
            next(iter(batches))
            raise BugError("a reading task left rows unread")
        reader.prove(conn, spec.ref)


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
        segments.save_error(spec.staging, mine)
        raise
