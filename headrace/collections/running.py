"""Window functions computed without Postgres, from the last restart point before a change on.

Of each partition the store contains the input rows in order, and *restart points*: the values of
the calls at some of its lines.  After a change the lines behind the last restart point before it
are computed twice, without the changes and with them; what differs is the output.  This ends
where, after the last change, the values equal those without, because all later values then do too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import (
    Collection,
    columns_of,
    cut,
    encode,
    keys_of,
    weights_of,
)
from headrace.collections.by_key import demand_none_negative
from headrace.collections.running_calls import Calls, Carried, Computed
from headrace.collections.sorting import Sorter
from headrace.kernels import order, packed, packed_order, restart_points, rows
from headrace.kernels import running as kernel
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering, summed
from headrace.kernels.packed import Packed
from headrace.kernels.restart_points import Points
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_type, diff_batch

_PARTITIONS: Final = 1024
"""Partitions recomputed together."""
_PAGE_ROWS: Final = 128
"""Rows of the first page of a partition; later pages grow fourfold."""
_PAGES_ROWS_MAX: Final = 131_072
"""Rows of the pages of all partitions, unless a peer group is larger."""
_BEHIND: Final = b"\0"
"""Appended to an entry, it sorts before all later entries."""
_BEHIND_COPIES: Final = b"\xff" * 5
"""Appended to an entry, it sorts behind all its restart points."""


class Running(Collection):
    """Each row with the values of window functions that look back (or a few rows ahead).

    Meaning: that of ``Window``.
    Shape: input -> its columns, one per call; key: ``keys``.
    State: ``id``: key -> sort key, tiebreak, row -> weight; ``id.out``: key -> the same, number of
        the copy, values -> 1, the restart points.
    Time: emits on TimeEnd; reads each touched partition from the last restart point before the
        first changed peer group to where the values equal the old ones again.
    Errors: BugError on a negative weight; RowError if a sum is out of its type's range.
    """

    words = "a window function"

    def __init__(self, node: plan.WindowSpec, in_schema: Schema) -> None:
        super().__init__(node.id, node.schema)
        self._node = node
        self._oids = [in_schema[i].oid for i in node.keys]
        self._in_types = [arrow_type(f.oid) for f in in_schema]
        self._sorter = Sorter(in_schema, node.keys, node.order, None)
        self._calls = Calls(node, in_schema)
        self._state: IndexState
        self._out: IndexState
        self._clear()

    def _clear(self) -> None:
        self._keys = Numbering()
        self._touched: list[tuple[Int64s, Packed, Int64s]] = []
        """Number of the partition of each changed entry, these entries, and their weights."""

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.index(self.id)
        self._out = store.index(f"{self.id}.out")

    def describe(self) -> str:
        """See ``Collection``."""
        keys = ", ".join(self.schema[i].name for i in self._node.keys)
        items = ", ".join(
            self.schema[i.column].name + (" DESC" if i.descending else "") for i in self._node.order
        )
        calls = ", ".join(c.running.function for c in self._node.calls if c.running is not None)
        return f"Window, running, by ({keys}) order ({items}): {calls}"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if batch.num_rows == 0:
            return []
        keys, entries, weights = self._stored(batch)
        self._state.add_many(keys, entries, weights)
        numbers, _ = self._keys.add(keys)
        self._touched.append((numbers, entries, weights))
        return []

    def _stored(self, batch: pa.RecordBatch) -> tuple[Packed, Packed, Int64s]:
        """Return the keys, entries and weights of diffs."""
        columns, count = columns_of(batch), batch.num_rows
        keys = keys_of([columns[i] for i in self._node.keys], self._oids, count)
        entries = order.entries(
            self._sorter.orders(columns, count),
            self._sorter.rests(columns, count),
            encode(columns, count),
        )
        return keys, entries, weights_of(batch)

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if not self._touched:
            return []
        keys = self._keys.strings()
        at, entries, weights = _consolidated(self._touched)
        self._clear()
        bounds = np.searchsorted(at, np.arange(len(keys) + 1))
        changed = np.flatnonzero(np.diff(bounds))
        out: list[pa.RecordBatch] = []
        for low in range(0, len(changed), _PARTITIONS):
            some = changed[low : low + _PARTITIONS]
            changes = kernel.Changes(entries, weights, bounds[some], bounds[some + 1])
            out += self._recomputed(keys.take(some), changes)
        return out

    def _recomputed(self, keys: Packed, changes: kernel.Changes) -> list[pa.RecordBatch]:
        """Return the diffs of these partitions."""
        out: list[pa.RecordBatch] = []
        parts = self._started(keys, changes)
        size = _PAGE_ROWS
        while True:
            page = self._read(parts, size)
            lines = page.computed.lines
            settled = restart_points.settle(
                lines,
                page.points.values,
                page.points.places,
                page.changed,
                parts.behind,
                self._calls.back,
            )
            out += self._changed(page, settled)
            self._keep(parts, page, settled, size)
            more = np.flatnonzero(settled.done == 0)
            if not len(more):
                return out
            size *= 4
            if (lines.rest[more] > lines.begins[more]).all():  # else a peer group is larger
                size = min(size, max(_PAGE_ROWS, _PAGES_ROWS_MAX // len(more)))
            parts = self._after(parts, page, more)

    # -- last restart point before the first change

    def _started(self, keys: Packed, changes: kernel.Changes) -> _Parts:
        """Return the partitions at their last restart points, with the values there."""
        firsts = changes.entries.take(changes.begins)
        for _ in range(self._calls.ahead):
            found = self._state.before_many(keys, firsts)
            if not found.valid.any():
                break
            firsts = packed.either(found, firsts)
        point = self._out.before_many(keys, order.split(firsts)[0])
        there = np.flatnonzero(point.valid)
        points = restart_points.parsed(point.packed.take(there))
        count = len(keys)
        places, since = np.zeros(count, np.int64), np.zeros(count, np.int64)
        places[there] = points.places
        starts = _placed(points.entries, _BEHIND, there, count)
        none = np.zeros(0, np.int64)
        past = self._past(keys, starts) if self._calls.back else (packed.empty(0), none)
        return _Parts(
            keys,
            changes,
            starts,
            _placed(points.entries, _BEHIND_COPIES, there, count),
            np.tile(places, 2),
            np.zeros(count, np.int64),
            since,
            self._calls.resumed(points.values, there, count, *past),
        )

    def _past(self, keys: Packed, bounds: Packed) -> tuple[Packed, Int64s]:
        """Return the rows of the last lines before ``bounds``, and their partitions."""
        parts, found, taken = [], [], []
        at, missing = np.arange(len(keys)), np.full(len(keys), self._calls.back)
        while len(at):
            before = self._state.before_many(keys.take(at), bounds)
            there = np.flatnonzero(before.valid)
            at, bounds = at[there], before.packed.take(there)
            weights = self._state.weight_many(keys.take(at), bounds)
            demand_none_negative(weights, self.id)
            parts.append(at)
            found.append(bounds)
            taken.append(np.minimum(weights, missing[at]))
            missing[at] -= taken[-1]
            left = np.flatnonzero(missing[at] > 0)
            at, bounds = at[left], bounds.take(left)
        part = np.concatenate(parts)
        # Later reads are earlier lines.
        ascending = np.lexsort((-np.arange(len(part)), part))
        lines = np.repeat(ascending, np.concatenate(taken)[ascending])
        return order.split(packed.joined(found).take(lines))[1], part[lines]

    # -- a page of each partition

    def _read(self, parts: _Parts, size: int) -> RunningPage:
        """Read up to ``size`` entries of each partition, and compute their lines."""
        at, found, weights = self._state.first_many(parts.keys, size, parts.next)
        demand_none_negative(weights, self.id)
        count = len(parts.keys)
        more = (np.bincount(at, minlength=count) == size).view(np.uint8)
        merged = kernel.merged(at, found, weights, more, parts.changes, parts.next)
        entries = packed.take_two(found, parts.changes.entries, merged.source)
        orders, encoded = order.split(entries)
        lines = kernel.lines(merged.begins, orders, merged.weights, more, self._calls.ahead)
        computed = self._calls.computed(lines, encoded, merged.weights, parts.places, parts.carried)
        numbers = computed.numbers if self._calls.numbered else np.zeros_like(lines.entry)
        points = Points(entries, lines.copy, computed.encoded(), numbers)
        return RunningPage(entries, orders, computed, points, merged.changed)

    # --- the changes of a page

    def _changed(self, page: RunningPage, settled: restart_points.Settled) -> list[pa.RecordBatch]:
        """Return the output diffs of a page."""
        removed, added = settled.removed, settled.added
        if not len(removed) and not len(added):
            return []
        computed = page.computed
        chosen = np.concatenate((removed, added))
        weights = np.ones(len(chosen), np.int64)
        weights[: len(removed)] = -1
        entry = computed.lines.entry[chosen]
        if computed.lines.copy[chosen].any():
            # Copies may have the same values, or take the place of each other.
            shown = packed.appended(computed.rows.take(entry), page.points.values.take(chosen))
            firsts, weights = summed(shown, weights)
            chosen, entry = chosen[firsts], entry[firsts]
        if computed.arguments:
            columns = [column.take(pa.array(entry)) for column in computed.arguments]
        else:
            columns = rows.decode_rows(computed.rows.take(entry), self._in_types)
        columns += self._calls.shown([c.take(pa.array(chosen)) for c in computed.columns])
        return cut(diff_batch(self.schema, columns, pa.array(weights)))

    # --- restart points of a page

    def _keep(
        self, parts: _Parts, page: RunningPage, settled: restart_points.Settled, size: int
    ) -> None:
        """Store what becomes different of the restart points of a page."""
        at, found = self._read_points(parts, page, settled, size)
        points = restart_points.parsed(found)
        lines = page.computed.lines
        kept = restart_points.keep(lines, page.points, settled, at, points, parts.since)
        removed, added = kept.removed, kept.added
        if not len(removed) and not len(added):
            return
        keys = np.concatenate((at[removed], lines.half[added] - len(parts.keys)))
        weights = np.ones(len(keys), np.int64)
        weights[: len(removed)] = -1
        stored = packed.joined([found.take(removed), page.stored(added)])
        self._out.add_many(parts.keys.take(keys), stored, weights)

    def _read_points(
        self, parts: _Parts, page: RunningPage, settled: restart_points.Settled, size: int
    ) -> tuple[Int64s, Packed]:
        """Return the restart points of the page's lines, partition by partition."""
        limit = size // restart_points.LEAST + 2
        which, starts = np.arange(len(parts.keys)), parts.next_point
        pieces = []
        while True:
            at, found, _ = self._out.first_many(parts.keys.take(which), limit, starts)
            pieces.append((which[at], found))
            ends = np.searchsorted(at, np.arange(1, len(which) + 1))
            full = np.flatnonzero(np.diff(ends, prepend=0) == limit)
            if not len(full):
                break
            last, which = found.take(ends[full] - 1), which[full]
            short = page.short_of(which, restart_points.parsed(last).entries, settled)
            which, last = which[short], last.take(short)
            if not len(which):
                break
            starts, limit = packed.appended(last, packed.repeat(_BEHIND, len(last))), 4 * limit
        if len(pieces) == 1:
            return pieces[0]
        at = np.concatenate([some for some, _ in pieces])
        ascending = np.argsort(at, kind="stable")
        return at[ascending], packed.joined([some for _, some in pieces]).take(ascending)

    def _after(self, parts: _Parts, page: RunningPage, more: Int64s) -> _Parts:
        """Return the partitions ``more`` after the page."""
        lines = page.computed.lines
        halves = np.concatenate((more, more + len(parts.keys)))
        places = parts.places[halves]
        if self._calls.numbered:
            places = places + lines.bounds[halves + 1] - lines.bounds[halves]
        changes, starts = parts.changes, page.orders.take(lines.rest[more])
        return _Parts(
            parts.keys.take(more),
            kernel.Changes(
                changes.entries, changes.weights, changes.begins[more], changes.ends[more]
            ),
            starts,
            starts,
            places,
            parts.behind[more],
            parts.since[more],
            self._calls.carried(page.computed, halves),
        )


@dataclass(slots=True)
class _Parts:
    """Partitions that are being recomputed."""

    keys: Packed
    changes: kernel.Changes
    next: Packed
    """Where the next page begins."""
    next_point: Packed
    """Where the restart points of the next page begin."""
    places: Int64s
    """Number of lines before the next page, by half; 0 if no call depends on it."""
    behind: Int64s
    """Number of lines after the last change so far."""
    since: Int64s
    """Number of lines since the last restart point."""
    carried: Carried
    """State of the calls after the earlier lines."""


@dataclass(slots=True)
class RunningPage:
    """Entries of some partitions, and their lines."""

    entries: Packed
    orders: Packed
    computed: Computed
    points: Points
    """The values of each line; with the entries of the page."""
    changed: Int64s
    """As in ``kernels.running.Merged``."""

    def stored(self, chosen: Int64s) -> Packed:
        """Return the ``chosen`` lines as stored restart points."""
        lines, points = self.computed.lines, self.points
        return restart_points.stored(
            Points(
                self.entries.take(lines.entry[chosen]),
                lines.copy[chosen],
                points.values.take(chosen),
                points.places[chosen],
            )
        )

    def short_of(self, parts: Int64s, read: Packed, settled: restart_points.Settled) -> Int64s:
        """Return the numbers of those ``parts`` of which restart points are to be read on.

        ``read``: the entry of the last restart point read of each of ``parts``.
        """
        lines = self.computed.lines
        rest, ends = lines.rest[parts], settled.ends[parts]
        last = np.where(rest > lines.begins[parts], rest - 1, -1)
        stopped = settled.done[parts] != 0
        last[stopped] = lines.entry[ends[stopped] - 1]
        behind = packed_order.compared(read, self.entries.take(last)) > 0
        return np.flatnonzero((rest < 0) | ((last >= 0) & ~behind))


def _consolidated(
    touched: list[tuple[Int64s, Packed, Int64s]],
) -> tuple[Int64s, Packed, Int64s]:
    """Return partition, entry and net weight of what changes, partition by partition, ascending."""
    numbers = np.concatenate([numbers for numbers, _, _ in touched])
    entries = packed.joined([entries for _, entries, _ in touched])
    both = packed.appended(packed.fixed(numbers.astype(">u4")), entries)
    chosen, weights = summed(both, np.concatenate([weights for _, _, weights in touched]))
    ascending = packed_order.sorted_order(both.take(chosen))
    chosen = chosen[ascending]
    return numbers[chosen], entries.take(chosen), weights[ascending]


def _placed(strings: Packed, end: bytes, places: Int64s, count: int) -> Packed:
    """Return ``count`` strings: at ``places`` these with ``end`` appended, elsewhere empty ones."""
    chosen = np.full(count, -1, np.int64)
    chosen[places] = np.arange(len(places))
    return packed.take_nullable(
        packed.appended(strings, packed.repeat(end, len(strings))), chosen
    ).packed
