"""A program in a terminal: its output, and keys pressed."""

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
"""Length of the output in a failure's message, in characters."""


class Terminal:
    """A program in a pseudo-terminal, with its own process group."""

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
        """Read until the program has shown ``words`` since the last key."""
        until = clock.monotonic() + patience_s
        while words not in self.seen:
            shown = self.seen[-SHOWN:]
            assert clock.monotonic() < until, f"no {words!r} in {shown}"
            assert self.process.poll() is None or words in self.read(0.5), shown
            self.read(0.5)

    def read(self, seconds: float) -> str:
        """Read for at most ``seconds``; return the output since the last key."""
        if select.select([self.file], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.file, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                assert self.process.wait(PATIENCE_S) is not None
        return self.seen

    def press(self, key: str) -> None:
        """Press a key; forget the earlier output."""
        self.seen = ""
        os.write(self.file, key.encode())

    def end(self) -> int:
        """Wait for the program's end; return its status."""
        until = clock.monotonic() + PATIENCE_S
        while self.process.poll() is None and clock.monotonic() < until:
            self.read(0.2)
        return self.process.wait(1)

    def close(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.end()
        os.close(self.file)
