"""Seeds of the random tests: another one in each run, but the same in each run of CI.

CI answers whether a change may go in, so it must give the same answer twice; other runs search for
errors. The examples of Hypothesis are chosen in the same way (``conftest.py``).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest


def chosen(variable: str) -> int:
    """Return the seed that the environment variable gives, or choose one; print it."""
    given = os.environ.get(variable)
    seed = int(given or (0 if os.environ.get("CI") else random.SystemRandom().randrange(1 << 32)))
    print(f"{variable}={seed}")
    return seed


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """Return parameters of which ``make test`` runs one in ``step``; the others are slow."""
    marked = pytest.mark.slow
    return [
        value if number % step == 0 else pytest.param(value, marks=marked)
        for number, value in enumerate(values)
    ]
