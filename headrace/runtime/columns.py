"""Table descriptions of the stream, and change batches with numbered columns.

The decoder names columns as the stream does; views use column numbers (postgres/numbering.py).
A description is valid until the table's next one on the same connection, for any number of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.collections.plan import PhysicalPlan
from headrace.errors import BugError
from headrace.kernels import source
from headrace.kernels.pgoutput import Changes, Relation
from headrace.postgres.numbering import Observation, number
from headrace.types import UNKNOWN

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


@dataclass(frozen=True, slots=True)
class ReadAs:
    """The columns that views read of a relation as it is described."""

    read: Mapping[int, int] | None
    columns: tuple[tuple[str, int, int], ...]
    """As in ``Changes.select``."""
    key: frozenset[int] | None
    """Columns whose old values every update must have; None: as the stream has them."""


@dataclass(slots=True)
class Description:
    """A Relation message, and the XID of the transaction in which it came."""

    xid: int
    relation: Relation
    numbers: dict[str, int] = field(default_factory=dict)
    """Column numbers by name, as far as they are known."""
    asked: ReadAs | None = None
    """The columns that were read of the last batch."""


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
        self, changes: Changes, xid: int, read: Mapping[int, int] | None = None
    ) -> pa.RecordBatch:
        """Return a change batch with columns ``n:<attnum>`` (o and u alike), not ``n:<name>``.

        ``xid`` is a transaction in it.  ``read``: the numbers of the columns to decode, with the
        types of their values (UNKNOWN: texts, see ``Changes.select``); None: all, as texts.
        Columns with an unknown number are left out.
        """
        description = self._described(changes.relation, xid)
        asked = description.asked
        if asked is None or asked.read is not read:
            asked = description.asked = _asked(description, read)
        batch = changes.select(asked.columns)
        return batch if asked.key is None else _with_old_keys(batch, asked.key)

    def _described(self, relation: Relation, xid: int) -> Description:
        """Return the description of a relation, with the numbers of its columns."""
        found = self._known.get(relation.oid, ())
        description = next((d for d in found if d.relation is relation), None)
        if description is None:
            raise BugError(f"table {relation.oid} was not described")
        if len(description.numbers) < len(relation.columns):
            # Nothing was altered since, so any transaction under this description will do.
            names = [column.name for column in relation.columns]
            known = self._observe(relation.oid, xid)
            description.numbers |= number(names, xid, known) or {}
            description.asked = None
        return description


def _asked(description: Description, read: Mapping[int, int] | None) -> ReadAs:
    numbers, columns = description.numbers, description.relation.columns
    places = {column.name: place for place, column in enumerate(columns)}
    chosen = tuple(
        (str(attnum), places[name], UNKNOWN if read is None else read[attnum])
        for name, attnum in numbers.items()
        if read is None or attnum in read
    )
    key = None
    if isinstance(read, ReadColumns):
        own = frozenset(numbers.get(column.name, 0) for column in columns if column.key)
        key = None if all(own == other for other in read.identities) else own
    return ReadAs(read, chosen, key)
