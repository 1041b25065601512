"""When an assertion is violated: the state machine, compared with a simple model, and by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.server.transitions import Fill, Resolved, Violated, advance, settle
from headrace.sql.violations import AssertionState, BatchMark, RowsChange

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def fresh() -> AssertionState:
    return AssertionState(0, 0, None, BEGIN, None, open=False)


def mark(txid: int, second: float | None = None, lsn: int | None = None) -> BatchMark:
    time = at(txid if second is None else second)
    return BatchMark(txid, txid * 10 if lsn is None else lsn, time, time, 1, [txid])


def change(
    txid: int, net: int, second: float | None = None, lsn: int | None = None, grace: float = 0
) -> RowsChange:
    found = mark(txid, second, lsn)
    return RowsChange(found, found.at + timedelta(seconds=grace), net)


def told(events) -> list[tuple[str, int]]:
    return [
        ("violated", e.what.mark.txid) if isinstance(e, Violated) else ("resolved", e.mark.txid)
        for e in events
    ]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(0, 4), st.integers(1, 7))
def test_events_are_those_of_the_rows(rows: list[int], grace: int, pieces: int) -> None:
    """In pieces of any size; a violation counts if it lasts for ``grace`` txids, a second each."""
    state, events, before = fresh(), [], 0
    changes = []
    for txid, count in enumerate(rows, 1):
        changes += [change(txid, count - before, grace=grace)] if count != before else []
        before = count
    for first in range(0, len(changes), pieces):
        events += advance(state, changes[first : first + pieces], None, hidden=False)
    end = len(rows) + 1
    events += settle(state, at(end), hidden=False)

    wanted, began = [], None
    for txid, count in enumerate([*rows, None], 1):
        if count and began is None:
            began = txid
        elif not count and began is not None:
            if txid - began >= grace:
                wanted += [("violated", began)] + ([] if count is None else [("resolved", txid)])
            began = None
    assert told(events) == wanted
    assert state.open == (bool(wanted) and wanted[-1][0] == "violated")
    assert state.count == (rows[-1] if rows else 0)


def test_what_a_violation_began_with_is_told() -> None:
    state = fresh()
    assert advance(state, [change(1, 2, grace=5)], None, hidden=False) == []
    [event] = advance(state, [change(9, 3, grace=5)], None, hidden=False)
    assert isinstance(event, Violated)
    assert (event.what.rows, event.what.mark.xids, state.since) == (2, [1], at(1))


def test_a_population_that_steps_back_reports_nothing() -> None:
    """It steps back to position 50, where there were no rows yet, and catches up."""
    state = fresh()
    assert told(advance(state, [change(7, 1)], None, hidden=False)) == [("violated", 7)]
    fill = Fill(mark(8, lsn=50), at(8), rows=0)
    assert advance(state, [change(8, -1, lsn=50)], fill, hidden=False) == []
    assert (state.count, state.open) == (0, True)
    assert advance(state, [change(9, 1, lsn=70)], None, hidden=False) == []
    assert settle(state, at(20), hidden=False) == []
    assert told(advance(state, [change(10, -1, lsn=80)], None, hidden=False)) == [("resolved", 10)]


def test_between_the_steps_of_catching_up_nothing_is_judged() -> None:
    state = fresh()
    done = advance(state, [change(7, 1), change(8, -1)], None, hidden=False)
    assert told(done) == [("violated", 7), ("resolved", 8)]
    fill = Fill(mark(9, lsn=60), at(9), rows=0)
    again = [change(10, 1, lsn=70), change(11, -1, lsn=80), change(12, 1, lsn=90)]
    assert told(advance(state, again, fill, hidden=False)) == [("violated", 12)]


def test_a_population_that_repairs_is_judged_once_the_view_has_everything() -> None:
    state = fresh()
    advance(state, [change(7, 1)], None, hidden=False)
    assert advance(state, [], Fill(mark(8, lsn=50), at(8), rows=0), hidden=False) == []
    assert told(settle(state, at(30), hidden=False)) == [("resolved", 8)]
    assert state.since == at(30)
    assert advance(state, [], Fill(mark(9, lsn=60), at(31), rows=4), hidden=False) == []
    assert told(settle(state, at(40), hidden=False)) == [("violated", 9)]


def test_the_first_contents_are_judged() -> None:
    state = AssertionState(-1, 0, None, BEGIN, None, open=False)
    fill = Fill(mark(0), at(0), rows=3)
    assert told(advance(state, [change(1, -3)], fill, hidden=False)) == [
        ("violated", 0),
        ("resolved", 1),
    ]


def test_contents_of_a_population_count_whatever_was_counted() -> None:
    """A table that was edited by hand does not match its changes."""
    state = fresh()
    advance(state, [change(1, 1)], None, hidden=False)
    fill = Fill(mark(2), at(2), rows=1)
    assert advance(state, [change(2, 1)], fill, hidden=False) == []
    assert (state.count, state.txid) == (1, 2)


@pytest.mark.parametrize("count", [-1, -5])
def test_a_count_below_zero_is_not_judged(count: int) -> None:
    state = fresh()
    assert advance(state, [change(1, count)], None, hidden=False) == []
    assert settle(state, at(9), hidden=False) == []
    assert state.count == count


def test_hidden_rows_are_not_judged() -> None:
    state = fresh()
    assert advance(state, [change(1, 1)], None, hidden=True) == []
    assert settle(state, at(9), hidden=True) == []
    assert told(settle(state, at(9), hidden=False)) == [("violated", 1)]


def test_a_pending_violation_that_lasts_is_due() -> None:
    state = fresh()
    advance(state, [change(1, 1, grace=10)], None, hidden=False)
    assert settle(state, at(10), hidden=False) == []
    assert told(settle(state, at(11), hidden=False)) == [("violated", 1)]
    assert told(advance(state, [change(12, -1)], None, hidden=False)) == [("resolved", 12)]
    assert isinstance(advance(state, [change(13, 1)], None, hidden=False)[0], Violated)
    assert isinstance(advance(state, [change(14, -1)], None, hidden=False)[0], Resolved)
