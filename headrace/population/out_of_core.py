"""Population in this process of a view whose states do not fit into memory: by parts, over files.

The tasks are those of Spark (``stage_graph``).  They run one after the other, so that the states of
one part are in memory at a time.  A shuffle writes the blocks of each part into a file:

    STAGING_DIR/<view id>/spill/<shuffle>/<part>      blocks: header (port, diffs, bytes), bytes
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Final

import pyarrow as pa

from headrace import clock
from headrace.population import edges, merging, segments, tables, tasks
from headrace.population.job import Job
from headrace.population.segments import BlockStream, Exit, Segment, Spec
from headrace.population.stage_graph import StageGraph
from headrace.population.tables import TableSize

_PARTS_MAX: Final = 256
"""Parts of a population; a shuffle has as many open files."""
_HEADER: Final = struct.Struct("<iqq")
_REPORT_S: Final = 0.25

_Task = Callable[[], BlockStream]
_Frame = list[_Task]


def populate(job: Job, spec: Spec, sizes: Mapping[str, TableSize], parts: int) -> int:
    """Fill ``spec.staging`` with the result rows and states; return the number of rows.

    ``sizes``: by source.  ``parts``: number of tasks that rows are divided among by key; there are
    ``_PARTS_MAX`` at most.

    Raises:
        SnapshotLost: the snapshot is gone; begin anew with another.
    """
    staged = spec.staging
    job.phase("reading", total=tables.expected(spec.plan, sizes))
    frames = _FileFrames(spec, job)
    try:
        counted = StageGraph(frames, spec, sizes, min(parts, _PARTS_MAX)).run()
    finally:
        frames.close()
    job.complete(staged.rows_read())
    merging.finish(staged, spec.plan, counted)
    return counted


class _FileFrames:
    """Frames as lists of tasks; see ``TaskFrames``."""

    def __init__(self, spec: Spec, job: Job) -> None:
        self._spec = spec
        self._job = job
        self._folder = spec.staging.path / "spill"
        self._numbers = itertools.count()
        self._reported = 0.0

    def scan(self, segment: Segment, exit_: Exit, ranges: int) -> _Frame:
        spec = self._spec
        return [partial(tasks.scan_range, spec, segment, exit_, n) for n in range(ranges)]

    def run(self, frame: _Frame, segment: Segment, exit_: Exit) -> _Frame:
        return [
            partial(self._run, segment, exit_, f"p{number}", task)
            for number, task in enumerate(frame)
        ]

    def union(self, frames: list[_Frame]) -> _Frame:
        return [task for frame in frames for task in frame]

    def shuffle(self, frame: _Frame, parts: int) -> _Frame:
        return self.shuffle_twice(frame, parts)[0]

    def shuffle_twice(self, frame: _Frame, parts: int) -> tuple[_Frame, _Frame]:
        with self._files(parts) as files:
            for batch in self._computed(frame):
                _write(batch, files)
        tasks = [partial(_read, Path(file.name), number) for number, file in enumerate(files)]
        return [*tasks], [partial(task, keep=True) for task in tasks]

    def collect(self, frame: _Frame) -> list[bytes]:
        return [
            block for batch in self._computed(frame) for block in batch.column("block").to_pylist()
        ]

    def keep(self, frame: _Frame) -> tuple[_Frame, _Frame]:
        with self._files(1) as files:
            for batch in self._computed(frame):
                _write(batch, files)
        kept: _Frame = [partial(_read, Path(files[0].name), 0, keep=True)]
        return kept, kept

    def total(self, frame: _Frame) -> int:
        return sum(sum(batch.column("n").to_pylist()) for batch in self._computed(frame))

    def close(self) -> None:
        """Remove the files of all shuffles."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder)

    def _run(self, segment: Segment, exit_: Exit, part: str, task: _Task) -> BlockStream:
        with contextlib.closing(task()) as batches:
            yield from segments.run(self._spec, segment, exit_, part, batches)

    def _computed(self, frame: _Frame) -> Iterator[pa.RecordBatch]:
        """Run the tasks of ``frame``, one after the other."""
        for task in frame:
            with contextlib.closing(task()) as batches:
                for batch in batches:
                    self._report()
                    yield batch
            self._report()

    def _report(self) -> None:
        """Report progress, or raise the cancellation of the job."""
        self._job.check()
        if clock.monotonic() - self._reported >= _REPORT_S:
            self._job.rows(self._spec.staging.rows_read())
            self._reported = clock.monotonic()

    @contextlib.contextmanager
    def _files(self, count: int) -> Iterator[list[IO[bytes]]]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir(mode=0o700, parents=True)
        with contextlib.ExitStack() as opened:
            yield [opened.enter_context((folder / str(n)).open("wb")) for n in range(count)]


def _write(batch: pa.RecordBatch, files: list[IO[bytes]]) -> None:
    """Append the blocks of ``batch`` to the file of their parts."""
    parts, ports, counts, blocks = batch.columns
    for number in range(batch.num_rows):
        data = blocks[number].as_buffer()
        file = files[parts[number].as_py()]
        file.write(_HEADER.pack(ports[number].as_py(), counts[number].as_py(), data.size))
        file.write(data)


def _read(path: Path, part: int, *, keep: bool = False) -> BlockStream:
    """Yield the blocks of a file, and remove it unless it is read again (``keep``)."""
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            port, count, size = _HEADER.unpack(header)
            row = [[part], [port], [count], [file.read(size)]]
            yield pa.RecordBatch.from_arrays(row, schema=edges.ARROW_SCHEMA)
    if not keep:
        path.unlink()
