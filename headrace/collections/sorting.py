"""One canonical order of rows (E-30), shared by memory, store and output.

Rows are sorted by ORDER BY, then by the canonical key of their other columns, then by their bytes.
Where the byte order of keys is Postgres' order, sort keys are bytes that an index can hold;
elsewhere Postgres ranks the rows to compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.collections.base import keys_of
from headrace.collections.plan import SortKey
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.windows import Over, Sorting
from headrace.kernels import order as kernel
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed
from headrace.types import INT8, Field, Schema

_RANK: Final = Field("rank", INT8)


class Sorter:
    """Sort keys of rows of ``schema``, whose columns ``keys`` are equal within a group."""

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[int],
        order: Sequence[SortKey],
        remote: RemoteEvaluator | None,
    ) -> None:
        self.native: Final = all(item.native for item in order)
        """Whether all items are native, so that ``orders`` can be used."""
        if remote is None and not self.native:
            raise BugError("an order that is not native needs an evaluator")
        self._order = tuple(order)
        self._remote = remote
        self._trusted = all(item.trusted for item in order)
        self._oids = [field.oid for field in schema]
        sorted_by = {item.column for item in order} if self.native else set()
        self._rest = [i for i in range(len(schema)) if i not in sorted_by and i not in keys]
        fields = tuple(schema[item.column] for item in order)
        self._over = Over(
            ("pg_catalog.dense_rank()",),
            tuple(Sorting(i, item.operator, item.nulls_first) for i, item in enumerate(order, 1)),
            ("",),
            fields,
            (_RANK,),
        )

    def orders(self, columns: Sequence[pa.Array], count: int) -> Packed:
        """Return prefix-free sort keys; REQUIRES: native."""
        parts = [
            kernel.directed(
                keys_of([columns[item.column]], [self._oids[item.column]], count),
                descending=item.descending,
                nulls_first=item.nulls_first,
            )
            for item in self._order
        ]
        return kernel.joined(parts, count)

    def rests(self, columns: Sequence[pa.Array], count: int) -> Packed:
        """Return canonical keys of the columns that are neither sorted nor grouped by."""
        chosen = [columns[i] for i in self._rest]
        return keys_of(chosen, [self._oids[i] for i in self._rest], count)

    def ranks(self, columns: Sequence[pa.Array], groups: Int64s) -> list[bytes]:
        """Return Postgres' ranks of the rows within their groups; a group's rows are adjacent."""
        assert self._remote is not None, "asked by the constructor"
        chosen = [columns[item.column] for item in self._order]
        ones = np.ones(len(groups), np.int64)
        at, [found] = self._remote.windows(self._over, chosen, groups, ones, self._trusted)
        ranks = np.empty(len(groups), np.int64)
        ranks[at] = found.to_numpy()
        packed = ranks.astype(">i8").tobytes()
        return [packed[i : i + 8] for i in range(0, len(packed), 8)]
