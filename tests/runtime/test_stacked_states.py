"""A view that was filled from other views never runs without the subplans of these."""

from __future__ import annotations

import pytest
from msgspec import structs

from headrace.collections import stacking
from headrace.errors import StateDamaged
from headrace.runtime import sharing
from headrace.runtime.views import Unit
from tests.collections.test_stacking import BELOW, TABLE, over


def test_it_needs_the_subplan_as_it_has_no_states_below() -> None:
    below = BELOW[min(BELOW)]
    whole = stacking.stacked(over(below), {TABLE: below})
    unit = Unit(1, whole, {}, 0)
    with pytest.raises(StateDamaged):
        sharing._check_fed(unit)
    unit.feed_on({"feed_0": -64})
    sharing._check_fed(unit)
    # A plan with the same nodes that was not filled from a view has all states.
    sharing._check_fed(Unit(2, structs.replace(whole, filled=()), {}, 0))
