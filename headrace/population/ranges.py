"""Ranges of rows in ORDER BY order, which tasks compute side by side.

Windows and ORDER BY with OFFSET depend on all rows before a row.  So rows are divided at
*splitters*, quantiles of a sample: each task has the rows of a range.  Peers are in one range.

    1. Each task computes the *summary* of its range.
    2. The builder computes from all summaries the *start* of each range: the state after the
       ranges before it.
    3. Each task reads its rows again, and computes them from its start.

A window with PARTITION BY is divided like that only if the sample finds a frequent partition;
ranges are then of (partition, ORDER BY).  A peer group is never divided: without ORDER BY, one task
has all rows of a partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.collections import plan, running_range
from headrace.collections.base import Collection, columns_of, keys_of, weights_of
from headrace.collections.plan import Node
from headrace.collections.running_range import (
    RangeStart,
    RangeSummary,
    RunningRange,
    RunningSummary,
)
from headrace.collections.sorting import Sorter
from headrace.collections.topk import TopK
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import packed, packed_order
from headrace.kernels.packed import Packed
from headrace.population import edges
from headrace.types import TEXT, Field, Schema, diff_batch

ROWS_MIN: Final = 20_000
"""Rows from which on ranges are used."""
SAMPLED: Final[Schema] = (Field("sample", TEXT),)
"""Columns of the samples that tasks give."""
_KEYS_MAX: Final = 2048
"""Rows of the sample of a task."""
_FOUND_MIN: Final = 32
"""Rows of a partition in a sample, from which on it may be frequent."""
_SEED: Final = 34

RangeNode = plan.WindowSpec | plan.TopKSpec


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of a node."""

    splitters: tuple[bytes, ...] = ()
    """Ascending (``RowOrder``): each is the first possible row of a range."""
    starts: Mapping[str, RangeStart] = field(default_factory=dict)
    """Start of each range that has rows, by the name of its task; none before step 3."""

    def __bool__(self) -> bool:
        return bool(self.splitters)

    def numbers(self, keys: Packed) -> npt.NDArray[np.int32]:
        """Return the number of the range of each row, given by its key (``RowOrder``)."""
        return packed_order.bisected(keys, packed.pack(self.splitters))


NONE: Final = Ranges()


class RowOrder:
    """The order of the input rows of a node: PARTITION BY, then ORDER BY."""

    def __init__(self, node: RangeNode, schema: Schema) -> None:
        self._keys = node.keys
        self._oids = [schema[i].oid for i in node.keys]
        self._sorter = Sorter(schema, node.keys, node.order, None)

    def partitions(self, batch: pa.RecordBatch) -> Packed:
        """Return the key of each row's partition."""
        columns = columns_of(batch)
        return keys_of([columns[i] for i in self._keys], self._oids, batch.num_rows)

    def keys(self, batch: pa.RecordBatch) -> Packed:
        """Return keys that sort as the rows; those of peers are equal."""
        orders = self._sorter.orders(columns_of(batch), batch.num_rows)
        return packed.appended(self.partitions(batch), orders)


def divisible(node: RangeNode) -> bool:
    """Return whether ranges of the rows of ``node`` can be computed side by side."""
    if isinstance(node, plan.WindowSpec):
        return bool(node.order) and node.native
    return bool(node.order) and not node.keys and all(item.native for item in node.order)


def is_range(node: Node) -> bool:
    """Return whether all rows of ``node`` in one task are computed as a range.

    That takes less memory than the collection of the live engine.
    """
    return isinstance(node, plan.WindowSpec) and node.native


# --- splitters


class _Sample(msgspec.Struct, frozen=True):
    """Some rows of a task."""

    keys: list[bytes]
    each: int
    """Number of rows that each of them stands for."""


_SAMPLE: Final = msgspec.json.Decoder(_Sample)


def sampled(order: RowOrder, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a sample of the rows of a task, as rows of ``SAMPLED``."""
    chance, step = np.random.default_rng(_SEED), 1
    found: list[bytes] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        # A row in each interval of ``step`` rows.
        begins = np.arange(0, batch.num_rows, step)
        places = begins + chance.integers(0, np.minimum(step, batch.num_rows - begins))
        found += order.keys(batch.take(pa.array(places))).strings()
        while len(found) > _KEYS_MAX:
            found, step = found[::2], 2 * step
    if found:
        yield _as_row(SAMPLED, _Sample(found, step))


def splitters(samples: Iterable[str], parts: int) -> tuple[bytes, ...]:
    """Return the splitters of ``parts`` ranges with about as many rows each."""
    weights: Counter[bytes] = Counter()
    for text in samples:
        sample = _SAMPLE.decode(text)
        for key in sample.keys:
            weights[key] += sample.each
    return _quantiles(weights, parts)


def splitters_of_rows(
    order: RowOrder, batches: Iterable[pa.RecordBatch], parts: int, *, frequent: bool
) -> tuple[bytes, ...]:
    """Return the splitters of ``parts`` ranges of sampled rows.

    ``frequent``: return none if no partition has at least half as many rows as a part on average.
    """
    weights: Counter[bytes] = Counter()
    partitions: Counter[bytes] = Counter()
    for batch in batches:
        weights.update(order.keys(batch).strings())
        if frequent:
            partitions.update(order.partitions(batch).strings())
    most = max(partitions.values(), default=0)
    if frequent and most < max(_FOUND_MIN, partitions.total() / (2 * parts)):
        return ()
    return _quantiles(weights, parts)


def _quantiles(weights: Counter[bytes], parts: int) -> tuple[bytes, ...]:
    keys = sorted(weights)
    if not keys:
        return ()
    ends = np.cumsum([weights[key] for key in keys])
    wanted = ends[-1] * np.arange(1, parts) / parts
    places = np.unique(np.searchsorted(ends, wanted, side="right"))
    # The first key would begin a range that has all rows.
    return tuple(keys[place] for place in places.tolist() if place)


# --- the steps


class _RowCount(Collection):
    """The number of rows of a range, as its summary."""

    def __init__(self, node: plan.TopKSpec, part: str) -> None:
        super().__init__(node.id, node.schema)
        self._part = part
        self._rows = 0

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        self._rows += int(weights_of(batch).sum())
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if not self._rows:
            return []
        found = RangeSummary(self._part, b"", b"", self._rows, [], b"", [], [])
        return [_as_row(running_range.SUMMARY, found)]

    def describe(self) -> str:
        """See ``Collection``."""
        return "Count of rows"


def summary(node: Node, in_schema: Schema, part: str) -> Collection:
    """Return the collection that computes the summary of a range, which task ``part`` has."""
    match node:
        case plan.WindowSpec():
            return RunningSummary(node, in_schema, part)
        case plan.TopKSpec():
            return _RowCount(node, part)
        case _:
            raise BugError(f'node "{node.id}" has no ranges')


def starts(
    node: RangeNode, in_schema: Schema, summaries: Iterable[str]
) -> Mapping[str, RangeStart] | None:
    """Return the start of each range that has rows; None if they must stay together."""
    found = [running_range.DECODER.decode(text) for text in summaries]
    found.sort(key=lambda each: int(each.part.removeprefix("k")))
    if isinstance(node, plan.WindowSpec):
        return running_range.starts(node, in_schema, found)
    before = [0, *np.cumsum([each.rows for each in found]).tolist()]
    return {each.part: RangeStart(rows) for each, rows in zip(found, before, strict=False)}


def started(
    node: Node, in_schema: Schema, found: Ranges, part: str, remote: RemoteEvaluator | None
) -> Collection:
    """Return the collection that computes the range of task ``part`` from its start."""
    # A range without rows has none, and all rows together have none before them.
    start = found.starts.get(part, RangeStart())
    match node:
        case plan.WindowSpec():
            return RunningRange(node, in_schema, start)
        case plan.TopKSpec():
            return TopK(_behind(node, start.rows), in_schema, remote)
        case _:
            raise BugError(f'node "{node.id}" has no ranges')


def _behind(node: plan.TopKSpec, rows: int) -> plan.TopKSpec:
    """Return ``node`` for rows that have so many rows before them."""
    offset, limit = max(0, node.offset - rows), None
    if node.limit is not None:
        limit = max(0, node.offset + node.limit - rows) - offset
    return msgspec.structs.replace(node, limit=limit, offset=offset)


def _as_row(schema: Schema, found: msgspec.Struct) -> pa.RecordBatch:
    text = msgspec.json.encode(found).decode()
    return diff_batch(schema, [pa.array([text])], pa.array([1], pa.int64()))


def texts(blocks: Sequence[bytes]) -> list[str]:
    """Return the texts of collected rows of ``SAMPLED`` or ``SUMMARY``."""
    return [
        text for block in blocks for batch in edges.read(block) for text in batch[0].to_pylist()
    ]
