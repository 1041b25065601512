"""Files of Spark tasks that come back with their rows, where no directory is shared.

A task writes its files (``staging``) into a directory of its own.  At its end they leave as *file
blocks*, among the blocks of rows (``edges``): with port ``PORT``, and a piece of a file as block.
The segments above pass them on, and the last ones reach the builder, which writes the files.

    block: a line of JSON (name, digest, offset and total bytes of the file), then the bytes

A repeated task returns files of the same contents, but perhaps of other bytes.  So the pieces of a
file have its digest, and the builder takes one whole version.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from headrace.errors import BugError, SparkUnavailable
from headrace.population import edges, merging
from headrace.population.segments import Exit, Spec
from headrace.population.staging import Staging

PORT: Final = -1
"""Port of file blocks; it is none of a collection."""
_LENGTH: Final = struct.Struct(">Q")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"(state|rows|parts)/[0-9A-Za-z_][0-9A-Za-z_.-]*")


class _Piece(msgspec.Struct):
    name: str
    """Relative to the staging directory."""
    digest: str
    """Of the whole file."""
    at: int
    total: int


_PIECES: Final = msgspec.json.Decoder(_Piece)


class TaskFiles:
    """The file blocks that one task receives and sends; they wait on its disk."""

    def __init__(self, spec: Spec, exit_: Exit) -> None:
        self._root = spec.staging.path
        self._parts = exit_.parts
        self._waiting = self._root / "passing"
        self._count = 0

    def apart(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the blocks of rows; the file blocks among them are kept for ``passed``."""
        for batch in batches:
            ports = batch.column("port").to_pylist()
            if PORT not in ports:
                yield batch
                continue
            blocks = batch.column("block")
            rows = [i for i, port in enumerate(ports) if port != PORT]
            with self._waiting.open("ab") as file:
                for i, port in enumerate(ports):
                    if port == PORT:
                        data = blocks[i].as_buffer()
                        file.write(_LENGTH.pack(data.size))
                        file.write(data)
            if rows:
                yield batch.take(pa.array(rows))

    def passed(self) -> Iterator[pa.RecordBatch]:
        """Yield the file blocks that have arrived.  REQUIRES: all batches were read."""
        if not self._waiting.exists():
            return
        with self._waiting.open("rb") as file:
            while head := file.read(_LENGTH.size):
                yield self._block(file.read(_LENGTH.unpack(head)[0]))

    def own(self) -> Iterator[pa.RecordBatch]:
        """Yield the files that this task has written."""
        for path in sorted(self._root.glob("*/*")):
            name = str(path.relative_to(self._root))
            if not _NAME.fullmatch(name):
                continue  # progress, and drafts
            total = path.stat().st_size
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                file.seek(0)
                for at in range(0, max(total, 1), edges.BLOCK_BYTES):
                    head = msgspec.json.encode(_Piece(name, digest, at, total))
                    yield self._block(head + b"\n" + file.read(edges.BLOCK_BYTES))
            path.unlink()

    def _block(self, data: bytes) -> pa.RecordBatch:
        # Any task of the receiver may pass a file on; one task passes on all of it.
        piece = _PIECES.decode(data[: data.index(b"\n")])
        part = zlib.crc32(piece.name.encode()) % self._parts
        return pa.RecordBatch.from_arrays([[part], [PORT], [0], [data]], schema=edges.ARROW_SCHEMA)


def with_files(
    spec: Spec,
    exit_: Exit,
    batches: Iterable[pa.RecordBatch],
    work: Callable[[Spec, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of ``work``, and if no directory is shared, the files of this task.

    ``work`` gets the spec and the arriving blocks of rows (``batches``), and reads all of these.
    """
    if not spec.returned:
        yield from work(spec, batches)
        return
    with _own_staging(spec) as own:
        files = TaskFiles(own, exit_)
        yield from work(own, files.apart(batches))
        yield from files.passed()
        yield from files.own()


@contextlib.contextmanager
def _own_staging(spec: Spec) -> Iterator[Spec]:
    """Yield ``spec`` with a staging directory of this task, removed at the end."""
    # Spark removes its own directories, also those of workers that were killed.
    scratch = os.environ.get("LOCAL_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or ""
    place = scratch.partition(",")[0] or None
    with tempfile.TemporaryDirectory(prefix="headrace-task-", dir=place) as folder:
        staging = replace(spec.staging, path=Path(folder) / "files")
        staging.make()
        (staging.path / merging.FOLDER).mkdir(mode=0o700)
        yield replace(spec, staging=staging)


def receive(blocks: Iterable[bytes], staging: Staging) -> None:
    """Write the files of ``blocks`` into the staging directory of the builder.

    Raises:
        BugError: a file has an unknown name.
        SparkUnavailable: a part of a file is missing.
    """
    (staging.path / merging.FOLDER).mkdir(mode=0o700, exist_ok=True)
    found: dict[tuple[str, str], dict[int, int]] = {}
    totals: dict[tuple[str, str], int] = {}
    for block in blocks:
        head, _, data = block.partition(b"\n")
        piece = _PIECES.decode(head)
        if not (_NAME.fullmatch(piece.name) and _DIGEST.fullmatch(piece.digest)):
            raise BugError(f"a task has returned a file {piece.name!r}")
        version = piece.name, piece.digest
        handle = os.open(_draft(staging, *version), os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.seek(piece.at)
            file.write(data)
        totals[version] = piece.total
        found.setdefault(version, {})[piece.at] = len(data)
    whole = {version for version, at in found.items() if sum(at.values()) == totals[version]}
    for name, digest in found:
        draft = _draft(staging, name, digest)
        if (name, digest) in whole:
            draft.replace(staging.path / name)  # one version is as good as another
        else:
            draft.unlink()
    lacking = sorted({name for name, _ in found} - {name for name, _ in whole})
    if lacking:
        raise SparkUnavailable(f"the job on Spark failed: a part of file {lacking[0]} is missing")


def _draft(staging: Staging, name: str, digest: str) -> Path:
    path = staging.path / name
    return path.with_name(f".{path.name}.{digest}")
