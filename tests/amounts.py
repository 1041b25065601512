"""Numbers of cases: ``make test`` tries a few of each kind, ``make test-all`` all of them."""

from __future__ import annotations

import hypothesis
import pytest
from _pytest.mark import ParameterSet

EXAMPLES_QUICK = 0.3


class Run:
    """Properties of the test run."""

    quick = False
    """Whether slow tests are left out (set by ``conftest.py``)."""


def seeds(first: int, count: int, quick: int = 1) -> list[ParameterSet]:
    """Return ``count`` seeds starting at ``first``; all but the first ``quick`` are marked slow."""
    return [
        pytest.param(seed, marks=[pytest.mark.slow] if seed >= first + quick else [])
        for seed in range(first, first + count)
    ]


def examples(count: int) -> hypothesis.settings:
    """Return a decorator that runs a property with ``count`` examples, or fewer in a quick run."""
    quick = max(3, round(count * EXAMPLES_QUICK))
    return hypothesis.settings(max_examples=quick if Run.quick else count)
