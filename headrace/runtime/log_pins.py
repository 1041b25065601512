"""Pins of the intake log: another process asks the engine to retain batches that it will copy.

A pin is a file that its owner touches.  One that was not touched for a minute does not count, so
that a killed owner retains nothing for long.  The log ignores pins when it is large.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from headrace import clock

TOUCH_S: Final = 10.0
"""Interval at which an owner touches its pin."""
_VALID_S: Final = 60.0


def put(folder: Path, name: str, txid: int) -> Path:
    """Pin the batches after ``txid``; return the file, to be touched and removed."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    path.write_text(str(txid))
    return path


def least(folder: Path, txid: int) -> int:
    """Return the lowest pinned txid, or ``txid`` if none is lower."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return txid
    now = clock.now().timestamp()
    for entry in entries:
        # The owner may be writing or removing it.
        with contextlib.suppress(OSError, ValueError):
            if abs(now - entry.stat().st_mtime) < _VALID_S:
                txid = min(txid, int(Path(entry.path).read_text()))
    return txid
