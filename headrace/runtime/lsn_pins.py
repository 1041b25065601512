"""Holds: LSN pins that keep what populations need from being confirmed or forgotten.

Any thread can take a hold at once, even while the engine works on a batch for minutes.  For that,
the engine *promises* a position here before it confirms it, and a hold begins at the last promise.
That may be a while ago, so a hold may keep more than needed.

* Invariant 1: after ``grant`` no new promise goes beyond the hold, except for batches that are
  retained locally (``intake_log.py``).
* Invariant 2: records of the batches after a hold's txid are kept, and all batches up to it are
  before every snapshot taken after ``grant``.
* Invariant 3: a hold is on disk when ``grant`` returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from headrace.errors import PrerequisiteError
from headrace.runtime import positions
from headrace.runtime.positions import Position
from headrace.state.rocks import RocksDatabase

Needs = Callable[[Position], int]
"""Returns the LSN before which a hold does not need the source."""


class LsnPins:
    """The holds of one engine; ``grant``, ``release`` and ``jobs`` are for any thread."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        """Locked while a hold is added or removed, in memory and on disk."""
        self._lock: Final = threading.Lock()
        # Guarded by the second lock.
        self._jobs: dict[str, Position] = {}
        self._promised: Position | None = None
        self._db: RocksDatabase | None = None

    # --- for populations

    @property
    def open(self) -> bool:
        """Whether holds can be granted: the engine knows its position."""
        with self._lock:
            return self._db is not None and self._promised is not None

    def grant(self, job: str) -> Position:
        """Keep everything from the last promise on until ``job`` releases it; idempotent.

        REQUIRES: ``open``.
        """
        with self._changing:
            with self._lock:
                if self._db is None or self._promised is None:
                    raise PrerequisiteError("the worker is stopping", sqlstate="57P01")
                hold = self._jobs.get(job)
                if hold is not None:
                    return hold
                hold = self._jobs[job] = self._promised
                db = self._db
            meta: positions.Meta = {}
            positions.put_hold(meta, job, hold)
            try:
                db.put_meta(meta, sync=True)
            except BaseException:
                with self._lock:
                    del self._jobs[job]
                raise
            return hold

    def release(self, job: str) -> None:
        """End a hold; do nothing if there is none."""
        with self._changing:
            with self._lock:
                known, db = self._jobs.pop(job, None), self._db
            if known is None or db is None:
                return
            meta: positions.Meta = {}
            positions.put_hold(meta, job, None)
            db.put_meta(meta, sync=False)

    def jobs(self) -> dict[str, Position]:
        """Return a copy of the holds, by job."""
        with self._lock:
            return dict(self._jobs)

    # --- the engine's

    def load(self, db: RocksDatabase) -> None:
        """Read the holds that an earlier worker granted."""
        found = positions.pins(db)
        with self._lock:
            self._db, self._jobs = db, found

    def begin(self, position: Position) -> None:
        """Grant holds from ``position`` on, unless there is a promise already."""
        with self._lock:
            self._promised = self._promised or position

    def limit(self, lsn: int, needs: Needs) -> int:
        """Return ``lsn``, limited by the holds; ``needs`` gives the limit of each."""
        with self._lock:
            return self._limit(lsn, needs)

    def promise(self, position: Position, least: int, needs: Needs) -> int:
        """Promise and return what may be confirmed of ``position``, at least ``least``."""
        with self._lock:
            lsn = max(self._limit(position.lsn, needs), least)
            self._promised = Position(position.txid, lsn)
            return lsn

    def txids(self) -> Collection[int]:
        """Return the txids of the holds; later batches are needed."""
        with self._lock:
            return [hold.txid for hold in self._jobs.values()]

    def lose(self, position: Position) -> None:
        """Drop all holds, because the stream goes on at ``position`` without what they kept."""
        with self._changing:
            with self._lock:
                gone, db = list(self._jobs), self._db
                self._jobs.clear()
                self._promised = position
            assert db is not None, "the engine runs"
            db.put_meta({key: None for key in positions.hold_keys(gone)}, sync=False)

    def close(self) -> None:
        """Grant no more holds; the state database may be closed afterwards."""
        with self._changing, self._lock:
            self._db = None

    def _limit(self, lsn: int, needs: Needs) -> int:
        return min([lsn, *map(needs, self._jobs.values())])
