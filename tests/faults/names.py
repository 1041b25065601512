"""A host name that resolves as a test says, for one engine.

The engine runs in a mount namespace of its own, in which /etc/hosts is a file of the test. So the
name is resolved as any other, by libpq and by asyncio.  Other processes do not see it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

NAME = "db.headrace.test"
"""Names under ``test`` exist nowhere else (RFC 6761)."""


class MovingName:
    """The name, and an interpreter for engines that resolve it."""

    def __init__(self, folder: Path) -> None:
        self._hosts = folder / "hosts"
        self.python = folder / "python"
        self._hosts.write_text(Path("/etc/hosts").read_text())
        self._rest = self._hosts.read_text()
        mount = f"mount --bind {shlex.quote(str(self._hosts))} /etc/hosts"
        run = f'exec {shlex.quote(sys.executable)} "$@"'
        self.python.write_text(
            f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(f"{mount} && {run}")} sh "$@"\n'
        )
        self.python.chmod(0o755)
        self.lead_to("127.0.0.1")
        probe = f"import socket; print(socket.gethostbyname({NAME!r}))"
        done = subprocess.run(
            [self.python, "-c", probe], capture_output=True, text=True, check=False
        )
        if done.stdout.strip() != "127.0.0.1":
            pytest.skip(f"a mount namespace with another /etc/hosts is needed: {done.stderr}")

    def lead_to(self, *addresses: str) -> None:
        """Let the name resolve to ``addresses`` from now on."""
        # In place: the mount is of the file itself.
        lines = (f"{address} {NAME}\n" for address in addresses)
        self._hosts.write_text(f"{self._rest}\n{''.join(lines)}")
