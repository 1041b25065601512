"""Each rule alone: the plan of all other rules, and the effect of this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.planner import PlanRequest, explain_logical, plan
from headrace.planner.logical import repeats
from headrace.planner.passes.optimise import PHASES, RULES, optimise
from tests.planner import specs

NAMED = {"filter_named"}
"""Rules about named plans: in their cases every plan with several readers is one."""
FILES = sorted(Path(__file__).parent.glob("*.spec"))


def test_every_rule_has_cases_that_fire_and_that_do_not():
    assert {p.stem for p in FILES} == set(RULES)
    for path in FILES:
        fires = {case.parts["fires"] for case in specs.read(path)[1]}
        assert fires == {"yes", "no"}, path.name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_rule(path, conn, rewrite, monkeypatch):
    if path.stem in NAMED:
        monkeypatch.setattr(repeats, "COPIED_MAX", 0)
        monkeypatch.setattr(repeats, "SMALL", 0)
    without = tuple(
        phase for rules in PHASES if (phase := tuple(r for r in rules if r.name != path.stem))
    )

    def expected(case):
        planned = plan(conn, PlanRequest(case.parts["query"]))
        before = explain_logical(optimise(planned.logical, without))
        after = explain_logical(planned.optimised)
        assert (before != after) == (case.parts["fires"] == "yes"), case.title
        if before == after:
            return {"after": after}
        return {"before": before, "after": after}

    specs.check(path, rewrite, expected)
