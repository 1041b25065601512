"""Data exchanged between Spark tasks: blocks of typed diffs, each for one part of its receiver.

Spark moves few large values without reading them.  A row of its tables is a *block*:

    part: the receiving task        port: input of the node        n: number of diffs
    block: the diffs, as an Arrow stream

The part follows from the key group of the receiver's key (``key_kernel.divide``).  So all rows of a
key are in one part, however often a task is repeated and wherever it runs; and the keys of a part's
states are a range, like its key groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.collections.base import ROWS_PER_BATCH_MAX, columns_of, cut, encode, keys_of
from headrace.collections.join import keys_of as join_keys
from headrace.collections.plan import JoinSpec, Node
from headrace.errors import BugError
from headrace.kernels import keys as key_kernel
from headrace.kernels import packed
from headrace.kernels.packed import Nullable
from headrace.types import Schema, arrow_schema

SPARK_SCHEMA: Final = "part int, port int, n bigint, block binary"
ARROW_SCHEMA: Final = pa.schema(
    [("part", pa.int32()), ("port", pa.int32()), ("n", pa.int64()), ("block", pa.binary())]
)
_UNEVEN_MAX: Final = 64
"""Most parts that may be any number.  Of 63, some have five key groups and some four."""
BLOCK_BYTES: Final = 4 * 1024 * 1024
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``batch`` as blocks for a single part."""
    return to_all(batch, 0, 1)


def to_all(batch: pa.RecordBatch, port: int, parts: int) -> pa.RecordBatch:
    """Return ``batch`` as blocks for every part."""
    blocks = _packed(_pieces(batch))
    return _table([(part, *each) for part in range(parts) for each in blocks], port)


def counted(rows: int) -> pa.RecordBatch:
    """Return a block without diffs that carries the count ``rows``."""
    return pa.RecordBatch.from_arrays([[0], [0], [rows], [b""]], schema=ARROW_SCHEMA)


def without_rows(schema: Schema, part: int) -> pa.RecordBatch:
    """Return a block of no rows for ``part``."""
    none = pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))
    return _table([(part, *each) for each in _packed([none])], 0)


def read(block: bytes) -> list[pa.RecordBatch]:
    """Return the diffs of a block."""
    with pa.ipc.open_stream(block) as stream:
        return [*stream]


def even(parts: int) -> int:
    """Return the number of parts to make of ``parts``, so that none has much more than another.

    Up to 256 parts have whole key groups, of which there are 256.
    """
    return parts if parts <= _UNEVEN_MAX else 1 << (parts - 1).bit_length()


def parts_of(keys: Nullable, parts: int) -> npt.NDArray[np.int32]:
    """Return the part of each key; -1 for None."""
    found: npt.NDArray[np.int32] = key_kernel.divide(keys, parts)
    return found


def spread(batch: pa.RecordBatch, port: int, keys: Nullable, parts: int) -> pa.RecordBatch:
    """Divide ``batch`` into blocks by ``keys``; omit rows whose key is None."""
    return placed(batch, port, parts_of(keys, parts), parts)


def placed(
    batch: pa.RecordBatch, port: int, numbers: npt.NDArray[np.int32], parts: int
) -> pa.RecordBatch:
    """Divide ``batch`` into blocks by the part of each row; omit rows of part -1."""
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers + 1, minlength=parts + 1)
    ordered = batch.take(pa.array(order))
    start = int(counts[0])
    found: list[tuple[int, int, bytes]] = []
    for part, count in enumerate(counts[1:].tolist()):
        if count:
            blocks = _packed(_pieces(ordered.slice(start, count)))
            found += [(part, *each) for each in blocks]
            start += count
    return _table(found, port)


def keys_for(
    node: Node, port: int, places: tuple[int, ...] | None, schema: Schema, batch: pa.RecordBatch
) -> Nullable:
    """Return the key of each row, from the columns ``places`` (None means all columns).

    A key is None if a NULL keeps the row from matching any other (joins).
    """
    if isinstance(node, JoinSpec) and not node.keeps_nulls(port):
        return join_keys(node, port, schema, batch)
    chosen = tuple(range(len(schema))) if places is None else places
    columns, oids = [batch.column(i) for i in chosen], [schema[i].oid for i in chosen]
    return packed.all_valid(keys_of(columns, oids, batch.num_rows))


def identities(batch: pa.RecordBatch) -> Nullable:
    """Return keys that are equal only for identical rows."""
    return packed.all_valid(encode(columns_of(batch), batch.num_rows))


class Arrivals:
    """Decoder of arriving blocks into record batches of diffs."""

    def __init__(self, schemas: list[Schema]) -> None:
        """``schemas``: one for each input port."""
        self._schemas = [arrow_schema(schema) for schema in schemas]
        self.part: int | None = None
        """The part that the blocks are for; None until ``begin``, and if there are no blocks."""

    def begin(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Read ``part`` from the first block, if there is one; return all ``batches``."""
        coming = iter(batches)
        for batch in coming:
            if batch.num_rows:
                self.part = batch.column("part")[0].as_py()
                return itertools.chain((batch,), coming)
        return ()

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (port, diffs) of the blocks, with small ones combined.

        REQUIRES: ``begin`` has returned ``batches``.

        Raises:
            BugError: a block has other types than its port, or is for another part.
        """
        held: list[pa.RecordBatch] = []
        at, rows, size = 0, 0, 0
        for port, found in self._each(batches):
            full = rows + found.num_rows > ROWS_PER_BATCH_MAX or size > BLOCK_BYTES
            if held and (port != at or full):
                yield from _joined(at, held)
                held, rows, size = [], 0, 0
            held.append(found)
            at, rows, size = port, rows + found.num_rows, size + found.nbytes
        yield from _joined(at, held)

    def _each(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        for batch in batches:
            parts, ports = batch.column("part").to_pylist(), batch.column("port").to_pylist()
            blocks = batch.column("block")
            for i, (part, port) in enumerate(zip(parts, ports, strict=True)):
                if part != self.part:
                    raise BugError(f"a task of part {self.part} got rows of part {part}")
                with pa.ipc.open_stream(blocks[i].as_buffer()) as stream:
                    for found in stream:
                        yield port, self._named(port, found)

    def _named(self, port: int, found: pa.RecordBatch) -> pa.RecordBatch:
        """Rename the columns to the receiver's: those of a union's inputs may differ."""
        schema = self._schemas[port]
        if found.schema.types != schema.types:
            raise BugError(f"port {port} got rows of types {found.schema.types}")
        return pa.RecordBatch.from_arrays(found.columns, schema=schema)


def _joined(port: int, held: list[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    if len(held) > 1:
        held = pa.Table.from_batches(held).combine_chunks().to_batches()
    for batch in held:
        for piece in cut(batch):
            yield port, piece


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut ``batch`` into pieces of about BLOCK_BYTES."""
    if batch.num_rows == 0:
        return []
    return cut(batch, max(1, batch.num_rows * BLOCK_BYTES // max(batch.nbytes, BLOCK_BYTES)))


def _packed(pieces: list[pa.RecordBatch]) -> list[tuple[int, bytes]]:
    out: list[tuple[int, bytes]] = []
    for piece in pieces:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, piece.schema, options=_OPTIONS) as stream:
            stream.write_batch(piece)
        out.append((piece.num_rows, sink.getvalue().to_pybytes()))
    return out


def _table(blocks: list[tuple[int, int, bytes]], port: int) -> pa.RecordBatch:
    """Return a table of ``blocks``, each given as part, number of rows, bytes."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array([part for part, _, _ in blocks], pa.int32()),
            pa.array([port] * len(blocks), pa.int32()),
            pa.array([rows for _, rows, _ in blocks], pa.int64()),
            pa.array([packed for _, _, packed in blocks], pa.binary()),
        ],
        schema=ARROW_SCHEMA,
    )
