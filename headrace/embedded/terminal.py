"""The keyboard of the demo: single keys, without waiting for a line."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Final

from headrace import clock

_KEY_BYTES_MAX: Final = 64


class Keys:
    """The pressed keys; none if standard input is no terminal."""

    def __init__(self, *, listening: bool) -> None:
        self._listening = listening

    def wait(self, seconds: float) -> str:
        """Return the pressed keys, as soon as there are any; '' after ``seconds`` without."""
        if not self._listening:
            clock.sleep(seconds)
            return ""
        file = sys.stdin.fileno()
        readable, _, _ = select.select([file], [], [], max(0.0, seconds))
        if not readable:
            return ""
        pressed = os.read(file, _KEY_BYTES_MAX)
        if not pressed:
            self._listening = False  # the terminal is gone
        return pressed.decode(errors="replace")


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Read keys as they are pressed; Ctrl-C still interrupts.  Restore the terminal afterwards."""
    if not sys.stdin.isatty():
        yield Keys(listening=False)
        return
    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file, termios.TCSADRAIN)
    try:
        yield Keys(listening=True)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)
