"""A watchdog that ends a child process when its parent has ended in any way."""

from __future__ import annotations

import contextlib
import subprocess
from signal import Signals


class Watchdog:
    """A helper process that waits on a pipe from its parent and signals ``pid`` when it closes.

    ``PR_SET_PDEATHSIG`` would follow the starting *thread* and needs code between fork and exec;
    this needs only a shell.  REQUIRES: ``dismiss`` before the parent reaps ``pid``, since the
    number may then be reused.
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
        """End the helper process without a signal to ``pid``."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
