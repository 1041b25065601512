"""ORDER BY with LIMIT and OFFSET, WITH TIES, DISTINCT ON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import Diffed, columns_of, encode, weights_of
from headrace.collections.by_key import (
    ByKey,
    Found,
    demand_none_negative,
    difference,
    nothing,
)
from headrace.collections.listed import Listed, ListedIndex, listed, scanned
from headrace.collections.sorting import Sorter
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import order, packed, rows
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_schema, arrow_type

HEAD: Final = "head"
"""Suffix of the state with the first rows, if the order is not native."""
_PAGE_ROWS: Final = 256
"""Rows of the first read beyond the first ones, to find further ties; later reads grow."""

Ordered = Iterable[tuple[bytes, bytes, int]]
"""(sort key, row, weight > 0) of a group, in order."""


class TopK(ByKey):
    """``limit`` rows of each group from ``offset`` on, in one canonical order.

    Meaning: with A's rows of a key in the order of ``sorting`` and each as often as its weight, the
        rows numbered offset + 1 to offset + limit; ``ties``: also later rows equal in ORDER BY to
        the last.  Without limit: A minus its first ``offset`` rows.  A negative weight at a
        TimeEnd is a bug.
    Shape: input -> the same columns; key: ``keys``.
    State: native order: ``id``: key -> sort key, tiebreak, row -> weight, of which only the first
        offset + limit are read.  Else ``id``: key -> row -> weight and ``id.head``, the first rows
        of each group; the whole group is read only when one of these is deleted.
    Time: emits on TimeEnd the changes at the front of each touched group; without limit it also
        passes its input on at once, or during population at TimeEnd, less the first rows.
    Errors: BugError on a negative weight; RowError or TransientError if Postgres ranks the rows.
    """

    words = "ORDER BY with LIMIT"

    def __init__(
        self, node: plan.TopKSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, node.keys)
        self._node = node
        self._schema = arrow_schema(node.schema)
        self._passed = Diffed(node.schema)
        """Rows of a population without limit, some of which are among the first ones."""
        window = _Window(node)
        sorter = Sorter(in_schema, node.keys, node.order, remote)
        self._front: _FirstRows = (
            _Sorted(node, sorter, window) if sorter.native else _Ranked(node, sorter, window)
        )

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._front.open(store)

    def describe(self) -> str:
        """See ``Collection``."""
        node = self._node
        items = [self.schema[i.column].name + (" DESC" if i.descending else "") for i in node.order]
        text = f"TopK ({', '.join(items)})"
        if node.keys:
            text += f" by ({', '.join(self.schema[i].name for i in node.keys)})"
        if node.limit is not None:
            text += f" limit {node.limit}" + (" with ties" if node.ties else "")
        return text + (f" offset {node.offset}" if node.offset else "")

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        super().apply(port, batch)
        if self._node.limit is not None or batch.num_rows == 0:
            return []
        if self.insert_only:
            self._passed.add(batch)
            return []
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)]

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        found = super().time_end(txid)
        if not self.insert_only or self._node.limit is not None:
            return found
        for batch in found:
            self._passed.add(batch)
        return self._passed.take()

    def add(self, port: int, keys: Packed, batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        columns = columns_of(batch)
        self._front.add(keys, columns, encode(columns, batch.num_rows), weights_of(batch))

    def before(self, keys: Packed) -> Found:
        """See ``ByKey``."""
        return self._front.before(keys)

    def advance(self, keys: Packed, before: Found) -> list[pa.RecordBatch]:
        """See ``ByKey``."""
        return self.diffs(self._front.advance(keys, before))


class _Window:
    """The range of rows of an ordered group that count."""

    def __init__(self, node: plan.TopKSpec) -> None:
        # Without limit the first rows are subtracted from the input, see ``sign``.
        self._offset = 0 if node.limit is None else node.offset
        limit = node.offset if node.limit is None else node.limit
        self.ties: Final = node.ties and node.limit is not None
        self.sign: Final = -1 if node.limit is None else 1
        """Weight of a row that counts."""
        self.needed: Final = self._offset + limit if limit else 0
        """Number of first rows of a group that determine the result, without ties."""
        self.limits: Final = (self._offset, self.needed)
        """How many rows are before the first row that counts, and up to the last."""

    def cut(self, ordered: Ordered) -> tuple[list[tuple[bytes, int]], int]:
        """Return the rows that count with their weights, and the number of entries needed.

        Read no further than these entries.
        """
        out: list[tuple[bytes, int]] = []
        before, used = 0, 0
        last: bytes | None = None
        if not self.needed:
            return out, 0
        for sort_key, row, weight in ordered:
            if weight < 0:
                raise BugError("a row of negative weight at the end of a txid")
            if before >= self.needed and (not self.ties or sort_key != last):
                break
            used += 1
            if before < self.needed:
                last = sort_key
            end = before + weight if self.ties else min(before + weight, self.needed)
            shown = end - max(before, self._offset)
            if shown > 0:
                out.append((row, shown))
            before += weight
        return out, used

    def shown(self, groups: Iterable[Ordered]) -> Found:
        at: list[int] = []
        found: list[bytes] = []
        weights: list[int] = []
        for number, group in enumerate(groups):
            for row, weight in self.cut(group)[0]:
                at.append(number)
                found.append(row)
                weights.append(self.sign * weight)
        return scanned(at, found, weights)


class _FirstRows(Protocol):
    """Strategy that finds the first rows of groups."""

    def open(self, store: StateStore) -> None:
        """Open its states in ``store``."""

    def add(
        self, keys: Packed, columns: Sequence[pa.Array], encoded: Packed, weights: Int64s
    ) -> None:
        """Add diffs to the state."""

    def before(self, keys: Packed) -> Found:
        """See ``ByKey``."""

    def advance(self, keys: Packed, before: Found) -> Found:
        """Return the difference of the output of ``keys`` since ``before``."""


class _Sorted:
    """Rows in an index that is sorted in their order."""

    def __init__(self, node: plan.TopKSpec, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._state: IndexState

    def open(self, store: StateStore) -> None:
        self._state = store.index(self._id)

    def add(
        self, keys: Packed, columns: Sequence[pa.Array], encoded: Packed, weights: Int64s
    ) -> None:
        count = len(keys)
        entries = order.entries(
            self._sorter.orders(columns, count), self._sorter.rests(columns, count), encoded
        )
        self._state.add_many(keys, entries, weights)

    def before(self, keys: Packed) -> Found:
        """See ``_FirstRows``: return the rows that count in each group."""
        window = self._window
        if not window.needed:
            return nothing()
        at, entries, weights = self._heads(keys)
        orders, found = order.split(entries)
        shown, _ = order.first_rows(at, orders, weights, window.limits, ties=window.ties)
        there = np.flatnonzero(shown)
        return at[there], found.take(there), window.sign * shown[there]

    def advance(self, keys: Packed, before: Found) -> Found:
        return difference(before, self.before(keys))

    def _heads(self, keys: Packed) -> Found:
        """Return, in order, at least the entries of each group that determine the result."""
        window = self._window
        count = window.needed + (1 if window.ties else 0)
        heads = self._state.first_many(keys, count)
        demand_none_negative(heads[2], self._id)
        read = heads
        while window.ties:
            # A full page may end within the ties.
            orders = order.split(heads[1])[0]
            _, more = order.first_rows(heads[0], orders, heads[2], window.limits, ties=True)
            ends = np.searchsorted(read[0], np.arange(len(more) + 1))
            going = np.flatnonzero(more & (np.diff(ends) == count))
            if not len(going):
                break
            last = read[1].take(ends[going + 1] - 1)
            starts = packed.appended(last, packed.repeat(b"\0", len(going)))
            count = max(_PAGE_ROWS, 4 * count)
            at, entries, weights = self._state.first_many(keys.take(going), count, starts)
            demand_none_negative(weights, self._id)
            read = going[at], entries, weights
            heads = _merged(heads, read)
        return heads


def _merged(first: Found, second: Found) -> Found:
    """Return the rows of each key in ``first``, then those in ``second``."""
    at = np.concatenate((first[0], second[0]))
    ascending = np.argsort(at, kind="stable")
    found = packed.joined([first[1], second[1]]).take(ascending)
    return at[ascending], found, np.concatenate((first[2], second[2]))[ascending]


class _Ranked:
    """Unordered rows of groups; Postgres ranks those that may be among the first."""

    def __init__(self, node: plan.TopKSpec, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._types = [arrow_type(f.oid) for f in node.schema]
        self._changed: dict[bytes, dict[bytes, int]] = {}
        self._state: ListedIndex
        self._head: ListedIndex

    def open(self, store: StateStore) -> None:
        self._state = ListedIndex(store.index(self._id))
        self._head = ListedIndex(store.index(f"{self._id}.{HEAD}"))

    def add(
        self, keys: Packed, columns: Sequence[pa.Array], encoded: Packed, weights: Int64s
    ) -> None:
        self._state.state.add_many(keys, encoded, weights)
        changes = zip(keys.strings(), encoded.strings(), weights.tolist(), strict=True)
        for key, row, weight in changes:
            changed = self._changed.setdefault(key, {})
            changed[row] = changed.get(row, 0) + weight

    def before(self, keys: Packed) -> Found:
        """See ``_FirstRows``: the state contains the first rows of each group."""
        return nothing()

    def advance(self, keys: Packed, before: Found) -> Found:
        return self._advanced(keys.strings())

    def _advanced(self, keys: list[bytes]) -> Found:
        changed = [self._changed.pop(key) for key in keys]
        if not self._window.needed:
            return nothing()
        head = self._head.scan_many(keys)
        old = _by_key(head, len(keys))
        new = self._candidates(keys, old, changed)
        ordered = self._ordered(old, new)
        shown = [self._window.shown(_present(ordered, each)) for each in (old, new)]
        kept: Listed = [], [], []
        for number, group in enumerate(_present(ordered, new)):
            for _, row, weight in group[: self._window.cut(group)[1]]:
                kept[0].append(number)
                kept[1].append(row)
                kept[2].append(weight)
        at, found, weights = listed(difference(scanned(*head), scanned(*kept)))
        self._head.add_many([keys[i] for i in at], found, weights)
        return difference(*shown)

    def _candidates(
        self, keys: list[bytes], old: list[dict[bytes, int]], changed: list[dict[bytes, int]]
    ) -> list[dict[bytes, int]]:
        """Return rows of each group that include its first ones, from the changes."""
        out: list[dict[bytes, int]] = []
        whole: list[int] = []
        for i, (head, diff) in enumerate(zip(old, changed, strict=True)):
            lost = any(weight < 0 and row in head for row, weight in diff.items())
            if lost and sum(head.values()) >= self._window.needed:
                whole.append(i)
                out.append({})
                continue
            merged = dict(head)
            full = sum(head.values()) >= self._window.needed
            for row, weight in diff.items():
                if weight < 0 and full:
                    continue  # not among the first ones, before and after
                merged[row] = merged.get(row, 0) + weight
            out.append({row: weight for row, weight in merged.items() if weight})
        read = _by_key(self._state.scan_many([keys[i] for i in whole]), len(whole))
        for i, group in zip(whole, read, strict=True):
            out[i] = group
        return out

    def _ordered(
        self, old: list[dict[bytes, int]], new: list[dict[bytes, int]]
    ) -> list[list[tuple[bytes, bytes]]]:
        """Return (sort key, row) of the rows of each group, in order."""
        wanted: list[bytes] = []
        sizes: list[int] = []
        for before, after in zip(old, new, strict=True):
            mine = {**before, **after}
            wanted.extend(mine)
            sizes.append(len(mine))
        if not wanted:
            return [[] for _ in sizes]
        columns = rows.decode_rows(packed.pack(wanted), self._types)
        groups = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        ranks = self._sorter.ranks(columns, groups)
        rests = self._sorter.rests(columns, len(wanted)).strings()
        out: list[list[tuple[bytes, bytes]]] = []
        low = 0
        for size in sizes:
            high = low + size
            mine_sorted = sorted(
                zip(ranks[low:high], rests[low:high], wanted[low:high], strict=True)
            )
            out.append([(rank, row) for rank, _, row in mine_sorted])
            low = high
        return out


def _present(
    ordered: list[list[tuple[bytes, bytes]]], groups: list[dict[bytes, int]]
) -> list[list[tuple[bytes, bytes, int]]]:
    """Return the ordered rows that are in each group, with their weights."""
    return [
        [(rank, row, weights[row]) for rank, row in order if row in weights]
        for order, weights in zip(ordered, groups, strict=True)
    ]


def _by_key(found: Listed, count: int) -> list[dict[bytes, int]]:
    out: list[dict[bytes, int]] = [{} for _ in range(count)]
    for at, row, weight in zip(*found, strict=True):
        out[at][row] = weight
    return out
