"""`headrace demo --once`, small: all its parts in one test."""

import json
import subprocess
import sys


def test_demo_once_proves_every_view() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headrace.server.cli", "demo", "--once"),
            *("--orders", "3000", "--seconds", "3", "--rate", "100"),
        ],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert [v["equal"] for v in answer["views"]] == [True, True]
    assert answer["probes"] > 0
    assert answer["p50_ms"] > 0


def test_without_its_extra_the_demo_says_how_to_get_it() -> None:
    program = """
import sys
sys.modules["rich.console"] = None  # as if it were not installed
from headrace.server import cli
sys.exit(cli.main(["demo"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install 'headrace[embedded]'" in done.stderr
    assert "Traceback" not in done.stderr
