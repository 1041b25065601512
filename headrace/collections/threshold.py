"""Semi and anti joins on equal keys and one comparison, ``x > y``, of a value of each side.

The comparison holds for some row of the right if and only if it holds for the extreme one: the
least ``y``, or the greatest for ``<``. So the rows of the left are kept in the order of ``x``, and
a *cut* divides those with a match from the others. A change of the right turns the rows between the
earlier cut and the new one, however many rows the key has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.collections import base, plan
from headrace.collections.by_key import demand_none_negative
from headrace.collections.join import keys_of
from headrace.errors import BugError
from headrace.kernels import aggregate, packed, packed_order, rows
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Consolidator, Numbering
from headrace.kernels.packed import Nullable, Packed
from headrace.process import bounds
from headrace.state.contract import IndexState, StateStore
from headrace.types import Schema, diff_batch

Flags = npt.NDArray[np.bool_]
Shown = tuple[Packed, Int64s]
"""Entries of the left, and their weights."""

_AT, _AFTER = b"\x01", b"\x02"
"""Ends of a cut: before and after the entries whose ``x`` is its value.  An entry has ``_AT``."""
_CUTS: Final = {">": _AFTER, ">=": _AT, "<": _AT, "<=": _AFTER}
_KEYS_MAX: Final = 4096
"""Keys per look-up."""
_PAGE_ROWS: Final = 16
"""Rows that are read first of each key; later pages are larger."""
_READ_ROWS_MAX: Final = 65_536
"""Rows per look-up, and distinct rows of output that are held."""


class Threshold(base.Collection):
    """A semi or anti join with ``plan.JoinSpec.compared``.

    Meaning, shape: as ``plan.JoinSpec``.  A NULL in a key or in the comparison matches nothing.
    State: ``id.left``: key -> x and row -> weight; ``id.right``: key -> y -> weight.  Without the
        rows that match nothing.
    Time: on TimeEnd; O(changes + turned rows).
    Errors: BugError on a negative weight.
    """

    words = "a join"

    def __init__(self, node: plan.JoinSpec, left: Schema, right: Schema) -> None:
        super().__init__(node.id, node.schema, 2)
        compared = node.compared
        if compared is None or not node.left_only:
            raise BugError(f'join "{node.id}" has no comparison')
        self._node = node
        self._inputs_schema = (left, right)
        self._places = (compared.left, compared.right)
        self._greatest = compared.operator in ("<", "<=")
        """Whether the greatest value of the right decides, not the least."""
        self._end = _CUTS[compared.operator]
        self._above = self._greatest != (node.op == "semi")
        """Whether the rows from the cut on are output, not those before it."""
        self._left: IndexState
        self._right: IndexState
        self._loaded = Numbering()
        self._clear()

    def _clear(self) -> None:
        self._touched = Numbering()
        """Keys whose rows of the right have changed."""
        self._before: list[Nullable] = []
        """Their cuts before."""
        self._noted: list[tuple[Packed, Packed, Int64s]] = []

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._left, self._right = store.index(f"{self.id}.left"), store.index(f"{self.id}.right")

    def describe(self) -> str:
        """See ``Collection``."""
        compared = self._node.compared
        assert compared is not None, "see the constructor"
        left, right = ([f.name for f in schema] for schema in self._inputs_schema)
        pairs = zip(self._node.left_keys, self._node.right_keys, strict=True)
        tests = [f"{left[a]} = {right[b]}" for a, b in pairs]
        tests.append(f"{left[compared.left]} {compared.operator} {right[compared.right]}")
        return f"{self._node.op.capitalize()}Join ({', '.join(tests)})"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        found = keys_of(self._node, port, self._inputs_schema[port], batch)
        place = self._places[port]
        meets = (found.valid != 0) & (rows.whole([batch.column(place)]) != 0)
        out: list[pa.RecordBatch] = []
        keys = found.packed
        if not meets.all():
            if port == 0 and self._node.op == "anti":
                out.append(batch.filter(pa.array(~meets)))
            batch, keys = batch.filter(pa.array(meets)), keys.take(np.flatnonzero(meets))
        if batch.num_rows:
            columns, weights = base.columns_of(batch), base.weights_of(batch)
            orders = rows.pack_keys([columns[place]], [self._inputs_schema[port][place].oid])
            if port == 0:
                encoded = base.encode(columns, batch.num_rows)
                orders = packed.appended(orders, packed.repeat(_AT, len(keys)))
                self._add(keys, aggregate.join_ordered(orders, encoded), weights)
            else:
                self._touch(keys)
                self._right.add_many(keys, orders, weights)
        return [diff_batch(self.schema, base.columns_of(o), o.columns[-1]) for o in out]

    def _add(self, keys: Packed, entries: Packed, weights: Int64s) -> None:
        if self.insert_only:
            self._loaded.add(keys)
        else:
            self._noted.append((keys, entries, weights))
        self._left.add_many(keys, entries, weights)

    def _touch(self, keys: Packed) -> None:
        """Note the cuts of ``keys``, before their rows of the right change."""
        if self.insert_only:
            return
        _, new = self._touched.add(keys)
        if len(new):
            self._before.append(self._cuts(keys.take(new)))

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        out: list[pa.RecordBatch] = []
        total = 0
        for found, weights in self._ended():
            total += len(found)
            bounds.expect(self, total)
            encoded = aggregate.ordered_values(packed.all_valid(found), b"")
            out += base.cut(base.decode(encoded, self.schema, weights))
        return out

    def _ended(self) -> Iterator[Shown]:
        loaded, self._loaded = self._loaded.strings(), Numbering()
        for keys in _chunks(loaded):
            cuts, ones = self._cuts(keys), np.ones(len(keys), np.int64)
            first = packed.nullable([b""] * len(keys))
            last = packed.nullable([None] * len(keys))
            lows, highs = (cuts, last) if self._above else (first, cuts)
            yield from self._between(keys, lows, highs, ones)
        if self._before or self._noted:
            yield from self._changes()

    def _changes(self) -> Iterator[Shown]:
        """Yield the changed rows that were output before, and the turned rows as they are now."""
        names, touched = self._touched, self._touched.strings()
        before = _joined(self._before)
        sums = Consolidator()
        noted, cuts = self._noted, before
        self._clear()
        for keys, entries, weights in noted:
            numbers, new = names.add(keys)
            if len(new):
                cuts = _joined([cuts, self._cuts(keys.take(new))])
            there = np.flatnonzero(self._reached(entries, _taken(cuts, numbers)) == self._above)
            sums.add(entries.take(there), weights[there])
            if len(sums) > _READ_ROWS_MAX:
                yield sums.items()
                sums = Consolidator()
        after = self._cuts(touched)
        order = _order(before, after)
        signs = np.where((order > 0) == self._above, 1, -1)
        for at in _pieces(np.flatnonzero(order)):
            one, other = _taken(before, at), _taken(after, at)
            up = order[at] < 0
            lows, highs = _either(one, other, up), _either(other, one, up)
            for entries, weights in self._between(touched.take(at), lows, highs, signs[at]):
                sums.add(entries, weights)
                if len(sums) > _READ_ROWS_MAX:
                    yield sums.items()
                    sums = Consolidator()
        yield sums.items()

    def _cuts(self, keys: Packed) -> Nullable:
        """Return the cut of each key now; None is after all entries, the empty one before them."""
        found = self._right.extreme_many(keys, last=self._greatest)
        there = np.flatnonzero(found.valid)
        some = found.packed.take(there)
        ends = packed.appended(some, packed.repeat(self._end, len(some)))
        order = np.full(len(keys), -1, np.int64)
        order[there] = np.arange(len(there))
        cuts = packed.take_nullable(ends, order)
        if self._greatest:
            cuts.valid = np.ones(len(keys), np.uint8)
        return cuts

    def _reached(self, entries: Packed, cuts: Nullable) -> Flags:
        """Return whether each entry is at its cut or after it."""
        reached: Flags = (packed_order.compared(entries, cuts.packed) >= 0) & (cuts.valid != 0)
        return reached

    def _between(
        self, keys: Packed, lows: Nullable, highs: Nullable, signs: Int64s
    ) -> Iterator[Shown]:
        """Yield the entries of each key from its low cut to its high one, weights times signs."""
        going, count = np.flatnonzero(lows.valid), _PAGE_ROWS
        starts = lows.packed.take(going)
        while len(going):
            at, entries, weights = self._left.first_many(keys.take(going), count, starts)
            demand_none_negative(weights, self.id)
            inside = ~self._reached(entries, _taken(highs, going[at]))
            there = np.flatnonzero(inside)
            yield entries.take(there), signs[going[at[there]]] * weights[there]
            ends = np.searchsorted(at, np.arange(len(going) + 1))
            full = np.flatnonzero(np.diff(ends) == count)
            full = full[inside[ends[full + 1] - 1]]
            last = entries.take(ends[full + 1] - 1)
            starts = packed.appended(last, packed.repeat(b"\0", len(full)))
            going = going[full]
            count = max(count, min(4 * count, _READ_ROWS_MAX // max(len(going), 1)))


def _order(left: Nullable, right: Nullable) -> Int64s:
    """Compare cuts; return -1, 0 or 1 per pair."""
    both = (left.valid != 0) & (right.valid != 0)
    compared = packed_order.compared(left.packed, right.packed)
    return np.where(both, compared, right.valid.astype(np.int64) - left.valid)


def _either(one: Nullable, other: Nullable, first: Flags) -> Nullable:
    """Return the cuts of ``one`` where ``first`` is true, else of ``other``."""
    places = np.arange(len(first))
    return _taken(_joined([one, other]), np.where(first, places, places + len(first)))


def _taken(cuts: Nullable, order: Int64s) -> Nullable:
    found = cuts.packed.take(order)
    return Nullable(found.data, found.bounds, cuts.valid[order])


def _joined(pieces: list[Nullable]) -> Nullable:
    pieces = pieces or [packed.nullable([])]
    found = packed.joined([piece.packed for piece in pieces])
    return Nullable(found.data, found.bounds, np.concatenate([piece.valid for piece in pieces]))


def _chunks(keys: Packed) -> Iterator[Packed]:
    for start in range(0, len(keys), _KEYS_MAX):
        yield keys.part(start, min(start + _KEYS_MAX, len(keys)))


def _pieces(numbers: Int64s) -> Iterator[Int64s]:
    for start in range(0, len(numbers), _KEYS_MAX):
        yield numbers[start : start + _KEYS_MAX]
