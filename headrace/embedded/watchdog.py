"""Ends a child process when its parent is gone, however the parent died."""

from __future__ import annotations

import contextlib
import subprocess
from signal import Signals


class Watchdog:
    """A helper process that waits on a pipe from us and, when it closes, signals ``pid``.

    ``PR_SET_PDEATHSIG`` would follow the starting *thread* and needs code between fork and
    exec; this needs a shell only.  REQUIRES: ``dismiss`` before the parent reaps ``pid``,
    whose number may then be another process's.
    """

    def __init__(self, pid: int, signal: Signals) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", 'read _; kill "-$1" "$2"', "sh", str(int(signal)), str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Let it go without its acting."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
