"""Table descriptions of the stream, and change batches with numbered columns.

The decoder names columns as the stream does; views use column numbers (postgres/numbering.py).
A description is valid until the table's next one on the same connection, for any number of batches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections.plan import PhysicalPlan
from headrace.errors import BugError
from headrace.kernels import source, text
from headrace.kernels.pgoutput import Changes, Relation
from headrace.postgres.numbering import Observation, number
from headrace.types import UNKNOWN

_HEAD: Final = 3
"""Columns before those of the table: ``__op``, ``__lsn``, ``__old``."""

Types = Mapping[int, Mapping[int, int]]
"""Type OIDs, by table OID and column number."""
Observe = Callable[[int, int], Iterable[Observation]]
"""Returns what is known of a table's columns, given an XID; empty if no view reads the table."""


class ReadColumns(dict[int, int]):
    """Type OIDs by column number of a table, as views read it."""

    def __init__(self) -> None:
        super().__init__()
        self.identities: set[frozenset[int]] = set()
        """The sets of columns (numbers) by which the views identify its rows."""


@dataclass(slots=True)
class Description:
    """A Relation message, and the XID of the transaction in which it came."""

    xid: int
    relation: Relation
    numbers: dict[str, int] = field(default_factory=dict)
    """Column numbers by name, as far as they are known."""


def types_of(plans: Iterable[PhysicalPlan]) -> Types:
    """Return the types as which ``plans`` read columns, where all of them agree."""
    out: dict[int, ReadColumns] = {}
    for spec in (spec for plan in plans for spec in plan.sources):
        table = out.setdefault(spec.table_oid, ReadColumns())
        if not spec.full_identity:
            table.identities.add(frozenset(column.attnum for column in spec.key))
        for column in (*spec.columns, *spec.key):
            known = table.setdefault(column.attnum, column.oid)
            if known != column.oid:
                table[column.attnum] = UNKNOWN
    return out


def typed(batch: pa.RecordBatch, types: Mapping[int, int]) -> pa.RecordBatch:
    """Return a change batch with parsed values in place of texts, for all readers.

    A column with a text that its type does not print is left unchanged; its reader raises the
    error.
    """
    names = batch.schema.names
    arrays = batch.columns
    for attnum, where in _places(tuple(names)).items():
        if types.get(attnum, UNKNOWN) == UNKNOWN:
            continue
        with contextlib.suppress(ValueError):
            made = [text.parse(arrays[place], types[attnum]) for place in where]
            for place, values in zip(where, made, strict=True):
                arrays[place] = values
    return pa.RecordBatch.from_arrays(arrays, names)


@functools.lru_cache(maxsize=4096)
def _places(names: tuple[str, ...]) -> Mapping[int, Sequence[int]]:
    """Return the positions of each column's values in a change batch, by column number."""
    out: dict[int, list[int]] = {}
    for place, name in enumerate(names[_HEAD:], _HEAD):
        kind, _, attnum = name.partition(":")
        if kind != "u":
            out.setdefault(int(attnum), []).append(place)
    return out


def _with_old_keys(batch: pa.RecordBatch, key: Collection[int]) -> pa.RecordBatch:
    """Return a change batch whose updates all have the old values of the columns ``key``.

    The stream omits them if they are unchanged.  A view that identifies rows by other columns would
    take that for an update that leaves its own key unchanged.
    """
    names, arrays = batch.schema.names, batch.columns
    ops, olds = (batch.column(name).to_numpy() for name in ("__op", "__old"))
    silent = (ops == source.UPDATE) & (olds == 0)
    if not silent.any():
        return batch
    arrays[names.index("__old")] = pa.array(np.where(silent, np.int8(1), olds))
    for attnum in key:
        if f"n:{attnum}" in names:
            old, new = names.index(f"o:{attnum}"), names.index(f"n:{attnum}")
            arrays[old] = pc.if_else(pa.array(silent), arrays[new], arrays[old])
    return pa.RecordBatch.from_arrays(arrays, names)


class Columns:
    """The valid table descriptions, across connections."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._known: dict[int, list[Description]] = {}

    def describe(self, found: Sequence[Description]) -> None:
        """Add the descriptions that precede the next changes, in stream order."""
        for oid in {d.relation.oid for d in found}:
            del self._known.get(oid, [])[:-1]
        for description in found:
            self._known.setdefault(description.relation.oid, []).append(description)

    def numbered(
        self, changes: Changes, xid: int, read: Collection[int] | None = None
    ) -> pa.RecordBatch:
        """Return a change batch with columns ``n:<attnum>`` (o and u alike), not ``n:<name>``.

        ``xid`` is a transaction in it.  Only columns whose number is in ``read`` (None: all) are
        decoded; columns with an unknown number are left out.
        """
        numbers = self._numbers(changes.relation, xid)
        places = {c.name: place for place, c in enumerate(changes.relation.columns)}
        batch = changes.select(
            [
                (str(attnum), places[name])
                for name, attnum in numbers.items()
                if read is None or attnum in read
            ]
        )
        if not isinstance(read, ReadColumns):
            return batch
        key = frozenset(numbers.get(c.name, 0) for c in changes.relation.columns if c.key)
        return batch if all(key == own for own in read.identities) else _with_old_keys(batch, key)

    def _numbers(self, relation: Relation, xid: int) -> dict[str, int]:
        found = self._known.get(relation.oid, ())
        description = next((d for d in found if d.relation is relation), None)
        if description is None:
            raise BugError(f"table {relation.oid} was not described")
        if len(description.numbers) < len(relation.columns):
            # Nothing was altered since, so any transaction under this description will do.
            names = [column.name for column in relation.columns]
            known = self._observe(relation.oid, xid)
            description.numbers |= number(names, xid, known) or {}
        return description.numbers
