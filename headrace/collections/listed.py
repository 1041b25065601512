"""The border between packed states and collections that still work on lists of bytes.

``recursive``, ``temporal``, and ``topk`` where Postgres ranks the rows, are on this side of it.
Each of these classes has the methods of its state, with lists for packed strings and weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from headrace.kernels import packed
from headrace.state.contract import IndexState, MapState, Scanned

Listed = tuple[list[int], list[bytes], list[int]]
"""``Scanned`` as lists."""


def listed(found: Scanned) -> Listed:
    """Return rows of keys as lists."""
    at, rows, weights = found
    return at.tolist(), rows.strings(), weights.tolist()


def scanned(at: Sequence[int], rows: Sequence[bytes], weights: Sequence[int]) -> Scanned:
    """Return rows of keys packed."""
    return np.array(at, np.int64), packed.pack(rows), np.array(weights, np.int64)


class ListedMap:
    """A ``MapState`` with lists."""

    def __init__(self, state: MapState) -> None:
        self.state: Final = state

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``MapState``."""
        return self.state.get_many(packed.pack(keys)).strings()

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """See ``MapState``."""
        self.state.put_many(packed.pack(keys), packed.nullable(values))


class ListedIndex:
    """An ``IndexState`` with lists."""

    def __init__(self, state: IndexState) -> None:
        self.state: Final = state

    def scan_many(self, keys: Sequence[bytes]) -> Listed:
        """See ``IndexState``."""
        return listed(self.state.scan_many(packed.pack(keys)))

    def add_many(
        self, keys: Sequence[bytes], rows: Sequence[bytes], weights: Sequence[int]
    ) -> None:
        """See ``IndexState``."""
        self.state.add_many(packed.pack(keys), packed.pack(rows), np.array(weights, np.int64))
