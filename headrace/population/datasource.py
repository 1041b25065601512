"""A Spark data source whose partitions read block ranges of a table inside our snapshot.

Each task reads with the same reader as the builder, and runs the source collection and the
stateless ones after it before a row leaves Python.  Options: ``spec`` (path of ``job.json``; the
DSN never stands in a Spark plan), ``segment`` and ``exit`` as JSON.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import psycopg
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from headrace.collections.plan import SourceSpec, ValuesSpec
from headrace.errors import BugError, HeadraceError
from headrace.population import reader, segments
from headrace.population.segments import Exit, Segment, Spec
from headrace.postgres.failures import as_headrace

_SEGMENTS: Final = msgspec.json.Decoder(Segment)
_EXITS: Final = msgspec.json.Decoder(Exit)


class Range(InputPartition):  # type: ignore[misc]  # pyspark's hints are not followed
    """One reading task: number ``number`` reads blocks ``first`` to ``last``."""

    def __init__(self, number: int, first: int, last: int | None) -> None:
        self.number = number
        self.first = first
        self.last = last


class HeadraceSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        """Short name for ``format``."""
        return "headrace"

    def schema(self) -> str:
        """Every edge has the same columns."""
        return segments.SPARK_SCHEMA

    def reader(self, schema: Any) -> TableReader:
        """The reader for this scan."""
        return TableReader(self.options)


class TableReader(DataSourceReader):  # type: ignore[misc]
    """Reads a table, or yields constant rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self._path = options["spec"]
        self._segment = _SEGMENTS.decode(options["segment"])
        self._exit = _EXITS.decode(options["exit"])

    def partitions(self) -> Sequence[Range]:
        """One partition per block range."""
        spec = segments.load_spec(self._path)
        ranges = spec.blocks.get(self._table, [[0, None]])
        return [Range(number, int(first or 0), last) for number, (first, last) in enumerate(ranges)]

    def read(self, partition: Range) -> Iterator[pa.RecordBatch]:
        """Encoded rows of one partition."""
        spec = segments.load_spec(self._path)
        try:
            yield from self._read(spec, partition)
        except (HeadraceError, psycopg.Error) as error:
            mine = as_headrace(error) if isinstance(error, psycopg.Error) else error
            segments.save_error(spec.staging, mine)
            raise

    @property
    def _table(self) -> str:
        """The node to read; a table without a key is read apart from its collection."""
        return self._segment.head or self._segment.schema_of

    def _read(self, spec: Spec, partition: Range) -> Iterator[pa.RecordBatch]:
        node = spec.plan.node(self._table)
        number = partition.number
        if isinstance(node, ValuesSpec):
            yield from segments.run(spec, self._segment, self._exit, str(number), ())
            return
        if not isinstance(node, SourceSpec):
            raise BugError(f'node "{node.id}" cannot be read')
        blocks = reader.Blocks(partition.first, partition.last)
        with reader.joined(spec.dsn, spec.ref) as conn:
            batches = _counted(spec, f"{node.id}-{number}", reader.read(conn, node, blocks))
            if self._segment.head:
                yield from segments.run_source(spec, self._segment, self._exit, number, batches)
            else:
                yield from segments.spread_source(node, batches)
            with contextlib.suppress(StopIteration):
                next(iter(batches))
                raise BugError("a reading task left rows unread")
            reader.prove(conn, spec.ref)


def _counted(spec: Spec, name: str, batches: Iterator[list[pa.Array]]) -> Iterator[list[pa.Array]]:
    """The batches, with the number of rows so far told to the builder."""
    done = 0
    for batch in batches:
        done += len(batch[0])
        spec.staging.write_progress(name, done)
        yield batch
