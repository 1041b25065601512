"""queues: the cost to store an operator's output until another operator has read it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from bench.scenario import Figures, Options, Scenario
from headrace.collections.base import Collection
from headrace.storage.frames import Header, Kind
from headrace.storage.manager import Storage
from headrace.storage.queue import Queue
from headrace.types import Diffs

_FRAME_ROWS: Final = 8_000
"""Rows of one int64 column: a frame of 64 000 bytes."""
_BYTES: Final = 1 << 30
_SMALL: Final = 20_000
_TRIES: Final = 3


class _Through(Collection):
    """A collection that passes its input on: a synchronous edge is a call of it."""

    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the batch itself."""
        return [batch]

    def describe(self) -> str:
        """Return the name of the collection."""
        return "Through"


class Queues(Scenario):
    """A queue alone: frames in memory, small batches compared with a call, and frames on disk."""

    name: ClassVar[str] = "queues"
    about: ClassVar[str] = (
        "GB/s of 64 kB frames put and read by 1 and 8 successors, in memory; µs per batch of one row,"
        " beside a call; MB/s written out and read again, beside a plain file; the best of three"
    )

    def run(self, options: Options) -> list[Figures]:
        """Measure; ``--rows`` is the number of batches of one row."""
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            storage = Storage(Path(folder) / "queues", 4 * _BYTES)
            lines = [_resident(storage, readers) for readers in (1, 8)]
            lines += _small(storage, options.rows or _SMALL)
            lines += _spilled(storage, Path(folder) / "plain")
            storage.close()
        return lines


def _line(what: str, figure: float, beside: float | None = None) -> Figures:
    ratio = "-" if beside is None else round(figure / beside, 2)
    return {
        "what": what,
        "figure": round(figure, 2),
        "beside": "-" if beside is None else round(beside, 2),
        "ratio": ratio,
    }


def _rows(count: int) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array(np.arange(count, dtype=np.int64))})


def _resident(storage: Storage, readers: int) -> Figures:
    batch, count = _rows(_FRAME_ROWS), _BYTES // (8 * _FRAME_ROWS)
    took = []
    for _ in range(_TRIES):
        queue = storage.make("q")
        for reader in range(readers):
            queue.open(reader)
        begin = time.perf_counter()
        for txid in range(1, count + 1):
            queue.put(Header(Kind.DIFFS, txid, 0, _FRAME_ROWS), batch)
            queue.put(Header(Kind.TIME_END, txid, 0, _FRAME_ROWS))
            for reader in range(readers):
                queue.read(reader)
                queue.keep_after(reader, txid)
        took.append(time.perf_counter() - begin)
        storage.drop("q")
    return _line(f"GB/s, {readers} successors", count * 8 * _FRAME_ROWS / min(took) / 1e9)


def _small(storage: Storage, count: int) -> list[Figures]:
    batch, queued, called = _rows(1), [], []
    for _ in range(_TRIES):
        queue = storage.make("q")
        queue.open("s")
        begin = time.perf_counter()
        for txid in range(1, count + 1):
            with queue.together():
                queue.put(Header(Kind.DIFFS, txid, 0, 1), batch)
                queue.put(Header(Kind.TIME_END, txid, 0, 1))
            queue.read("s")
            queue.keep_after("s", txid)
        queued.append(time.perf_counter() - begin)
        storage.drop("q")
        through = _Through("t", ())
        begin = time.perf_counter()
        for txid in range(1, count + 1):
            through.receive(0, Diffs(txid, 0, batch))
        called.append(time.perf_counter() - begin)
    return [_line("µs, a batch of one row", min(queued) / count * 1e6, min(called) / count * 1e6)]


def _spilled(storage: Storage, plain: Path) -> list[Figures]:
    wrote, read, plain_wrote, plain_read = [], [], [], []
    for _ in range(_TRIES):
        queue = storage.make("q")
        queue.open("s")
        begin = time.perf_counter()
        _fill(storage, queue)
        wrote.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        while queue.read("s", 1 << 20):
            pass
        read.append(time.perf_counter() - begin)
        storage.drop("q")
        begin = time.perf_counter()
        _write(plain)
        plain_wrote.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        _read(plain)
        plain_read.append(time.perf_counter() - begin)
        plain.unlink()
    size = _BYTES / 1e6
    return [
        _line("MB/s, written out", size / min(wrote), size / min(plain_wrote)),
        _line("MB/s, read again", size / min(read), size / min(plain_read)),
    ]


def _fill(storage: Storage, queue: Queue) -> None:
    batch = _rows(_FRAME_ROWS)
    for txid in range(1, _BYTES // (8 * _FRAME_ROWS) + 1):
        queue.put(Header(Kind.DIFFS, txid, 0, _FRAME_ROWS), batch)
    storage.sync()
    storage.pool.spill(queue, queue.queued_bytes)


def _write(path: Path) -> None:
    piece = os.urandom(1 << 20)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(_BYTES // len(piece)):
        os.write(file, piece)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def _read(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    while os.read(file, 1 << 20):
        pass
    os.close(file)
