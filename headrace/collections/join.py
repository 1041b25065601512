"""Joins on equal keys: inner, left, full, semi, anti; tracking of rows with and without a match.

A *lone* row has no match.  Outer and anti joins output lone rows, semi joins the others.  A row
becomes lone, or matched, only as of a TimeEnd, where this is computed from the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.collections import base, plan
from headrace.collections.by_key import demand_none_negative
from headrace.collections.steps import FilterStep
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import buffers, packed, rows
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Consolidator, Numbering, add_up, group
from headrace.kernels.packed import Nullable, Packed
from headrace.process import bounds
from headrace.state.contract import IndexState, Scanned, StateStore
from headrace.types import Schema, arrow_schema, arrow_type, diff_batch

Flags = npt.NDArray[np.bool_]
Shown = tuple[Packed, Int64s]
"""Encoded rows of one side, and their weights."""

_LOOKUP_ROWS_MAX: Final = 4096
"""Rows or keys per lookup: bounds the lookup result."""
_KEYS_AT_FIRST: Final = 64
"""Keys whose matches are read before their number is first checked; later reads are larger."""


class Join(base.Collection):
    """Rows of left x right with equal keys and all residual predicates true; see ``plan.JoinSpec``.

    Meaning: d(A >< B) = dA >< B + A >< dB + dA >< dB: each batch is joined with the current state
        of the other side, then added to its own side, so the last term is counted once.  Weights
        are multiplied, so negative ones are handled (E-12).  For left, full, semi and anti, the
        classes below track the rows with a match; pairs must also pass the residual.
    Shape: left, right -> columns of the left, then of the right (semi, anti: of the left).
    State: ``id.left`` and ``id.right``: key -> row -> weight.  As large as both inputs, without
        the rows with a NULL in the key, which never match.  A semi or anti join without residual
        keeps only the number of rows per key of the right.  With residual, and not
        inner: ``id.left_pairs`` (full: also ``id.right_pairs``), key -> row -> number of pairs.
    Time: pairs on apply, or on TimeEnd if a residual predicate may fail on a row (see ``steps``);
        output that depends on having a match or none on TimeEnd.
    Errors: RowError of a residual predicate; BugError on a negative weight of a row whose matches
        are tracked.
    """

    words = "a join"

    def __init__(
        self, node: plan.JoinSpec, left: Schema, right: Schema, remote: RemoteEvaluator | None
    ) -> None:
        super().__init__(node.id, node.schema, 2)
        self._node = node
        self._inputs_schema = (left, right)
        self._layouts = (base.layout_of(left), base.layout_of(right))
        pairs_schema = (*left, *right)
        self._residual = FilterStep(node.residual, remote)
        self._held = base.Diffed(pairs_schema) if self._residual.may_raise else None
        # Without a residual predicate the pairs are the output.
        self._pairs_arrow = arrow_schema(pairs_schema if node.residual else self.schema)
        self._meets = not node.left_only or bool(node.residual)
        """Whether pairs are computed at all."""
        self._states: tuple[IndexState, IndexState]
        self._by_key: dict[int, MatchesByKey] = {}
        self._by_row: dict[int, MatchesByRow] = {}

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._states = (store.index(f"{self.id}.left"), store.index(f"{self.id}.right"))
        lone = self._node.op != "semi"
        for port in self._node.watched:
            own, other = self._states[port], self._states[1 - port]
            if self._node.residual:
                state = _lone_states(store, self.id, port)
                self._by_row[port] = MatchesByRow(self.id, own, state, lone=lone)
            else:
                self._by_key[port] = MatchesByKey(self.id, own, other, lone=lone)

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        out: list[pa.RecordBatch] = []
        for piece in base.cut(batch, _LOOKUP_ROWS_MAX):
            kept, keys, rest = self._with_keys(port, piece)
            if rest is not None and self._node.keeps_nulls(port):
                out.append(self._extended(port, rest))
            if not len(keys):
                continue
            for joined in self._apply(port, kept, keys):
                if self._held is not None and not self.insert_only:
                    self._held.add(joined)
                else:
                    out += self._passed(joined)
        return out

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """See ``Collection``."""
        out: list[pa.RecordBatch] = []
        if self._held is not None:
            for joined in self._held.take():
                out += self._passed(joined)
        for port in self._node.watched:
            side = self._by_row[port] if port in self._by_row else self._by_key[port]
            for found, weights in side.end():
                side_rows = base.decode(found, self._inputs_schema[port], weights)
                out += base.cut(self._extended(port, side_rows))
        return out

    def describe(self) -> str:
        """See ``Collection``."""
        op = self._node.op
        name = "Join" if op == "inner" else f"{op.capitalize()}Join"
        keys = (self._node.left_keys, self._node.right_keys)
        names = [
            [schema[i].name for i in places]
            for schema, places in zip(self._inputs_schema, keys, strict=True)
        ]
        on = ", ".join(f"{a} = {b}" for a, b in zip(*names, strict=True))
        return f"{name} ({on})" if on else f"{name} (cross product)"

    def _apply(self, port: int, batch: pa.RecordBatch, keys: Packed) -> list[pa.RecordBatch]:
        """Store rows of ``port``; return their pairs, before the residual."""
        if port == 1 and not self._meets:
            # Only the number of rows per key matters, which are all counted as the empty row.
            encoded, incoming_weights = packed.empty(len(keys)), base.weights_of(batch)
        else:
            encoded, incoming_weights = base.split(self._inputs_schema[port], batch)
        if self.insert_only and self._inputs_schema[port] and not self._node.watched:
            self._states[port].load(keys, encoded, incoming_weights)
        else:
            self._keep(port, encoded, incoming_weights, keys)
        if not self._meets:
            return []
        distinct, groups = group(keys)
        at, found, found_weights = self._met(port, distinct, groups)
        if not len(at):
            return []
        counts = np.bincount(at, minlength=len(distinct))
        starts = counts.cumsum() - counts
        out: list[pa.RecordBatch] = []
        for left, right in pairs(groups, starts, counts, base.ROWS_PER_BATCH_MAX):
            mine = encoded, self._layouts[port], left
            theirs = found, self._layouts[1 - port], right
            both = (mine, theirs) if port == 0 else (theirs, mine)
            products = incoming_weights[left] * found_weights[right]
            out.append(rows.unpack_parts(both, self._pairs_arrow, products))
        return out

    def _keep(self, port: int, encoded: Packed, weights: Int64s, keys: Packed) -> None:
        """Add rows to the state of ``port``, and note them for the match tracking."""
        self._note(port, keys, encoded, weights)
        self._states[port].add_many(keys, encoded, weights)

    def _met(self, port: int, keys: Packed, groups: Int64s) -> Scanned:
        """Return the rows of the other side under ``keys``; stop at the limit of output rows.

        Incoming row ``i`` has the key ``keys[groups[i]]``.
        """
        state, room = self._states[1 - port], bounds.room(self)
        if room is None:
            return state.scan_many(keys)
        if len(keys) == 1:
            found = state.first_many(keys, room + 1)
            bounds.expect(self, len(groups) * len(found[0]))
            return found
        times = np.bincount(groups, minlength=len(keys))
        pieces: list[Scanned] = []
        low, size, total = 0, _KEYS_AT_FIRST, 0
        while low < len(keys):
            at, more, weights = state.scan_many(keys.part(low, min(low + size, len(keys))))
            total += int(times[at + low].sum())
            bounds.expect(self, total)
            pieces.append((at + low, more, weights))
            low, size = low + size, 4 * size
        if len(pieces) == 1:
            return pieces[0]
        ats, founds, numbers = zip(*pieces, strict=True)
        return np.concatenate(ats), packed.joined(founds), np.concatenate(numbers)

    def _note(self, port: int, keys: Packed, encoded: Packed, weights: Int64s) -> None:
        """Note rows about to be added to ``port`` for the match tracking of both sides."""
        if port in self._by_row:
            self._by_row[port].add(keys, encoded, weights)
        if port in self._by_key:
            if self.insert_only:
                self._by_key[port].load(keys)
            else:
                self._by_key[port].add(keys, encoded, weights)
        if 1 - port in self._by_key and not self.insert_only:
            self._by_key[1 - port].touch(keys)

    def _passed(self, joined: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the output of pairs that pass the residual; note the pairs for match tracking."""
        passed = self._residual.run(joined)
        if passed.num_rows == 0:
            return []
        for port, side in self._by_row.items():
            half = self._half(port, passed)
            _, keys, _ = self._with_keys(port, half)
            side.pair(keys, *base.split(self._inputs_schema[port], half))
        if self._node.left_only:
            return []
        return [base.under(self.schema, passed)]

    def _half(self, port: int, joined: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of one side, with the weights."""
        middle = len(self._inputs_schema[0])
        columns = base.columns_of(joined)
        mine = columns[:middle] if port == 0 else columns[middle:]
        return diff_batch(self._inputs_schema[port], mine, joined.columns[-1])

    def _extended(self, port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of one side as output, with NULLs for the other side."""
        columns = base.columns_of(batch)
        if not self._node.left_only:
            nulls = [pa.nulls(batch.num_rows, kind) for kind in self._types(1 - port)]
            columns = columns + nulls if port == 0 else nulls + columns
        return diff_batch(self.schema, columns, batch.columns[-1])

    def _with_keys(
        self, port: int, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Packed, pa.RecordBatch | None]:
        """Return the rows of ``batch`` that may have a match, their keys, and the other rows."""
        found = keys_of(self._node, port, self._inputs_schema[port], batch)
        if buffers.every(found.valid):
            return batch, found.packed, None
        meets = found.valid != 0
        kept = found.packed.take(np.flatnonzero(meets))
        return batch.filter(pa.array(meets)), kept, batch.filter(pa.array(~meets))

    def _types(self, port: int) -> list[pa.DataType]:
        return [arrow_type(field.oid) for field in self._inputs_schema[port]]


def keys_of(node: plan.JoinSpec, port: int, schema: Schema, batch: pa.RecordBatch) -> Nullable:
    """Return the key of each row of a batch of ``port``; None where a NULL prevents a match."""
    places = node.left_keys if port == 0 else node.right_keys
    columns = [batch.column(i) for i in places]
    keys = packed.all_valid(base.keys_of(columns, [schema[i].oid for i in places], batch.num_rows))
    safe = node.null_safe or (False,) * len(places)
    strict = [c for c, is_safe in zip(columns, safe, strict=True) if not is_safe]
    if strict:
        keys.valid = rows.whole(strict)
    return keys


def pairs(
    groups: Int64s, starts: Int64s, counts: Int64s, rows_max: int
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield (incoming position, matched position) of all pairs, in pieces of ``rows_max`` pairs.

    Incoming row ``i`` belongs to key ``groups[i]``, whose matches are at ``starts[key]`` to
    ``starts[key] + counts[key] - 1``.  Pairs are sorted by incoming row, then by match.
    """
    if len(groups) == 1:
        begin, count = int(starts[groups[0]]), int(counts[groups[0]])
        for low in range(0, count, rows_max):
            high = min(low + rows_max, count)
            yield np.zeros(high - low, np.int64), np.arange(begin + low, begin + high)
        return
    each = counts[groups]
    ends = np.cumsum(each)
    total = int(ends[-1]) if len(ends) else 0
    # A pair's number minus the number of its row's first pair is its index among the matches.
    firsts = ends - each
    shift = starts[groups] - firsts
    for low in range(0, total, rows_max):
        high = min(low + rows_max, total)
        first = int(np.searchsorted(ends, low, side="right"))
        last = int(np.searchsorted(ends, high, side="left"))
        inside = np.minimum(ends[first : last + 1], high) - np.maximum(
            firsts[first : last + 1], low
        )
        incoming = np.repeat(np.arange(first, last + 1), inside)
        yield incoming, np.arange(low, high) + shift[incoming]


# --- match tracking


class MatchesByKey:
    """Match tracking without residual: a row has a match if its key has rows on the other side.

    O(changes), and O(rows of a key) for a key that lost its last match or gained its first.
    """

    def __init__(self, node_id: str, own: IndexState, other: IndexState, *, lone: bool) -> None:
        self._id = node_id
        self._own = own
        self._other = other
        self._lone = lone
        self._loaded = Numbering()
        self._clear()

    def _clear(self) -> None:
        self._touched = Numbering()
        """Keys touched by the other side."""
        self._before: list[Flags] = []
        """Whether these had matches before."""
        self._noted: list[tuple[Packed, Packed, Int64s]] = []

    def load(self, keys: Packed) -> None:
        """Note keys of rows that population adds to this side, which was empty before."""
        self._loaded.add(keys)

    def add(self, keys: Packed, encoded: Packed, weights: Int64s) -> None:
        """Note diffs of this side."""
        self._noted.append((keys, encoded, weights))

    def touch(self, keys: Packed) -> None:
        """Record which ``keys`` have matches, before their rows change on the other side."""
        _, new = self._touched.add(keys)
        if len(new):
            self._before.append(self._met(keys.take(new)))

    def end(self) -> Iterator[Shown]:
        """Yield the consolidated output changes since the last call.

        Raises:
            BugError: a weight is negative.
        """
        loaded, self._loaded = self._loaded.strings(), Numbering()
        for chunk in _chunks(loaded):
            shown = np.flatnonzero(self._met(chunk) != self._lone)
            yield from self._all(chunk.take(shown), 1)
        if self._before or self._noted:
            yield self._changes()

    def _changes(self) -> Shown:
        names, noted = self._touched, self._noted
        touched = names.strings()
        after = self._met(touched)
        before = np.concatenate([*self._before, np.zeros(0, np.bool_)])
        turned = before != after
        # Key shown before: its changed rows.  Key that gained or lost a match: all its rows now.
        sums = Consolidator()
        for keys, found, weights in noted:
            numbers, new = names.add(keys)
            if len(new):
                before = np.concatenate((before, self._met(keys.take(new))))
            kept = np.flatnonzero(before[numbers] != self._lone)
            sums.add(found.take(kept), weights[kept])
        self._clear()
        for sign, met in ((1, not self._lone), (-1, self._lone)):
            chosen = np.flatnonzero(turned & (after == met))
            for found, weights in self._all(touched.take(chosen), sign):
                sums.add(found, weights)
        return sums.items()

    def _met(self, keys: Packed) -> Flags:
        return self._other.extreme_many(keys, last=False).valid.view(np.bool_)

    def _all(self, keys: Packed, sign: int) -> Iterator[Shown]:
        for chunk in _chunks(keys):
            _, found, weights = self._own.scan_many(chunk)
            demand_none_negative(weights, self._id)
            yield found, sign * weights


class MatchesByRow:
    """Match tracking with residual: a row has a match if it is in a pair that passes.

    ``pairs`` is key -> row -> sum of the weights of its pairs: bilinear like the pairs
    themselves, and 0 exactly if the row is lone (or absent).  O(changes + changed pairs).
    """

    def __init__(self, node_id: str, own: IndexState, pairs: IndexState, *, lone: bool) -> None:
        self._id = node_id
        self._own = own
        self._pairs = pairs
        self._lone = lone
        self._clear()

    def _clear(self) -> None:
        self._names = Numbering()
        """Keys with rows that have changed, or whose pairs have."""
        self._found: list[tuple[Packed, Packed]] = []
        """Keys and rows of the names."""
        self._noted: tuple[list[tuple[Int64s, Int64s]], ...] = [], []
        """Numbers of names and weights: of rows, of their pairs."""

    def add(self, keys: Packed, encoded: Packed, weights: Int64s) -> None:
        """Note diffs of this side."""
        self._note(0, keys, encoded, weights)

    def pair(self, keys: Packed, encoded: Packed, weights: Int64s) -> None:
        """Note this side's half of passing pairs, with the weights of the pairs."""
        self._note(1, keys, encoded, weights)

    def _note(self, kind: int, keys: Packed, encoded: Packed, weights: Int64s) -> None:
        numbers, new = self._names.add(packed.appended(keys, encoded))
        if len(new):
            self._found.append((keys.take(new), encoded.take(new)))
        self._noted[kind].append((numbers, weights))

    def end(self) -> Iterator[Shown]:
        """See ``MatchesByKey``."""
        count = len(self._names)
        if not count:
            return
        keys, encoded = (packed.joined(part) for part in zip(*self._found, strict=True))
        rows_by, pairs_by = (_sums(noted, count) for noted in self._noted)
        self._clear()
        changed = np.flatnonzero(pairs_by)
        if len(changed):
            self._pairs.add_many(keys.take(changed), encoded.take(changed), pairs_by[changed])
        numbers = self._own.weight_many(keys, encoded)
        paired = self._pairs.weight_many(keys, encoded)
        demand_none_negative(numbers, self._id)
        demand_none_negative(paired, self._id)
        change = self._shown(numbers, paired) - self._shown(numbers - rows_by, paired - pairs_by)
        there = np.flatnonzero(change)
        yield encoded.take(there), change[there]

    def _shown(self, numbers: Int64s, pairs: Int64s) -> Int64s:
        return np.where((pairs == 0) == self._lone, numbers, 0)


def _lone_states(store: StateStore, node_id: str, port: int) -> IndexState:
    """Open the state of ``MatchesByRow`` for the pairs of one side."""
    return store.index(f"{node_id}.{('left', 'right')[port]}_pairs")


def _sums(noted: list[tuple[Int64s, Int64s]], count: int) -> Int64s:
    out = np.zeros(count, np.int64)
    for numbers, weights in noted:
        add_up(numbers, weights, out)
    return out


def _chunks(keys: Packed) -> Iterator[Packed]:
    for start in range(0, len(keys), _LOOKUP_ROWS_MAX):
        yield keys.part(start, min(start + _LOOKUP_ROWS_MAX, len(keys)))
