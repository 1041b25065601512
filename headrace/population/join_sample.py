"""Finds the frequent keys of a join in a sample of the tables that its rows come from.

The builder reads some block ranges of a table, and runs the filters and projections up to the join
over these rows.  A join in between is followed to its larger side; columns of the other side are
NULL in the sample.  An error of a row is ignored here: the row may not reach that expression.

A sample decides on the division of work only (``frequent_keys``).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import build, plan
from headrace.collections.base import Collection, columns_of
from headrace.collections.plan import JoinSpec, Node, SourceSpec
from headrace.errors import HeadraceError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels.numbering import Consolidator
from headrace.population import division, edges, frequent_keys, reader, segments
from headrace.population.frequent_keys import FrequentKeys
from headrace.population.reader import Blocks
from headrace.population.segments import Spec
from headrace.population.tables import TableSize
from headrace.state.memory import MemoryStore
from headrace.types import Diffs, arrow_type, diff_batch

ROWS_MIN: Final = 20_000
"""Rows of a table from which on frequent keys are looked for."""
_ROWS: Final = 16_384
"""Rows of a sample, about."""
_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of a sample, after which no more rows are read."""
_RANGES: Final = 32
_FOUND_MIN: Final = 32
"""Rows of a key in a sample, from which on it may be frequent."""
_SEED: Final = 34


@dataclass(frozen=True, slots=True)
class _Counted:
    """Estimated rows of one port of a join."""

    by_key: Mapping[bytes, float]
    rows: float
    """Of all keys, also those that are NULL."""
    least: float
    """Rows of a key from which on the sample has enough of them to rely on."""


class JoinSample:
    """The frequent keys of the joins of one population."""

    def __init__(self, spec: Spec, sizes: Mapping[str, TableSize], parts: int) -> None:
        """``sizes``: by source.  ``parts``: number of tasks that rows are divided among."""
        self._spec = spec
        self._sizes = sizes
        self._parts = parts
        self._rows = division.rows(spec.plan, {name: size.rows for name, size in sizes.items()})

    def frequent(self, node: JoinSpec) -> FrequentKeys:
        """Return the keys of ``node`` that have at least half as many rows as a task on average.

        The rows that all tasks get are limited to as many, except for the first key.
        """
        ports = frequent_keys.dividable(node)
        names = plan.inputs(node)
        if self._parts == 1 or not any(self._rows[names[port]] >= ROWS_MIN for port in ports):
            return FrequentKeys()
        counted: dict[int, _Counted | None] = {port: self._counted(node, port) for port in ports}
        candidates = {
            key
            for found in counted.values()
            for key, count in (found.by_key.items() if found else ())
            if self._frequent(found, count)
        }
        if not candidates:
            return FrequentKeys()
        if len(ports) == 1:
            counted[1] = self._counted(node, 1)
        rows = {
            key: [self._rows_of(node, port, counted[port], key) for port in (0, 1)]
            for key in candidates
        }
        divided: tuple[list[bytes], list[bytes]] = ([], [])
        sent_to_all, room = 0.0, sum(self._rows[name] for name in names) / self._parts
        for key in sorted(rows, key=lambda key: (-sum(rows[key]), key)):
            larger = int(rows[key][1] > rows[key][0])
            # One key alone never takes more memory of a task than it does undivided.
            fits = not sent_to_all or sent_to_all + min(rows[key]) <= room
            if fits and larger in ports and self._frequent(counted[larger], rows[key][larger]):
                divided[larger].append(key)
                sent_to_all += min(rows[key])
        return FrequentKeys((tuple(divided[0]), tuple(divided[1])))

    def rows(self, name: str) -> int:
        """Return a rough upper bound of the rows of node ``name``."""
        return self._rows[name]

    def batches(self, name: str, *, whole: bool) -> Iterator[pa.RecordBatch] | None:
        """Return a sample of the rows of node ``name``; None if they do not come from a table.

        ``whole``: the rows may not come from other tables as well.  The sample ends at a row whose
        evaluation fails.
        """
        path = self._path(name)
        if not path or (whole and any(len(plan.inputs(node)) > 1 for node in path)):
            return None
        return self._tolerated(path)

    def _tolerated(self, path: list[Node]) -> Iterator[pa.RecordBatch]:
        with contextlib.suppress(HeadraceError):  # a task that comes to that row raises the error
            yield from self._sampled(path, self._sizes[path[0].id], [])

    def _frequent(self, found: _Counted | None, rows: float) -> bool:
        """Return whether a key of so many ``rows`` is frequent among those of a port."""
        return found is not None and rows >= max(found.rows / (2 * self._parts), found.least)

    def _rows_of(self, node: JoinSpec, port: int, found: _Counted | None, key: bytes) -> float:
        """Return how many rows of ``key`` there are at ``port``, or a bound if it is unknown."""
        return found.by_key.get(key, 0) if found else self._rows[plan.inputs(node)[port]]

    def _counted(self, node: JoinSpec, port: int) -> _Counted | None:
        """Return the rows of ``port`` by key; None if no table tells."""
        name = plan.inputs(node)[port]
        path, schema = self._path(name), self._spec.plan.node(name).schema
        keys, count = Consolidator(), 0
        read: list[range] = []
        if not path:
            return None
        size = self._sizes[path[0].id]
        try:
            for batch in self._sampled(path, size, read):
                found = edges.keys_for(node, port, segments.keys_of(node, port), schema, batch)
                there = np.flatnonzero(found.valid)
                keys.add(found.packed.take(there), np.ones(len(there), np.int64))
                count += batch.num_rows
        except HeadraceError:
            return None  # a task that comes to that row raises the error
        names, numbers = keys.items()
        scale = size.blocks / max(sum(map(len, read)), 1)
        by_key = dict(zip(names.strings(), (numbers * scale).tolist(), strict=True))
        return _Counted(by_key, count * scale, _FOUND_MIN * scale)

    def _path(self, name: str) -> list[Node]:
        """Return the nodes from a table to the output of node ``name``; [] if there is no way."""
        node = self._spec.plan.node(name)
        match node:
            case SourceSpec():
                unread = self._sizes[name].whole or name in self._spec.origins
                return [] if unread else [node]
            case JoinSpec() if node.left_only:
                below = self._path(node.left)
            case (
                plan.FilterSpec()
                | plan.MapSpec()
                | plan.FusedSpec()
                | plan.FlatMapSpec()
                | plan.ExpandSpec()
                | plan.UnionSpec()
                | JoinSpec()
            ):
                below = self._path(max(plan.inputs(node), key=self._rows.__getitem__))
            case _:
                return []
        return [*below, node] if below else []

    def _sampled(
        self, path: list[Node], size: TableSize, read: list[range]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of the last node of ``path``, from a sample of its table.

        The block ranges that are read are added to ``read``.
        """
        spec, source = self._spec, path[0]
        assert isinstance(source, SourceSpec), "a path begins at a table"
        bound = segments.bound_of_step(spec)
        with contextlib.closing(segments.evaluator(spec)) as remote:
            chain = [self._above(below, node, remote) for below, node in itertools.pairwise(path)]
            for columns in self._rows_of_table(source, size, read):
                ones = pa.array(np.ones(len(columns[0]), np.int64))
                batch = diff_batch(source.schema, columns[: len(source.columns)], ones)
                yield from segments.pushed(bound, chain, 0, Diffs(0, 0, batch), batch.num_rows)

    def _above(self, below: Node, node: Node, remote: RemoteEvaluator) -> Collection:
        """Return the collection of ``node`` for rows of its input ``below``."""
        if isinstance(node, JoinSpec):
            return _Padded(node, first=node.left == below.id)
        made = build.make(node, self._spec.plan, MemoryStore(undo=False), remote)
        made.insert_only = True
        return made

    def _rows_of_table(
        self, source: SourceSpec, size: TableSize, read: list[range]
    ) -> Iterator[list[pa.Array]]:
        """Yield columns of sampled rows of ``source``; see ``_sampled``."""
        taken = 0
        with reader.joined(self._spec.dsn, self._spec.ref) as conn:
            for found in _ranges(size):
                read.append(found)
                blocks = Blocks(found.start, found.stop)
                with contextlib.closing(reader.read(conn, source, blocks)) as batches:
                    for columns in batches:
                        taken += sum(column.nbytes for column in columns)
                        yield columns
                        if taken >= _BYTES_MAX:
                            return


class _Padded(Collection):
    """A join of which only one side is known: its rows, with NULLs for the other side."""

    def __init__(self, node: JoinSpec, *, first: bool) -> None:
        super().__init__(node.id, node.schema)
        self._first = first

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        own = columns_of(batch)
        others = self.schema[len(own) :] if self._first else self.schema[: -len(own) or None]
        nulls = [pa.nulls(batch.num_rows, arrow_type(field.oid)) for field in others]
        columns = own + nulls if self._first else nulls + own
        return [diff_batch(self.schema, columns, batch.columns[-1])]

    def describe(self) -> str:
        """See ``Collection``."""
        return "Join (sample)"


def _ranges(size: TableSize) -> list[range]:
    """Return block ranges of a table that have about ``_ROWS`` rows; the same in each call."""
    blocks = max(1, size.blocks * _ROWS // max(size.rows, 1))
    if blocks >= size.blocks:
        return [range(size.blocks)]
    count = min(_RANGES, blocks)
    each, chance = blocks // count, np.random.default_rng(_SEED)
    bounds = [size.blocks * i // count for i in range(count + 1)]
    # A regular distance could meet a regular order of the rows.
    starts = [
        int(chance.integers(low, high - each, endpoint=True))
        for low, high in itertools.pairwise(bounds)
    ]
    return [range(start, start + each) for start in starts]
