"""Which view the worker dies of.

    death 1  at batch n: noted, with the batches that were being worked on
    death 2  at batch n again: from now on one view after the other, one batch at a time, up to n
    death 3  in view v, which was alone: v stops, and the others go on

A kill from outside hits anybody, so one alone says nothing, nor do two.  What counts is the work on
a view: a worker that dies while no view has its hands on anything does not die of a view.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import structlog

from headrace.errors import RESYNC, Deadly, TransientError
from headrace.process.deaths import DeathRecord, Marks

_log = structlog.get_logger(__name__)

CAREFUL_AFTER: Final = 2
"""Deaths at one batch after which views are processed one by one."""
LOADING: Final = 0
"""Instead of a txid: the view's state is being taken in."""


class _Known(msgspec.Struct):
    txids: set[int]
    deaths: int
    guilty: set[int]


class Suspects:
    """The deaths of a worker's predecessors, and what it is doing itself."""

    def __init__(self, folder: Path) -> None:
        """Judge by what the last worker has left in ``folder``."""
        self._marks = Marks(folder / "worker.marks", (TransientError, psycopg.Error))
        self._record = DeathRecord(folder / "worker.deaths", _Known)
        known = self._record.read() or _Known(set(), 0, set())
        self._txids, self._deaths = known.txids, known.deaths
        self.guilty: set[int] = known.guilty
        """Views, and shared subplans, that must not be processed any more."""
        if self._marks.left:
            self._judge()
            self._write()
        self._marks.clear()

    def during(self, unit_id: int, txid: int) -> AbstractContextManager[None]:
        """The block works for a view or shared subplan on a txid."""
        return self._marks.during(unit_id, txid)

    def careful(self, txid: int) -> bool:
        """Whether views must process ``txid`` one by one, and nothing else be in flight."""
        return self._deaths >= CAREFUL_AFTER and bool(self._txids) and txid <= max(self._txids)

    def passed(self, txid: int) -> None:
        """``txid`` is committed: nobody has died of it."""
        if self._deaths and txid >= max(self._txids, default=0):
            self._txids, self._deaths = set(), 0
            self._write()

    def error(self) -> Deadly:
        """Why the guilty stop."""
        return Deadly(
            "the worker died while processing this view",
            detail=f"It died {CAREFUL_AFTER + 1} times at the same place; the last time it"
            " was processing nothing else.",
            hint=RESYNC,
        )

    def stopped(self) -> None:
        """The catalog says so of all the guilty."""
        if self.guilty:
            self.guilty = set()
            self._write()

    def close(self) -> None:
        """The worker is asked to end, and may be killed if that takes long."""
        self._marks.close()

    def _judge(self) -> None:
        left = self._marks.left
        txids = {txid for _, txid in left}
        if not txids & self._txids:
            self._txids, self._deaths = txids, 1
        elif self._deaths >= CAREFUL_AFTER and len(left) == 1:
            self.guilty.add(left[0][0])
            self._txids, self._deaths = set(), 0
        else:
            self._txids |= txids
            self._deaths += 1
        _log.warning(
            "the last worker died in the midst of views",
            views=sorted({unit for unit, _ in left}),
            txids=sorted(txids),
            deaths=self._deaths,
            guilty=sorted(self.guilty),
        )

    def _write(self) -> None:
        self._record.write(_Known(self._txids, self._deaths, self.guilty))
