"""Holds: what populations still need is neither confirmed to the source nor forgotten here.

They are granted from any thread, at once, though the engine's may be inside of a batch for minutes:
whoever wants to confirm something *promises* it here first, and a hold begins where the last
promise ended.  That may be a while ago, so that more is kept than is needed.

* Invariant 1: after ``grant`` nothing is promised beyond the hold that was not promised before,
  but what is kept on our side (``retained.py``).
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
"""The position before which a hold does not need the source."""


class Holds:
    """The holds of one engine; ``grant``, ``release`` and ``jobs`` are for any thread."""

    def __init__(self) -> None:
        self._changing: Final = threading.Lock()
        """Held while a hold comes or goes, in memory and on disk."""
        self._lock: Final = threading.Lock()
        # Guarded by the second lock.
        self._jobs: dict[str, Position] = {}
        self._promised: Position | None = None
        self._db: RocksDatabase | None = None

    # --- for populations

    @property
    def open(self) -> bool:
        """Whether they are granted: the engine knows where it stands."""
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
        """End a hold; nothing happens if there is none."""
        with self._changing:
            with self._lock:
                known, db = self._jobs.pop(job, None), self._db
            if known is None or db is None:
                return
            meta: positions.Meta = {}
            positions.put_hold(meta, job, None)
            db.put_meta(meta, sync=False)

    def jobs(self) -> dict[str, Position]:
        """The holds by job: a copy."""
        with self._lock:
            return dict(self._jobs)

    # --- the engine's

    def load(self, db: RocksDatabase) -> None:
        """Those that an earlier worker has granted."""
        found = positions.holds(db)
        with self._lock:
            self._db, self._jobs = db, found

    def begin(self, position: Position) -> None:
        """Grant holds from ``position`` on, unless they begin somewhere already."""
        with self._lock:
            self._promised = self._promised or position

    def limit(self, lsn: int, needs: Needs) -> int:
        """As much of ``lsn`` as the holds leave to confirm; ``needs``: from where on, for each."""
        with self._lock:
            return self._limit(lsn, needs)

    def promise(self, position: Position, least: int, needs: Needs) -> int:
        """What of ``position`` may be confirmed, but ``least`` in any case; holds begin there."""
        with self._lock:
            lsn = max(self._limit(position.lsn, needs), least)
            self._promised = Position(position.txid, lsn)
            return lsn

    def txids(self) -> Collection[int]:
        """Batches after these are needed."""
        with self._lock:
            return [hold.txid for hold in self._jobs.values()]

    def lose(self, position: Position) -> None:
        """All are in vain: the stream goes on at ``position``, whatever they wanted."""
        with self._changing:
            with self._lock:
                gone, db = list(self._jobs), self._db
                self._jobs.clear()
                self._promised = position
            assert db is not None, "the engine runs"
            db.put_meta({key: None for key in positions.hold_keys(gone)}, sync=False)

    def close(self) -> None:
        """Grant none any more; the state database may be closed then."""
        with self._changing, self._lock:
            self._db = None

    def _limit(self, lsn: int, needs: Needs) -> int:
        return min([lsn, *map(needs, self._jobs.values())])
