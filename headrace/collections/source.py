"""The rows of one base table, from its change batches (``kernels/pgoutput.py``).

For most tables the stream carries only the key of an old row.  So the source keeps the needed
columns of every row by key.  It reads there the row to retract, and the unchanged TOAST values that
an UPDATE leaves out.

Rows that no reader wants (``plan.SourceSpec.wanted``) are not kept.  The planner sets ``wanted``
only if no needed value can be a TOAST value, or if the stream carries whole old rows.  Otherwise an
UPDATE could make a row wanted although the source has never seen some of its values.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections import plan
from headrace.collections.allowed_values import allowed_values
from headrace.collections.base import Collection, cut, decode, encode
from headrace.collections.changes import WHOLE_ROW, KeySlots, TableChanges
from headrace.collections.plan import SourceColumn
from headrace.errors import RESYNC, BugError, StructureChanged, UnsupportedError
from headrace.expressions.evaluate import Program
from headrace.kernels import buffers, packed, rows, source
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Consolidator, consolidate
from headrace.kernels.packed import Nullable, Packed
from headrace.kernels.source import Ops
from headrace.state import layout
from headrace.state.contract import MapState, StateStore
from headrace.types import arrow_type, diff_batch


def load_columns(node: plan.SourceSpec) -> tuple[SourceColumn, ...]:
    """Return the columns that population reads for ``node``: its output, then other key columns."""
    have = {column.attnum for column in node.columns}
    return (*node.columns, *(c for c in node.key if c.attnum not in have))


def load_batch(node: plan.SourceSpec, columns: list[pa.Array]) -> pa.RecordBatch:
    """Return population rows (in the order of ``load_columns``) as a batch for the source."""
    names = [str(position) for position in range(len(load_columns(node)))]
    if not names:
        # A record batch without columns has no rows, so the rows would be lost.
        raise UnsupportedError(
            f'rows of table "{node.schema_name}"."{node.table_name}" cannot be counted: '
            "no column of it is read"
        )
    if len(columns) != len(names):
        raise BugError(f'{len(columns)} columns to load into source "{node.id}" of {len(names)}')
    return pa.RecordBatch.from_arrays(columns, names=names)


def _mask(wanted: Program, columns: list[pa.Array], count: int) -> pa.Array:
    """Return a mask of the rows for which all of ``wanted`` is true."""
    mask = functools.reduce(pc.and_kleene, wanted.run(columns, count))
    return pc.fill_null(mask, fill_value=False) if mask.null_count else mask


def only_wanted(node: plan.SourceSpec, columns: list[pa.Array]) -> list[pa.Array]:
    """Return the population rows (in ``load_columns`` order) that ``node`` keeps."""
    if not node.wanted or not len(columns[0]):
        return columns
    shown = columns[: len(node.columns)]
    mask = _mask(Program(node.wanted, None), shown, len(columns[0]))
    return [column.filter(mask) for column in columns]


@dataclass(slots=True)
class _Ops:
    """Changes with keys, prepared for ``_replay``."""

    ops: Ops
    slots: KeySlots
    values: list[pa.Array]
    """Typed new values per column; NULL for unchanged values that only the old row has."""
    kept: dict[int, np.ndarray]
    """Index in ``values`` -> mask of the changes whose value is that of the old row."""
    unchanged: np.ndarray | None
    """Flag per change that needs the old row; None if no change does."""
    rows: Packed | None
    """The new rows; None if old values must be filled in first."""

    def part(self, start: int, end: int) -> _Ops:
        """Return the changes from ``start`` to before ``end``."""
        if end - start == len(self.ops):
            return self
        some = slice(start, end)
        unchanged = None
        if self.unchanged is not None and self.unchanged[some].any():
            unchanged = self.unchanged[some]
        return _Ops(
            self.ops[some],
            self.slots.part(some),
            [column.slice(start, end - start) for column in self.values],
            {place: mask[some] for place, mask in self.kept.items()},
            unchanged,
            None if self.rows is None else self.rows.part(start, end),
        )


class Source(Collection):
    """All rows of a base table.

    Meaning: the multiset of the table's wanted rows, reduced to the needed columns.  Changes are
        applied in stream order; a row that they leave as it was yields no diff.  Input is not a
        diff batch, so there are no negative weights.
    Shape: change batch (or population rows) -> ``columns``; key: the table's.
    State: ``id``: canonical key -> row; with REPLICA IDENTITY FULL row -> weight.  As large as
        the needed columns of the wanted rows.
    Time: emits on apply.
    Errors: StructureChanged when the batch lacks the number of a needed column, or the replica
        identity changed; BugError when the stream contradicts the stored rows.
    """

    begins = True

    def __init__(self, node: plan.SourceSpec, start_lsn: int) -> None:
        super().__init__(node.id, node.schema)
        self._node = node
        self._start_lsn = max(start_lsn, node.start_lsn)
        self._types = [arrow_type(column.oid) for column in node.columns]
        self._load_columns = load_columns(node)
        places = {c.attnum: i for i, c in enumerate(self._load_columns)}
        self._key_places = [places[c.attnum] for c in node.key]
        self._key_oids = [c.oid for c in node.key]
        self._key_numbers = {c.attnum for c in node.key}
        self._told = {f"n:{c.attnum}" for c in self._load_columns}
        self._apart = {f"u:{c.attnum}" for c in self._load_columns}
        self._wanted = Program(node.wanted, None) if node.wanted else None
        self._allowed = [(node.columns[i], known) for i, known in allowed_values(node.wanted)]
        self.made: TableChanges | None = None
        """Cached columns and keys of the next change batch, shared with other views."""
        self._state: MapState

    def open(self, store: StateStore) -> None:
        """See ``Collection``."""
        self._state = store.map(self.id)

    def describe(self) -> str:
        """See ``Collection``."""
        names = ", ".join(column.name for column in self._node.columns)
        return f"Source {self._table} ({names})"

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Process a change batch (it starts with ``__op``), or rows of ``load_batch``."""
        if batch.schema.get_field_index("__op") != 0:
            return self._load(batch)
        changes = TableChanges(batch, self._table, self.made)
        if changes.first_lsn < self._start_lsn:
            late = batch.column("__lsn").to_numpy() >= self._start_lsn
            batch = batch.filter(pa.array(late))
            changes = TableChanges(batch, self._table)
        if batch.num_rows == 0:
            return []
        if self._node.full_identity:
            return self._apply_multiset(batch)
        return self._apply_keyed(changes)

    def reached(self, changes: TableChanges) -> bool:
        """Return whether a change batch may concern a row that is kept or wanted; True in doubt."""
        node, names = self._node, changes.places.keys()
        if self._wanted is None or node.full_identity:
            return True
        if not self._told <= names or not self._apart.isdisjoint(names):
            return True
        if changes.truncated:
            return True
        if self._may_want(changes):
            came = changes.came(node.columns)
            if came is not None and pc.any(_mask(self._wanted, *came)).as_py():
                return True
        if changes.only_inserts:
            return False
        slots = changes.slots(node.key)
        if slots.lost:
            raise self._identity_changed()
        return buffers.some(self._state.get_many(slots.keys).valid)

    def _may_want(self, changes: TableChanges) -> bool:
        """Return whether new rows have values that are allowed; one look serves many views."""
        return not any(known.isdisjoint(changes.distinct(one)) for one, known in self._allowed)

    @property
    def _table(self) -> str:
        return f'"{self._node.schema_name}"."{self._node.table_name}"'

    # --- population

    def _load(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        columns = batch.columns[: len(self._types)]
        count = batch.num_rows
        if self._node.full_identity:
            self._add(*consolidate(encode(columns, count), np.ones(count, np.int64)))
        else:
            own = [batch.column(place) for place in self._key_places]
            if any(column.null_count for column in own):
                raise BugError(f"a row of table {self._table} has a NULL in its key")
            self._state.load(rows.pack_keys(own, self._key_oids), encode(columns, count))
        ones = pa.array(np.ones(batch.num_rows, np.int64))
        return cut(diff_batch(self.schema, columns, ones))

    # --- changes of a table whose rows have a key

    def _apply_keyed(self, changes: TableChanges) -> list[pa.RecordBatch]:
        ops = self._read_ops(changes)
        out: list[pa.RecordBatch] = []
        start = 0
        for end in source.segments(ops.ops, ops.slots.olds, ops.slots.news, ops.unchanged):
            if ops.ops[start] == source.TRUNCATE:
                out.extend(self._truncate())
            else:
                out.extend(self._replay(ops.part(start, end)))
            start = end
        return out

    def _read_ops(self, changes: TableChanges) -> _Ops:
        """Raise StructureChanged if a NOT NULL key is missing: the replica identity has changed."""
        values: list[pa.Array] = []
        kept: dict[int, np.ndarray] = {}
        for place, column in enumerate(self._node.columns):
            value, missing = changes.value(column, column.attnum in self._key_numbers)
            values.append(value)
            if missing is not None:
                kept[place] = missing
        slots = changes.slots(self._node.key)
        if slots.lost:
            raise self._identity_changed()
        unchanged = np.logical_or.reduce(list(kept.values())).view(np.uint8) if kept else None
        sent = values and self._apart.isdisjoint(changes.places)
        packed_rows = changes.packed(self._node.columns) if sent else None
        return _Ops(changes.ops, slots, values, kept, unchanged, packed_rows)

    def _replay(self, ops: _Ops) -> list[pa.RecordBatch]:
        slots, count = ops.slots, len(ops.ops)
        before = self._state.get_many(slots.keys)
        values = ops.values
        if ops.unchanged is not None:
            values = self._fill(ops, ops.unchanged, before)
        new_rows = encode(values, count) if ops.rows is None else ops.rows
        wanted = None
        if self._wanted is not None:
            wanted = buffers.values(_mask(self._wanted, values, count))
        places, partial = (slots.olds, slots.news), wanted is not None
        effect = source.replay(ops.ops, places, before, new_rows, wanted, partial)
        if effect.why:
            raise self._misfit(int(ops.ops[effect.wrong]), missing=effect.why == source.MISSING)
        stored = packed.take_nullable(new_rows, effect.stored)
        self._state.put_many(slots.keys.take(effect.slots), stored)
        order, weights = source.diffs(effect, count, len(before))
        if not values:
            return self._counted(int(weights.sum()))
        if not len(order):
            return []
        return cut(decode(packed.take_two(before.packed, new_rows, order), self.schema, weights))

    def _fill(self, ops: _Ops, unchanged: np.ndarray, before: Nullable) -> list[pa.Array]:
        """Return the values with unchanged TOAST values filled in from the stored rows."""
        places = np.flatnonzero(unchanged)
        olds, news = ops.slots.olds[places], ops.slots.news[places]
        slots = np.where(olds >= 0, olds, news)
        if not buffers.every(before.valid[slots]):
            if self._wanted is None:
                raise self._misfit(source.UPDATE, missing=True)
            raise StructureChanged(
                f"an update of table {self._table} omits unchanged values that are not stored",
                detail="Since the view was created, these values have become large enough for"
                " TOAST.",
                hint=RESYNC,
            )
        old = rows.decode_rows(before.packed.take(slots), self._types)
        index = np.full(len(unchanged), -1, np.int64)
        index[places] = np.arange(len(places))
        take = pa.array(index, mask=index < 0)
        out = list(ops.values)
        for position, mask in ops.kept.items():
            here = pa.array(mask)
            out[position] = pc.if_else(here, old[position].take(take), out[position])
        return out

    # --- changes of a table without a key (REPLICA IDENTITY FULL)

    def _apply_multiset(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ops = batch.column("__op").to_numpy()
        none = buffers.minus_ones(batch.num_rows)
        out: list[pa.RecordBatch] = []
        start = 0
        for end in source.segments(ops, none, none, None):
            if ops[start] == source.TRUNCATE:
                out.extend(self._truncate())
            else:
                out.extend(self._add_segment(batch.slice(start, end - start)))
            start = end
        return out

    def _add_segment(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ops = batch.column("__op").to_numpy()
        has_old = (ops == source.UPDATE) | (ops == source.DELETE)
        if (batch.column("__old").to_numpy()[has_old] != WHOLE_ROW).any():
            raise self._identity_changed()
        old_batch = batch.filter(pa.array(has_old))
        new_batch = batch.filter(pa.array(ops <= source.UPDATE))
        befores = TableChanges(old_batch, self._table)
        changes = TableChanges(new_batch, self._table)
        old = [befores.parse(column, befores.text("o", column)) for column in self._node.columns]
        new = [changes.value(column, False)[0] for column in self._node.columns]
        consolidator = Consolidator()
        for columns, count, weight in ((old, old_batch.num_rows, -1), (new, new_batch.num_rows, 1)):
            kept = encode(columns, count)
            if self._wanted is not None and count:
                mask = buffers.values(_mask(self._wanted, columns, count))
                kept = kept.take(np.flatnonzero(mask))
            consolidator.add(kept, np.full(len(kept), weight, np.int64))
        net, weights = consolidator.items()
        self._add(net, weights)
        return self._decoded(net, weights)

    def _add(self, net: Packed, weights: Int64s) -> None:
        stored = layout.weights_of(self._state.get_many(net)) + weights
        if buffers.negative(stored):
            raise self._misfit(source.DELETE, missing=True)
        self._state.put_many(net, layout.values_of(stored))

    # --- both

    def _truncate(self) -> list[pa.RecordBatch]:
        out: list[pa.RecordBatch] = []
        full = self._node.full_identity
        for keys, values in self._state.scan():
            if full:
                weights = [-layout.decode_weight(value) for value in values]
                out.extend(self._decoded(packed.pack(keys), np.array(weights, np.int64)))
            else:
                gone = np.full(len(values), -1, np.int64)
                out.extend(self._decoded(packed.pack(values), gone))
            self._state.put_many(packed.pack(keys), packed.nullable([None] * len(keys)))
        return out

    def _counted(self, net: int) -> list[pa.RecordBatch]:
        """Return the difference in the number of rows, none of whose columns is read."""
        return self._decoded(packed.empty(1), np.array([net], np.int64)) if net else []

    def _decoded(self, net: Packed, weights: Int64s) -> list[pa.RecordBatch]:
        return cut(decode(net, self.schema, weights))

    def _identity_changed(self) -> StructureChanged:
        """Return the error of a batch whose rows are identified by other columns.

        The identity may have been another only for a part of one transaction.
        """
        return StructureChanged(
            f"the replica identity of table {self._table} was changed", hint=RESYNC
        )

    def _misfit(self, op: int, *, missing: bool) -> BugError:
        name = ("INSERT", "UPDATE", "DELETE")[op]
        what = "is not there" if missing else "is there already"
        return BugError(f"{name} in the stream of table {self._table}: its row {what}")
