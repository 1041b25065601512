"""A child process ends when its parent does, however that one ends."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def watch(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Have ``stop`` called on ``loop`` when the parent is gone, or SIGTERM sent to us.

    By signal on Linux, and everywhere when standard input is a pipe and is closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def read_to_the_end() -> None:
        # Not through sys.stdin: its lock, held here, would abort the interpreter's end.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=read_to_the_end, name="headrace-stdin", daemon=True).start()
