"""Crash-loop guard of the builder: populations that crash it are not retried for ever.

A user who calls sees the failure and may call again. A population that starts without a caller (a
view created without waiting, a stopped view that is filled anew) is refused after two crashes of
the builder in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import structlog

from headrace.counting import counted
from headrace.errors import Deadly
from headrace.process.crash_markers import DeathRecord, Marks

_log = structlog.get_logger(__name__)

DEATHS_MAX: Final = 2


class CrashLoopGuard:
    """The number of builder crashes in each population."""

    def __init__(self, folder: Path) -> None:
        """Count the crashes recorded in ``folder`` by the last builder."""
        self._record = DeathRecord(folder / "builder.deaths", dict[int, int])
        self._marks = Marks(folder / "builder.marks")
        self._deaths = self._record.read() or {}
        for key, _ in self._marks.left:
            self._deaths[key] = self._deaths.get(key, 0) + 1
            _log.warning("the last builder died in a population", deaths=self._deaths)
            self._write()
        self._marks.clear()

    @contextmanager
    def filling(self, name: str, *, unasked: bool) -> Iterator[None]:
        """Mark the block as the population of view ``name``; ``unasked``: without a caller.

        Raises:
            Deadly: ``unasked``, and builders have crashed in this population before.
        """
        key = _key(name)
        deaths = self._deaths.get(key, 0)
        if unasked and deaths >= DEATHS_MAX:
            raise Deadly(
                f"the builder died {counted(deaths, 'time')} while filling this view",
                hint="It is not filled again until a user requests it.",
            )
        with self._marks.during(key, 0):
            try:
                yield
            finally:
                if self._deaths.pop(key, 0):
                    self._write()

    def close(self) -> None:
        """Close the crash markers; the builder is asked to end."""
        self._marks.close()

    def _write(self) -> None:
        self._record.write(self._deaths)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
