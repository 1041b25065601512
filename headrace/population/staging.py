"""The files a population leaves for the worker, and those it needs on the way.

    STAGING_DIR/<view id>/
        manifest.json          written last: the population is whole
        state/<n>.sst          sorted runs of the states, no key of a state in two of them
        state/<n>.pack         the pairs of a run for memory, if one process has built them all
        rows/<n>.copy          result rows in COPY text format
        rows/<n>.count         how many they are
        progress/<n>           rows read by task n
        job.json               what Spark tasks need (mode 0600: it holds the DSN)

On a Spark cluster the directory must be on storage that all executors share (setting
``staging_dir_override``).  A task writes under a name of its own and renames at the end, so a task
that is repeated replaces its file by an equal one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import BugError
from headrace.process import durable
from headrace.state import layout, packs
from headrace.state.loaded import Pieces
from headrace.state.packs import PackWriter
from headrace.state.rocks import write_run

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging directory of one population."""

    path: Path

    def make(self) -> None:
        """Make it anew, empty."""
        self.remove()
        for folder in (self.path, self.path / "state", self.path / "rows"):
            folder.mkdir(mode=0o700, parents=True)
        (self.path / "progress").mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        # The name goes first: what is left of a half-removed directory is no population, and
        # tasks of a cancelled one that still run find nothing to write to.
        gone = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(gone)
        # A task that was about to rename a file when the name went does it in there.
        while gone.exists():
            try:
                shutil.rmtree(gone)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    # --- what tasks write

    def write_state(self, part: str, states: Mapping[str, Pieces]) -> None:
        """Sorted runs of the ``states`` that task ``part`` has built."""
        if not states:
            return
        with self._renamed(self._run(part, states)) as draft:
            if not write_run(draft, states):
                draft.touch()

    def write_states(self, part: str, states: Mapping[str, Pieces]) -> None:
        """All ``states`` of the view as one run, which may go into the worker's memory at once."""
        if not states:
            return
        path = self._run(part, states)
        with (
            self._renamed(path) as draft,
            self._renamed(packs.of_run(path)) as beside,
            PackWriter(beside) as pack,
        ):
            if not write_run(draft, states, pack):
                draft.touch()

    def _run(self, part: str, states: Mapping[str, Pieces]) -> Path:
        # Tasks with other states may call their parts the same.
        return self.path / "state" / f"{min(states)}.{part}.sst"

    def write_rows(self, part: str, pieces: Iterable[tuple[int, bytes]]) -> int:
        """Result rows of task ``part``: (rows, COPY text) pieces; returns the row count."""
        folder = self.path / "rows"
        count = 0
        with self._renamed(folder / f"{part}.copy") as draft, draft.open("wb") as file:
            for rows, data in pieces:
                file.write(data)
                count += rows
        with self._renamed(folder / f"{part}.count") as draft:
            draft.write_text(str(count))
        return count

    def write_progress(self, part: str, rows: int) -> None:
        """Tell how many rows task ``part`` has read."""
        with self._renamed(self.path / "progress" / part) as draft:
            draft.write_text(str(rows))

    def write_json(self, name: str, data: Any) -> Path:
        """A file only we may read, on disk when this returns."""
        path = self.path / name
        with self._renamed(path) as draft:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(data, enc_hook=os.fspath))
                file.flush()
                os.fsync(file.fileno())
        return path

    @property
    def moved(self) -> Path:
        """The run of states that another worker has had."""
        return self.path / "state" / "moved.sst"

    # --- what the builder reads

    def rows_read(self) -> int:
        """Rows read so far by all tasks."""
        total = 0
        for path in (self.path / "progress").glob("[0-9a-z]*"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                total += int(path.read_text())
        return total

    def row_files(self) -> list[Path]:
        """Files of result rows."""
        return sorted((self.path / "rows").glob("*.copy"))

    def row_count(self) -> int:
        """Result rows in all files."""
        files = (self.path / "rows").glob("*.count")
        return sum(int(path.read_text()) for path in files)

    def runs(self) -> list[Path]:
        """Runs that have entries."""
        files = sorted((self.path / "state").glob("[!.]*.sst"))
        return [path for path in files if path.stat().st_size]

    def seal(self, facts: dict[str, Any]) -> None:
        """Write the manifest: ``facts`` and the runs; everything is on disk when it is there."""
        runs = self.runs()
        for path in runs:
            durable.sync(path)
        relative = [str(path.relative_to(self.path)) for path in runs]
        self.write_json(MANIFEST, {**facts, "runs": relative, "format": layout.FORMAT})
        durable.sync(self.path / "state")
        durable.sync(self.path)
        durable.sync(self.path.parent)

    @contextlib.contextmanager
    def _renamed(self, path: Path) -> Iterator[Path]:
        """A draft name; the file gets its own name only if all went well."""
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def of_view(staging_dir: Path, view_id: int) -> Staging:
    """The staging directory of a view."""
    if view_id <= 0:
        raise BugError(f"view id {view_id}")
    return Staging(staging_dir / str(view_id))


def sealed(staging_dir: Path) -> list[int]:
    """Ids of the views whose population is whole and was not handed over for certain."""
    if not staging_dir.exists():
        return []
    return sorted(
        int(folder.name)
        for folder in staging_dir.iterdir()
        if folder.name.isdecimal() and (folder / MANIFEST).exists()
    )


def is_moved(staging_dir: Path, view_id: int) -> bool:
    """Whether what is staged are states that a view has had elsewhere."""
    try:
        facts = msgspec.json.decode((staging_dir / str(view_id) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return "mark" in facts and "kept" not in facts


def remove_orphans(staging_dir: Path, keep: set[int]) -> list[str]:
    """Remove all but the whole populations of the views in ``keep``; returns their names.

    A directory without its manifest is one whose removal was interrupted.
    """
    removed: list[str] = []
    if not staging_dir.exists():
        return removed
    whole = {str(number) for number in keep & set(sealed(staging_dir))}
    for folder in staging_dir.iterdir():
        if folder.is_dir() and folder.name not in whole:
            Staging(folder).remove()
            removed.append(folder.name)
    return removed
