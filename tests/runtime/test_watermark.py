"""The worker's reported watermark, from its knowledge of commits and the server's WAL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace import clock
from headrace.runtime.positions import Position, StateMark
from headrace.runtime.watermark import Watermark
from headrace.types import format_lsn
from tests.runtime.units import Moments, view

COMMITTED_AT_US = 10_000_000
COMMITTED = clock.from_postgres(COMMITTED_AT_US).timestamp()


@pytest.fixture
def book(monkeypatch) -> Any:
    """Return one running view, which has everything up to LSN 100, batch 1."""
    found = Moments(monkeypatch)
    found.views[1] = view(1, mark=StateMark(0, 100, 0))
    return SimpleNamespace(
        moments=found,
        position=Position(0, 100),
        records={},
        views=found.views,
        index=found.index,
        covered=lambda mark: mark.lsn,
    )


def test_a_known_lag_stays_known(book):
    """The lag stays known although other WAL, which no batch covers, is always written."""
    watermark = Watermark(book)
    assert watermark.text() == "", "it has not looked"
    watermark.sample(COMMITTED + 1, 500)
    watermark.sample(COMMITTED + 2, 600)
    assert watermark.text() == "", "commits from any time may be missing"
    book.position = Position(1, 200)
    book.views[1]._move(StateMark(1, 200, 1))
    book.records[1] = SimpleNamespace(commit_time_us=COMMITTED_AT_US)
    known = f"{format_lsn(200)} {COMMITTED:.1f}"
    assert watermark.text() == known
    # Another batch is under way: the view lacks it.
    book.position = Position(2, 300)
    watermark.sample(COMMITTED + 3, 700)
    assert watermark.text() == known
    watermark.sample(COMMITTED + 4, 800)
    book.views[1]._move(StateMark(2, 600, 2))
    book.position = Position(2, 600)  # idle time counts
    assert watermark.text() == f"{format_lsn(600)} {COMMITTED + 2:.1f}"
    book.views[1]._move(StateMark(3, 800, 3))
    book.position = Position(3, 800)
    assert watermark.text() == format_lsn(800), "nothing is missing"


def test_a_view_that_lacks_a_batch_holds_the_watermark_amid_every_change(book):
    """The sink's thread may publish at any time, also while the view is counted again."""
    watermark = Watermark(book)
    watermark.sample(COMMITTED + 1, 100)
    watermark.text()
    watermark.sample(COMMITTED + 2, 900)
    book.position = Position(1, 900)
    said: list[str] = []
    book.moments.look = lambda: said.append(watermark.text().partition(" ")[0])

    def replace() -> None:
        book.views[1] = view(1, mark=StateMark(0, 100, 0))

    book.views[1].allow(500)
    book.views[1].place("w1", {})
    replace()
    book.views[1].suspend("job")
    assert set(said) == {format_lsn(100)}
