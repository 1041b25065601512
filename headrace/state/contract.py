"""What a stateful collection may ask of its state: arrays of bytes in, arrays of bytes out.

Two shapes.  A ``MapState`` is key -> value.  An ``IndexState`` is an indexed Z-set: key -> row ->
weight; keys are prefix-free (``kernels.rows.encode_keys`` makes them so) and rows come back in byte order.
Writes of a txid stay in memory until ``StateStore.checkpoint``; ``rollback`` forgets them.

Two implementations behind one contract: ``state.memory`` (tests, Spark executors) and
``state.rocks`` (one column family per state, one atomic write batch per checkpoint).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class MapState(Protocol):
    """key -> value."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of ``keys`` in order; ``None`` where absent."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set each key; ``None`` deletes it.  A later duplicate key wins."""

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All entries in key order, in bounded chunks of (keys, values)."""


class IndexState(Protocol):
    """key -> row -> weight (never 0)."""

    def scan_many(
        self, keys: Sequence[bytes]
    ) -> tuple[list[int], list[bytes], list[int]]:
        """(position in ``keys``, row, weight) of every row under each key, grouped by position, rows in byte order."""

    def add_many(
        self, keys: Sequence[bytes], rows: Sequence[bytes], weights: Sequence[int]
    ) -> None:
        """Add ``weights`` to the rows' weights; a weight that becomes 0 disappears."""

    def weight_many(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[int]:
        """Current weight of each (key, row); 0 where absent."""

    def extreme_many(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        """First (or last) row in byte order under each key; ``None`` where the key has no row."""


class StateStore(Protocol):
    """All state of one view."""

    def map(self, name: str) -> MapState:
        """The map state called ``name`` (made when missing)."""

    def index(self, name: str) -> IndexState:
        """The index state called ``name`` (made when missing)."""

    def rollback(self) -> None:
        """Forget every write since the last checkpoint."""
