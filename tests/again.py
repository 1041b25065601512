"""Run the failed tests that are known to be flaky once more, alone, and print their names.

CPython's regrtest does the same; here only the tests of ``FLAKY`` run again, each with a reason.
Any other failure stands. An entry is removed when its test is repaired; a test that compares
results gets none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

FLAKY: Final[dict[str, str]] = {}
"""Node id (without parameters) -> why it sometimes fails."""


def known(node: str) -> bool:
    """Return whether the test may be run again."""
    return node.partition("[")[0] in FLAKY


def plain(node: str) -> str:
    """Return the node id without the group that pytest-xdist appends."""
    return node.rpartition("@")[0] if node.rfind("@") > node.rfind("]") else node


def main(path: Path = Path(".pytest_cache/v/cache/lastfailed")) -> int:
    """Return 0 if every failed test is known to be flaky and passes now."""
    failed = sorted(map(plain, json.loads(path.read_text()))) if path.exists() else []
    if not failed or not all(known(node) for node in failed):
        return 1
    print("\nFAILED ONCE, run again alone:", *failed, sep="\n  ")
    sys.stdout.flush()
    return int(pytest.main(["-q", "-n0", *failed]))


if __name__ == "__main__":
    sys.exit(main())
