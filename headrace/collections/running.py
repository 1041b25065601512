"""Window functions computed without Postgres, from the first changed row on.

The store contains each partition twice, in the same order: its input rows and its output rows.
After a change the rows are recomputed from the first changed peer group on.  This ends where,
after the last change, the values equal the old ones, because all later values then do too.
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
from headrace.kernels import order, packed, rows, stored_output
from headrace.kernels import running as kernel
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering, summed
from headrace.kernels.packed import Packed
from headrace.kernels.stored_output import Stored
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_type, diff_batch

_PARTITIONS: Final = 1024
"""Partitions recomputed together."""
_PAGE_ROWS: Final = 128
"""Rows of the first page from the first change of a partition; later pages grow fourfold."""
_PAGES_ROWS_MAX: Final = 131_072
"""Rows of the pages of all partitions, unless a peer group is larger."""
_BEHIND_COPIES: Final = b"\xff" * 5


class Running(Collection):
    """Each row with the values of window functions that look back (or a few rows ahead).

    Meaning: that of ``Window``.
    Shape: input -> its columns, one per call; key: ``keys``.
    State: ``id``: key -> sort key, tiebreak, row -> weight; ``id.out``: key -> the same, number of
        the copy, values -> 1, the output.
    Time: emits on TimeEnd; reads each touched partition from the first changed peer group to
        where the values equal the old ones again.
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
        self._touched: list[tuple[Int64s, Packed]] = []
        """Number of the partition of each changed entry, and these entries."""

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
        return f"Window, running, by ({keys}) order ({items}): {self._calls.names()}"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        columns, count = columns_of(batch), batch.num_rows
        if count == 0:
            return []
        keys = keys_of([columns[i] for i in self._node.keys], self._oids, count)
        entries = order.entries(
            self._sorter.orders(columns, count),
            self._sorter.rests(columns, count),
            encode(columns, count),
        )
        self._state.add_many(keys, entries, weights_of(batch))
        numbers, _ = self._keys.add(keys)
        self._touched.append((numbers, entries))
        return []

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        if not self._touched:
            return []
        keys = self._keys.strings()
        entries = packed.joined([found for _, found in self._touched])
        numbers = np.concatenate([numbers for numbers, _ in self._touched])
        self._clear()
        firsts, lasts = kernel.ends_of(numbers, entries, len(keys))
        out: list[pa.RecordBatch] = []
        for low in range(0, len(keys), _PARTITIONS):
            high = min(low + _PARTITIONS, len(keys))
            some = (keys.part(low, high), entries.take(firsts[low:high]))
            out += self._recomputed(*some, entries.take(lasts[low:high]))
        return out

    def _recomputed(self, keys: Packed, firsts: Packed, lasts: Packed) -> list[pa.RecordBatch]:
        """Return the diffs of the partitions whose changed entries lie between these."""
        out: list[pa.RecordBatch] = []
        parts = self._started(keys, firsts, lasts)
        size = _PAGE_ROWS
        while True:
            page = self._read(parts, size)
            settled = stored_output.settle(
                page.computed.lines,
                page.entries,
                page.stored,
                *page.old,
                parts.touched,
                parts.behind,
                self._calls.back,
            )
            out += self._changed(parts, page, settled)
            more = np.flatnonzero(settled.done == 0)
            if not len(more):
                return out
            size *= 4
            if (page.computed.lines.last_of(more) >= 0).all():  # else a peer group is larger
                size = min(size, max(_PAGE_ROWS, _PAGES_ROWS_MAX // max(len(more), 1)))
            parts = self._after(parts, page, more)

    # -- first peer group to recompute

    def _started(self, keys: Packed, firsts: Packed, lasts: Packed) -> _Parts:
        """Return the partitions at their first changed peer group, with the values before it."""
        for _ in range(self._calls.ahead):
            found = self._state.before_many(keys, firsts)
            if not found.valid.any():
                break
            firsts = packed.either(found, firsts)
        starts = order.split(firsts)[0]
        shown = self._out.before_many(keys, starts)
        there = np.flatnonzero(shown.valid)
        stored = stored_output.parsed(shown.packed.take(there))
        places = np.zeros(len(keys), np.int64)
        places[there] = stored.places
        none = np.zeros(0, np.int64)
        past = self._past(keys, starts) if self._calls.back else (packed.empty(0), none)
        carried = self._calls.resumed(stored.values, there, len(keys), *past)
        return _Parts(keys, lasts, starts, starts, places, np.zeros(len(keys), np.int64), carried)

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

    def _read(self, parts: _Parts, size: int) -> _Page:
        """Read up to ``size`` entries of each partition, and compute their lines."""
        at, entries, weights = self._state.first_many(parts.keys, size, parts.next)
        demand_none_negative(weights, self.id)
        orders, encoded = order.split(entries)
        lines = kernel.lines(at, orders, weights, len(parts.keys), size, self._calls.ahead)
        computed = self._calls.computed(lines, encoded, weights, parts.places, parts.carried)
        numbers = computed.numbers if self._calls.numbered else np.zeros_like(lines.entry)
        stored = Stored(entries, lines.copy, computed.encoded(), numbers)
        at, found = self._stored(parts, lines, entries, size)
        return _Page(entries, orders, computed, stored, (at, stored_output.parsed(found)), found)

    def _stored(
        self, parts: _Parts, lines: kernel.Lines, entries: Packed, size: int
    ) -> tuple[Int64s, Packed]:
        """Return the old output of each page's lines, or all of it to the end of the partition."""
        at, found, _ = self._out.first_many(parts.keys, size, parts.old_next)
        pieces = [(at, found)]
        which = np.arange(len(parts.keys))
        while True:
            # Whether a full page ends before the page's last line.
            ends = np.searchsorted(at, np.arange(1, len(which) + 1))
            full = np.flatnonzero(np.diff(ends, prepend=0) == size)
            last, which = found.take(ends[full] - 1), which[full]
            short = lines.short_of(which, entries, stored_output.parsed(last).entries)
            which, last = which[short], last.take(short)
            if not len(which):
                break
            starts = packed.appended(last, packed.repeat(b"\0", len(last)))
            at, found, _ = self._out.first_many(parts.keys.take(which), size, starts)
            pieces.append((which[at], found))
        if len(pieces) == 1:
            return pieces[0]
        at = np.concatenate([some for some, _ in pieces])
        ascending = np.argsort(at, kind="stable")
        return at[ascending], packed.joined([some for _, some in pieces]).take(ascending)

    # --- the changes of a page

    def _changed(
        self, parts: _Parts, page: _Page, settled: stored_output.Settled
    ) -> list[pa.RecordBatch]:
        """Store what differs, and return the output diffs that follow from it."""
        removed, added = settled.removed, settled.added
        if not len(removed) and not len(added):
            return []
        lines, (at, old), new = page.computed.lines, page.old, page.stored
        entry, values = lines.entry[added], new.values.take(added)
        made = Stored(page.entries.take(entry), new.copies[added], values, new.places[added])
        keys = parts.keys.take(np.concatenate((at[removed], lines.part[added])))
        weights = np.ones(len(keys), np.int64)
        weights[: len(removed)] = -1
        stored = packed.joined([page.old_rows.take(removed), stored_output.stored_rows(made)])
        self._out.add_many(keys, stored, weights)
        gone = order.split(old.entries.take(removed))[1]
        encoded = packed.joined([gone, page.computed.rows.take(entry)])
        values = packed.joined([old.values.take(removed), values])
        if len(removed) and len(added):
            # A copy may take the place of another one.
            chosen, weights = summed(packed.appended(encoded, values), weights)
            encoded, values = encoded.take(chosen), values.take(chosen)
        columns = rows.decode_rows(encoded, self._in_types) if self._in_types else []
        columns += self._calls.decoded(values)
        return cut(diff_batch(self.schema, columns, pa.array(weights)))

    def _after(self, parts: _Parts, page: _Page, more: Int64s) -> _Parts:
        """Return the partitions ``more`` after the page."""
        lines = page.computed.lines
        passed = packed.take_nullable(page.entries, lines.last_of(more))
        marks = packed.appended(passed.packed, packed.repeat(_BEHIND_COPIES, len(more)))
        places = parts.places[more]
        if self._calls.numbered:
            places = places + lines.bounds[more + 1] - lines.bounds[more]
        return _Parts(
            parts.keys.take(more),
            parts.touched.take(more),
            page.orders.take(lines.rest[more]),
            packed.either(
                packed.Nullable(marks.data, marks.bounds, passed.valid), parts.old_next.take(more)
            ),
            places,
            parts.behind[more],
            self._calls.carried(page.computed, more),
        )


@dataclass(slots=True)
class _Parts:
    """Partitions that are being recomputed."""

    keys: Packed
    touched: Packed
    """The last entry of each that the txid changed."""
    next: Packed
    """Where the next page begins."""
    old_next: Packed
    """Where the stored output of the next page begins."""
    places: Int64s
    """Number of lines before the next one; 0 if no call depends on it."""
    behind: Int64s
    """Number of lines after the last change so far."""
    carried: Carried
    """State of the calls after the earlier lines."""


@dataclass(slots=True)
class _Page:
    """Entries of some partitions, their lines, and the stored output of these."""

    entries: Packed
    orders: Packed
    computed: Computed
    stored: Stored
    """The output of each line as it should be stored; of ``entries`` one per entry."""
    old: tuple[Int64s, Stored]
    """Partition and parts of each row of the stored output."""
    old_rows: Packed
