"""Files with secrets: a warning where other users of the computer can read one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import structlog

_OTHERS: Final = 0o007
_log = structlog.get_logger(__name__)


def warn_if_exposed(path: Path) -> None:
    """Log a warning if every user of the computer may read or write the file."""
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode & 0o777
        if mode & _OTHERS:
            _log.warning(
                "secret file is readable by other users", file=str(path), mode=f"{mode:04o}"
            )
