"""``headrace record``: retain states and batches, so that a capture can begin in the past.

It copies the states by links every half of the time to be retained, and pins the engine's log at
the oldest copy that a capture may need.  It runs beside the engine, until it is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg

from headrace import clock
from headrace.config import Settings
from headrace.errors import TransientError
from headrace.replay import catalog
from headrace.replay.sources import DataDirectory, RecordedBase
from headrace.runtime import log_pins

Say = Callable[[str], None]

_PARTS: Final = 2
_RETRY_S: Final = 5.0


def run(settings: Settings, last_s: float, say: Say) -> None:
    """Retain ``last_s`` seconds until KeyboardInterrupt.

    Raises:
        PrerequisiteError: there is no engine's data directory.
    """
    directory = DataDirectory(settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with directory.recording() as folder:
        recorder = _Recorder(settings, directory, folder, last_s, say)
        try:
            while True:
                clock.sleep(recorder.step())
        finally:
            recorder.close()


class _Recorder:
    """The bases of one recorder."""

    def __init__(
        self, settings: Settings, directory: DataDirectory, folder: Path, last_s: float, say: Say
    ) -> None:
        self._settings: Final = settings
        self._directory: Final = directory
        self._folder: Final = folder
        self._last_s: Final = last_s
        self._say: Final = say
        self._bases: dict[RecordedBase, int] = {}
        """Least txid of each, the oldest first."""
        self._pin: Path = directory.pin(0)
        self._due = 0.0
        self._begun = False

    def close(self) -> None:
        """Release the log."""
        self._pin.unlink(missing_ok=True)

    def step(self) -> float:
        """Make a base if it is time, and touch the pin; return how long to sleep."""
        if clock.monotonic() >= self._due:
            try:
                self._take()
                self._due = clock.monotonic() + self._last_s / _PARTS
            except (TransientError, OSError, psycopg.Error) as error:
                self._say(f"cannot record now: {str(error).strip()}")
                self._due = clock.monotonic() + _RETRY_S
        with contextlib.suppress(OSError):
            os.utime(self._pin)
        return max(min(log_pins.TOUCH_S, self._due - clock.monotonic()), 0.01)

    def _take(self) -> None:
        with catalog.session(self._settings.source) as conn:
            found = catalog.read(conn)
        base, least = RecordedBase.make(self._folder, self._directory, found.encode())
        self._bases[base] = least
        old = [b for b in self._bases if clock.now().timestamp() - b.at >= self._last_s]
        for gone in old[:-1]:
            del self._bases[gone]
            gone.remove()
        self._pin = self._directory.pin(min(self._bases.values()))
        if not self._begun:
            self._begun = True
            self._say(
                f"recording: headrace capture --last can begin at {clock.text(int(base.at * 1e6))}"
            )
