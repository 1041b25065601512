"""The demo in a terminal: keys, a kill, and its end."""

import re
import signal
import sys
import termios
import urllib.request

import pytest

from tests.embedded.terminal import Terminal


@pytest.fixture
def terminal():
    made = Terminal(
        [
            *(sys.executable, "-m", "headrace.server.cli", "demo"),
            *("--orders", "3000", "--rate", "50"),
        ]
    )
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_keys(terminal: Terminal) -> None:
    terminal.wait_for("Headrace demo")
    terminal.wait_for("sales_by_country    \x1b[0m running")
    terminal.press("w")
    terminal.wait_for("writing a burst …")
    terminal.wait_for("burst: 50,000 rows in one transaction; visible in all views after ")
    terminal.wait_for("no_free_orders      \x1b[0m holds")
    terminal.press("a")
    terminal.wait_for("placing an order for nothing …")
    terminal.wait_for(" for nothing, notified after ")
    terminal.wait_for("no_free_orders      \x1b[0m violated")
    terminal.wait_for(" is cancelled")
    terminal.wait_for("no_free_orders      \x1b[0m holds")
    terminal.press("k")
    terminal.wait_for("killing the worker …")
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
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_restores_the_terminal(terminal: Terminal, sent) -> None:
    before = termios.tcgetattr(terminal.file)
    terminal.wait_for("Headrace demo")
    assert termios.tcgetattr(terminal.file) != before
    terminal.process.send_signal(sent)
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.file) == before
    assert "\x1b[?1049l\x1b[?25h" in terminal.seen
    assert "Traceback" not in terminal.seen
