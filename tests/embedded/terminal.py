"""A program at a terminal: what it shows, and keys for it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace import clock

PATIENCE_S = 120
SHOWN = 3000
"""Characters of a failure's message."""


class Terminal:
    """See the module; a group of processes of its own."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = pty.openpty()
        self.file = ours
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, words: str, patience_s: float = PATIENCE_S) -> None:
        """Read until it has shown ``words`` since the last key."""
        until = clock.monotonic() + patience_s
        while words not in self.seen:
            shown = self.seen[-SHOWN:]
            assert clock.monotonic() < until, f"no {words!r} in {shown}"
            assert self.process.poll() is None or words in self.read(0.5), shown
            self.read(0.5)

    def read(self, seconds: float) -> str:
        """What it has shown, with what comes now."""
        if select.select([self.file], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.file, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert self.process.wait(PATIENCE_S) is not None
        return self.seen

    def press(self, key: str) -> None:
        """Press a key; what was shown before is forgotten."""
        self.seen = ""
        os.write(self.file, key.encode())

    def end(self) -> int:
        """Wait for its end; its status."""
        until = clock.monotonic() + PATIENCE_S
        while self.process.poll() is None and clock.monotonic() < until:
            self.read(0.2)
        return self.process.wait(1)

    def close(self) -> None:
        """End it, if it has not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.end()
        os.close(self.file)
