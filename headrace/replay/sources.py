"""The data directory of an engine, as a capture reads it: copies of states and of the intake log.

The engine takes no part and waits for nothing, whether it runs or not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace import clock
from headrace.config import Settings
from headrace.errors import PrerequisiteError
from headrace.process import directory_lock, durable
from headrace.replay.log_copy import LogCopy
from headrace.runtime import log_pins, positions, shared
from headrace.runtime.positions import StateMark
from headrace.runtime.shared import Shared
from headrace.state import copying
from headrace.state.rocks import RocksDatabase

_MEMORY_BYTES: Final = 64 << 20
RECORDER: Final = "recorder-"
"""Begins the name of a recorder's folder."""
_STATE: Final = "state"
_NOTE: Final = "catalog.json"
_NEW_S: Final = 60.0
"""Age up to which a folder without a lock may be one that a process is about to lock."""


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


class RecordedBase:
    """States that a recorder has retained, with the catalog of that time."""

    def __init__(self, folder: Path) -> None:
        """Take a complete base in ``folder``."""
        self.folder: Final = folder
        self.at: Final = int(folder.name) / 1e6
        """When it was made, in seconds since 1970."""

    @classmethod
    def make(
        cls, folder: Path, directory: DataDirectory, catalog: bytes
    ) -> tuple[RecordedBase, int]:
        """Copy the states into a new folder below ``folder``; return the base and its txid.

        ``catalog``: that of a moment before.
        """
        path = folder / str(int(clock.now().timestamp() * 1e6))
        copied = directory.states(path / _STATE)
        least = min((mark.txid for mark in copied.marks.values()), default=copied.position)
        copied.close()
        # Last of all: a base without it is not complete.
        durable.replace(path / _NOTE, catalog, 0o600)
        return cls(path), least

    @property
    def catalog(self) -> bytes:
        """The catalog of that time."""
        return (self.folder / _NOTE).read_bytes()

    def states(self, to: Path) -> StatesCopy:
        """Copy the states to the folder ``to``."""
        return StatesCopy.of(self.folder / _STATE, to)

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class DataDirectory:
    """The data directory of an engine on this machine."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings of the engine.

        Raises:
            PrerequisiteError: there are no states, or this user cannot read them.
        """
        self._settings: Final = settings
        self._name: Final = secrets.token_hex(8)
        """Of this process: process ids may repeat in another container."""
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
        return directory_lock.is_held(self._settings.data_dir)

    @property
    def bases(self) -> list[RecordedBase]:
        """The bases that recorders at work have retained, the oldest first."""
        found: list[RecordedBase] = []
        for folder in self._settings.captures_dir.glob(f"{RECORDER}*"):
            if _in_use(folder):
                found += (RecordedBase(path) for path in folder.iterdir() if _complete(path))
        return sorted(found, key=lambda base: base.at)

    @contextlib.contextmanager
    def recording(self) -> Iterator[Path]:
        """Return the folder of a recorder's bases; remove it at the end."""
        with self.scratch(RECORDER) as folder:
            yield folder

    @contextlib.contextmanager
    def scratch(self, kind: str = "") -> Iterator[Path]:
        """Return a folder for copies, in the file system of the states; remove it at the end."""
        parent = self._settings.captures_dir
        parent.mkdir(mode=0o700, exist_ok=True)
        for left in parent.iterdir():
            if not _in_use(left):
                shutil.rmtree(left, ignore_errors=True)
        folder = parent / f"{kind}{self._name}"
        folder.mkdir(mode=0o700)
        try:
            with _locked(folder):
                yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def pin(self, txid: int) -> Path:
        """Keep the engine from dropping batches after ``txid``; return the file to touch."""
        return log_pins.put(self._settings.pins_dir, self._name, txid)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep the engine from dropping batches of its log, meanwhile."""
        path = self.pin(0)
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


def _complete(base: Path) -> bool:
    return base.name.isdecimal() and (base / _NOTE).exists()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Show to other processes that ``folder`` is in use."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _in_use(folder: Path) -> bool:
    """Return whether a process uses a folder of copies, or has just made it."""
    try:
        if clock.now().timestamp() - folder.stat().st_mtime < _NEW_S:
            return True
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
