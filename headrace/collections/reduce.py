"""GROUP BY with aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.collections import aggregates, plan
from headrace.collections.aggregates import Accumulator, Part, PartFeed, Unique
from headrace.collections.base import Collection, columns_of, cut, encode, keys_of
from headrace.collections.retained_values import Asked, RetainedValues, Rows
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import aggregate, buffers, packed, rows, text
from headrace.kernels.aggregate import Numbers
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Nullable, Packed
from headrace.kernels.sums import IntSums
from headrace.state.contract import MapState, StateStore
from headrace.types import Schema, arrow_type, diff_batch

_GROUPS_PER_STEP: Final = 65_536


class Reduce(Collection):
    """One row per group: the keys, then the aggregates.

    Meaning: Reduce(A) = {(key, aggregates of A's rows of that key, each as often as its weight)}
        for every key whose weights sum to more than 0, and for the keys ``always`` (without keys,
        the only one).  Negative diffs retract values; a negative sum is a bug.
    Shape: input -> keys, aggregates; key: the keys.
    State: ``id``: group key -> count, sums and the current output row (bounded by the groups);
        ``id.values`` for min, max, any, single, remote and DISTINCT aggregates: number of the
        aggregate (the first of those that share a row), group key -> the group's values.
    Time: emits on TimeEnd the old and the new row of each group that changed.
    Errors: RowError if a result is out of its type's range, Postgres cannot aggregate, or
        ``single`` finds two rows.
    """

    words = "an aggregate"

    def __init__(
        self, node: plan.ReduceSpec, in_schema: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema)
        self._node = node
        self._key_oids = [in_schema[i].oid for i in node.keys]
        self._key_types = [arrow_type(oid) for oid in self._key_oids]
        self._result_types = [arrow_type(a.result.oid) for a in node.aggregates]
        self._parts, self._feeds = aggregates.make(
            node.aggregates, f"{node.id}.values", in_schema, remote
        )
        self._accumulators = [_accumulator(part) for part in self._parts]
        self._always = _always(node, self._key_oids)
        self._started = False
        self._state: MapState
        self._clear()

    def _clear(self) -> None:
        self._slots = Numbering()
        self._key_rows: list[Packed] = []
        self._counts = IntSums()

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.map(self.id)
        for feed in self._feeds:
            if not isinstance(feed.part, Accumulator):
                feed.part.open(store)

    def describe(self) -> str:
        """See ``Collection``."""
        keys = ", ".join(f.name for f in self.schema[: len(self._node.keys)])
        calls = ", ".join(a.function for a in self._node.aggregates)
        return f"Reduce by ({keys}): {calls}"

    # --- within a txid

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        n = batch.num_rows
        if n == 0:
            return []
        columns = columns_of(batch)
        weights = np.array(buffers.values(batch.columns[-1]), np.int64)
        keys = keys_of([columns[i] for i in self._node.keys], self._key_oids, n)
        slots = self._number(keys, columns)
        self._counts.add(slots, np.ones(n, np.int64), weights, len(self._slots))
        for feed in self._feeds:
            self._feed(feed, columns, keys, slots, weights)
        return []

    def _number(self, keys: Packed, columns: Sequence[pa.Array]) -> Int64s:
        """Return the slot of each row's group; assign slots to groups new in this txid."""
        slots, firsts = self._slots.add(keys)
        if len(firsts):
            at = pa.array(firsts)
            shown = [columns[i].take(at) for i in self._node.keys]
            self._key_rows.append(encode(shown, len(firsts)))
        return slots

    def _feed(
        self,
        feed: PartFeed,
        columns: Sequence[pa.Array],
        keys: Packed,
        slots: Int64s,
        weights: Int64s,
    ) -> None:
        part = feed.part
        mask = feed.chosen(columns, len(keys))
        own = [columns[i] for i in feed.columns]
        if mask is not None:
            slots, weights = slots[mask], weights[mask]
            if len(slots) == 0:
                return
            own = [column.filter(pa.array(mask)) for column in own]
            if not isinstance(part, Accumulator):
                keys = keys.take(np.flatnonzero(mask))
        if isinstance(part, Accumulator):
            part.add(slots, own[0] if own else None, weights, len(self._slots))
        elif isinstance(part, Unique):
            part.add(keys, slots, own[0], weights)
        else:
            part.add(keys, own, weights)

    # --- at its end

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        size = self._groups()
        if size == 0:
            return []
        counts = self._gather(size)
        keys, key_rows = self._slots.strings(), packed.joined(self._key_rows)
        out: list[pa.RecordBatch] = []
        for low in range(0, size, _GROUPS_PER_STEP):
            step = slice(low, min(low + _GROUPS_PER_STEP, size))
            some = keys.part(step.start, step.stop), key_rows.part(step.start, step.stop)
            out.extend(self._advance(*some, step, counts[step]))
        self._clear()
        return out

    def _groups(self) -> int:
        """Return how many groups the txid touches; the first call adds the keys ``always``."""
        if not self._started and self._always:
            _, firsts = self._slots.add(packed.pack([*self._always]))
            self._key_rows.append(packed.pack([*self._always.values()]).take(firsts))
        self._started = True
        return len(self._slots)

    def _gather(self, size: int) -> list[int]:
        """Sum the txid's changes in all parts; return the change of the row count per group."""
        for feed in self._feeds:
            if isinstance(feed.part, Unique):
                feed.part.end_txid(size)
            elif not isinstance(feed.part, Accumulator):
                feed.part.check()
        counts = self._counts.take(size)
        for accumulator in self._accumulators:
            if accumulator is not None:
                accumulator.gather(size)
        return counts

    def _advance(
        self, keys: Packed, key_rows: Packed, step: slice, counts: list[int]
    ) -> list[pa.RecordBatch]:
        """Update the groups of slots ``step``, and return the diffs of their rows."""
        olds, old_keys, old_rows = _decoded(self._state.get_many(keys))
        news: list[Numbers] = [[] for _ in olds]
        try:
            totals, values = self._merge(olds, step, counts, news)
        except aggregate.NegativeError:
            raise BugError(f'"{self.id}" lost a value that it never had') from None
        except OverflowError as error:
            raise RowError(str(error), sqlstate="22003") from None
        if 0 in totals and any(
            total == 0 and any(numbers) for total, numbers in zip(totals, news, strict=True)
        ):
            raise BugError(f'a group of "{self.id}" has values but no rows')
        key_rows = packed.either(old_keys, key_rows)
        new_rows = self._shown(keys, totals, values)
        self._state.put_many(keys, aggregate.encode_groups(news, key_rows, new_rows))
        return self._diffs(key_rows, old_rows, new_rows)

    def _merge(
        self, olds: list[Numbers], step: slice, counts: list[int], news: list[Numbers]
    ) -> tuple[list[int], list[list[Any]]]:
        """Return the row count per group, and the values per accumulator."""
        at = [0] * len(news)
        totals = aggregate.advance_counts(olds, at, counts, news)
        values = [
            accumulator.advance(olds, at, step, news)
            for accumulator in self._accumulators
            if accumulator is not None
        ]
        return totals, values

    def _shown(self, keys: Packed, totals: list[int], values: list[list[Any]]) -> Nullable:
        """Return the encoded aggregates of each group; None for a group without rows."""
        alive = [i for i, n in enumerate(totals) if n]
        if len(alive) < len(keys) and self._always:
            names = keys.strings()
            alive = [i for i, n in enumerate(totals) if n or names[i] in self._always]
        whole = len(alive) == len(keys)
        own = keys if whole else keys.take(np.array(alive, np.int64))
        columns: list[pa.Array] = []
        found = iter(values)
        for part, accumulator, kind in zip(
            self._parts, self._accumulators, self._result_types, strict=True
        ):
            if accumulator is None:
                assert isinstance(part, RetainedValues | Asked), "the other kinds of part"
                columns.append(part.column(own) if len(own) else pa.array([], kind))
            else:
                column = next(found)
                chosen = column if whole else [column[i] for i in alive]
                columns.append(pa.array(chosen, kind))
        for feed in self._feeds:
            if isinstance(feed.part, Rows):
                feed.part.forget()
        shown = encode(columns, len(own))
        if whole:
            return packed.all_valid(shown)
        order = np.full(len(keys), -1, np.int64)
        order[alive] = np.arange(len(alive))
        return packed.take_nullable(shown, order)

    def _diffs(
        self, key_rows: Packed, old_rows: Nullable, new_rows: Nullable
    ) -> list[pa.RecordBatch]:
        groups, numbers, weights = aggregate.turned(old_rows, new_rows)
        if not len(groups):
            return []
        columns: list[pa.Array] = []
        if self._key_types:
            columns += rows.decode_rows(key_rows.take(groups), self._key_types)
        if self._result_types:
            results = packed.take_two(old_rows.packed, new_rows.packed, numbers)
            columns += rows.decode_rows(results, self._result_types)
        return cut(diff_batch(self.schema, columns, pa.array(weights)))


def _always(node: plan.ReduceSpec, oids: list[int]) -> dict[bytes, bytes]:
    """Return group key -> key row of the groups that exist before any input."""
    if not node.keys:
        return {b"": b""}
    if not node.always:
        return {}
    columns = [
        text.parse(pa.array(values, pa.string()), oid)
        for values, oid in zip(zip(*node.always, strict=True), oids, strict=True)
    ]
    found, shown = rows.pack_keys(columns, oids), rows.pack_rows(columns)
    return dict(zip(found.strings(), shown.strings(), strict=True))


def _decoded(values: Nullable) -> tuple[list[Numbers], Nullable, Nullable]:
    out: tuple[list[Numbers], Nullable, Nullable]
    try:
        out = aggregate.decode_groups(values)
    except ValueError as error:
        raise BugError(str(error)) from error
    return out


def _accumulator(part: Part) -> Accumulator | None:
    if isinstance(part, Unique):
        return part.inner
    return part if isinstance(part, Accumulator) else None
