"""The demo as somebody at a terminal has it: keys, a kill, and how it ends."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import urllib.request

import pytest

from headrace import clock

PATIENCE_S = 120


class Terminal:
    def __init__(self) -> None:
        ours, theirs = pty.openpty()
        self.file = ours
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace.server.cli", "demo"),
                *("--orders", "3000", "--rate", "50"),
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, words: str) -> None:
        until = clock.monotonic() + PATIENCE_S
        while words not in self.seen:
            assert clock.monotonic() < until, f"no {words!r} in {self.seen[-3000:]}"
            self.read(0.5)

    def read(self, seconds: float) -> None:
        if select.select([self.file], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.file, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert self.process.wait(PATIENCE_S) is not None

    def press(self, key: str) -> None:
        self.seen = ""
        os.write(self.file, key.encode())

    def end(self) -> int:
        until = clock.monotonic() + PATIENCE_S
        while self.process.poll() is None and clock.monotonic() < until:
            self.read(0.2)
        return self.process.wait(1)


@pytest.fixture
def terminal():
    made = Terminal()
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.send_signal(signal.SIGTERM)
            made.end()
        os.close(made.file)


@pytest.mark.slow
def test_keys(terminal: Terminal) -> None:
    terminal.wait_for("Headrace demo")
    terminal.wait_for("sales_by_country    \x1b[0m running")
    terminal.press("w")
    terminal.wait_for("burst: 50,000 rows in one transaction; all of it in the views after")
    terminal.press("k")
    terminal.wait_for("kill -9 ")
    for view in ("best_customers", "sales_by_country"):
        terminal.wait_for(f"verify public.{view}: no row differs")
    terminal.press(" ")
    terminal.wait_for("http://127.0.0.1:")
    address = re.findall(r"(http://127\.0\.0\.1:\d+/)#token=\S{32,}", terminal.seen)[-1]
    with urllib.request.urlopen(address, timeout=30) as page:
        assert b"Headrace" in page.read()
    terminal.press("q")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.seen


@pytest.mark.slow
def test_ctrl_c(terminal: Terminal) -> None:
    terminal.wait_for("Headrace demo")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 0
    assert "Traceback" not in terminal.seen
