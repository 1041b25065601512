"""The reason in a stopped view's message; and the rules name only existing options."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from headrace.errors import (
    Deadly,
    HeadraceError,
    Interrupted,
    PeerGone,
    PrivilegeError,
    RowError,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.server.resumer import RULES, Resumer, _Job, _passing, _view
from headrace.server.tries import Tries
from headrace.sql import states
from headrace.sql.states import StoppedView
from headrace.sql.view_spec import ViewSpec


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (("the state was damaged", None, "in v1.sst"), "the state was damaged; in v1.sst"),
        (("division by zero", "row (id)=(2) of table t", None), "division by zero at row (id)=(2) of table t"),
        (("cannot be read", None, "KeyError."), "cannot be read; KeyError"),
        (("altered; before: division by zero", None, None), "altered; before: division by zero"),
        (("no detail.", None, None), "no detail"),
    ],
)  # fmt: skip
def test_the_reason_is_told_without_what_to_do(told, why):
    row = StoppedView(1, "v", "", "", *told, "A resync failed: x", "22012", None, None, "")
    assert row.reason == why


def test_each_rule_names_an_option_and_its_values():
    for rule in RULES.values():
        for value in rule.values:
            assert rule.option is not None
            assert getattr(ViewSpec.of({rule.option: value}), rule.option) == value


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (PeerGone("the builder went away"), True),
        (Interrupted("interrupted", sqlstate="57014"), True),
        (UndefinedError("no such view", sqlstate="42P01"), True),
        (UserError("another job is at it", sqlstate="55006"), True),
        (UserError("too many connections", sqlstate="53300"), True),
        (Deadly("the builder died of it"), True),
        (RowError("raised by code of a user", sqlstate="55006"), False),
        (RowError("raised by code of a user", sqlstate="58000"), False),
        (RowError("division by zero", sqlstate="22012"), False),
        (PrivilegeError("permission denied"), False),
        (HeadraceError("anything else"), False),
    ],
    ids=str,
)
def test_what_says_nothing_about_the_view_is_no_try(error, passing):
    assert _passing(error) == passing


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (
            TransientError(
                "view low was altered while the view was being filled", sqlstate="40001"
            ),
            0,
        ),
        (UserError("too many connections", sqlstate="53300"), 1),
        (RowError("division by zero", sqlstate="22012"), 1),
        (RowError("raised by code of a user", sqlstate="40001"), 1),
    ],
    ids=str,
)
def test_views_above_wait_for_one_whose_refill_met_an_alteration(error, recorded, monkeypatch):
    """A recorded attempt tells them, and calls, that the view stays stopped."""
    told = []

    async def record(_: object, row: StoppedView, tried: str) -> None:
        told.append(tried)

    async def failed() -> HeadraceError:
        return error

    async def end() -> None:
        row = StoppedView(1, "v", "", "", "altered", None, None, None, "55H01", None, None, "")
        resumer = Resumer(SimpleNamespace(populations_max=1), None)
        resumer._tries[_view(row)] = Tries()
        task = asyncio.create_task(failed())
        await task
        await resumer._ended(None, _Job(row, task))

    monkeypatch.setattr(states, "record_attempt", record)
    asyncio.run(end())
    assert len(told) == recorded
