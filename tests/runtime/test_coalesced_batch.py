"""Coalesced batches: units that exceed a limit of one transaction in several take fewer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace.errors import LimitExceeded, RowError, SessionsTerminated
from headrace.forwarder.policy import CoalescedSize
from headrace.runtime.batches import Outcome
from headrace.runtime.coalesced_batch import CoalescedBatch
from headrace.runtime.positions import StateMark
from headrace.runtime.shared import Shared
from tests.runtime.test_leading import Store
from tests.runtime.units import view

FEEDS = {-64: [], -128: [-64], -192: [], 1: [-128, -192], 2: [-192], 3: []}
EXCEEDED = LimitExceeded("the view takes more than 1 ms for one transaction: view_time_ms_max")


@pytest.fixture
def units():
    """Return units by ID, each of which has processed txid 8, and has begun txid 16."""
    made = {}
    for number, feeders in FEEDS.items():
        unit = view(number) if number > 0 else Shared(number, view(1).plan, {}, 0, str(number))
        unit.feed_on({str(feeder): feeder for feeder in feeders})
        unit.restore(Store(8), StateMark(8, 8, 8))
        unit.begin(16)
        made[number] = unit
    return made


def batch(units, first: int, last: int) -> CoalescedBatch:
    views = [unit for unit in units.values() if unit.id > 0]
    needed = [unit for unit in units.values() if unit.id < 0]
    nothing = SimpleNamespace(units=[])
    return CoalescedBatch(
        first, last, 0, views, needed, list(units.values()), nothing, None, 0.0, 0.0
    )


def failed(units, errors: dict[int, Exception], first: int = 9) -> set[int]:
    outcome = Outcome(SimpleNamespace(txid=16))
    outcome.failed = dict(errors)
    batch(units, first, 16).take_fewer(outcome)
    return set(outcome.failed)


def excused(units) -> set[int]:
    return {number for number, unit in units.items() if not unit.busy}


def test_a_subplan_takes_fewer_and_its_readers_wait(units):
    lacking = dict.fromkeys((-64, -128, 1), EXCEEDED)
    assert failed(units, lacking) == set()
    assert excused(units) == {-64, -128, 1}
    sizes = {number: unit.coalesced for number, unit in units.items()}
    assert sizes == {n: CoalescedSize(1) if n == -64 else CoalescedSize() for n in FEEDS}


def test_a_real_error_stays_with_the_readers_of_its_unit(units):
    bad = RowError("division by zero")
    assert failed(units, {-64: EXCEEDED, -128: EXCEEDED, -192: bad, 1: EXCEEDED, 2: bad}) == {
        -192,
        2,
    }
    assert excused(units) == {-64, -128, 1}
    assert failed(units, {3: SessionsTerminated("the session was terminated")}) == {3}


def test_the_limits_are_those_of_one_transaction(units):
    assert failed(units, {3: EXCEEDED, -192: EXCEEDED, 2: EXCEEDED}, first=16) == {3, -192, 2}
    assert excused(units) == set()
