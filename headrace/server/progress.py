"""Progress of a population as text, at a rate that people can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace import clock
from headrace.counting import counted

INTERVAL_S: Final = 0.5

_PHASES: Final = {
    "pending": "waiting for another job, then populating",
    "publication": "preparing",
    "snapshot": "waiting for a snapshot for",
    "writing": "writing the result of",
    "finishing": "finishing",
    "comparing": "comparing the rows of",
    "verifying": "verifying",
    "adopting": "catching up",
}
_SHORT: Final = {
    "pending": "it waits for another job",
    "publication": "it is prepared",
    "snapshot": "it waits for a snapshot",
    "starting": "it waits for Spark",
    "reading": "rows are read",
    "writing": "rows are written",
    "indexing": "an index is built",
    "comparing": "rows are compared",
    "adopting": "it catches up",
}


def describe(view: str, progress: dict[str, Any]) -> str:
    """Return ``progress`` (phase, rows, total, percent, eta_s) as one line about ``view``."""
    if text := progress.get("message"):
        return str(text)
    phase = str(progress.get("phase") or "")
    if not has_counts(progress):
        return f"{_PHASES.get(phase, 'populating')} {_shown(view)}"
    rows, total, percent, left = _counts(progress)
    verb = "writing" if phase == "writing" else "populating"
    done = f"{rows} of {counted(total, 'row')}" if total else counted(rows, "row")
    text = f"{verb} {_shown(view)}: {done}"
    if percent is not None:
        text += f" ({percent:.0f} %)"
    if left is not None:
        text += f", {_duration(left)} left"
    return text


def _shown(view: str) -> str:
    """Return a name in quotes, unless the caller has quoted it."""
    return view if '"' in view else f'"{view}"'


def short(progress: dict[str, Any]) -> str:
    """Return ``progress`` as a few words, without the view."""
    phase = str(progress.get("phase") or "")
    if not has_counts(progress):
        return _SHORT.get(phase, phase)
    rows, total, percent, left = _counts(progress)
    verb = "written" if phase == "writing" else "read"
    if total is None:
        return f"{counted(rows, 'row')} {verb}"
    text = f"{rows} of about {counted(total, 'row')} {verb} ({percent:.0f} %)"
    return text if left is None else f"{text}, about {_duration(left)} left"


def _counts(progress: dict[str, Any]) -> tuple[int, int | None, float | None, float | None]:
    """Return rows done, and unless there are more than expected: total, percent, seconds left."""
    rows, total = int(progress.get("rows") or 0), progress.get("total")
    if not total or rows > total:
        return rows, None, None, None
    percent, left = progress.get("percent"), progress.get("eta_s")
    percent = 100.0 * rows / total if percent is None else float(percent)
    return rows, int(total), percent, None if left is None else float(left)


def ready(rows: int, seconds: float) -> str:
    """Return the last line about a view that was created."""
    return f"ready: {counted(rows, 'row')} in {seconds:.1f} s"


def has_counts(progress: dict[str, Any]) -> bool:
    """Return whether ``progress`` says how many rows are done."""
    return bool(progress.get("rows") or progress.get("total"))


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 7200 else f"{whole // 3600} h"


class Reporter:
    """Passes lines on, at most one per ``INTERVAL_S`` and none twice.

    ``flush`` passes on the last line held back, so that a short job is reported as well.
    """

    def __init__(self, view: str, report: Callable[[str], None], *, steps: bool = True) -> None:
        """Take ``steps``: whether to report the steps of the job as well as its messages."""
        self._view = view
        self._steps = steps
        self._report = report
        self._last = ""
        self._held = ""
        self._next_at = 0.0

    def __call__(self, progress: dict[str, Any]) -> None:
        """Report a step, or hold it back."""
        if not progress.get("message") and (
            # Planning takes no time, and its report means nothing to a caller who gets an error.
            progress.get("phase") == "planning" or not self._steps
        ):
            return
        line = describe(self._view, progress)
        now = clock.monotonic()
        if progress.get("message"):
            self._pass(line)
        elif now < self._next_at:
            self._held = line if progress.get("rows") else self._held
        else:
            self._next_at = now + INTERVAL_S
            self._held = ""
            self._pass(line)

    def flush(self) -> None:
        """Pass on the line that was held back last."""
        if self._held:
            self._pass(self._held)
            self._held = ""

    def _pass(self, line: str) -> None:
        if line != self._last:
            self._last = line
            self._report(line)
