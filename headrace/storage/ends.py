"""Ends of the txids in a queue, by which successors name positions in it.

Several txids may end together, if a producer has processed them as one batch.  Their number is a
power of two that divides the txid before them, so of two such batches, in one queue or in two, one
contains the other, or they have no txid in common.
"""

from __future__ import annotations

import bisect
from array import array


class Ends:
    """The TimeEnds of a queue from its base on; flat arrays, since a queue may hold millions."""

    def __init__(self, txid: int) -> None:
        """Create an empty list of a queue whose contents up to ``txid`` are gone."""
        self.base_txid = txid
        """The contents up to this txid are gone."""
        self.base_rows = 0
        """Number of rows that are gone."""
        self._txids = array("Q")
        self._offsets = array("Q")
        """Offset at which the next frame begins."""
        self._rows = array("Q")
        """Number of rows up to that offset."""
        self._commits = array("q")
        """Commit times of the oldest changes, as in the frames."""
        self._log2_txids = array("B")
        """Binary logarithms of the numbers of txids that end together."""

    def __len__(self) -> int:
        """Return the number of txids that end in the queue."""
        return len(self._txids)

    @property
    def last(self) -> tuple[int, int]:
        """Offset at which the last txid ends, and the rows up to there; REQUIRES: there is one."""
        return self._offsets[-1], self._rows[-1]

    @property
    def last_txid(self) -> int:
        """The last txid that has ended, or ``base_txid`` if none has."""
        return self._txids[-1] if self._txids else self.base_txid

    def add(
        self, txid: int, offset: int, rows: int, commit_us: int = 0, log2_txids: int = 0
    ) -> None:
        """Add the end of ``txid`` at ``offset``, with the number of rows up to there."""
        self._log2_txids.append(log2_txids)
        self._commits.append(commit_us)
        self._txids.append(txid)
        self._offsets.append(offset)
        self._rows.append(rows)

    def after(self, txid: int) -> int | None:
        """Return the offset at which the contents after ``txid`` begin; None: at the base."""
        at = bisect.bisect_right(self._txids, txid)
        return self._offsets[at - 1] if at else None

    def around(self, txid: int) -> tuple[int, int]:
        """Return the txid before and the last one of those that end together around ``txid``.

        If it is the last one itself, or has no rows, return it twice.
        """
        at = bisect.bisect_left(self._txids, txid)
        if at == len(self._txids):
            return txid, txid
        last = self._txids[at]
        before = last - (1 << self._log2_txids[at])
        return (before, last) if before < txid < last else (txid, txid)

    @property
    def last_together(self) -> int:
        """The last txid of those that end together; 0: each ends by itself."""
        until = len(self._log2_txids.tobytes().rstrip(b"\0"))
        return self._txids[until - 1] if until else 0

    def before(self, offset: int) -> int:
        """Return the last txid that ends at or before ``offset``."""
        at = bisect.bisect_right(self._offsets, offset)
        return self._txids[at - 1] if at else self.base_txid

    def commit_after(self, txid: int) -> int | None:
        """Return the commit time of the oldest change after ``txid``, as in the frames.

        In microseconds since 2000-01-01 UTC; 0: unknown; None: nothing came after it.
        """
        at = bisect.bisect_right(self._txids, txid)
        return self._commits[at] if at < len(self._commits) else None

    def rows_to(self, txid: int) -> int:
        """Return the number of rows up to the end of ``txid``."""
        at = bisect.bisect_right(self._txids, txid)
        return self._rows[at - 1] if at else self.base_rows

    def cut(self, front: int) -> None:
        """Remove the ends after ``front``, as if their frames had never been put."""
        at = bisect.bisect_right(self._offsets, front)
        for column in self._columns:
            del column[at:]

    def forget(self, base: int) -> None:
        """Forget the ends up to ``base``; the contents before it are gone."""
        at = bisect.bisect_right(self._offsets, base)
        if at:
            self.base_txid, self.base_rows = self._txids[at - 1], self._rows[at - 1]
            for column in self._columns:
                del column[:at]

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self._txids, self._offsets, self._rows, self._commits, self._log2_txids
