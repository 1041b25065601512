"""Freshness of views and timings of batches, in memory.

Freshness of a committed batch is the time from the source commit of its oldest transaction until
its answer is taken in; it counts once for each view that the batch changed.
Written on the engine's thread; readable from any thread.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from headrace import clock
from headrace.runtime.histogram import Histogram, HistogramCounts
from headrace.runtime.jobs import Answer

BUCKETS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)
"""Upper bounds of the freshness histogram, in ms; one more bucket has higher values."""
WINDOW_S: Final = 60.0
"""Period of percentiles and rates."""
_POINTS_MAX: Final = 4_096
_BATCHES_MAX: Final = 256
CHANGED_MAX: Final = 20
"""Views of a batch whose IDs are recorded, to keep traces small."""


class ViewGauge(msgspec.Struct):
    """Writes to one view since the worker began."""

    points: deque[tuple[float, float, int]]
    """Monotonic time, freshness in ms, and rows of each recent batch."""
    counts: list[int]
    """Batches by bucket."""
    sum_ms: float = 0.0
    rows: int = 0
    batches: int = 0
    errors: int = 0
    """Number of errors that stopped the view, for good or temporarily."""
    restarts: int = 0
    """Number of times that it went on afterwards."""
    stopped: bool = False

    @classmethod
    def empty(cls) -> ViewGauge:
        """Return a gauge without writes."""
        return cls(deque(maxlen=_POINTS_MAX), [0] * (len(BUCKETS_MS) + 1))

    def note(self, at: float, fresh_ms: float, rows: int) -> None:
        """Count a batch that wrote ``rows`` diffs to the view's table."""
        self.points.append((at, fresh_ms, rows))
        self.counts[bisect.bisect_left(BUCKETS_MS, fresh_ms)] += 1
        self.sum_ms += fresh_ms
        self.rows += rows
        self.batches += 1

    def numbers(self, now: float) -> ViewNumbers:
        """Return the numbers of the last ``WINDOW_S`` seconds, and the totals."""
        recent = [point for point in list(self.points) if point[0] > now - WINDOW_S]
        late = sorted(ms for _, ms, _ in recent)
        return ViewNumbers(
            len(recent),
            sum(rows for _, _, rows in recent) / WINDOW_S,
            percentile(late, 0.5),
            percentile(late, 0.99),
            late[-1] if late else None,
            list(self.counts),
            self.sum_ms,
            self.rows,
            self.batches,
            self.errors,
            self.restarts,
        )


class ViewNumbers(msgspec.Struct, frozen=True):
    """Snapshot of a ``ViewGauge``."""

    recent: int
    rows_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    counts: list[int]
    sum_ms: float
    rows: int
    batches: int
    errors: int
    restarts: int


class Totals(msgspec.Struct, frozen=True):
    """Totals of one engine over all views, since it began."""

    transactions: int
    rows: int
    """Rows written."""
    errors: int
    restarts: int
    histograms: dict[str, HistogramCounts]
    """``visible``: from a commit until its rows are in the tables; ``process``, ``wait`` and
    ``write``: phases of a batch; ``sink``: one transaction of the sink."""


class BatchNumbers(msgspec.Struct, frozen=True):
    """Contents and timings of one batch; times in ms."""

    txid: int
    attempt: int
    at_us: int
    """When its answer was taken in, in microseconds since 1970."""
    transactions: int
    rows: int
    """Rows written."""
    views: int
    """Number of views that it changed."""
    process_ms: float
    """From taking the batch until its result is computed."""
    wait_ms: float
    """From then until it could be written."""
    write_ms: float
    fresh_ms: float
    changed: tuple[int, ...] = ()
    """IDs of the changed views, the first ``CHANGED_MAX``."""


class Gauges:
    """Gauges of one engine."""

    def __init__(self) -> None:
        self.views: Final[dict[int, ViewGauge]] = {}
        self.batches: Final[deque[BatchNumbers]] = deque(maxlen=_BATCHES_MAX)
        self._histograms: Final = {
            name: Histogram() for name in ("visible", "process", "wait", "write", "sink")
        }
        self._transactions = 0
        self._rows = 0
        self._errors = 0
        self._restarts = 0

    def committed(self, answer: Answer, moved: Collection[int]) -> None:
        """Count an answer; ``moved``: the views that have its txid now."""
        job, at, today = answer.job, clock.monotonic(), clock.now()
        since = clock.from_postgres(job.oldest_us or job.commit_time_us)
        fresh_ms = max((today - since).total_seconds() * 1e3, 0.0)
        rows = views = 0
        changed: list[int] = []
        for part in job.parts:
            if part.diffs is None or not part.diffs.num_rows or part.view_id not in moved:
                continue
            views += 1
            if views <= CHANGED_MAX:
                changed.append(part.view_id)
            rows += part.diffs.num_rows
            self._of(part.view_id).note(at, fresh_ms, part.diffs.num_rows)
        self._rows += rows
        histograms = self._histograms
        for seconds in answer.seconds.values():
            histograms["sink"].note(seconds)
        if views:
            histograms["visible"].note(fresh_ms / 1e3)
        if not job.began_s:
            return
        self._transactions += job.transactions
        write_s = sum(answer.seconds.values())
        phases = {
            "process": job.done_s - job.began_s,
            "wait": max(at - job.done_s - write_s, 0.0),
            "write": write_s,
        }
        for name, seconds in phases.items():
            histograms[name].note(seconds)
        self.batches.append(
            BatchNumbers(
                job.txid,
                job.attempt,
                round(today.timestamp() * 1e6),
                job.transactions,
                rows,
                views,
                phases["process"] * 1e3,
                phases["wait"] * 1e3,
                write_s * 1e3,
                fresh_ms,
                tuple(changed),
            )
        )

    def failed(self, view_id: int) -> None:
        """Count an error that stopped a view, for good or temporarily."""
        gauge = self._of(view_id)
        gauge.errors += 1
        gauge.stopped = True
        self._errors += 1

    def went_on(self, view_id: int) -> None:
        """Note that a view goes on; count it if an error had stopped the view."""
        gauge = self._of(view_id)
        if gauge.stopped:
            gauge.stopped = False
            gauge.restarts += 1
            self._restarts += 1

    def replaced(self, old_id: int, new_id: int) -> None:
        """Move the counters of a view that was refilled under another ID."""
        old = self.views.get(old_id)
        if old is None:
            return
        del self.views[old_id]
        self.views[new_id] = old
        self.went_on(new_id)

    def totals(self) -> Totals:
        """Return the totals of all views; callable from any thread."""
        return Totals(
            self._transactions,
            self._rows,
            self._errors,
            self._restarts,
            {name: made.counts() for name, made in self._histograms.items()},
        )

    def _of(self, view_id: int) -> ViewGauge:
        gauge = self.views.get(view_id)
        if gauge is None:
            gauge = self.views[view_id] = ViewGauge.empty()
        return gauge

    def forget(self, view_id: int) -> None:
        """Forget a view."""
        self.views.pop(view_id, None)


def percentile(ordered: Sequence[float], part: float) -> float | None:
    """Return the nearest-rank percentile of sorted values (``part`` from 0 to 1), or None."""
    if not ordered:
        return None
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]
