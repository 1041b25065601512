"""Named crash points, so that a test can kill or stop the process exactly there.

``HEADRACE_FAULT=name:action:count`` acts when ``point(name)`` is passed for the ``count``-th
time; several are separated by commas.  ``HEADRACE_FAULT_DIR`` names a directory of traps, which a
test adds and removes while the processes run: a file with the point's name that holds
``action:count``.  The process that springs a trap renames it to ``name.sprung`` first, so it
acts once, and the test knows that it did.

``rows`` is a point of another kind: its trap holds ``<view id> <text>``, stays in place, and
kills the process each time that view takes in a row with that text.

Actions: ``pass`` (none: its trap tells that the point was passed), ``kill`` (SIGKILL to the
process), ``raise`` (a TransientError), ``hang`` (sleep for a minute, or for the milliseconds of
``hang:count:ms``) and ``alarm`` (``alarm:count:ms``: the kernel kills the process some milliseconds
later, wherever it is then).
Without the variables a point costs one look-up in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace import clock
from headrace.errors import BugError, TransientError

ENV: Final = "HEADRACE_FAULT"
ENV_DIR: Final = "HEADRACE_FAULT_DIR"
SPRUNG: Final = ".sprung"
_ACTIONS: Final = ("pass", "kill", "raise", "hang", "alarm")
_HANG_S: Final = 60.0

# Points of the builder:
TABLES_PUBLISHED: Final = "cp01"
SLOT_ASKED: Final = "cp02"
SLOT_MADE: Final = "cp03"
ATTACHED: Final = "cp02b"
POPULATION_BEGINS: Final = "cp04"
POPULATION_LOADED: Final = "cp05"
POPULATION_SEALED: Final = "cp06"
RESULT_MADE: Final = "cp07"
RESULT_RESHAPED: Final = "cp07b"
BEFORE_PUBLISH: Final = "cp08"
PUBLISHED: Final = "cp08b"
ADOPTED: Final = "cp08c"
MOVE_STAGED: Final = "cp08d"
MOVE_SAID: Final = "cp08e"
STATES_KEPT: Final = "cp08f"
ROWS_REMADE: Final = "cp08g"
BEFORE_DROP: Final = "cp19"
DROPPED: Final = "cp20"
WORKER_FORGOT: Final = "cp20b"
# Points of the worker:
STATES_TAKEN: Final = "cp09"
ROWS_TAKEN: Final = "rows"
BATCH_RECORDED: Final = "cp11"
BATCH_KEPT: Final = "cp11b"
BATCH_AHEAD: Final = "cp11c"
SLOT_COPIED: Final = "cp11d"
COLLECTIONS_DONE: Final = "cp12"
PIPELINE_SENT: Final = "cp12b"
ROWS_SENT: Final = "cp13"
COMMIT_SENT: Final = "cp14"
COMMIT_ANSWERED: Final = "cp15"
BEFORE_CHECKPOINT: Final = "cp16"
CHECKPOINT_BEGUN: Final = "cp16b"
QUEUES_SYNCED: Final = "cp16c"
AWAY_WRITTEN: Final = "cp16d"
CHECKPOINT_WRITTEN: Final = "cp17"
FEEDBACK_SENT: Final = "cp18"
BEFORE_JOIN: Final = "cp23"
JOINED: Final = "cp23b"
BEFORE_PART: Final = "cp24"
PARTED: Final = "cp24b"
BEFORE_INHERIT: Final = "cp25"
INHERITED: Final = "cp25b"
MEMBERS_CHANGED: Final = "cp26"
MEMBERS_COMMITTED: Final = "cp26b"


@dataclass(slots=True)
class _Fault:
    action: str
    left: int
    delay_s: float | None = None


def _parse(text: str) -> _Fault:
    """Return the fault of ``action:count`` or ``action:count:ms``."""
    action, count, *delay = text.strip().split(":")
    if action not in _ACTIONS:
        raise BugError(f'unknown fault action "{action}"')
    return _Fault(action, int(count), float(delay[0]) / 1000 if delay else None)


def _read(text: str) -> dict[str, _Fault]:
    out: dict[str, _Fault] = {}
    for part in filter(None, text.split(",")):
        name, _, rest = part.partition(":")
        out[name] = _parse(rest)
    return out


_faults = _read(os.environ.get(ENV, ""))
_traps: Final = os.environ.get(ENV_DIR)
_seen: Final[dict[tuple[str, int], _Fault]] = {}
"""Traps that were passed, by point and inode, with the passages left."""


def arm(text: str) -> None:
    """Replace all faults by those of ``text``, written as in ``HEADRACE_FAULT``; for tests."""
    _faults.clear()
    _faults.update(_read(text))


def point(name: str) -> None:
    """Pass the fault point ``name``."""
    fault = _faults.get(name)
    if fault is None:
        if _traps is not None:
            _pass_trap(Path(_traps, name))
        return
    fault.left -= 1
    if fault.left == 0:
        _act(name, fault)


def rows(unit_id: int, batch: pa.RecordBatch) -> None:
    """Pass the point ``rows``: a view, or a shared subplan, takes in the rows of ``batch``."""
    if _traps is None:
        return
    try:
        wanted, _, text = Path(_traps, ROWS_TAKEN).read_text().partition(" ")
    except FileNotFoundError:
        return
    if unit_id == int(wanted) and text in str(batch.to_pydict()):
        os.kill(os.getpid(), signal.SIGKILL)


def _pass_trap(path: Path) -> None:
    try:
        number = path.stat().st_ino
        fault = _seen.get((path.name, number))
        if fault is None:
            fault = _seen[path.name, number] = _parse(path.read_text())
        fault.left -= 1
        if fault.left > 0:
            return
        path.rename(path.with_name(path.name + SPRUNG))
    except FileNotFoundError:
        return  # none is set, or another process has sprung it
    _act(path.name, fault)


def _act(name: str, fault: _Fault) -> None:
    match fault.action:
        case "pass":
            pass
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "alarm":
            # An unhandled SIGALRM kills the process from outside, at any instruction.
            signal.setitimer(signal.ITIMER_REAL, fault.delay_s or 0.001)
        case "raise":
            raise TransientError(f"fault point {name}")
        case _:
            clock.sleep(_HANG_S if fault.delay_s is None else fault.delay_s)
