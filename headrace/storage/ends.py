"""Where txids end in a queue: which is how its successors name places in it."""

from __future__ import annotations

import bisect
from array import array


class Ends:
    """The TimeEnds of a queue from its base on; flat, for a queue may hold millions."""

    def __init__(self, txid: int) -> None:
        """``txid``: what came up to it is gone."""
        self.base_txid = txid
        """What came up to this txid is gone."""
        self.base_rows = 0
        """Rows that are gone."""
        self._txids = array("Q")
        self._offsets = array("Q")
        """Where the next frame begins."""
        self._rows = array("Q")
        """How many rows had come up to there."""
        self._commits = array("q")
        """When the oldest of their changes were committed, as frames tell it."""

    def __len__(self) -> int:
        """How many txids end in what is held."""
        return len(self._txids)

    @property
    def last(self) -> tuple[int, int]:
        """Where the last one ends, and the rows up to there; REQUIRES: there is one."""
        return self._offsets[-1], self._rows[-1]

    @property
    def last_txid(self) -> int:
        """The last txid that has ended, or ``base_txid``."""
        return self._txids[-1] if self._txids else self.base_txid

    def add(self, txid: int, offset: int, rows: int, commit_us: int = 0) -> None:
        """``txid`` ends at ``offset``; ``rows`` have come up to there."""
        self._commits.append(commit_us)
        self._txids.append(txid)
        self._offsets.append(offset)
        self._rows.append(rows)

    def after(self, txid: int) -> int | None:
        """Where begins what came after ``txid``; None: at the base."""
        at = bisect.bisect_right(self._txids, txid)
        return self._offsets[at - 1] if at else None

    def span(self, txid: int) -> tuple[int | None, int] | None:
        """Where ``txid`` begins (None: at the base) and ends; None: it is not there."""
        at = bisect.bisect_left(self._txids, txid)
        if at == len(self._txids) or self._txids[at] != txid:
            return None
        return (self._offsets[at - 1] if at else None), self._offsets[at]

    def before(self, offset: int) -> int:
        """The last txid that ends at ``offset`` or before."""
        at = bisect.bisect_right(self._offsets, offset)
        return self._txids[at - 1] if at else self.base_txid

    def commit_after(self, txid: int) -> int | None:
        """When the oldest change was committed that came after ``txid``, as frames tell it.

        Microseconds since 2000-01-01 UTC, 0 if it is not known; None: nothing came after.
        """
        at = bisect.bisect_right(self._txids, txid)
        return self._commits[at] if at < len(self._commits) else None

    def rows_to(self, txid: int) -> int:
        """How many rows had come when ``txid`` had ended."""
        at = bisect.bisect_right(self._txids, txid)
        return self._rows[at - 1] if at else self.base_rows

    def cut(self, front: int) -> None:
        """What is from ``front`` on was never put."""
        at = bisect.bisect_right(self._offsets, front)
        for column in (self._txids, self._offsets, self._rows, self._commits):
            del column[at:]

    def forget(self, base: int) -> None:
        """What is before ``base`` is gone."""
        at = bisect.bisect_right(self._offsets, base)
        if at:
            self.base_txid, self.base_rows = self._txids[at - 1], self._rows[at - 1]
            for column in (self._txids, self._offsets, self._rows, self._commits):
                del column[:at]
