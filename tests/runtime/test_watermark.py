"""What the worker says of how far it is, by what it knows of commits and of the server's WAL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace import clock
from headrace.runtime.watermark import Watermark
from headrace.sql.status import Status
from headrace.types import format_lsn

COMMITTED_AT_US = 10_000_000
COMMITTED = clock.from_postgres(COMMITTED_AT_US).timestamp()


@pytest.fixture
def book() -> Any:
    """One running view, which has everything up to LSN 100, batch 1."""
    at = SimpleNamespace(txid=0, lsn=100)
    view = SimpleNamespace(id=1, owned=True, status=Status.RUNNING, mark=at)
    return SimpleNamespace(position=at, records={}, views={1: view}, covered=lambda mark: mark.lsn)


def test_a_known_lag_stays_known(book):
    """Although WAL that no batch is of is always written beside, which is never covered."""
    watermark = Watermark(book)
    assert watermark.text() == "", "it has not looked"
    watermark.sample(COMMITTED + 1, 500)
    watermark.sample(COMMITTED + 2, 600)
    assert watermark.text() == "", "commits from any time may be missing"
    book.position = SimpleNamespace(txid=1, lsn=200)
    book.views[1].mark = book.position
    book.records[1] = SimpleNamespace(commit_time_us=COMMITTED_AT_US)
    known = f"{format_lsn(200)} {COMMITTED:.1f}"
    assert watermark.text() == known
    # Another batch is under way: the view lacks it.
    book.position = SimpleNamespace(txid=2, lsn=300)
    watermark.sample(COMMITTED + 3, 700)
    assert watermark.text() == known
    watermark.sample(COMMITTED + 4, 800)
    book.views[1].mark = SimpleNamespace(txid=2, lsn=600)
    assert watermark.text() == f"{format_lsn(600)} {COMMITTED + 2:.1f}"
    book.views[1].mark = SimpleNamespace(txid=3, lsn=800)
    book.position = book.views[1].mark
    assert watermark.text() == format_lsn(800), "nothing is missing"
