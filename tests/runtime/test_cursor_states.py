"""The state of a view's cursor: one event when the view leaves its commit group, one when it is back."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from headrace.sql.status import CursorState, Status
from tests.runtime.units import view

LEFT, JOINED = "view left its commit group", "view joined its commit group"
LEADING, CATCHING_UP, BLOCKED, PAUSED, LOST = CursorState


def events(*states: CursorState, first: CursorState = LEADING) -> list[tuple[str, object]]:
    """Return the events of a view that goes through these states, with the state of each."""
    moved = view(1, cursor=first)
    with capture_logs() as lines:
        for state in states:
            moved.turn(state, f"to {state}")
    for line in lines:
        assert line["view"] == 1
        assert line["event"] == JOINED or line["reason"] == f"to {line['state']}"
    shown = [line for line in lines if line["log_level"] != "debug"]
    return [(line["event"], line.get("state")) for line in shown]


@pytest.mark.parametrize("state", [CATCHING_UP, BLOCKED, PAUSED, LOST])
def test_one_event_each_way(state):
    assert events(state, CATCHING_UP, LEADING) == [(LEFT, state), (JOINED, None)]
    assert events(state, state, LEADING, LEADING) == [(LEFT, state), (JOINED, None)]


def test_only_the_first_of_several_troubles_is_an_event():
    told = events(PAUSED, CATCHING_UP, BLOCKED, CATCHING_UP, LOST, CATCHING_UP, LEADING, BLOCKED)
    assert told == [(LEFT, PAUSED), (JOINED, None), (LEFT, BLOCKED)]


def test_views_that_are_loaded_and_lack_nothing_are_no_events():
    assert events(LEADING, first=CATCHING_UP) == []
    assert events(CATCHING_UP, LEADING, first=CATCHING_UP) == [(LEFT, CATCHING_UP), (JOINED, None)]


def test_what_follows_from_the_state():
    moved = view(1)
    found = {}
    for state in CursorState:
        moved.turn(state)
        found[state] = (moved.status, moved.live, moved.leads, moved.owned)
    assert found == {
        LEADING: (Status.RUNNING, True, True, True),
        CATCHING_UP: (Status.RUNNING, True, False, True),
        BLOCKED: (Status.SINK_ERROR, False, False, True),
        PAUSED: (Status.PAUSED, False, False, True),
        LOST: (Status.SINK_ERROR, False, False, True),
    }
    moved.end()
    assert (moved.status, moved.live, moved.owned) == (Status.ERROR, False, False)


def test_a_view_does_not_lead_while_its_contents_are_replaced():
    moved = view(1)
    moved.suspend("job")
    assert (moved.cursor, moved.live) == (CATCHING_UP, False)
    moved.suspend(None)
    assert (moved.cursor, moved.live) == (CATCHING_UP, True)
    moved.turn(PAUSED)
    moved.suspend("job")
    assert moved.cursor == PAUSED
