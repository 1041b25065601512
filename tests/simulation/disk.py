"""The disk of a run: the rest of the data directory after a kill or a power failure.

Files are real.  A killed process leaves them as they are, for the kernel has all its writes.  A
power failure leaves what was synced, and any part of what was written since: any length of a log,
and of each sector of the queues' files the version that was synced or any later one, in any order.
For the kernel writes pages back when it likes, here at moments that the seed chooses.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from rocksdict import DbClosedError

from headrace.errors import TransientError
from headrace.process import durable
from headrace.runtime import positions
from headrace.state.disk import Disk as StateDisk
from headrace.storage.manager import Storage
from tests.disks import path_of

DISK_FULL: Final = "the disk is full"
_SECTOR: Final = 512
"""Bytes that a disk writes together."""
_PAGED: Final = ("blocks", "blocks.table", "positions", "schemas")
"""Files of the queues that are written in place."""
_POSITIONS: Final = 32 * _SECTOR
"""Bytes of the file of positions that the queues of a run use."""
_WRITTEN_BACK: Final = (0.0, 0.5, 1.0)
"""Shares of the pages that reach the disk without a sync."""


@dataclass
class _Files:
    """The synced contents of a folder."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Synced lengths of the files that only grow."""
    small: dict[str, bytes] = field(default_factory=dict)
    """Contents of all other files."""


class Disk:
    """The data directory; see the module text."""

    def __init__(self, folder: Path, seed: int | str) -> None:
        self.folder: Final = folder
        self._chance: Final = random.Random(f"disk of {seed}")
        self._number = 0
        self.path = self.old = folder / "0"
        self._links = folder / "links"
        self._links.mkdir(parents=True)
        self._state = _Files()
        self._pages: dict[str, bytearray] = {}
        """The queues' files as they are on the disk, without what only the kernel has."""
        self._names = b""
        """The names of the queues as they are on the disk."""
        self.failing = False
        """Whether syncs fail, as on a full disk."""
        self.confirmed = 0
        """The position that the last synced checkpoint promises."""
        self.before_sync: Callable[[StateDisk], None] = lambda _: None
        self.after_sync: Callable[[], None] = lambda: None
        """Called after each sync of one of the queues' files; the process may end there."""

    # --- syncs

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Take note of every sync of the package."""
        sync_state, sync_queues = StateDisk._sync, Storage.sync

        def state(found: StateDisk) -> None:
            if self.failing:
                raise TransientError(DISK_FULL, sqlstate="53100")
            self.before_sync(found)
            sync_state(found)
            self._note_state(found)

        def queues(found: Storage) -> None:
            if self.failing:
                raise TransientError(DISK_FULL, sqlstate="53100")
            sync_queues(found)

        begin, get_confirmed = StateDisk.__init__, positions.get_confirmed

        def opened(found: StateDisk, *given: Any) -> None:
            begin(found, *given)
            self._note_state(found)  # RocksDB has made synced files of what it found in its log

        def confirmed(db: Any) -> int:
            self.confirmed = get_confirmed(db)
            return self.confirmed

        patch.setattr(StateDisk, "__init__", opened)
        patch.setattr(positions, "get_confirmed", confirmed)
        patch.setattr(StateDisk, "_sync", state)
        patch.setattr(Storage, "sync", queues)
        patch.setattr("headrace.storage.manager.durable", _Durable(durable, self._sync_names))
        patch.setattr("os.fsync", self._sync_any)
        patch.setattr("os.fdatasync", self._sync_file)

    def _note_state(self, found: StateDisk) -> None:
        before = None
        while (now := _listed(found.path)) != before:  # RocksDB works in the background
            before = now
            self._state = files = _Files()
            for name in now:
                with contextlib.suppress(FileNotFoundError):
                    self._note_file(files, found.path / name)
        value = found.get_meta(positions._CONFIRMED)
        self.confirmed = int(positions._TXID.unpack(value)[0]) if value else 0

    def _note_file(self, files: _Files, path: Path) -> None:
        if path.suffix in (".log", ".sst") or path.name.startswith("MANIFEST"):
            link = self._links / path.name
            if not link.exists():
                os.link(path, link)
            files.sizes[path.name] = path.stat().st_size
        elif path.is_file() and not path.name.startswith(("LOG", "LOCK")):
            files.small[path.name] = path.read_bytes()

    def _sync_file(self, handle: int) -> None:
        """Let all pages of one of the queues' files reach the disk."""
        path = path_of(handle)
        assert path.parent == self.path / "queues", "only the queues sync data without metadata"
        self._pages[path.name] = bytearray(_content(path))
        self.after_sync()

    def _sync_any(self, handle: int) -> None:
        path = path_of(handle)
        if path.parent == self.path / "queues" and path.name in _PAGED:
            self._sync_file(handle)

    def _sync_names(self) -> None:
        self.after_sync()
        self._names = (self.path / "queues" / "names").read_bytes()
        self.after_sync()

    def write_back(self) -> None:
        """Let some pages of the queues' files reach the disk, as the kernel does at any time."""
        for name in _PAGED:
            path, share = self.path / "queues" / name, self._chance.choice(_WRITTEN_BACK)
            if not share or not path.exists():
                continue
            now, pages = _content(path), self._pages.setdefault(name, bytearray())
            del pages[len(now) :]
            pages.extend(bytes(len(now) - len(pages)))
            for at in range(0, len(now), _SECTOR):
                if self._chance.random() < share:
                    pages[at : at + _SECTOR] = now[at : at + _SECTOR]

    # --- crashes

    def crash(self, chance: random.Random, found: StateDisk | None, *, power: bool) -> None:
        """Continue with the rest of the data directory; ``found``: its open database."""
        if found is not None:
            with contextlib.suppress(DbClosedError):  # it is just ending
                found._db.cancel_all_background(True)  # so that all files are of one point in time
        self._number += 1
        after = self.folder / str(self._number)
        if power:
            self._fail(after, chance)
        else:
            shutil.copytree(self.path, after, ignore=shutil.ignore_patterns("LOCK"))
        self.old, self.path = self.path, after
        if power:
            self._take_as_synced()

    def _fail(self, after: Path, chance: random.Random) -> None:
        state, queues = after / "state", after / "queues"
        shutil.copytree(self.path, after, ignore=shutil.ignore_patterns("state", "queues", "spool"))
        if self._state.sizes:
            state.mkdir()
            for name, size in self._state.sizes.items():
                data = (self._links / name).read_bytes()
                more = chance.randrange(len(data) - size + 1) if name.endswith(".log") else 0
                (state / name).write_bytes(data[: size + more])
            for name, content in self._state.small.items():
                (state / name).write_bytes(content)
        queues.mkdir()
        self.write_back()
        for name, pages in self._pages.items():
            (queues / name).write_bytes(pages)
        names = self.path / "queues" / "names"
        found = [
            content for content in (self._names, names.exists() and names.read_bytes()) if content
        ]
        if found:
            (queues / "names").write_bytes(chance.choice(found))

    def _take_as_synced(self) -> None:
        """Take the files that are left as synced: nothing of them is lost by the next crash."""
        shutil.rmtree(self._links)
        self._links.mkdir()
        self._state = _Files()
        state, queues = self.path / "state", self.path / "queues"
        for path in sorted(state.iterdir()) if state.exists() else ():
            self._note_file(self._state, path)
        self._pages = {
            name: bytearray(_content(queues / name)) for name in _PAGED if (queues / name).exists()
        }
        self._names = (queues / "names").read_bytes() if (queues / "names").exists() else b""


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_POSITIONS if path.name == "positions" else -1)


class _Durable:
    """The module ``process.durable``, without the syncs of the real disk."""

    def __init__(self, real: Any, sync: Callable[[], None]) -> None:
        self._real = real
        self._sync = sync

    def sync(self, _: Path) -> None:
        self._sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
