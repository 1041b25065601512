"""Crash-loop guard of the builder: populations that crash it are not retried for ever.

A user who calls sees the failure and may call again. A population that starts without a caller (a
view created without waiting, a stopped view that is filled anew) is refused after two crashes of
the builder in it.

Populations run side by side, and a crash ends all of them. So a population is to blame only if no
other one was under way in each of its crashes. To tell them apart, those that start without a
caller run one after the other once the builder has crashed in them; all others go on beside them.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from headrace.counting import counted
from headrace.errors import Deadly
from headrace.process.crash_markers import DeathRecord, Marks

_log = structlog.get_logger(__name__)

DEATHS_MAX: Final = 2
_POLL_S: Final = 0.1


class _CrashCount(msgspec.Struct):
    """Crashes of builders during one population."""

    count: int
    beside: set[int]
    """Other populations that were under way in each of them."""


class CrashLoopGuard:
    """The builder crashes in each population."""

    def __init__(self, folder: Path) -> None:
        """Count the crashes recorded in ``folder`` by the last builder."""
        self._record = DeathRecord(folder / "builder.deaths", dict[int, _CrashCount])
        self._marks = Marks(folder / "builder.marks")
        self._deaths = self._record.read() or {}
        self._turn = threading.Lock()
        """Held by the suspected population that runs."""
        left = {key for key, _ in self._marks.left}
        for key in left:
            known = self._deaths.get(key) or _CrashCount(0, left)
            self._deaths[key] = _CrashCount(known.count + 1, known.beside & left - {key})
        if left:
            found = {key: deaths.count for key, deaths in self._deaths.items()}
            _log.warning("the last builder died in a population", deaths=found)
            self._write()
        self._marks.clear()

    @contextmanager
    def filling(self, name: str, *, unasked: bool, wait: Callable[[float], None]) -> Iterator[None]:
        """Mark the block as the population of view ``name``; ``unasked``: without a caller.

        ``wait`` waits for some seconds, and may raise to give up.

        Raises:
            Deadly: ``unasked``, and builders have crashed in this population before.
        """
        key = _key(name)
        found = self._deaths.get(key)
        if not unasked or found is None:
            with self._marked(key):
                yield
            return
        if found.count >= DEATHS_MAX and not found.beside:
            raise Deadly(
                f"the builder died {counted(found.count, 'time')} while filling this view",
                hint="It is not filled again until a user requests it.",
            )
        while not self._turn.acquire(blocking=False):
            wait(_POLL_S)
        try:
            with self._marked(key):
                yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the crash markers; the builder is asked to end."""
        self._marks.close()

    @contextmanager
    def _marked(self, key: int) -> Iterator[None]:
        with self._marks.during(key, 0):
            try:
                yield
            finally:
                if self._deaths.pop(key, None):
                    self._write()

    def _write(self) -> None:
        self._record.write(self._deaths)


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())
