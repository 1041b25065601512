"""GROUP BY with aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections import aggregates, plan
from headrace.collections.accumulators import Accumulator
from headrace.collections.aggregates import Part, PartFeed, Unique
from headrace.collections.base import Collection, cut, encode, keys_of, weights_of
from headrace.collections.retained_values import Asked, RetainedValues, Rows
from headrace.errors import BugError, RowError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import aggregate, buffers, packed, rows, text
from headrace.kernels.aggregate import Numbers
from headrace.kernels.buffers import Int64s
from headrace.kernels.groups import WIDTH_MAX, Groups
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Nullable, Packed
from headrace.kernels.sums import IntSums
from headrace.state.contract import MapState, StateStore
from headrace.types import Schema, arrow_schema, arrow_type

_GROUPS_PER_STEP: Final = 65_536
_GROUPS_MIN: Final = 8
"""Fewer groups are merged one by one, which costs less than calls on arrays."""

_Merged = tuple[Packed, Packed, Nullable, Int64s, list[pa.Array]]
"""Heads of state values, key rows, result rows before, row counts, values by accumulator."""


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
        self,
        node: plan.ReduceSpec,
        in_schema: Schema,
        remote: RemoteEvaluator | None,
        ports: int = 1,
    ) -> None:
        super().__init__(node.id, node.schema, ports)
        self._node = node
        self._key_oids = [in_schema[i].oid for i in node.keys]
        self._result_types = [arrow_type(a.result.oid) for a in node.aggregates]
        self._key_layout = rows.Layout([arrow_type(oid) for oid in self._key_oids])
        self._result_layout = rows.Layout(self._result_types)
        self._parts, self._feeds = aggregates.make(
            node.aggregates, f"{node.id}.values", in_schema, remote
        )
        self._accumulators = [_accumulator(part) for part in self._parts]
        self._places: list[tuple[Accumulator, int]] = []
        """Place of each accumulator's numbers in plain groups."""
        self._width = self._placed()
        self._always = dict(zip(*map(Packed.strings, always(node, self._key_oids)), strict=True))
        self._started = False
        self._state: MapState
        self._clear()

    def _placed(self) -> int:
        """Place the numbers of plain groups; return their width, 0 if there are none."""
        width = 1
        for accumulator in self._accumulators:
            if accumulator is not None:
                if not accumulator.width:
                    return 0
                self._places.append((accumulator, width))
                width += accumulator.width
        return width if width <= WIDTH_MAX else 0

    def _clear(self) -> None:
        self._slots = Numbering()
        self._key_rows: list[Packed] = []
        self._counts = IntSums()
        for accumulator in self._accumulators:
            if accumulator is not None:
                accumulator.clear()

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
        self._add(batch, self._feeds, counted=True)
        return []

    def _add(self, batch: pa.RecordBatch, feeds: Sequence[PartFeed], *, counted: bool) -> None:
        """Add rows to the parts of ``feeds``, and if ``counted``, to the counts of the groups."""
        n = batch.num_rows
        if n == 0:
            return
        weights = weights_of(batch)
        named = [batch.column(i) for i in self._node.keys]
        keys = keys_of(named, self._key_oids, n)
        slots = self._number(keys, named)
        if counted:
            self._counts.add(slots, np.ones(n, np.int64), weights, len(self._slots))
        for feed in feeds:
            self._feed(feed, batch, keys, slots, weights)

    def _number(self, keys: Packed, columns: list[pa.Array]) -> Int64s:
        """Return the slot of each row's group; assign slots to groups new in this txid.

        ``columns``: those of the keys.
        """
        slots, firsts = self._slots.add(keys)
        if len(firsts):
            if len(firsts) < len(keys):
                at = pa.array(firsts)
                columns = [column.take(at) for column in columns]
            self._key_rows.append(encode(columns, len(firsts)))
        return slots

    def _gathered(self, slots: Int64s) -> list[bytes]:
        """Return the encoded row count and numbers of each of ``slots``, after ``_end``."""
        parts: list[list[Numbers]] = [[[count] for count in self._counts.take(slots)]]
        parts += [a.gathered(slots) for a in self._accumulators if a is not None]
        return [b"".join(map(aggregate.encode_numbers, each)) for each in zip(*parts, strict=True)]

    def _join(self, slot: int, data: bytes) -> None:
        """Add what another reduce has ``_gathered`` of a group."""
        found, at = aggregate.decode_numbers(data, 0)
        self._counts.add_one(slot, found[0])
        for accumulator in self._accumulators:
            if accumulator is not None:
                found, at = aggregate.decode_numbers(data, at)
                accumulator.join(slot, found)

    def _feed(
        self,
        feed: PartFeed,
        batch: pa.RecordBatch,
        keys: Packed,
        slots: Int64s,
        weights: Int64s,
    ) -> None:
        part = feed.part
        mask = feed.chosen(batch)
        own = [batch.column(i) for i in feed.columns]
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
        self._end(size)
        keys, key_rows = self._slots.strings(), packed.joined(self._key_rows)
        out: list[pa.RecordBatch] = []
        for low in range(0, size, _GROUPS_PER_STEP):
            high = min(low + _GROUPS_PER_STEP, size)
            out.extend(self._advance(keys.part(low, high), key_rows.part(low, high), low, high))
        self._clear()
        return out

    def _groups(self) -> int:
        """Return how many groups the txid touches; the first call adds the keys ``always``."""
        if not self._started and self._always:
            _, firsts = self._slots.add(packed.pack([*self._always]))
            self._key_rows.append(packed.pack([*self._always.values()]).take(firsts))
        self._started = True
        return len(self._slots)

    def _end(self, size: int) -> None:
        """End the txid's additions in all parts; it touches ``size`` groups."""
        for feed in self._feeds:
            if isinstance(feed.part, Unique):
                feed.part.end_txid(size)
            elif not isinstance(feed.part, Accumulator):
                feed.part.check()
        self._counts.end(size)
        for accumulator in self._accumulators:
            if accumulator is not None:
                accumulator.end(size)

    def _advance(self, keys: Packed, key_rows: Packed, low: int, high: int) -> list[pa.RecordBatch]:
        """Update the groups of slots ``low`` … ``high`` - 1; return the diffs of their rows."""
        values = self._state.get_many(keys)
        if self._width and len(keys) >= _GROUPS_MIN:
            found = self._merged(values, key_rows, low, high)
        else:
            found = self._exact(values, key_rows, np.arange(low, high))
        heads, key_rows, old_rows, totals, columns = found
        new_rows = self._shown(keys, totals, columns)
        self._state.put_many(keys, aggregate.encoded(heads, key_rows, new_rows))
        return self._diffs(key_rows, old_rows, new_rows)

    def _merged(self, values: Nullable, key_rows: Packed, low: int, high: int) -> _Merged:
        """Merge most groups as machine integers, and the others one by one."""
        groups = Groups(values, self._width)
        groups.add(0, *self._counts.fitting(low, high))
        for accumulator, place in self._places:
            accumulator.merge(groups, place, low, high)
        rest = np.flatnonzero(groups.plain == 0)
        if 2 * len(rest) > len(values):
            return self._exact(values, key_rows, np.arange(low, high))
        groups.numbers[:, rest] = 0
        own_rows = packed.either(groups.keys, key_rows)
        heads, totals = groups.encode(own_rows), groups.numbers[0]
        columns = [accumulator.column(groups, place) for accumulator, place in self._places]
        if not len(rest):
            return heads, own_rows, groups.results, totals, columns
        others = packed.take_nullable(values.packed, rest)
        others.valid = values.valid[rest]
        exact = self._exact(others, key_rows.take(rest), rest + low)
        order = np.arange(len(values))
        order[rest] = len(values) + np.arange(len(rest))
        totals[rest] = exact[3]
        olds = packed.take_two(groups.results.packed, exact[2].packed, order)
        both = [
            pa.concat_arrays([one, other.cast(one.type)]).take(pa.array(order))
            for one, other in zip(columns, exact[4], strict=True)
        ]
        return (
            packed.take_two(heads, exact[0], order),
            packed.take_two(own_rows, exact[1], order),
            Nullable(olds.data, olds.bounds, values.valid),
            totals,
            both,
        )

    def _exact(self, values: Nullable, key_rows: Packed, slots: Int64s) -> _Merged:
        """Merge groups one by one, as Python integers."""
        olds, old_keys, old_rows = _decoded(values)
        news: list[Numbers] = [[] for _ in olds]
        at = [0] * len(news)
        try:
            totals = aggregate.advance_counts(olds, at, self._counts.take(slots), news)
            columns = [
                rows.array_of(accumulator.advance(olds, at, slots, news), kind)
                for accumulator, kind in zip(self._accumulators, self._result_types, strict=True)
                if accumulator is not None
            ]
        except aggregate.NegativeError:
            raise BugError(f'"{self.id}" lost a value that it never had') from None
        except OverflowError as error:
            raise RowError(str(error), sqlstate="22003") from None
        if 0 in totals and any(
            total == 0 and any(numbers) for total, numbers in zip(totals, news, strict=True)
        ):
            raise BugError(f'a group of "{self.id}" has values but no rows')
        key_rows = packed.either(old_keys, key_rows)
        heads = aggregate.encode_heads(news, key_rows)
        return heads, key_rows, old_rows, np.array(totals, np.int64), columns

    def _shown(self, keys: Packed, totals: Int64s, found: list[pa.Array]) -> Nullable:
        """Return the encoded aggregates of each group; None for a group without rows."""
        whole, own, alive = buffers.nonzero(totals), keys, totals
        if not whole:
            there = totals != 0
            if self._always:
                there |= np.array([name in self._always for name in keys.strings()], np.bool_)
            alive = np.flatnonzero(there)
            whole, own = len(alive) == len(keys), keys.take(alive)
        columns: list[pa.Array] = []
        computed = iter(found)
        for part, accumulator, kind in zip(
            self._parts, self._accumulators, self._result_types, strict=True
        ):
            if accumulator is None:
                assert isinstance(part, RetainedValues | Asked), "the other kinds of part"
                columns.append(part.column(own) if len(own) else pa.array([], kind))
            else:
                column = next(computed)
                columns.append(column if whole else column.take(pa.array(alive)))
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
        results = packed.take_two(old_rows.packed, new_rows.packed, numbers)
        parts = ((key_rows, self._key_layout, groups), (results, self._result_layout, None))
        return cut(rows.unpack_parts(parts, arrow_schema(self.schema), weights))


def always(node: plan.ReduceSpec, oids: list[int]) -> tuple[Packed, Packed]:
    """Return the keys and key rows of the groups that exist before any input."""
    if not node.keys:
        return packed.empty(1), packed.empty(1)
    if not node.always:
        return packed.empty(0), packed.empty(0)
    columns = [
        text.parse(pa.array(values, pa.string()), oid)
        for values, oid in zip(zip(*node.always, strict=True), oids, strict=True)
    ]
    return rows.pack_keys(columns, oids), rows.pack_rows(columns)


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
