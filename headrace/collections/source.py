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
from headrace.collections.base import Collection, cut, decode, encode
from headrace.collections.changes import WHOLE_ROW, TableChanges
from headrace.collections.plan import SourceColumn
from headrace.errors import (
    RESYNC,
    BugError,
    DefiniteFailure,
    Repair,
    StructureChanged,
    UnsupportedError,
)
from headrace.expressions.evaluate import Program
from headrace.kernels import packed, rows, source
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
    """A change batch with keys, prepared for ``_replay``."""

    ops: list[int]
    old_keys: list[bytes | None]
    new_keys: list[bytes | None]
    values: list[pa.Array]
    """Typed new values per column; NULL for unchanged values that only the old row has."""
    kept: dict[int, np.ndarray]
    """Index in ``values`` -> mask of the changes whose value is that of the old row."""
    unchanged: list[bool] | None
    """Flag per change that needs the old row; None if no change does."""


class Source(Collection):
    """All rows of a base table.

    Meaning: the multiset of the table's wanted rows, reduced to the needed columns.  Changes are
        applied in stream order; a row that they leave as it was yields no diff.  Input is not a
        diff batch, so there are no negative weights.
    Shape: change batch (or population rows) -> ``columns``; key: the table's.
    State: ``id``: canonical key -> row; with REPLICA IDENTITY FULL row -> weight.  As large as
        the needed columns of the wanted rows.
    Time: emits on apply.
    Errors: StructureChanged when the batch lacks the number of a needed column; DefiniteFailure
        when the replica identity changed; BugError when the stream contradicts the stored rows.
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
        late = batch.column("__lsn").to_numpy() >= self._start_lsn
        if not late.all():
            batch = batch.filter(pa.array(late))
        if batch.num_rows == 0:
            return []
        if self._node.full_identity:
            return self._apply_multiset(batch)
        return self._apply_keyed(batch)

    def reached(self, changes: TableChanges) -> bool:
        """Return whether a change batch may concern a row that is kept or wanted; True in doubt."""
        node, names = self._node, changes.names
        if self._wanted is None or node.full_identity:
            return True
        if not self._told <= names or not self._apart.isdisjoint(names):
            return True
        if (changes.ops == source.TRUNCATE).any():
            return True
        came = changes.came(node.columns)
        if came is not None and pc.any(_mask(self._wanted, *came)).as_py():
            return True
        keys = changes.touched(node.key)
        if keys is None:
            raise self._identity_changed()
        return any(row is not None for row in self._state.get_many(keys))

    @property
    def _table(self) -> str:
        return f'"{self._node.schema_name}"."{self._node.table_name}"'

    # --- population

    def _load(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        columns = batch.columns[: len(self._types)]
        count = batch.num_rows
        if self._node.full_identity:
            net, weights = rows.consolidate(encode(columns, count), [1] * count)
            self._add(net, weights)
        else:
            own = [batch.column(place) for place in self._key_places]
            if any(column.null_count for column in own):
                raise BugError(f"a row of table {self._table} has a NULL in its key")
            kept = rows.pack_rows(columns) if columns else packed.pack([b""] * count)
            self._state.load(rows.pack_keys(own, self._key_oids), kept)
        ones = pa.array(np.ones(batch.num_rows, np.int64))
        return cut(diff_batch(self.schema, columns, ones))

    # --- changes of a table whose rows have a key

    def _apply_keyed(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ops = self._read_ops(TableChanges(batch, self._table, self.made))
        out: list[pa.RecordBatch] = []
        start = 0
        for end in source.segments(ops.ops, ops.old_keys, ops.new_keys, ops.unchanged):
            if ops.ops[start] == source.TRUNCATE:
                out.extend(self._truncate())
            else:
                out.extend(self._replay(ops, start, end))
            start = end
        return out

    def _read_ops(self, changes: TableChanges) -> _Ops:
        ops: list[int] = changes.ops.tolist()
        values: list[pa.Array] = []
        kept: dict[int, np.ndarray] = {}
        for place, column in enumerate(self._node.columns):
            value, missing = changes.value(column, column.attnum in self._key_numbers)
            values.append(value)
            if missing is not None:
                kept[place] = missing
        new_keys, old_keys = changes.new_keys(self._node.key), changes.old_keys(self._node.key)
        self._check_keys(ops, old_keys, new_keys)
        unchanged = None
        if kept:
            unchanged = np.logical_or.reduce(list(kept.values())).tolist()
        return _Ops(ops, old_keys, new_keys, values, kept, unchanged)

    def _check_keys(
        self, ops: list[int], old_keys: list[bytes | None], new_keys: list[bytes | None]
    ) -> None:
        """Raise DefiniteFailure if a NOT NULL key is missing: the replica identity has changed."""
        if source.keyless(ops, old_keys, new_keys):
            raise self._identity_changed()

    def _replay(self, ops: _Ops, start: int, end: int) -> list[pa.RecordBatch]:
        slots = source.touched_keys(ops.ops, ops.old_keys, ops.new_keys, start, end)
        keys = list(slots)
        before = self._state.get_many(keys)
        values = ops.values
        if end - start < len(ops.ops):
            values = [column.slice(start, end - start) for column in values]
        if ops.unchanged is not None and any(ops.unchanged[start:end]):
            values = self._fill(ops, start, end, values, slots, before)
        new_rows = encode(values, end - start)
        there = [row is not None for row in before]
        partial = self._wanted is not None
        after, bad, why = source.replay(
            ops.ops, ops.old_keys, ops.new_keys, start, end, slots, there, partial
        )
        if why:
            raise self._misfit(ops.ops[bad], missing=why == source.MISSING)
        wanted = None
        if self._wanted is not None:
            wanted = _mask(self._wanted, values, end - start).to_pylist()
        went, came, put_keys, put_values = source.changes(
            keys, before, after, new_rows, wanted, start
        )
        self._state.put_many(put_keys, put_values)
        if not values:
            return self._emit([], [], len(came) - len(went))
        new = values
        if came != list(range(end - start)):
            index = pa.array(np.array(came, np.int64))
            new = [column.take(index) for column in values] if came else []
        return self._emit(went, new, len(came))

    def _fill(
        self,
        ops: _Ops,
        start: int,
        end: int,
        values: list[pa.Array],
        slots: dict[bytes, int],
        before: list[bytes | None],
    ) -> list[pa.Array]:
        """Return ``values`` with unchanged TOAST values filled in from the stored rows."""
        old_rows: list[bytes] = []
        index = np.full(end - start, -1, np.int64)
        for place in range(start, end):
            if ops.unchanged is None or not ops.unchanged[place]:
                continue
            key = ops.old_keys[place] or ops.new_keys[place]
            row = None if key is None else before[slots[key]]
            if row is None and self._wanted is not None:
                raise StructureChanged(
                    f"an update of table {self._table} omits unchanged values that are not stored",
                    detail="Since the view was created, these values have become large enough for"
                    " TOAST.",
                    hint=RESYNC,
                )
            if row is None:
                raise self._misfit(source.UPDATE, missing=True)
            index[place - start] = len(old_rows)
            old_rows.append(row)
        old = rows.decode_rows(old_rows, self._types)
        take = pa.array(index, mask=index < 0)
        out = list(values)
        for position, mask in ops.kept.items():
            here = pa.array(mask[start:end])
            out[position] = pc.if_else(here, old[position].take(take), values[position])
        return out

    # --- changes of a table without a key (REPLICA IDENTITY FULL)

    def _apply_multiset(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        ops = batch.column("__op").to_numpy()
        none: list[bytes | None] = [None] * batch.num_rows
        out: list[pa.RecordBatch] = []
        start = 0
        for end in source.segments(ops.tolist(), none, none, None):
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
        consolidator = rows.Consolidator()
        for columns, count, weight in ((old, old_batch.num_rows, -1), (new, new_batch.num_rows, 1)):
            kept = encode(columns, count)
            if self._wanted is not None and count:
                mask = _mask(self._wanted, columns, count)
                kept = pa.array(kept, pa.binary()).filter(mask).to_pylist()
            consolidator.add(kept, [weight] * len(kept))
        net, weights = consolidator.items()
        self._add(net, weights)
        return self._decoded(net, weights)

    def _add(self, net: list[bytes], weights: list[int]) -> None:
        stored = self._state.get_many(net)
        values: list[bytes | None] = []
        for value, diff in zip(stored, weights, strict=True):
            weight = diff + (0 if value is None else layout.decode_weight(value))
            if weight < 0:
                raise self._misfit(source.DELETE, missing=True)
            values.append(layout.encode_weight(weight) if weight else None)
        self._state.put_many(net, values)

    # --- both

    def _truncate(self) -> list[pa.RecordBatch]:
        out: list[pa.RecordBatch] = []
        full = self._node.full_identity
        for keys, values in self._state.scan():
            if full:
                out.extend(self._decoded(keys, [-layout.decode_weight(v) for v in values]))
            else:
                out.extend(self._decoded(values, [-1] * len(values)))
            nothing: list[bytes | None] = [None] * len(keys)
            self._state.put_many(keys, nothing)
        return out

    def _emit(self, went: list[bytes], new: list[pa.Array], came: int) -> list[pa.RecordBatch]:
        """Return retractions of ``went``, then ``came`` new rows."""
        if not went and not came:
            return []
        if not self._types:
            weight = pa.array(np.array([came] if came else [], np.int64))
            return cut(diff_batch(self.schema, [], weight))
        columns = new
        if went:
            old = rows.decode_rows(went, self._types)
            columns = old
            if came:
                columns = [pa.concat_arrays([a, b]) for a, b in zip(old, new, strict=True)]
        weights = np.ones(len(went) + came, np.int64)
        weights[: len(went)] = -1
        return cut(diff_batch(self.schema, columns, pa.array(weights)))

    def _decoded(self, net: list[bytes], weights: list[int]) -> list[pa.RecordBatch]:
        return cut(decode(net, self.schema, weights))

    def _identity_changed(self) -> DefiniteFailure:
        return DefiniteFailure(
            f"the replica identity of table {self._table} was changed",
            hint=Repair("Set it as it was when the view was created"),
        )

    def _misfit(self, op: int, *, missing: bool) -> BugError:
        name = ("INSERT", "UPDATE", "DELETE")[op]
        what = "is not there" if missing else "is there already"
        return BugError(f"{name} in the stream of table {self._table}: its row {what}")
