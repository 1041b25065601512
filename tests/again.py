"""Runs once more what failed in the last run, alone and one after the other, and names it.

As CPython's regrtest does: CI shares its machine, and a test that needs a loaded machine to fail is
mended later, seen in the output.  Tests that compare results get no second chance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ONCE_IS_ENOUGH = (
    "tests/collections/",
    "tests/conformance/",
    "tests/differential/",
    "tests/expressions/",
    "tests/faults/test_kill.py",
    "tests/faults/test_matrix.py",
    "tests/kernels/",
    "tests/planner/",
    "tests/state/",
)
FEW = 5
"""More failures than these are no accident."""


def main() -> int:
    """0 when everything that failed passes now."""
    path = Path(".pytest_cache/v/cache/lastfailed")
    failed = sorted(json.loads(path.read_text())) if path.exists() else []
    final = [name for name in failed if name.startswith(ONCE_IS_ENOUGH)]
    if not failed or final or len(failed) > FEW:
        return 1
    print("\nFAILED ONCE, run again alone:", *failed, sep="\n  ")
    sys.stdout.flush()
    return int(pytest.main(["-q", "-n0", *failed]))


if __name__ == "__main__":
    sys.exit(main())
