"""Staging directory: files that a population leaves for the worker, and temporary ones.

    STAGING_DIR/<view id>/
        manifest.json          written last: the population is complete
        state/<s>.<n>.sst      sorted runs of state s; no key of a state is in two of them
        state/<s>.<n>.pack     warm-start snapshot of a run, if one process has built all states
        rows/<n>.copy          result rows in COPY text format
        rows/<n>.count         number of these rows
        progress/<n>           rows read by task n
        job-<n>.json           inputs of Spark tasks (mode 0600: it holds the DSN)

Spark executors on other machines need a directory that they share (setting
``staging_dir_override``); else their files come back through Spark (``returned_files.py``).  A task
writes under a unique name and renames at the end, so a repeated task replaces its file by an equal
one.
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
from headrace.state import layout, warm_start
from headrace.state.loaded import Pieces
from headrace.state.rocks import write_run
from headrace.state.warm_start import PackWriter

MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging directory of one population."""

    path: Path
    states: bool = True
    """Whether states are staged; a proof of a view needs only rows."""

    def make(self) -> None:
        """Create the directory, or empty an existing one."""
        self.remove()
        for folder in (self.path, self.path / "state", self.path / "rows"):
            folder.mkdir(mode=0o700, parents=True)
        (self.path / "progress").mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the directory and its contents."""
        # Rename first: a half-removed directory must not look like a population, and running tasks
        # of a cancelled one must find nothing to write to.
        gone = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(gone)
        # A task that was about to rename a file may still do so in the renamed directory.
        while gone.exists():
            try:
                shutil.rmtree(gone)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise

    def take(self, draft: Staging) -> None:
        """Replace the contents by those of a complete draft; a kill may leave neither here."""
        self.remove()
        draft.path.rename(self.path)
        durable.sync(self.path.parent)

    # --- written by tasks

    def write_state(self, part: str, states: Mapping[str, Pieces]) -> None:
        """Write a sorted run of each of the ``states`` that task ``part`` has built.

        Tasks that rows are divided among by key have different key groups.  So their runs of a
        state by that key do not overlap, and RocksDB need not merge them.
        """
        if not self.states:
            return
        for name in states:
            with self._renamed(self._run(part, name)) as draft:
                if not write_run(draft, {name: states[name]}):
                    draft.touch()

    def write_states(self, part: str, states: Mapping[str, Pieces]) -> None:
        """Write all ``states`` of the view as one run, and a warm-start snapshot of it."""
        if not states:
            return
        path = self._run(part, min(states))
        with (
            self._renamed(path) as draft,
            self._renamed(warm_start.of_run(path)) as beside,
            PackWriter(beside) as pack,
        ):
            if not write_run(draft, states, pack):
                draft.touch()

    def _run(self, part: str, state: str) -> Path:
        # Tasks with other states may have parts of the same name.
        return self.path / "state" / f"{state}.{part}.sst"

    def write_rows(self, part: str, pieces: Iterable[tuple[int, bytes]]) -> int:
        """Write result rows of task ``part``, given as (rows, COPY text); return the row count."""
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
        """Record the number of rows that task ``part`` has read."""
        with self._renamed(self.path / "progress" / part) as draft:
            draft.write_text(str(rows))

    def write_json(self, name: str, data: Any) -> Path:
        """Write a file that only this user may read, and sync it; return its path."""
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
        """Path of the run of states moved from another worker."""
        return self.path / "state" / "moved.sst"

    # --- read by the builder

    def rows_read(self) -> int:
        """Return the number of rows read so far by all tasks."""
        total = 0
        for path in (self.path / "progress").glob("[0-9a-z]*"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                total += int(path.read_text())
        return total

    def row_files(self) -> list[Path]:
        """Return the files of result rows."""
        return sorted((self.path / "rows").glob("*.copy"))

    def row_count(self) -> int:
        """Return the number of result rows in all files."""
        files = (self.path / "rows").glob("*.count")
        return sum(int(path.read_text()) for path in files)

    def runs(self) -> list[Path]:
        """Return the runs that have entries."""
        files = sorted((self.path / "state").glob("[!.]*.sst"))
        return [path for path in files if path.stat().st_size]

    def seal(self, facts: dict[str, Any]) -> None:
        """Write the manifest with ``facts`` and the runs, after all runs are synced to disk."""
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
        """Yield a draft path; rename it to ``path`` if the block succeeds."""
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def of_view(staging_dir: Path, view_id: int) -> Staging:
    """Return the staging directory of a view."""
    if view_id <= 0:
        raise BugError(f"view id {view_id}")
    return Staging(staging_dir / str(view_id))


def of_proof(staging_dir: Path, job: str) -> Staging:
    """Return the staging directory of the rows that job ``job`` compares a view with."""
    return Staging(staging_dir / f"proof-{job}", states=False)


def draft(staging_dir: Path, view_id: int) -> Staging:
    """Return the directory in which a move of a view stages its states, for ``Staging.take``.

    Until the states are complete, the view's own directory may have those of an earlier move, which
    a worker has yet to load.
    """
    return Staging(of_view(staging_dir, view_id).path.with_suffix(".draft"))


def sealed(staging_dir: Path) -> list[int]:
    """Return the IDs of views with a complete population that may not have been adopted yet."""
    if not staging_dir.exists():
        return []
    return sorted(
        int(folder.name)
        for folder in staging_dir.iterdir()
        if folder.name.isdecimal() and (folder / MANIFEST).exists()
    )


def is_moved(staging_dir: Path, view_id: int) -> bool:
    """Return whether the staged states were moved from another worker."""
    try:
        facts = msgspec.json.decode((staging_dir / str(view_id) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return "mark" in facts and "kept" not in facts


def remove_orphans(staging_dir: Path, keep: set[int]) -> list[str]:
    """Remove all except the complete populations of the views in ``keep``; return the names.

    A directory without a manifest is incomplete, even if its view is in ``keep``.
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
