"""The commit phase: writes txids in order to the result tables, on its own thread and connection.

Each commit group is one Postgres transaction per txid: rows of its views and their progress. Views
without a named group are in group ''. A view that a txid does not change is not written, and its
progress stays (``sql/progress.py``, Invariant 2).

* Invariant 1: a view whose txid n was not written gets nothing of n + 1 and later txids. It is
  left out until the engine calls ``start`` or ``admit``, after it has gone back to before n.
* Invariant 2: groups fail independently. A view that cannot be written leaves its group, and the
  rest of the group commits without it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
import structlog

from headrace import clock, errors
from headrace.postgres import definitions, failures, privileges
from headrace.postgres.pipelined import Sent
from headrace.process import faults
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.jobs import Answer, Closed, CommitJob, Jobs, ViewPart
from headrace.runtime.link import LOOK_S, CoverageWriter, Published, SinkLink
from headrace.runtime.pipelined_commit import PipelinedCommit
from headrace.sink import trouble
from headrace.sql import progress
from headrace.sql.progress import Progress
from headrace.types import Lsn, Txid

BREAKS_MAX: Final = 4
"""Connection losses while one view is written at one txid, after which the view is to blame."""
_log = structlog.get_logger(__name__)

_LOCK_WAIT_S: Final = 0.1
"""Seconds that one job waits for locks on result tables, because all other views wait meanwhile."""
_LOCK_WAIT_S_MIN: Final = 0.01
"""Seconds that it waits for each further table."""
_NO_TXID: Final = sys.maxsize
_COMMIT: Final = Sent(b"COMMIT")
_BEFORE_VIEW: Final = "SAVEPOINT view; SET CONSTRAINTS ALL DEFERRED"
_AFTER_VIEW: Final = "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT view"
"""Constraints that an earlier view has made immediate may be deferred again."""


class SinkThread:
    """Commits the jobs of ``jobs``; the engine calls ``start`` and ``leave``."""

    def __init__(
        self,
        jobs: Jobs,
        suspects: CrashAttribution,
        wake: Callable[[], None],
        name: str = "headrace-sink",
        watermark: Published | None = None,
        coverage: CoverageWriter | None = None,
    ) -> None:
        """Start the thread; it calls ``wake`` when there is an answer for the engine's thread.

        ``watermark``: published with each look at the connection; ``coverage``: gets the results.
        """
        self._ways = _Ways(_Breaks(), suspects, PipelinedCommit(suspects), _Now())
        self._jobs = jobs
        self._wake = wake
        self._watermark: Final = watermark
        self._coverage: Final = coverage
        self._link: SinkLink | None = None
        self._written: dict[int, Progress] = {}
        self._out: dict[int, int] = {}
        """Views that were not written, with the last txid of which they get nothing."""
        self._fresh = True
        """Whether this connection was not looked at yet."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, link: SinkLink) -> None:
        """Write over ``link``, with all views again.

        REQUIRES: nothing is in flight.
        """
        self._written = {}
        self._out = {}
        self._fresh = True
        self._link = link

    def admit(self, view_id: int, after_txid: int) -> None:
        """Write a view again from the txid after ``after_txid`` on; callable from any thread.

        REQUIRES: the engine has handled the answer of the job that did not write it.
        """
        if view_id in self._out:
            self._out[view_id] = after_txid

    def leave(self) -> None:
        """Use the connection for no job after the current one."""
        self._link = None

    @property
    def writes(self) -> tuple[int, int, float] | None:
        """The view being written, its number of rows, and the seconds since then; for any thread.

        None: none, or many at once, which does not take long.
        """
        now = self._ways.now.view
        return None if now is None else (now[0], now[1], clock.monotonic() - now[2])

    def close(self) -> None:
        """Wait for the thread's end. REQUIRES: there will be no more jobs."""
        self._thread.join()

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            try:
                job = jobs.next_job(LOOK_S)
            except Closed:
                return
            link = self._link
            try:
                if job is None:
                    if link is not None:
                        self._look(link, jobs.busy_s)
                    jobs.rested()
                    continue
                if link is None:
                    raise errors.TransientError("the sink connection was given up")
                if link.due:
                    self._look(link)
                answer = self.write(link, job)
            except psycopg.Error as error:
                jobs.failed(_known(error))
            except Exception as error:  # noqa: BLE001  the engine's thread decides
                jobs.failed(error)
            else:
                jobs.committed(answer)
            self._wake()

    def _look(self, link: SinkLink, busy_s: float = 0.0) -> None:
        found = link.look(busy_s, self._watermark.text() if self._watermark else "")
        if self._watermark is not None:
            self._watermark.sample(found.at, found.wal)
        if self._coverage is not None:
            if self._fresh:
                self._fresh = False
                self._coverage.restart()
            self._coverage.look(link.sink, found.at, found.asked)

    def write(self, link: SinkLink, job: CommitJob) -> Answer:
        """Write a job, group by group.

        Raises:
            TransientError: the connection broke, or a COMMIT was not answered. The outcome is
                unknown until the views are taken over again.
            FencedError: another process owns the views by now.
        """
        answer, patience = Answer(job), _Patience(link, job)
        for parts in _by_group(self._due(job)):
            begun = clock.monotonic()
            _Group(link, job, parts, answer, self._ways, patience).write()
            answer.seconds[parts[0].group] = clock.monotonic() - begun
        self._written |= answer.progress
        self._out |= dict.fromkeys([*answer.failed, *answer.gone], _NO_TXID)
        return answer

    def _due(self, job: CommitJob) -> list[ViewPart]:
        """Return the parts to be written, each with the present progress of its view."""
        out = []
        for part in job.parts:
            if not part.changes:
                continue
            now = part.progress
            known = self._written.get(part.view_id)
            # Jobs are made before earlier answers arrive, so only this thread knows what it wrote
            # since. The engine knows what another thread has written.
            if known is not None and (known.epoch, known.txid) > (now.epoch, now.txid):
                now = known
            # Crash table, row 2: the sink has this txid already, only the state lacks it.
            if job.txid > self._out.get(part.view_id, 0) and now.txid < job.txid:
                out.append(part if now is part.progress else replace(part, progress=now))
        return out


@dataclass(frozen=True, slots=True)
class _Ways:
    """Results of earlier writes that decide how the next one is done."""

    breaks: _Breaks
    suspects: CrashAttribution
    pipelined: PipelinedCommit
    now: _Now


@dataclass(slots=True)
class _Now:
    """The current write of the thread; for any thread."""

    view: tuple[int, int, float] | None = None
    """A view, its number of rows, and the start on the monotonic clock."""


class _Patience:
    """How long one job still waits for locks on result tables."""

    def __init__(self, link: SinkLink, job: CommitJob) -> None:
        self._conn = link.sink
        self._limit_ms = link.lock_timeout_ms
        self._left_s = math.inf if job.alone else _LOCK_WAIT_S

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the waits of the block, which is within a transaction."""
        self._set(min(max(self._left_s, _LOCK_WAIT_S_MIN) * 1000, self._limit_ms))
        begun = clock.monotonic()
        try:
            yield
        except errors.SinkBlocked:
            self._left_s -= clock.monotonic() - begun
            raise

    def unlimited(self) -> None:
        """Wait for other locks as long as the setting says."""
        self._set(self._limit_ms)

    def _set(self, wait_ms: float) -> None:
        self._conn.execute(f"SET LOCAL lock_timeout = {max(int(wait_ms), 1)}")


class _Group:
    """One commit group's part of one job: one Postgres transaction."""

    def __init__(
        self,
        link: SinkLink,
        job: CommitJob,
        parts: Sequence[ViewPart],
        answer: Answer,
        ways: _Ways,
        patience: _Patience,
    ) -> None:
        self._patience = patience
        self._breaks = ways.breaks
        self._suspects = ways.suspects
        self._quick = ways.pipelined
        self._now = ways.now
        self._link = link
        self._conn = link.sink
        self._job = job
        self._parts = parts
        self._answer = answer

    def write(self) -> None:
        """Write the diffs and move progress; views that cannot be written are left out."""
        moving = self._left()
        quickly = self._written_quickly(moving)
        if not quickly:
            moving = self._carefully()
        if not moving:
            return
        job, answer = self._job, self._answer
        faults.point(faults.COMMIT_SENT)
        if quickly:
            self._link.pipelined.exchange([_COMMIT])
        else:
            self._conn.execute("COMMIT")
        faults.point(faults.COMMIT_ANSWERED)
        for part in moving:
            answer.progress[part.view_id] = Progress(
                part.view_id, part.progress.epoch, Txid(job.txid), Lsn(job.lsn)
            )

    def _written_quickly(self, parts: Sequence[ViewPart]) -> bool:
        try:
            written = self._quick.write(self._link, self._job, parts)
        except psycopg.Error:
            if len(parts) == 1:
                self._breaks.add(parts[0], self._job.txid)
            raise
        if written:
            for part in parts:
                self._breaks.forget(part)
            faults.point(faults.ROWS_SENT)
        return written

    def _carefully(self) -> list[ViewPart]:
        """Write the views one by one, each in a savepoint; return the views to commit."""
        conn, job, answer = self._conn, self._job, self._answer
        while True:
            conn.execute("BEGIN")
            if not sum(self._write_marked(part) for part in self._left()):
                conn.execute("ROLLBACK")
                return []
            self._patience.unlimited()
            faults.point(faults.ROWS_SENT)
            moving = self._left()
            if stopped := self._altered(moving) | self._refused(moving):
                conn.execute("ROLLBACK")
                answer.failed |= stopped
                continue
            try:
                missing = progress.advance(
                    conn,
                    [p.progress for p in moving],
                    job.txid,
                    job.attempt,
                    job.lsn,
                    clock.from_postgres(job.commit_time_us),
                )
            except (errors.FencedError, errors.BugError):
                conn.execute("ROLLBACK")
                raise
            if not missing:
                return moving
            conn.execute("ROLLBACK")
            answer.gone.update(missing)

    def _left(self) -> list[ViewPart]:
        answer = self._answer
        return [
            p
            for p in self._parts
            if p.view_id not in answer.failed and p.view_id not in answer.gone
        ]

    def _altered(self, parts: Sequence[ViewPart]) -> dict[int, errors.HeadraceError]:
        """Return errors of views whose definitions were altered.

        The rows of such a view may mix two definitions. This runs after the rows are written,
        because writing also reads values of users' types.
        """
        asked = {p.view_id: p.known for p in parts if p.known}
        if not asked:
            return {}
        found = definitions.marks(self._conn, asked.values())
        return {
            view_id: errors.StructureChanged(
                "an object that the view depends on was altered", hint=errors.RESYNC
            )
            for (view_id, known), now in zip(asked.items(), found, strict=True)
            if definitions.changed(known, now)
        }

    def _refused(self, parts: Sequence[ViewPart]) -> dict[int, errors.HeadraceError]:
        """Return errors of views whose owners may no longer read their tables.

        All rows to write were committed before this check. So rows committed after a right has
        ended are never written.
        """
        asked = [p for p in parts if p.rights]
        lacks = privileges.lacking(self._conn, (r for p in asked for r in p.rights))
        found = {
            p.view_id: privileges.error(lacks[r] for r in p.rights if r in lacks) for p in asked
        }
        return {view_id: error for view_id, error in found.items() if error is not None}

    def _write_marked(self, part: ViewPart) -> int:
        assert part.diffs is not None, "it changes"
        self._now.view = part.view_id, part.diffs.num_rows, clock.monotonic()
        try:
            with self._suspects.during(part.view_id, self._job.txid):
                return self._write_view(part)
        finally:
            self._now.view = None

    def _write_view(self, part: ViewPart) -> int:
        conn, writer = self._conn, self._link.writer
        assert part.diffs is not None, "it changes"
        worn = self._breaks.error(part, self._job.txid)
        if worn is not None:
            self._answer.failed[part.view_id] = worn
            return 0
        try:
            conn.execute(_BEFORE_VIEW)
            try:
                with self._patience.limited():
                    rows = writer.write(part.target, part.diffs)
                    self._note(part)
                    self._check_deferred(part)
            except psycopg.Error:
                raise  # the connection is lost
            except Exception as error:  # noqa: BLE001  the boundary of one view's write
                conn.execute("ROLLBACK TO SAVEPOINT view")
                writer.forget(part.view_id)
                self._answer.failed[part.view_id] = self._known(part, error)
                return 0
        except psycopg.Error:
            self._breaks.add(part, self._job.txid)
            raise
        self._breaks.forget(part)
        return rows

    def _note(self, part: ViewPart) -> None:
        if not part.kept or part.diffs is None:
            return
        try:
            for statement in self._link.writer.notes(part.target, part.diffs, self._job.moment):
                with psycopg.RawCursor(self._conn) as cursor:
                    cursor.execute(statement.text, statement.values)
        except psycopg.Error as error:
            if failures.is_lost(error) or self._conn.closed:
                raise
            raise trouble.of_view(part.target, error) from error

    def _check_deferred(self, part: ViewPart) -> None:
        """Check deferred constraints now, so that an error is known to be this view's."""
        try:
            self._conn.execute(_AFTER_VIEW)
        except psycopg.Error as error:
            if failures.is_lost(error) or self._conn.closed:
                raise
            raise trouble.of_view(part.target, error) from error

    def _known(self, part: ViewPart, error: Exception) -> errors.HeadraceError:
        if not isinstance(error, errors.HeadraceError):
            _log.exception("view stopped by a bug", view=part.view_id)
            return errors.BugError(f"internal error in writing the view: {error!r}")
        if isinstance(error, errors.SinkBlocked) and error.code == errors.SinkBlocked.sqlstate:
            pids = ", ".join(map(str, self._link.writer.blockers(part.target)))
            error.detail = f"It is locked by process {pids}." if pids else None
        if isinstance(error, errors.SinkTableError):
            return self._explained(part, error)
        return error

    def _explained(self, part: ViewPart, error: errors.SinkTableError) -> errors.SinkTableError:
        try:
            return self._link.writer.explained(part.target, error)
        except psycopg.Error as second:
            if failures.is_lost(second) or self._conn.closed:
                raise
            self._conn.execute("ROLLBACK TO SAVEPOINT view")
            return error


class _Breaks:
    """Counts connection losses during the write of one view's table, at one txid.

    A failing server fails anywhere. If it fails at the same view each time, code that runs in that
    write brings it down.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}

    def add(self, part: ViewPart, txid: int) -> None:
        at, times = self._found.get(part.view_id, (txid, 0))
        self._found[part.view_id] = (txid, times + 1 if at == txid else 1)

    def forget(self, part: ViewPart) -> None:
        self._found.pop(part.view_id, None)

    def error(self, part: ViewPart, txid: int) -> errors.HeadraceError | None:
        """Return why the view must not be written any more; None: it may be."""
        at, times = self._found.get(part.view_id, (0, 0))
        if at != txid or times < BREAKS_MAX:
            return None
        return errors.DefiniteFailure(
            f"the connection was lost {times} times while result table"
            f" {part.target.shown} was written",
            hint=errors.RESYNC,
            sqlstate="08006",
        )


def _by_group(parts: Sequence[ViewPart]) -> Iterator[list[ViewPart]]:
    """Yield the parts of each commit group, the most urgent group first, views in their order."""
    groups: dict[str, list[ViewPart]] = {}
    for part in parts:
        groups.setdefault(part.group, []).append(part)
    yield from sorted(groups.values(), key=_urgency)


def _urgency(parts: Sequence[ViewPart]) -> tuple[int, str]:
    """Return the sort key of a commit group: its least ``latency_ms``, then its name."""
    return min(part.latency_ms for part in parts), parts[0].group


def _known(error: psycopg.Error) -> Exception:
    if not (failures.is_lost(error) or failures.is_transient(error)):
        return error
    return errors.TransientError(
        f"the sink connection failed: {str(error).strip()}", sqlstate=error.sqlstate or "08006"
    )
