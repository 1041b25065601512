"""The data directory of an engine, as a capture reads it: copies of states and of the intake log.

The engine takes no part and waits for nothing, whether it runs or not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.replay.log_copy import LogCopy
from headrace.runtime import log_pins, positions, shared
from headrace.runtime.positions import StateMark
from headrace.runtime.shared import Shared
from headrace.state import copying
from headrace.state.rocks import RocksDatabase

_MEMORY_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class StatesCopy:
    """A copy of the states, as of a checkpoint."""

    db: RocksDatabase
    marks: dict[int, StateMark]
    """By ID of the units that have states."""
    feeds: dict[int, dict[str, int]]
    subplans: dict[int, Shared]
    position: int
    """Txid of the checkpoint."""

    @classmethod
    def of(cls, source: Path, to: Path) -> StatesCopy:
        """Copy the state database ``source`` to the folder ``to``.

        Raises:
            TransientError: it cannot be copied now.
        """
        db = copying.open_copy(source, to, _MEMORY_BYTES, clock.sleep)
        try:
            feeds, found = shared.stored(db)
            position = positions.get_position(db)
            return cls(
                db,
                positions.views(db),
                feeds,
                {unit.id: unit for unit in found},
                position.txid if position is not None else 0,
            )
        except BaseException:
            db.close()
            raise

    def close(self) -> None:
        """Close the copy."""
        self.db.close()


class DataDirectory:
    """The data directory of an engine on this machine."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings of the engine.

        Raises:
            PrerequisiteError: there are no states, or this user cannot read them.
        """
        self._settings: Final = settings
        path = settings.state_dir
        try:
            there = (path / "CURRENT").exists()
        except PermissionError:
            there = False
        if not there or not os.access(settings.data_dir, os.R_OK | os.W_OK | os.X_OK):
            raise PrerequisiteError(
                f'this user can read no states in "{settings.data_dir}"',
                hint="Name the data directory of the server with --data-dir or HEADRACE_DATA_DIR,"
                " and run the command as the user that runs the server.",
            )

    @property
    def running(self) -> bool:
        """Whether an engine uses the directory."""
        lock = self._settings.data_dir / "lock"
        if not lock.exists():
            return False
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Return a folder for copies, in the file system of the states; remove it at the end."""
        parent = self._settings.captures_dir
        parent.mkdir(mode=0o700, exist_ok=True)
        for left in parent.iterdir():
            if not _lives(left.name):
                shutil.rmtree(left, ignore_errors=True)
        folder = parent / str(os.getpid())
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the engine from dropping batches of its log."""
        path = log_pins.put(self._settings.pins_dir, f"capture {os.getpid()}", 0)
        ended = threading.Event()

        def touch() -> None:
            while not ended.wait(log_pins.TOUCH_S):
                with contextlib.suppress(OSError):
                    os.utime(path)

        thread = threading.Thread(target=touch, name="headrace-pin", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            path.unlink(missing_ok=True)

    def states(self, to: Path) -> StatesCopy:
        """Copy the states to the folder ``to``."""
        return StatesCopy.of(self._settings.state_dir, to)

    def log(self, states: StatesCopy, to: Path) -> LogCopy:
        """Copy the intake log, which ``states`` refer to, to the folder ``to``."""
        settings = self._settings
        mark = positions.get_intake_mark(states.db)
        return LogCopy(settings.queue_dir, to, mark, settings.queue_block_bytes)


def _lives(name: str) -> bool:
    """Return whether the process with that number exists."""
    if not name.isdecimal():
        return False
    try:
        os.kill(int(name), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
