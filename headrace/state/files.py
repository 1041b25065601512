"""Files beside RocksDB's: ``MANIFEST.length`` records the length of the manifest.

RocksDB opens a truncated manifest without an error; this module detects it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import rocksdict

from headrace.errors import StateDamaged
from headrace.kernels import buffers, packed
from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed
from headrace.process import durable
from headrace.state import columns, layout
from headrace.state.loaded import Pieces
from headrace.state.map import keygroups
from headrace.state.warm_start import PackWriter

_NOTE: Final = "MANIFEST.length"


def manifest(path: Path) -> tuple[str, int]:
    """Return name and length of the manifest, RocksDB's log of its current set of files."""
    name = (path / "CURRENT").read_text().strip()
    try:
        return name, (path / name).stat().st_size
    except FileNotFoundError:
        if (path / "CURRENT").read_text().strip() == name:
            raise
    return manifest(path)  # RocksDB has just begun another


def note_manifest(path: Path, noted: tuple[str, int] | None) -> tuple[str, int]:
    """Record the length of the manifest: it only grows, or gets a higher number."""
    now = manifest(path)
    if now != noted:
        # The manifest first: the note must not survive a crash that cuts the manifest, or brings
        # back an earlier one.
        durable.sync(path / now[0])
        if noted is None or now[0] != noted[0]:
            durable.sync(path)
        durable.replace(path / _NOTE, f"{now[0]} {now[1]}\n".encode())
    return now


def check_manifest(path: Path) -> tuple[str, int] | None:
    """Check the manifest against the note; return the recorded name and length, if any.

    RocksDB takes a truncated manifest for one whose last write was torn.  It would open an earlier
    set of files, some of which may be newer than others.

    Raises:
        StateDamaged: the manifest is older or shorter than recorded.
    """
    if not (path / _NOTE).exists():
        return None
    words = (path / _NOTE).read_bytes().decode(errors="replace").split()
    if len(words) != 2 or not words[1].isdecimal():
        raise StateDamaged(f'the state database "{path}" is damaged: {_NOTE}')
    noted = (words[0], int(words[1]))
    try:
        now = manifest(path)
    except (OSError, ValueError) as error:
        raise StateDamaged(f'the state database "{path}" is damaged', detail=f"{error}.") from error
    # Names have a number of at least six digits.
    older = (len(now[0]), now[0]) < (len(noted[0]), noted[0])
    if older or (now[0] == noted[0] and now[1] < noted[1]):
        raise StateDamaged(
            f'the state database "{path}" is damaged: its manifest is shorter than it was'
        )
    return noted


def sync_log(path: Path) -> list[int]:
    """Sync RocksDB's log, and return the numbers of its files.

    ``write`` returns when its batch is in the log, unsynced.  RocksDB's own sync would hold the
    interpreter lock meanwhile.
    """
    numbers = []
    for file in sorted(path.glob("*.log")):
        try:
            durable.sync(file)
        except FileNotFoundError:
            continue  # its pairs have become sorted files, which RocksDB has synced
        numbers.append(int(file.stem))
    durable.sync(path)
    return sorted(numbers)


def write_run(path: Path, states: Mapping[str, Pieces], pack: PackWriter | None = None) -> int:
    """Write an SST file of states, with pairs in ascending key order; add them to ``pack``, too.

    Returns:
        The number of pairs; for 0 no file is written (RocksDB has no empty ones).
    """
    writer: Any = None
    count = 0
    last = b""
    for state in sorted(states, key=layout.section):
        prefix = layout.section(state)
        for keys, values in states[state]:
            if writer is None:
                writer = rocksdict.SstFileWriter(columns.options(None))
                writer.open(str(path))
            some, stored = packed.pack(keys), packed.all_valid(packed.pack(values))
            last = write_pairs(writer, prefix, some, stored, np.arange(len(keys)), last)
            if pack is not None:
                pack.add(state, keys, values)
            count += len(keys)
    if writer is not None:
        writer.finish()
    return count


def write_pairs(
    file: Any, prefix: bytes, keys: Packed, values: Nullable, order: Int64s, last: bytes
) -> bytes:
    """Append pairs to a sorted file (``keygroups.write_file``); return the last key."""
    written: bytes = keygroups.write_file(
        file,
        prefix,
        buffers.view(keys.data),
        buffers.view(keys.bounds),
        buffers.view(values.data),
        buffers.view(values.bounds),
        buffers.view(values.valid),
        buffers.view(order),
        last,
    )
    return written


def set_aside(path: Path) -> Path:
    """Rename a damaged state database, so that it can be examined but not used.

    Only the last two are kept, so that automatic repairs do not fill the disk.
    """
    name = f"{path.name}.damaged-"
    ends = [found.name.removeprefix(name) for found in path.parent.glob(f"{name}*")]
    numbers = sorted(int(end) for end in ends if end.isdecimal())
    for number in numbers[:-1]:
        shutil.rmtree(path.with_name(f"{name}{number}"), ignore_errors=True)
    aside = path.with_name(f"{name}{max(numbers, default=0) + 1}")
    path.rename(aside)
    durable.sync(path.parent)
    return aside
