"""How much ``make test`` tries of what ``make test-all`` tries whole: a little of each kind."""

from __future__ import annotations

import hypothesis
import pytest
from _pytest.mark import ParameterSet

EXAMPLES_QUICK = 0.3


class Run:
    """What this run is."""

    quick = False
    """Whether slow tests are left out (set by ``conftest.py``)."""


def seeds(first: int, count: int, quick: int = 1) -> list[ParameterSet]:
    """``count`` seeds from ``first`` on, all but ``quick`` of them slow."""
    return [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= first + quick else [])
        for seed in range(first, first + count)
    ]


def examples(count: int) -> hypothesis.settings:
    """Decorator: so many examples of a property, and a part of them in a quick run."""
    quick = max(3, round(count * EXAMPLES_QUICK))
    return hypothesis.settings(max_examples=quick if Run.quick else count)
