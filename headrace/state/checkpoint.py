"""Checkpoints: the changes since the last one, made durable atomically.

A small checkpoint is one write batch.  As one batch, a large one would take too much memory, and
RocksDB's binding would hold the interpreter lock for seconds.  So it is written in steps:

    changes ─► sorted files in ``checkpoint/`` ─► one write batch: metadata and the list
    of files, synced (the checkpoint is durable) ─► RocksDB ingests the files ─► list deleted

After a kill before the batch the files are garbage.  After a later kill, the next start ingests
them, if need be again.  Their pairs are absolute values, so repetition is harmless.

* Invariant 1: nothing else writes to the column families of states, so the pairs of a listed
  file are the newest until it is ingested.
* Invariant 2: memory is bounded, whatever the size of the checkpoint: at most ``_SORT_BYTES`` of
  changes are sorted at a time (their keys and values packed, twice).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from headrace import clock
from headrace.errors import BugError, HeadraceError, StateDamaged, TransientError
from headrace.kernels import packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.process import durable
from headrace.state import columns, files
from headrace.state.columns import Family, Section
from headrace.state.disk import Changed, Disk, Meta
from headrace.state.map.skipkeys import Keys
from headrace.state.store import RocksStore
from headrace.state.tiers import Tier

BATCH_PAIRS_MAX: Final = 8192
"""Largest checkpoint that is one write batch: 10 to 20 ms under the interpreter lock.  With files
it takes five times as long, and holds the lock for as long in several pieces."""
_BATCH_BYTES_MAX: Final = 1024 * 1024
_SORT_BYTES: Final = 32 * columns.MIB
_FILE_BYTES: Final = 4 * columns.MIB
"""RocksDB ingests a file under the interpreter lock, in about 1 ms for 2 MiB."""
_SLICE_PAIRS: Final = 512
"""Pairs put into a file before other threads get their turn: 0.1 to 0.2 ms.  A pause costs as much
CPU as 50 pairs."""
_SLICE_BYTES: Final = 1024 * 1024
_PAUSE_S: Final = 0.001
"""Pause after each slice: so writing holds the interpreter lock for a sixth of the time."""
_PAUSE_HURRIED_S: Final = 0.0001
_FLUSH_POLL_S: Final = 0.002
_FLUSH_S_MAX: Final = 20.0
FOLDER: Final = "checkpoint"
_LIST: Final = b"\x00checkpoint"


class RocksCheckpoint:
    """A checkpoint in progress; ``RocksDatabase.begin_checkpoint`` creates it."""

    def __init__(
        self,
        disk: Disk,
        stores: list[tuple[RocksStore, int]],
        parts: list[tuple[Tier, int]],
        meta: Meta,
    ) -> None:
        self.stores: Final = stores
        self.parts: Final = parts
        """Tiers and their snapshots."""
        self.written = False
        self.pace: Final = Pace()
        self._disk = disk
        self._meta = dict(meta)

    def amend(self, meta: Meta) -> None:
        """Add metadata.  REQUIRES: ``write`` was not called."""
        self._meta |= meta

    def write(self, *, sync: bool) -> None:
        """See ``contract.Checkpoint``."""
        finish(self._disk)
        changes = self._changes()
        gathered: list[Changed] = []
        pairs = size = 0
        for change in changes:
            gathered.append(change)
            pairs += len(change[1])
            size += change[1].data.nbytes + change[2].data.nbytes
            if pairs > BATCH_PAIRS_MAX or size > _BATCH_BYTES_MAX:
                break
        else:
            self._disk.write(gathered, self._meta, sync=sync)
            self.written = True
            return
        self._write_files(_chain(gathered, changes))
        self.written = True

    def _changes(self) -> Iterator[Changed]:
        for tier, snapshot in self.parts:
            for keys, bounds, *values in tier.map.changes(snapshot):
                yield tier.section, Packed(keys, bounds), Nullable(*values)

    def _write_files(self, changes: Iterator[Changed]) -> None:
        disk = self._disk
        try:
            made = self._make_files(disk.path / FOLDER, changes)
            # The list first: ingested pairs must not reach the disk before it.
            listed = msgspec.json.encode(made)
            disk.write([], {**self._meta, _LIST: listed}, sync=True)
        except HeadraceError:
            if disk.get_meta(_LIST) is None:
                # If the disk is full, this makes room.
                shutil.rmtree(disk.path / FOLDER, ignore_errors=True)
            raise
        finish(disk, self.pace)

    def _make_files(self, folder: Path, changes: Iterator[Changed]) -> list[tuple[str, str]]:
        """Write sorted files of ``changes`` and sync them; return (column family, file name)."""
        with columns.writing():
            folder.mkdir(exist_ok=True)
            made = [
                (family.name, path.name)
                for family, path in _files(self._disk, folder, changes, self.pace)
            ]
            for _, name in made:
                durable.sync(folder / name)
            durable.sync(folder)
            durable.sync(folder.parent)
        return made


class Pace:
    """Pauses in which the writer of a checkpoint leaves the interpreter lock to the data path."""

    def __init__(self) -> None:
        self.hurried = False
        """Whether pauses are short because a thread waits for the end; set from any thread."""

    def rest(self) -> None:
        """Release the lock, usually for longer than the slice held it."""
        clock.sleep(_PAUSE_HURRIED_S if self.hurried else _PAUSE_S)


def under_way() -> BugError:
    """Return the error for an operation that must wait for the end of the checkpoint."""
    return BugError("a checkpoint is under way")


def finish(disk: Disk, pace: Pace | None = None) -> None:
    """Finish a large checkpoint whose list is durable; nothing happens if there is none.

    Raises:
        StateDamaged: a file of it is missing or damaged.
    """
    folder = disk.path / FOLDER
    pace = pace or Pace()
    listed = disk.get_meta(_LIST)
    if listed is not None:
        with columns.writing():
            for name, file in msgspec.json.decode(listed, type=list[tuple[str, str]]):
                _take_in(disk.known(name), folder / file, pace)
        disk.write([], {_LIST: None}, sync=True)
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def _take_in(family: Family | None, path: Path, pace: Pace) -> None:
    if family is None:
        return  # its view was dropped since
    if not path.exists():
        raise StateDamaged(f'"{path.name}" of the last checkpoint is gone')
    # RocksDB would write the memtable under the interpreter lock.
    if family.in_memtable:
        family.flush_soon()
        until = clock.monotonic() + _FLUSH_S_MAX
        while family.in_memtable:
            if clock.monotonic() > until:
                raise TransientError("the state cannot be written to disk", sqlstate="58030")
            clock.sleep(_FLUSH_POLL_S)
    family.ingest(path)
    pace.rest()


def _files(
    disk: Disk, folder: Path, changes: Iterator[Changed], pace: Pace
) -> Iterator[tuple[Family, Path]]:
    """Write sorted files of ``changes``; a key in several files has the same value in all."""
    file: _File | None = None
    number = 0
    for section, keys, values in _sortable(changes, pace):
        order = Keys(keys.data, keys.bounds, physical=True).positions()
        per_pair = (keys.data.nbytes + values.data.nbytes) // len(keys) + 1
        step = max(1, min(_SLICE_PAIRS, _SLICE_BYTES // per_pair))
        for at in range(0, len(order), step):
            part = order[at : at + step]
            if file is not None and not file.takes(section, keys.take(part[:1]).strings()[0]):
                yield file.finish()
                file = None
            if file is None:
                file = _File(disk, section.family, folder / f"{number}.sst")
                number += 1
            file.add(section, keys, values, part, per_pair * len(part))
            pace.rest()
    if file is not None:
        yield file.finish()


class _File:
    """A sorted file being written; consecutive sections share one."""

    def __init__(self, disk: Disk, family: Family, path: Path) -> None:
        self._family = family
        self._path = path
        self._previous = b""
        self._bytes = 0
        path.unlink(missing_ok=True)
        self._writer = disk.file_writer()
        self._writer.open(str(path))

    def takes(self, section: Section, key: bytes) -> bool:
        """Return whether pairs of ``section`` from ``key`` on may follow in this file."""
        return (
            section.family is self._family
            and self._bytes < _FILE_BYTES
            and section.prefix + key >= self._previous
        )

    def add(
        self, section: Section, keys: Packed, values: Nullable, order: Int64s, size: int
    ) -> None:
        """Append pairs in order, ``size`` bytes in all; pairs without a value are removals."""
        self._bytes += size
        self._previous = files.write_pairs(
            self._writer, section.prefix, keys, values, order, self._previous
        )

    def finish(self) -> tuple[Family, Path]:
        """Close the file."""
        self._writer.finish()
        return self._family, self._path


def _sortable(changes: Iterator[Changed], pace: Pace) -> Iterator[Changed]:
    """Yield the changes of one state together, up to the memory limit."""
    held: list[tuple[Packed, Nullable]] = []
    of: Section | None = None
    size = 0
    for section, keys, values in changes:
        if of is not None and (section is not of or size >= _SORT_BYTES):
            yield of, *_joined(held)
            held, size = [], 0
        of = section
        held.append((keys, values))
        size += keys.data.nbytes + values.data.nbytes + 16 * len(keys)
        pace.rest()
    if of is not None and held:
        yield of, *_joined(held)


def _joined(held: list[tuple[Packed, Nullable]]) -> tuple[Packed, Nullable]:
    keys, values = zip(*held, strict=True)
    whole = packed.joined([some.packed for some in values])
    valid = np.concatenate([some.valid for some in values])
    return packed.joined(keys), Nullable(whole.data, whole.bounds, valid)


def _chain(first: list[Changed], rest: Iterator[Changed]) -> Iterator[Changed]:
    first.reverse()
    while first:
        yield first.pop()
    yield from rest
