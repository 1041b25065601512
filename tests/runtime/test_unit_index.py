"""The index of units: a change is one step for every other thread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.runtime.positions import StateMark
from headrace.runtime.views import View
from headrace.sql.status import CursorState
from tests.runtime.units import Moments, view


@pytest.fixture
def moments(monkeypatch):
    found = Moments(monkeypatch)
    for number in (1, 2):
        found.views[number] = view(number)
    return found


CHANGES: dict[str, Callable[[View], object]] = {
    "pause": lambda v: v.turn(CursorState.PAUSED),
    "suspend": lambda v: v.suspend("job"),
    "allow": lambda v: v.allow(500),
    "place": lambda v: v.place("w1", {}),
    "lose_store": lambda v: v.lose_store(),
    "restore": lambda v: v.restore(None, StateMark(4, 4, 4)),
    "mark": lambda v: v._move(StateMark(5, 5, 5)),
    "back": lambda v: v._move(StateMark(2, 2, 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_owned_view_is_never_missing_amid_a_change(moments, change):
    changed = moments.views[1]
    for seen in moments.during(lambda: change(changed)):
        assert seen == {1, 2}


def test_a_view_is_never_missing_while_another_object_takes_its_place(moments):
    def replace() -> None:
        moments.views[1] = view(1, txid=4)

    for seen in moments.during(replace):
        assert seen == {1, 2}


def test_a_view_that_was_replaced_or_removed_changes_nothing(moments):
    """A thread that still works on such a view reports nothing, however late."""
    before, removed = moments.views[1], moments.views[2]
    moments.views[1] = view(1, txid=4)
    del moments.views[2]
    for unit in (before, removed):
        moments.index.update(unit)
        moments.index.update_mark(unit)
        moments.index.remove(unit)
    assert [(u.id, u.mark.txid) for u in moments.index.behind(9)] == [(1, 4)]
    assert len(moments.index.owned({1, 2})) == 1


def test_what_ends_ownership_removes_a_view(moments):
    assert moments.during(moments.views[1].end) == [{2}]
    assert moments.during(moments.views.clear)[-1] == set()


def test_counts_follow_latency_and_cursor(moments):
    index, (one, two) = moments.index, moments.views.values()
    one.allow(500)
    assert index.latency_ms == 0
    two.allow(200)
    assert index.latency_ms == 200
    two.turn(CursorState.BLOCKED)
    assert index.latency_ms == 500
    assert (index.standing, index.catching_up) == ([two], [])
    two.turn(CursorState.CATCHING_UP)
    assert (index.standing, index.catching_up) == ([], [two])
    two.end()
    one.suspend("job")
    assert (index.latency_ms, index.any_live, index.catching_up) == (0, False, [one])
    two.turn(CursorState.PAUSED)
    assert index.owned({1, 2, 3}) == [one, two]
