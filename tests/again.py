"""Runs once more the failed tests that are known to be flaky, alone, and names them.

As CPython's regrtest does, but only for the tests of ``FLAKY``, each with its reason: any other
failure stands.  An entry goes when its test is mended; a test that compares results gets none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import pytest

FLAKY: Final[dict[str, str]] = {}
"""Node id (without parameters) -> what makes it fail now and then."""


def known(node: str) -> bool:
    """Whether the test may be run again."""
    return node.partition("[")[0] in FLAKY


def plain(node: str) -> str:
    """The node id without the group that pytest-xdist has put behind it."""
    return node.rpartition("@")[0] if node.rfind("@") > node.rfind("]") else node


def main(path: Path = Path(".pytest_cache/v/cache/lastfailed")) -> int:
    """0 when everything that failed is known to be flaky, and passes now."""
    failed = sorted(map(plain, json.loads(path.read_text()))) if path.exists() else []
    if not failed or not all(known(node) for node in failed):
        return 1
    print("\nFAILED ONCE, run again alone:", *failed, sep="\n  ")
    sys.stdout.flush()
    return int(pytest.main(["-q", "-n0", *failed]))


if __name__ == "__main__":
    sys.exit(main())
