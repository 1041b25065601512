"""Processor time and memory of the engine's processes over time: bounded samples in memory.

A state machine without a clock: the caller passes times.  Nothing is stored, so the curves begin
with the server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from headrace.console.host_interface import ProcessUsage

SAMPLE_S: Final = 10.0
FINE_KEPT: Final = 90
"""A quarter of an hour."""
COARSE_EVERY: Final = 12
"""Samples of two minutes are one coarse point."""
COARSE_KEPT: Final = 720
"""A day."""
PROCESSES_MAX: Final = 24
"""Limit of processes in one point."""

_Point = tuple[int, dict[str, tuple[float | None, int]]]
"""Time in seconds since 1970, and by process: share of a processor, bytes of memory."""


class _Curve:
    """Points at one resolution."""

    def __init__(self, kept: int) -> None:
        self._points: deque[_Point] = deque(maxlen=kept)
        self._before: dict[str, ProcessUsage] = {}
        self._before_at = 0.0

    def add(self, at: float, usage: dict[str, ProcessUsage], peaks: dict[str, int]) -> None:
        """Add a point: the mean of the processor time since the last one, the peak of memory."""
        passed = at - self._before_at
        point: dict[str, tuple[float | None, int]] = {}
        for name, now in usage.items():
            before, share = self._before.get(name), None
            # After a restart of the process its counter begins anew.
            if before is not None and before.pid == now.pid and passed > 0:
                share = round(max(0.0, now.cpu_s - before.cpu_s) / passed, 3)
            point[name] = share, max(now.memory_bytes, peaks.get(name, 0))
        self._points.append((round(at), point))
        self._before, self._before_at = usage, at

    def told(self) -> dict[str, Any]:
        """Return times, and by process two lists of the same length; None where it was not."""
        names = dict.fromkeys(name for _, point in self._points for name in point)
        nothing = (None, None)
        return {
            "at": [at for at, _ in self._points],
            "of": {
                name: {
                    "cpu": [point.get(name, nothing)[0] for _, point in self._points],
                    "memory": [point.get(name, nothing)[1] for _, point in self._points],
                }
                for name in names
            },
        }


class ProcessSamples:
    """Samples of all processes: a quarter of an hour finely, a day coarsely."""

    def __init__(self) -> None:
        self.version = 0
        """Number of samples so far."""
        self._fine = _Curve(FINE_KEPT)
        self._coarse = _Curve(COARSE_KEPT)
        self._peaks: dict[str, int] = {}

    @property
    def coarse_version(self) -> int:
        """Number of coarse points so far."""
        return -(-self.version // COARSE_EVERY)

    def add(self, at: float, usage: Iterable[ProcessUsage]) -> None:
        """Add a sample, taken at ``at``, in seconds since 1970."""
        found = {each.name: each for each in list(usage)[:PROCESSES_MAX]}
        self._fine.add(at, found, {})
        for name, each in found.items():
            self._peaks[name] = max(each.memory_bytes, self._peaks.get(name, 0))
        if self.version % COARSE_EVERY == 0:
            self._coarse.add(at, found, self._peaks)
            self._peaks = {}
        self.version += 1

    def fine(self) -> dict[str, Any]:
        """Return the fine points, as columns."""
        return self._fine.told()

    def coarse(self) -> dict[str, Any]:
        """Return the coarse points, as columns."""
        return self._coarse.told()
