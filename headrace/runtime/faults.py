"""Named crash points, so that a test can kill or stop the process exactly there.

``HEADRACE_FAULT=name:action:count`` acts when ``point(name)`` is passed for the ``count``-th
time; several are separated by commas.  Actions: ``kill`` (SIGKILL to ourselves), ``raise``
(a TransientError) and ``hang`` (sleeps for a minute).  Without the variable a point costs one
look-up in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Final

from headrace.errors import BugError, TransientError

ENV: Final = "HEADRACE_FAULT"
_HANG_S: Final = 60.0

# Names after reliability.md 6.
BATCH_RECORDED: Final = "cp11"
COLLECTIONS_DONE: Final = "cp12"
ROWS_SENT: Final = "cp13"
COMMIT_SENT: Final = "cp14"
COMMIT_ANSWERED: Final = "cp15"
BEFORE_CHECKPOINT: Final = "cp16"
CHECKPOINT_WRITTEN: Final = "cp17"
FEEDBACK_SENT: Final = "cp18"


@dataclass(slots=True)
class _Fault:
    action: str
    left: int


def _read(text: str) -> dict[str, _Fault]:
    out: dict[str, _Fault] = {}
    for part in filter(None, text.split(",")):
        name, action, count = part.split(":")
        if action not in ("kill", "raise", "hang"):
            raise BugError(f'unknown fault action "{action}"')
        out[name] = _Fault(action, int(count))
    return out


_faults = _read(os.environ.get(ENV, ""))


def arm(text: str) -> None:
    """Replace what ``HEADRACE_FAULT`` said (for tests in one process)."""
    _faults.clear()
    _faults.update(_read(text))


def point(name: str) -> None:
    """Pass the fault point ``name``."""
    fault = _faults.get(name)
    if fault is None:
        return
    fault.left -= 1
    if fault.left != 0:
        return
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise TransientError(f"fault point {name}")
        case _:
            time.sleep(_HANG_S)
