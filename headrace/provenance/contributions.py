"""Rows of tables that contribute to a result: their number, and the first ones."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections.plan import SourceSpec
from headrace.collections.source import load_columns
from headrace.errors import UserError
from headrace.kernels import rows
from headrace.provenance.values import Mask

_COMPARED_MAX: Final = 200_000
"""Maximum number of rows of a table that are compared, if the query reads it more than once."""


@dataclass(slots=True)
class _Reading:
    """The contributing rows of one reading of a table."""

    masks: dict[int, Mask] = field(default_factory=dict)
    """By number of the piece: rows that contribute.  Pieces come in the same order each time."""
    rows: Counter[bytes] = field(default_factory=Counter)
    """Identities of the rows, up to one more than ``_COMPARED_MAX``."""

    @property
    def count(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks.values())


@dataclass(slots=True)
class ContributingRows:
    """Contributing rows of one table."""

    source: SourceSpec
    readings: dict[int, _Reading] = field(default_factory=dict)
    sample: dict[bytes, list[pa.Array]] = field(default_factory=dict)
    """The first different rows, by identity: a column of one value each."""

    @property
    def count(self) -> int:
        """How many rows contribute.

        Raises:
            UserError: 54000, too many to compare those of several readings.
        """
        found = list(self.readings.values())
        if len(found) == 1:
            return found[0].count
        union: Counter[bytes] = Counter()
        for reading in found:
            if reading.rows.total() < reading.count:
                raise UserError(
                    f"more than {_COMPARED_MAX} rows of table {self.source.table_name} contribute",
                    detail="The query reads the table more than once, so the rows must be compared.",
                    hint="Give more columns in the key.",
                    sqlstate="54000",
                )
            union |= reading.rows
        return union.total()

    def samples(self, most: int) -> list[tuple[list[pa.Array], int]]:
        """Return up to ``most`` different rows, and how often each occurs in the table."""
        found: Counter[bytes] = Counter()
        for reading in self.readings.values():
            found |= reading.rows
        some = list(self.sample.items())[:most]
        return [(row, found[identity]) for identity, row in some]


class Contributions:
    """Contributing rows by table, in the order in which they are found."""

    def __init__(self, most: int) -> None:
        """``most``: how many rows of each table to keep."""
        self._most = most
        self.numbers = itertools.count()
        """Numbers for readings of tables."""
        self.tables: dict[int, ContributingRows] = {}

    def add(
        self, source: SourceSpec, reading: int, piece: int, columns: list[pa.Array], mask: Mask
    ) -> None:
        """Add the rows of ``mask``; ``columns`` are those of ``load_columns(source)``.

        ``reading`` and ``piece`` identify the rows, which may be added again.
        """
        if not mask.any():
            return
        table = self.tables.setdefault(source.table_oid, ContributingRows(source))
        mine = table.readings.setdefault(reading, _Reading())
        known = mine.masks.get(piece)
        new = mask if known is None else mask & ~known
        mine.masks[piece] = new if known is None else known | mask
        room = _COMPARED_MAX - mine.rows.total()
        places = np.flatnonzero(new)[: max(room, 0)]
        if not len(places):
            return
        taken = [column.take(pa.array(places)) for column in columns]
        for number, identity in enumerate(_identities(source, taken)):
            mine.rows[identity] += 1
            if identity not in table.sample and len(table.sample) < self._most:
                table.sample[identity] = [column.slice(number, 1) for column in taken]


def _identities(source: SourceSpec, columns: list[pa.Array]) -> list[bytes]:
    """Return the keys of rows; the whole rows if the table has no key."""
    if not source.key:
        return rows.pack_rows(columns).strings()
    places = {column.attnum: n for n, column in enumerate(load_columns(source))}
    keys = [(columns[places[c.attnum]], c.oid) for c in source.key]
    return rows.pack_keys([column for column, _ in keys], [oid for _, oid in keys]).strings()
