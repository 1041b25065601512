"""Ends a child process when its parent ends, however the parent ends."""

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
    """Have ``stop`` called on ``loop``, or SIGTERM sent to this process, when the parent is gone.

    The kernel sends the signal on Linux; the end of a piped standard input calls ``stop``.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def read_to_the_end() -> None:
        # sys.stdin is not used: its lock, held here, would abort the interpreter's shutdown.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):  # the loop has already ended
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=read_to_the_end, name="headrace-stdin", daemon=True).start()
