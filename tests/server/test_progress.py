"""Progress messages: their text and their frequency."""

from __future__ import annotations

import pytest

from headrace.server import progress
from headrace.server.progress import Reporter, describe, short


@pytest.mark.parametrize(
    ("step", "want"),
    [
        ({"phase": "reading", "rows": 250_000, "total": 1_000_000, "percent": 25, "eta_s": 3.1},
         'populating "v": 250000 of 1000000 rows (25 %), 3 s left'),
        ({"phase": "reading", "rows": 5, "total": 10}, 'populating "v": 5 of 10 rows (50 %)'),
        ({"phase": "reading", "rows": 5}, 'populating "v": 5 rows'),
        ({"phase": "writing", "rows": 5, "total": 10, "eta_s": 130},
         'writing "v": 5 of 10 rows (50 %), 2 min 10 s left'),
        ({"phase": "snapshot", "rows": 0, "total": 0}, 'waiting for a snapshot for "v"'),
        ({"message": "schema made"}, "schema made"),
        # An estimate that was too low is no longer shown.
        ({"phase": "reading", "rows": 561, "total": 560, "percent": 99, "eta_s": 0.1},
         'populating "v": 561 rows'),
        ({"phase": "reading", "rows": 560, "total": 560, "percent": 100},
         'populating "v": 560 of 560 rows (100 %)'),
    ],
)  # fmt: skip
def test_words(step, want):
    assert describe("v", step) == want


@pytest.mark.parametrize(
    ("step", "want"),
    [
        ({"phase": "reading", "rows": 250_000, "total": 1_000_000, "eta_s": 3.1},
         "250000 of about 1000000 rows read (25 %), about 3 s left"),
        ({"phase": "reading", "rows": 5, "total": 10}, "5 of about 10 rows read (50 %)"),
        ({"phase": "reading", "rows": 5}, "5 rows read"),
        ({"phase": "writing", "rows": 561, "total": 560}, "561 rows written"),
        ({"phase": "snapshot", "rows": 0, "total": 0}, "it waits for a snapshot"),
        ({"phase": "another"}, "another"),
    ],
)  # fmt: skip
def test_few_words(step, want):
    assert short(step) == want


@pytest.mark.parametrize(
    ("rows", "seconds", "want"),
    [(4, 2.06, "ready: 4 rows in 2.1 s"), (1, 0.0, "ready: 1 row in 0.0 s")],
)
def test_ready(rows, seconds, want):
    assert progress.ready(rows, seconds) == want


def test_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.clock, "monotonic", lambda: now[0])
    lines: list[str] = []
    reporter = Reporter("v", lines.append)
    for i in range(100):
        now[0] = i * 0.1
        reporter({"phase": "reading", "rows": i, "total": 100})
    reporter.flush()
    assert len(lines) == 21
    assert lines[-1] == 'populating "v": 99 of 100 rows (99 %)'
