"""What a stopped view's message says of the reason; and that the rules name what there is."""

from __future__ import annotations

import pytest

from headrace.population.options import ViewOptions
from headrace.server.resumer import RULES, reason

CALL = "CALL headrace.resync_view('public.v')"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"the state was damaged; in v1.sst; {CALL} fills it anew.", "the state was damaged; in v1.sst"),
        (f"division by zero; Mend the row, then {CALL}.", "division by zero"),
        (f'"v" was renamed to w; Undo that, then {CALL}. A resync failed: x; y', '"v" was renamed to w'),
        (f"the slot is gone; {CALL} fills it anew. It is not tried again by itself: 3 tries", "the slot is gone"),
        ("cannot be read; KeyError; Drop the view and create it again.", "cannot be read; KeyError"),
        (f"altered; before: division by zero; {CALL} fills it anew.", "altered; before: division by zero"),
        ("no hint.", "no hint"),
    ],
)  # fmt: skip
def test_the_reason_is_told_without_what_to_do(message, why):
    assert reason(message) == why


def test_each_rule_names_an_option_and_its_values():
    for rule in RULES.values():
        for value in rule.values:
            assert rule.option is not None
            assert getattr(ViewOptions.of({rule.option: value}), rule.option) == value
