"""Crash attribution: finds the view that makes the worker crash.

    death 1    during work on views a, b, c: each of them is a suspect
    death 2    during work on b, c, d: b and c are suspects for the second time.  From now on one
               view after the other, one batch at a time, up to the batch at which they were met
    death 3-5  in view c, and in no other suspect of death 2: c stops, and the others go on

A kill from outside hits any view, most likely the busiest.  So a few crashes in a row prove
nothing, even if views are processed one by one.  A view that commits the batch at which it was met
is a suspect no longer; it does not matter how far other views have come, because one that lags has
batches of its own.  While a leading view is a suspect for the second time, lagging views wait, so
that the two are told apart.  Only crashes during work on a view count: a worker that dies at other
times was not killed by a view.
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
"""Crashes during work on a unit after which units are processed one by one."""
ALONE_MAX: Final = 3
"""Crashes in a row for which only one unit can be the cause, after which it must stop."""
LOADING: Final = 0
"""Stands for a txid while the view's state is loaded."""


class _Suspect(msgspec.Struct):
    """A unit that was worked on when workers died, and has not committed that since."""

    txid: int
    """The last txid at which it was met."""
    deaths: int = 0


class _Known(msgspec.Struct):
    suspects: dict[int, _Suspect]
    guilty: set[int]
    alone: list[int] = []
    """The unit that alone can be the cause of each of the last crashes."""


class CrashAttribution:
    """The crashes of earlier workers, and the current work of this one."""

    def __init__(self, folder: Path) -> None:
        """Evaluate the crash markers that the last worker has left in ``folder``."""
        self._marks = Marks(folder / "worker.marks", (TransientError, psycopg.Error))
        self._record = DeathRecord(folder / "worker.deaths", _Known)
        known = self._record.read() or _Known({}, set())
        self._suspects, self._alone = known.suspects, known.alone
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
        return not self._suspects

    @property
    def repeated(self) -> list[int]:
        """Units that were worked on during several crashes, which are unresolved."""
        return [unit for unit, one in self._suspects.items() if one.deaths >= CAREFUL_AFTER]

    def sequential(self, txid: int) -> bool:
        """Return whether views must process ``txid`` one by one, with nothing else in flight."""
        return any(txid <= self._suspects[unit].txid for unit in self.repeated)

    def review(self, committed: Callable[[int], int | None]) -> None:
        """Acquit the units that have committed the txid at which they were met.

        ``committed``: the last txid that a unit has committed; None if it is not processed.
        """
        suspects = self._suspects
        if not suspects:
            return
        left = {
            unit: one
            for unit, one in suspects.items()
            if (at := committed(unit)) is not None and at < one.txid
        }
        if len(left) < len(suspects):
            self._suspects = left
            self._alone = [unit for unit in self._alone if unit in left]
            self._write()

    def forget(self, unit_id: int) -> None:
        """Acquit a unit that exists no longer."""
        if self._suspects.pop(unit_id, None) is not None:
            self._write()

    def error(self) -> Deadly:
        """Return the error that stops the guilty views."""
        return Deadly(
            "the worker died while processing this view",
            detail=f"It died {CAREFUL_AFTER + ALONE_MAX} times at the same place; the last"
            f" {ALONE_MAX} times no other view could be the cause.",
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
        repeated = {unit for unit, _ in left} & set(self.repeated)
        for unit, txid in left:
            one = self._suspects.setdefault(unit, _Suspect(txid))
            one.txid = max(one.txid, txid)
        for unit in {unit for unit, _ in left}:
            self._suspects[unit].deaths += 1
        met = [*repeated] if len(repeated) == 1 else []
        self._alone = [*self._alone, *met] if met == self._alone[-1:] else met
        if len(self._alone) >= ALONE_MAX:
            self.guilty |= set(met)
            self._suspects, self._alone = {}, []
        _log.warning(
            "the last worker died in the midst of views",
            views=sorted({unit for unit, _ in left}),
            txids=sorted({txid for _, txid in left}),
            repeated=sorted(self.repeated),
            guilty=sorted(self.guilty),
        )

    def _write(self) -> None:
        self._record.write(_Known(self._suspects, self.guilty, self._alone))
