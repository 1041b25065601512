"""ORDER BY with LIMIT and OFFSET, WITH TIES, DISTINCT ON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import (
    Collection,
    columns_of,
    cut,
    decode,
    encode,
    keys_of,
    weights_of,
)
from headrace.collections.sorting import Sorter
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import order, rows
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_schema, arrow_type

_PAGE_ROWS: Final = 256
"""Rows read at once beyond the first ones, where ties may go on."""

Ordered = Iterable[tuple[bytes, bytes, int]]
"""(sort key, row, weight > 0) of a group, in order."""


class TopK(Collection):
    """Of each group the rows from ``offset`` on, ``limit`` of them, in one canonical order.

    Meaning: with A's rows of a key in the order of ``sorting`` and each as often as its weight, the
        rows numbered offset + 1 to offset + limit; ``ties``: and those after them that are equal in
        ORDER BY to the last.  Without limit the first ``offset`` rows are taken off A.  A negative
        weight at a TimeEnd is a bug.
    Shape: input -> the same columns; key: ``keys``.
    State: native order: ``id``: key -> sort key, tiebreak, row -> weight, of which only the first
        offset + limit are read.  Else ``id``: key -> row -> weight and ``id.head``, the first rows of
        each group; the whole group is read only when one of those goes.
    Time: emits on TimeEnd what became different at the front of each touched group; without
        limit it passes diffs on at once as well.
    Errors: BugError on a negative weight; RowError or TransientError of Postgres where it ranks.
    """

    words = "ORDER BY with LIMIT"

    def __init__(
        self, node: plan.TopK, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        self._node = node
        self._oids = [in_schema[i].oid for i in node.keys]
        self._schema = arrow_schema(node.schema)
        window = _Window(node)
        sorter = Sorter(in_schema, node.keys, node.order, remote)
        self._front: _Front = (
            _Sorted(node, sorter, window)
            if sorter.native
            else _Ranked(node, sorter, window)
        )

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._front.open(store)

    def describe(self) -> str:
        """See ``Collection``."""
        node = self._node
        items = [
            self.schema[i.column].name + (" DESC" if i.descending else "")
            for i in node.order
        ]
        text = f"TopK ({', '.join(items)})"
        if node.keys:
            text += f" by ({', '.join(self.schema[i].name for i in node.keys)})"
        if node.limit is not None:
            text += f" limit {node.limit}" + (" with ties" if node.ties else "")
        return text + (f" offset {node.offset}" if node.offset else "")

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        count = batch.num_rows
        if count == 0:
            return []
        columns = columns_of(batch)
        keys = keys_of([columns[i] for i in self._node.keys], self._oids, count)
        encoded = encode(columns, count)
        self._front.add(keys, columns, encoded, weights_of(batch))
        if self._node.limit is not None:
            return []
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)]

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        found, weights = self._front.changes()
        if not weights:
            return []
        return cut(decode(found, self.schema, weights))


class _Window:
    """Which rows of an ordered group count."""

    def __init__(self, node: plan.TopK) -> None:
        # Without limit the first rows are what is taken off, see ``sign``.
        self._offset = 0 if node.limit is None else node.offset
        self._limit = node.offset if node.limit is None else node.limit
        self._ties = node.ties and node.limit is not None
        self.sign: Final = -1 if node.limit is None else 1
        """Weight of a row that counts."""
        self.needed: Final = self._offset + self._limit if self._limit else 0
        """Rows of a group that decide, ties aside."""

    def cut(self, ordered: Ordered) -> tuple[list[tuple[bytes, int]], int]:
        """(rows that count with their weights, how many entries decided that).

        Reads no further than it must.
        """
        out: list[tuple[bytes, int]] = []
        before, used = 0, 0
        last: bytes | None = None
        if not self.needed:
            return out, 0
        for sort_key, row, weight in ordered:
            if weight < 0:
                raise BugError("a row of negative weight at the end of a txid")
            if before >= self.needed and (not self._ties or sort_key != last):
                break
            used += 1
            if before < self.needed:
                last = sort_key
            end = before + weight if self._ties else min(before + weight, self.needed)
            shown = end - max(before, self._offset)
            if shown > 0:
                out.append((row, shown))
            before += weight
        return out, used

    def is_open(self, group: list[tuple[bytes, bytes, int]]) -> bool:
        """Whether entries behind these may count too."""
        return self.cut(group)[1] == len(group)


class _Front(Protocol):
    """How the first rows of groups are found."""

    def open(self, store: StateStore) -> None:
        """Take its states."""

    def add(
        self,
        keys: list[bytes],
        columns: Sequence[pa.Array],
        encoded: list[bytes],
        weights: list[int],
    ) -> None:
        """Take up diffs."""

    def changes(self) -> tuple[list[bytes], list[int]]:
        """At the end of a txid: rows and weights by which the result has become different."""


class _Sorted:
    """Rows in an index that stands in their order."""

    def __init__(self, node: plan.TopK, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._ties = node.ties
        self._touched: dict[bytes, None] = {}
        self._diff = rows.Consolidator()
        self._state: IndexState

    def open(self, store: StateStore) -> None:
        """See ``_Front``."""
        self._state = store.index(self._id)

    def add(
        self,
        keys: list[bytes],
        columns: Sequence[pa.Array],
        encoded: list[bytes],
        weights: list[int],
    ) -> None:
        """See ``_Front``."""
        new = [key for key in dict.fromkeys(keys) if key not in self._touched]
        if new:
            # As it was before this txid, which has not come to these groups yet.
            self._take(new, -self._window.sign)
            self._touched.update(dict.fromkeys(new))
        count = len(keys)
        entries = order.entries(
            self._sorter.orders(columns, count),
            self._sorter.rests(columns, count),
            encoded,
        )
        self._state.add_many(keys, entries, weights)

    def changes(self) -> tuple[list[bytes], list[int]]:
        """See ``_Front``."""
        if self._touched:
            self._take(list(self._touched), self._window.sign)
        out = self._diff.items()
        self._touched, self._diff = {}, rows.Consolidator()
        return out

    def _take(self, keys: list[bytes], sign: int) -> None:
        """Add what counts in each group, with that sign."""
        if not self._window.needed:
            return
        for group in self._heads(keys):
            shown, _ = self._window.cut(group)
            self._diff.add(
                [row for row, _ in shown], [sign * weight for _, weight in shown]
            )

    def _heads(self, keys: list[bytes]) -> list[list[tuple[bytes, bytes, int]]]:
        """The entries of each group that decide, in order (a few more do no harm)."""
        out: list[list[tuple[bytes, bytes, int]]] = [[] for _ in keys]
        going = list(range(len(keys)))
        starts: list[bytes] | None = None
        count = self._window.needed + (1 if self._ties else 0)
        while going:
            at, found, weights = self._state.first_many(
                [keys[i] for i in going], count, starts
            )
            sort_keys, encoded = order.split(found)
            ends: dict[int, int] = {}
            sizes: dict[int, int] = {}
            for i, place in enumerate(at):
                out[going[place]].append((sort_keys[i], encoded[i], weights[i]))
                ends[place] = i
                sizes[place] = sizes.get(place, 0) + 1
            if not self._ties:
                break
            # A full page may end among the ties.
            more = [
                place
                for place, size in sizes.items()
                if size == count and self._window.is_open(out[going[place]])
            ]
            starts = [found[ends[place]] + b"\0" for place in more]
            going = [going[place] for place in more]
            count = _PAGE_ROWS
        return out


class _Ranked:
    """Rows of groups in no order; Postgres ranks those that may be the first ones."""

    def __init__(self, node: plan.TopK, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._types = [arrow_type(f.oid) for f in node.schema]
        self._changed: dict[bytes, rows.Consolidator] = {}
        self._state: IndexState
        self._head: IndexState

    def open(self, store: StateStore) -> None:
        """See ``_Front``."""
        self._state = store.index(self._id)
        self._head = store.index(f"{self._id}.head")

    def add(
        self,
        keys: list[bytes],
        columns: Sequence[pa.Array],
        encoded: list[bytes],
        weights: list[int],
    ) -> None:
        """See ``_Front``."""
        self._state.add_many(keys, encoded, weights)
        for key, row, weight in zip(keys, encoded, weights, strict=True):
            self._changed.setdefault(key, rows.Consolidator()).add([row], [weight])

    def changes(self) -> tuple[list[bytes], list[int]]:
        """See ``_Front``."""
        if not self._changed or not self._window.needed:
            self._changed = {}
            return [], []
        keys = list(self._changed)
        old = _by_key(self._head.scan_many(keys), len(keys))
        new = self._candidates(keys, old)
        self._changed = {}
        ordered = self._ordered(old, new)
        diff, head = rows.Consolidator(), _Diffs()
        sign = self._window.sign
        for key, group, before, after in zip(keys, ordered, old, new, strict=True):
            for weights, factor in ((before, -1), (after, 1)):
                present = [(s, r, weights[r]) for s, r in group if r in weights]
                shown, used = self._window.cut(present)
                diff.add(
                    [row for row, _ in shown],
                    [factor * sign * weight for _, weight in shown],
                )
                kept = present[:used] if factor == 1 else present
                for _, row, weight in kept:
                    head.add(key, row, factor * weight)
        self._head.add_many(*head.items())
        return diff.items()

    def _candidates(
        self, keys: list[bytes], old: list[dict[bytes, int]]
    ) -> list[dict[bytes, int]]:
        """Rows of each group among which its first ones are."""
        out: list[dict[bytes, int]] = []
        whole: list[int] = []
        for i, (key, head) in enumerate(zip(keys, old, strict=True)):
            found, weights = self._changed[key].items()
            lost = any(
                weight < 0 and row in head
                for row, weight in zip(found, weights, strict=True)
            )
            if lost and sum(head.values()) >= self._window.needed:
                whole.append(i)
                out.append({})
                continue
            merged = dict(head)
            full = sum(head.values()) >= self._window.needed
            for row, weight in zip(found, weights, strict=True):
                if weight < 0 and full:
                    continue  # behind the first ones, now as before
                merged[row] = merged.get(row, 0) + weight
            out.append({row: weight for row, weight in merged.items() if weight})
        read = _by_key(self._state.scan_many([keys[i] for i in whole]), len(whole))
        for i, group in zip(whole, read, strict=True):
            out[i] = group
        return out

    def _ordered(
        self, old: list[dict[bytes, int]], new: list[dict[bytes, int]]
    ) -> list[list[tuple[bytes, bytes]]]:
        """(sort key, row) of the rows of each group, in order."""
        wanted: list[bytes] = []
        sizes: list[int] = []
        for before, after in zip(old, new, strict=True):
            mine = {**before, **after}
            wanted.extend(mine)
            sizes.append(len(mine))
        if not wanted:
            return [[] for _ in sizes]
        columns = rows.decode_rows(wanted, self._types)
        groups = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        ranks = self._sorter.ranks(columns, groups)
        rests = self._sorter.rests(columns, len(wanted))
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


class _Diffs:
    """Diffs of an index, summed up."""

    def __init__(self) -> None:
        self._weights: dict[tuple[bytes, bytes], int] = {}

    def add(self, key: bytes, row: bytes, weight: int) -> None:
        """Take up one diff."""
        place = (key, row)
        self._weights[place] = self._weights.get(place, 0) + weight

    def items(self) -> tuple[list[bytes], list[bytes], list[int]]:
        """Keys, rows and weights that are not 0."""
        kept = [(*place, weight) for place, weight in self._weights.items() if weight]
        return [k for k, _, _ in kept], [r for _, r, _ in kept], [w for _, _, w in kept]


def _by_key(
    found: tuple[list[int], list[bytes], list[int]], count: int
) -> list[dict[bytes, int]]:
    out: list[dict[bytes, int]] = [{} for _ in range(count)]
    for at, row, weight in zip(*found, strict=True):
        out[at][row] = weight
    return out
