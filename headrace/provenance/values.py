"""Equalities that rows satisfy: for some columns, the values that they may have.

Values are equal if their canonical keys are (``kernels.keys``), and NULL equals NULL.  So a group
of GROUP BY, and a row of DISTINCT, satisfies an equality of its columns as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.kernels import rows, text
from headrace.kernels.numbering import Numbering
from headrace.kernels.packed import Packed
from headrace.types import INT2, INT4, INT8

Mask = npt.NDArray[np.bool_]
VALUES_MAX: Final = 1000
"""Maximum number of values that are taken over from the rows of one side of a join."""
_INTEGERS: Final = {INT2: 15, INT4: 31, INT8: 63}
"""Integer types, and their bits without the sign."""


@dataclass(frozen=True, slots=True)
class AllowedValues:
    """Values of type ``oid`` as output text; None is NULL."""

    oid: int
    texts: frozenset[str | None]

    @property
    def whole(self) -> bool:
        """Whether NULL is not among them."""
        return None not in self.texts

    def as_type(self, oid: int) -> AllowedValues | None:
        """Return the same values for a column of type ``oid``; None: they do not compare."""
        if oid == self.oid:
            return self
        if oid not in _INTEGERS or self.oid not in _INTEGERS:
            return None
        limit = 1 << _INTEGERS[oid]
        fits = frozenset(t for t in self.texts if t is None or -limit <= int(t) < limit)
        return AllowedValues(oid, fits)

    def common(self, other: AllowedValues) -> AllowedValues:
        """Return the fewer ones: equal values may have different texts, so sets do not compare."""
        return min(self, other, key=lambda values: len(values.texts))


Equalities = Mapping[int, AllowedValues]
"""By column."""


def merged(first: Equalities, second: Equalities) -> dict[int, AllowedValues]:
    """Return equalities of all rows that satisfy both."""
    out = dict(first)
    for column, values in second.items():
        out[column] = out[column].common(values) if column in out else values
    return out


def satisfied(columns: Sequence[pa.Array], count: int, equalities: Equalities) -> Mask:
    """Return a mask of the rows that satisfy all ``equalities``."""
    mask = np.ones(count, np.bool_)
    for place, values in equalities.items():
        wanted = text.parse(pa.array(sorted_texts(values), pa.string()), values.oid)
        mask &= among(
            rows.pack_keys([columns[place]], [values.oid]), rows.pack_keys([wanted], [values.oid])
        )
    return mask


def among(some: Packed, others: Packed) -> Mask:
    """Return a mask of the strings of ``some`` that are among ``others``."""
    if not len(some) or not len(others):
        return np.zeros(len(some), np.bool_)
    numbering = Numbering()
    numbering.add(others)
    known = len(numbering)
    numbers, _ = numbering.add(some)
    mask: Mask = numbers < known
    return mask


def values_of(column: pa.Array, oid: int) -> AllowedValues | None:
    """Return the different values of a column; None: there are too many."""
    found = pc.unique(text.render(column, oid))
    if len(found) > VALUES_MAX:
        return None
    return AllowedValues(oid, frozenset(found.to_pylist()))


def sorted_texts(values: AllowedValues) -> list[str | None]:
    """Return the texts in one order, NULL last."""
    some = sorted(t for t in values.texts if t is not None)
    return [*some] if values.whole else [*some, None]
