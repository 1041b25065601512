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
