"""The disk of a run: the rest of the data directory after a kill or a power failure.

Files are real.  A killed process leaves them as they are, for the kernel has all its writes.  A
power failure leaves what was synced, and any part of what was written since: any pages of the
queues' files, and any length of a log.
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

from headrace.errors import TransientError
from headrace.process import durable
from headrace.runtime import positions
from headrace.state.disk import Disk as StateDisk
from headrace.storage.manager import Storage

DISK_FULL: Final = "the disk is full"
_PAGE: Final = 4096
_FRONTS: Final = 64 * 1024
"""Bytes of the file of fronts that the queues of a run use."""


@dataclass
class _Files:
    """The synced contents of a folder."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Synced lengths of the files that only grow."""
    small: dict[str, bytes] = field(default_factory=dict)
    """Contents of all other files."""


class Disk:
    """The data directory; see the module text."""

    def __init__(self, folder: Path) -> None:
        self.folder: Final = folder
        self._number = 0
        self.path = self.old = folder / "0"
        self._links = folder / "links"
        self._links.mkdir(parents=True)
        self._state = _Files()
        self._queues = _Files()
        self.failing = False
        """Whether syncs fail, as on a full disk."""
        self.confirmed = 0
        """The position that the last synced checkpoint promises."""
        self.before_sync: Callable[[StateDisk], None] = lambda _: None

    # --- syncs

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Take note of every sync of the package."""
        sync_state, sync_queues, name_queues = (
            StateDisk._sync,
            Storage.sync,
            Storage._write_names,
        )

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
            self._note_queues(found.folder)

        def names(found: Storage) -> None:
            name_queues(found)
            self._queues.small["names"] = (found.folder / "names").read_bytes()

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
        patch.setattr(Storage, "_write_names", names)
        patch.setattr("headrace.storage.manager.durable", _Durable(durable))
        patch.setattr("os.fsync", lambda _: None)
        patch.setattr("os.fdatasync", lambda _: None)

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

    def _note_queues(self, folder: Path) -> None:
        for name in ("blocks", "blocks.table", "fronts", "schemas"):
            path = folder / name
            if path.exists():
                with path.open("rb") as file:
                    self._queues.small[name] = file.read(_FRONTS if name == "fronts" else -1)

    # --- crashes

    def crash(self, chance: random.Random, found: StateDisk | None, *, power: bool) -> None:
        """Continue with the rest of the data directory; ``found``: its open database."""
        if found is not None:
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
        for name in ("blocks", "blocks.table", "fronts", "schemas", "names"):
            path = self.path / "queues" / name
            synced = self._queues.small.get(name, b"")
            if name == "names":
                if synced:
                    (queues / name).write_bytes(synced)
            elif path.exists():
                with path.open("rb") as file:
                    now = file.read(_FRONTS if name == "fronts" else -1)
                # Blocks are released before the new front is known to be on the disk.
                (queues / name).write_bytes(now if name == "fronts" else _torn(synced, now, chance))

    def _take_as_synced(self) -> None:
        """Take the files that are left as synced: nothing of them is lost by the next crash."""
        shutil.rmtree(self._links)
        self._links.mkdir()
        self._state, self._queues = _Files(), _Files()
        state = self.path / "state"
        for path in sorted(state.iterdir()) if state.exists() else ():
            self._note_file(self._state, path)
        names = self.path / "queues" / "names"
        if names.exists():
            self._queues.small["names"] = names.read_bytes()
        if names.parent.exists():
            self._note_queues(names.parent)


def _listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class _Durable:
    """The module ``process.durable``, without the syncs of the real disk."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def sync(self, _: Path) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _torn(synced: bytes, now: bytes, chance: random.Random) -> bytes:
    """Return a file of which any pages have reached the disk since it was synced."""
    share = chance.choice((0.0, 0.5, 1.0))
    out = bytearray(now)
    for at in range(0, len(now), _PAGE):
        if chance.random() >= share:
            page = synced[at : at + _PAGE]
            size = len(out[at : at + _PAGE])
            out[at : at + size] = page.ljust(size, b"\0")[:size]
    return bytes(out)
