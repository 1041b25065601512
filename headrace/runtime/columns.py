"""Descriptions of tables in the stream, and change batches with columns by number.

The decoder names columns as the stream does; views know them by number (postgres/numbering.py).
A description holds until the table's next one on the same connection, over any number of batches.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from headrace.collections.plan import PhysicalPlan
from headrace.errors import BugError
from headrace.kernels import text
from headrace.kernels.pgoutput import Changes, Relation
from headrace.postgres.numbering import Observation, number
from headrace.types import UNKNOWN

_HEAD: Final = 3
"""Columns before those of the table: ``__op``, ``__lsn``, ``__old``."""

Types = Mapping[int, Mapping[int, int]]
"""OIDs of types, by table and column number."""
Observe = Callable[[int, int], Iterable[Observation]]
"""What is known of a table's columns, with a transaction in view; nothing while nobody reads it."""


@dataclass(slots=True)
class Description:
    """A Relation message, and the transaction that it came in."""

    xid: int
    relation: Relation
    numbers: dict[str, int] = field(default_factory=dict)
    """By name, as far as they are known."""


def types_of(plans: Iterable[PhysicalPlan]) -> Types:
    """The types that ``plans`` read columns as, where all of them do alike."""
    out: dict[int, dict[int, int]] = {}
    for spec in (spec for plan in plans for spec in plan.sources):
        table = out.setdefault(spec.table_oid, {})
        for column in (*spec.columns, *spec.key):
            known = table.setdefault(column.attnum, column.oid)
            if known != column.oid:
                table[column.attnum] = UNKNOWN
    return out


def typed(batch: pa.RecordBatch, types: Mapping[int, int]) -> pa.RecordBatch:
    """A change batch with values in place of their texts, for all that read it.

    A column whose texts are not what its type prints stays as it is: whoever reads it says so.
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
    """Where a change batch has the values of each column, by number."""
    out: dict[int, list[int]] = {}
    for place, name in enumerate(names[_HEAD:], _HEAD):
        kind, _, attnum = name.partition(":")
        if kind != "u":
            out.setdefault(int(attnum), []).append(place)
    return out


class Columns:
    """The descriptions that hold, of one connection after the other."""

    def __init__(self, observe: Observe) -> None:
        self._observe = observe
        self._known: dict[int, list[Description]] = {}

    def describe(self, found: Sequence[Description]) -> None:
        """Take what the next changes of tables may be under, in stream order."""
        for oid in {d.relation.oid for d in found}:
            del self._known.get(oid, [])[:-1]
        for description in found:
            self._known.setdefault(description.relation.oid, []).append(description)

    def numbered(
        self, changes: Changes, xid: int, read: Collection[int] | None = None
    ) -> pa.RecordBatch:
        """A change batch with ``n:<attnum>`` for ``n:<name>``, as o and u.

        ``xid`` is a transaction in it.  Of columns only those with a number in ``read`` (None:
        all) are decoded; one whose number is not known is left out.
        """
        numbers = self._numbers(changes.relation, xid)
        places = {c.name: place for place, c in enumerate(changes.relation.columns)}
        return changes.select(
            [
                (str(attnum), places[name])
                for name, attnum in numbers.items()
                if read is None or attnum in read
            ]
        )

    def _numbers(self, relation: Relation, xid: int) -> dict[str, int]:
        found = self._known.get(relation.oid, ())
        description = next((d for d in found if d.relation is relation), None)
        if description is None:
            raise BugError(f"table {relation.oid} was not described")
        if len(description.numbers) < len(relation.columns):
            # Nothing was altered since, so any transaction that it holds for will do.
            names = [column.name for column in relation.columns]
            known = self._observe(relation.oid, xid)
            description.numbers |= number(names, xid, known) or {}
        return description.numbers
