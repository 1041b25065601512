"""A collection's txids in all the ways that a run may send them: cut, undone and repeated,
reopened.

The diffs of a txid have the same sum in every way, so a test compares them with its reference as
usual. It chooses among ``WAYS`` (with hypothesis, or at random).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from headrace.collections.base import Collection
from headrace.state.memory import MemoryStore
from headrace.types import Schema
from tests.ledger import diffs

WAYS = ("whole", "rows", "reopened", "undone")
"""One batch per port; a batch per row; a new object on the same state; two attempts
undone first."""


class Disturbed:
    """One collection over a store in memory, made by ``build``; ports have ``schemas``."""

    def __init__(self, build: Callable[[], Collection], *schemas: Schema) -> None:
        self.store = MemoryStore()
        self._build = build
        self._schemas = schemas
        self._open()

    def txid(
        self, number: int, rows: Sequence[tuple[int, str]], way: str
    ) -> Counter[tuple[Any, ...]]:
        """Send the (port, line) ``rows``, write a checkpoint, and return the sum of the diffs."""
        if way == "undone":
            for part in (rows[: len(rows) // 2], rows):
                self._send(number, part, "rows")
                self.store.rollback()
                self._open()
        if way == "reopened":
            self._open()
        out = self._send(number, rows, way)
        self.store.checkpoint()
        return out

    def left(self) -> dict[str, Any]:
        """Return the states that are not empty."""
        return {name: pairs for name, pairs in self.store.dump().items() if pairs}

    def _open(self) -> None:
        self.made = self._build()
        self.made.open(self.store)

    def _send(
        self, number: int, rows: Sequence[tuple[int, str]], way: str
    ) -> Counter[tuple[Any, ...]]:
        batches = []
        if way == "rows":
            batches = [(port, diffs(self._schemas[port], row)) for port, row in rows]
        else:
            for port, schema in enumerate(self._schemas):
                mine = [row for p, row in rows if p == port]
                batches += [(port, diffs(schema, *mine))] if mine else []
        sent = [b for port, batch in batches for b in self.made.apply(port, batch)]
        out: Counter[tuple[Any, ...]] = Counter()
        for batch in [*sent, *self.made.time_end(number)]:
            for *row, weight in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                out[tuple(row)] += weight
        return out


def fitting(now: Counter[Any], changes: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Limit the weights of ``changes`` so that ``now`` has no negative row; update ``now``."""
    out = []
    for row, weight in changes:
        fits = max(weight, -now[row])
        now[row] += fits
        if fits:
            out.append((row, fits))
    return out


def line(row: Sequence[Any], weight: int) -> str:
    """Format a row as ``diffs`` reads it."""
    words = [
        "." if value is None else str(value)[0].lower() if isinstance(value, bool) else str(value)
        for value in row
    ]
    return " ".join([f"{weight:+d}", *words])
