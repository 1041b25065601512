"""Crash attribution: finds the view that makes the worker crash.

    death 1    at batch n: recorded, with the batches in progress
    death 2    at batch n again: from now on one view after the other, one batch at a time, up to n
    death 3-5  in view v, which was alone each time: v stops, and the others go on

A kill from outside hits any view, most likely the busiest. So a few crashes in a row prove nothing,
even if views are processed one by one. A batch that is committed in between clears all views. Only
crashes during work on a view count: a worker that dies at other times was not killed by a view.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
import psycopg
import structlog

from headrace.errors import RESYNC, Deadly, TransientError
from headrace.process.crash_markers import DeathRecord, Marks

_log = structlog.get_logger(__name__)

CAREFUL_AFTER: Final = 2
"""Crashes at one batch after which views are processed one by one."""
ALONE_MAX: Final = 3
"""Crashes in one and the same view, from then on, after which the view must stop."""
LOADING: Final = 0
"""Stands for a txid while the view's state is loaded."""


class _Known(msgspec.Struct):
    txids: set[int]
    deaths: int
    guilty: set[int]
    alone: list[int] = []
    """The units that the last crashes have hit alone."""


class CrashAttribution:
    """The crashes of earlier workers, and the current work of this one."""

    def __init__(self, folder: Path) -> None:
        """Evaluate the crash markers that the last worker has left in ``folder``."""
        self._marks = Marks(folder / "worker.marks", (TransientError, psycopg.Error))
        self._record = DeathRecord(folder / "worker.deaths", _Known)
        known = self._record.read() or _Known(set(), 0, set())
        self._txids, self._deaths, self._alone = known.txids, known.deaths, known.alone
        self.guilty: set[int] = known.guilty
        """Views and shared subplans that must not be processed any more."""
        if self._marks.left:
            self._classify()
            self._write()
        self._marks.clear()

    def during(self, unit_id: int, txid: int) -> AbstractContextManager[None]:
        """Mark the block as work for a view or shared subplan on a txid."""
        return self._marks.during(unit_id, txid)

    def in_turn(self) -> AbstractContextManager[Callable[[int, int], None]]:
        """Yield a function that marks work for a unit on a txid until its next call."""
        return self._marks.in_turn()

    @property
    def quiet(self) -> bool:
        """Whether no crash is unresolved."""
        return not self._deaths

    def sequential(self, txid: int) -> bool:
        """Return whether views must process ``txid`` one by one, with nothing else in flight."""
        return self._deaths >= CAREFUL_AFTER and bool(self._txids) and txid <= max(self._txids)

    def passed(self, txid: int) -> None:
        """Record that ``txid`` is committed, which resolves crashes up to it."""
        if self._deaths and txid >= max(self._txids, default=0):
            self._acquit()
            self._write()

    def error(self) -> Deadly:
        """Return the error that stops the guilty views."""
        return Deadly(
            "the worker died while processing this view",
            detail=f"It died {CAREFUL_AFTER + ALONE_MAX} times at the same place; the last"
            f" {ALONE_MAX} times it was processing nothing else.",
            hint=RESYNC,
        )

    def stopped(self) -> None:
        """Record that the catalog has stopped all guilty views."""
        if self.guilty:
            self.guilty = set()
            self._write()

    def close(self) -> None:
        """Close the markers: the worker is asked to end, and may be killed if that takes long."""
        self._marks.close()

    def _classify(self) -> None:
        left = self._marks.left
        txids = {txid for _, txid in left}
        if not txids & self._txids:
            self._acquit()
        met = [left[0][0]] if self._deaths >= CAREFUL_AFTER and len(left) == 1 else []
        self._alone = [*self._alone, *met] if met == self._alone[-1:] else met
        self._txids |= txids
        self._deaths += 1
        if len(self._alone) >= ALONE_MAX:
            self.guilty |= set(met)
            self._acquit()
        _log.warning(
            "the last worker died in the midst of views",
            views=sorted({unit for unit, _ in left}),
            txids=sorted(txids),
            deaths=self._deaths,
            guilty=sorted(self.guilty),
        )

    def _acquit(self) -> None:
        self._txids, self._deaths, self._alone = set(), 0, []

    def _write(self) -> None:
        self._record.write(_Known(self._txids, self._deaths, self.guilty, self._alone))
