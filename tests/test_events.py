"""The log of a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import structlog
from headrace import events
events.configure(process="worker")
for n in range(3):
    structlog.get_logger().warning("something happened", n=n)
print("alive")
"""


def run(stderr) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        check=False,
    )


def test_a_line_for_each_event():
    done = run(subprocess.PIPE)
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert '"process": "worker"' in lines[2]
    assert '"n": 2' in lines[2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_nobody_dies_of_a_log_that_cannot_be_written():  # H36
    with Path("/dev/full").open("w") as full:
        done = run(full)
    assert (done.returncode, done.stdout) == (0, "alive\n")
