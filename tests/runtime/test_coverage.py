"""The time up to which a view is complete, from known positions and ticks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace import clock
from headrace.runtime import coverage
from headrace.runtime.coverage import Coverage, Passed
from headrace.sql.covered import WalEnd

BLOCK, SEGMENT = 8192, 1 << 24
NOON = clock.from_postgres(0).timestamp()


@pytest.fixture
def told(monkeypatch) -> list[Any]:
    """Collect the rows that are stored; the server's WAL ends at ``ends``."""
    stored: list[Any] = []
    monkeypatch.setattr(coverage.covered, "put", lambda _, rows: stored.extend(rows))
    return stored


@pytest.fixture
def ends(monkeypatch) -> list[int]:
    found = [100]
    monkeypatch.setattr(
        coverage.covered, "wal_end", lambda _: WalEnd(found[0], True, BLOCK, SEGMENT)
    )
    return found


def view(*, temporal: bool = False, live: bool = True) -> Any:
    mark = SimpleNamespace(txid=5, lsn=100)
    return SimpleNamespace(
        id=7, live=live, temporal=temporal, mark=mark, progress=SimpleNamespace(epoch=3)
    )


def made(one: Any, passed: list[Passed]) -> Coverage:
    links = SimpleNamespace(asked_as=lambda key: [one] if key == one.id else [])
    book = SimpleNamespace(index=SimpleNamespace(links=links), covered=lambda mark: mark.lsn)
    return Coverage(book, lambda: passed[0])  # type: ignore[arg-type]


def test_a_time_is_known_when_the_position_of_a_look_later_is_covered(told, ends):
    one = view()
    of = made(one, [Passed()])
    of.look(None, NOON, frozenset())  # type: ignore[arg-type]
    of.look(None, NOON + 1, frozenset([7]))  # type: ignore[arg-type]
    assert (told[-1].lsn, told[-1].at) == ("0/64", NOON)
    ends[0] = 200
    of.look(None, NOON + 2, frozenset([7]))  # type: ignore[arg-type]
    assert told[-1].at == NOON, "what was committed since may be missing"
    one.mark = SimpleNamespace(txid=6, lsn=200)
    of.look(None, NOON + 3, frozenset([7, 8]))  # type: ignore[arg-type]
    assert (told[-1].epoch, told[-1].at) == (3, NOON + 2)
    # Another connection: the earlier server's clock and positions no longer count.
    of.restart()
    of.look(None, NOON + 4, frozenset([7]))  # type: ignore[arg-type]
    assert told[-1].at is None
    count = len(told)
    of.look(None, NOON + 5, frozenset([8]))  # type: ignore[arg-type]
    one.live = False
    of.look(None, NOON + 6, frozenset([7]))  # type: ignore[arg-type]
    assert len(told) == count, "nobody asks for it; it does not follow"


def test_a_view_that_reads_the_clock_needs_the_ticks_too(told, ends):
    one, passed = view(temporal=True), [Passed()]
    of = made(one, passed)
    of.look(None, NOON, frozenset())  # type: ignore[arg-type]
    us = 400_000
    for known, at in (
        (Passed(us, 5, frozenset()), None),  # it was paused when time passed
        (Passed(us, 6, frozenset([7])), None),  # it has not that tick
        (Passed(us, 5, frozenset([7])), NOON + 0.4),
        (Passed(10**9, 5, frozenset([7])), NOON + 3),
    ):
        passed[0] = known
        of.look(None, NOON + len(told) + 1, frozenset([7]))  # type: ignore[arg-type]
        assert told[-1].at == (None if at is None else pytest.approx(at))
