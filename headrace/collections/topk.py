"""ORDER BY with LIMIT and OFFSET, WITH TIES, DISTINCT ON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.collections import plan
from headrace.collections.base import columns_of, encode, weights_of
from headrace.collections.by_key import ByKey, Found, difference, nothing
from headrace.collections.sorting import Sorter
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import order, rows
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, arrow_schema, arrow_type

HEAD: Final = "head"
"""Of the state with the first rows, where the order is not native."""
_PAGE_ROWS: Final = 256
"""Rows read at once beyond the first ones, where ties may go on."""

Ordered = Iterable[tuple[bytes, bytes, int]]
"""(sort key, row, weight > 0) of a group, in order."""


class TopK(ByKey):
    """Of each group the rows from ``offset`` on, ``limit`` of them, in one canonical order.

    Meaning: with A's rows of a key in the order of ``sorting`` and each as often as its weight, the
        rows numbered offset + 1 to offset + limit; ``ties``: and those after them that are equal in
        ORDER BY to the last.  Without limit the first ``offset`` rows are taken off A.  A negative
        weight at a TimeEnd is a bug.
    Shape: input -> the same columns; key: ``keys``.
    State: native order: ``id``: key -> sort key, tiebreak, row -> weight, of which only the first
        offset + limit are read.  Else ``id``: key -> row -> weight and ``id.head``, the first rows
        of each group; the whole group is read only when one of those goes.
    Time: emits on TimeEnd what became different at the front of each touched group; without
        limit it passes diffs on at once as well.
    Errors: BugError on a negative weight; RowError or TransientError of Postgres where it ranks.
    """

    words = "ORDER BY with LIMIT"

    def __init__(
        self, node: plan.TopKSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, in_schema, node.keys)
        self._node = node
        self._schema = arrow_schema(node.schema)
        window = _Window(node)
        sorter = Sorter(in_schema, node.keys, node.order, remote)
        self._front: _Front = (
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
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)]

    def add(self, port: int, keys: list[bytes], batch: pa.RecordBatch) -> None:
        """See ``ByKey``."""
        columns = columns_of(batch)
        encoded = encode(columns, batch.num_rows)
        self._front.add(keys, columns, encoded, weights_of(batch))

    def before(self, keys: list[bytes]) -> Found:
        """See ``ByKey``."""
        return self._front.before(keys)

    def advance(self, keys: list[bytes], before: Found) -> list[pa.RecordBatch]:
        """See ``ByKey``."""
        return self.diffs(self._front.advance(keys, before))


class _Window:
    """Which rows of an ordered group count."""

    def __init__(self, node: plan.TopKSpec) -> None:
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

    def shown(self, groups: Iterable[Ordered]) -> Found:
        """What each of the groups shows."""
        out = nothing()
        for number, group in enumerate(groups):
            for row, weight in self.cut(group)[0]:
                out[0].append(number)
                out[1].append(row)
                out[2].append(self.sign * weight)
        return out

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

    def before(self, keys: list[bytes]) -> Found:
        """See ``ByKey``."""

    def advance(self, keys: list[bytes], before: Found) -> Found:
        """By what ``keys`` show something different since ``before``."""


class _Sorted:
    """Rows in an index that stands in their order."""

    def __init__(self, node: plan.TopKSpec, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._ties = node.ties
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
        count = len(keys)
        entries = order.entries(
            self._sorter.orders(columns, count), self._sorter.rests(columns, count), encoded
        )
        self._state.add_many(keys, entries, weights)

    def before(self, keys: list[bytes]) -> Found:
        """See ``_Front``: what counts in each group."""
        return self._window.shown(self._heads(keys) if self._window.needed else [])

    def advance(self, keys: list[bytes], before: Found) -> Found:
        """See ``_Front``."""
        return difference(before, self.before(keys))

    def _heads(self, keys: list[bytes]) -> list[list[tuple[bytes, bytes, int]]]:
        """The entries of each group that decide, in order (a few more do no harm)."""
        out: list[list[tuple[bytes, bytes, int]]] = [[] for _ in keys]
        going = list(range(len(keys)))
        starts: list[bytes] | None = None
        count = self._window.needed + (1 if self._ties else 0)
        while going:
            at, found, weights = self._state.first_many([keys[i] for i in going], count, starts)
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

    def __init__(self, node: plan.TopKSpec, sorter: Sorter, window: _Window) -> None:
        self._id = node.id
        self._sorter = sorter
        self._window = window
        self._types = [arrow_type(f.oid) for f in node.schema]
        self._changed: dict[bytes, dict[bytes, int]] = {}
        self._state: IndexState
        self._head: IndexState

    def open(self, store: StateStore) -> None:
        """See ``_Front``."""
        self._state = store.index(self._id)
        self._head = store.index(f"{self._id}.{HEAD}")

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
            changed = self._changed.setdefault(key, {})
            changed[row] = changed.get(row, 0) + weight

    def before(self, keys: list[bytes]) -> Found:
        """See ``_Front``: the first rows of each group are in the state."""
        return nothing()

    def advance(self, keys: list[bytes], before: Found) -> Found:
        """See ``_Front``."""
        changed = [self._changed.pop(key) for key in keys]
        if not self._window.needed:
            return nothing()
        head = self._head.scan_many(keys)
        old = _by_key(head, len(keys))
        new = self._candidates(keys, old, changed)
        ordered = self._ordered(old, new)
        shown = [self._window.shown(_present(ordered, each)) for each in (old, new)]
        kept = nothing()
        for number, group in enumerate(_present(ordered, new)):
            for _, row, weight in group[: self._window.cut(group)[1]]:
                kept[0].append(number)
                kept[1].append(row)
                kept[2].append(weight)
        at, found, weights = difference(head, kept)
        self._head.add_many([keys[i] for i in at], found, weights)
        return difference(*shown)

    def _candidates(
        self, keys: list[bytes], old: list[dict[bytes, int]], changed: list[dict[bytes, int]]
    ) -> list[dict[bytes, int]]:
        """Rows of each group among which its first ones are, from what has changed."""
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


def _present(
    ordered: list[list[tuple[bytes, bytes]]], groups: list[dict[bytes, int]]
) -> list[list[tuple[bytes, bytes, int]]]:
    """The rows of each group, in order, that are in it."""
    return [
        [(rank, row, weights[row]) for rank, row in order if row in weights]
        for order, weights in zip(ordered, groups, strict=True)
    ]


def _by_key(found: tuple[list[int], list[bytes], list[int]], count: int) -> list[dict[bytes, int]]:
    out: list[dict[bytes, int]] = [{} for _ in range(count)]
    for at, row, weight in zip(*found, strict=True):
        out[at][row] = weight
    return out
