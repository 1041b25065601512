"""Pipelined commit: a commit group's transaction in one round trip, and its COMMIT in another.

It makes the same checks and writes as the sequential commit (writing.py), in the same order, but
for all views at once.  It commits only if every answer is as expected.  Otherwise it rolls back,
and the sequential commit starts from the beginning, which finds the view that failed.

* Invariant: no row is written unless the server itself has found the tables as the engine knows
  them (``sink/pipelined_write.py``), however late the answers are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.postgres import definitions, failures, privileges
from headrace.postgres.pipelined import Got, Sent
from headrace.process import bounds, faults
from headrace.runtime.crash_attribution import CrashAttribution
from headrace.runtime.jobs import CommitJob, ViewPart
from headrace.runtime.link import SinkLink
from headrace.sink import pipelined_write
from headrace.sink.pipelined_write import PipelinedWrite
from headrace.sql import progress

ROWS_MAX: Final = 2_000
"""Rows of one view.  In a measurement, 1 000 new rows cost a fifth less CPU here than by COPY,
3 000 the same, and more are cheaper by COPY; updates and deletes are always cheaper here."""
BYTES_MAX: Final = 16 << 20
"""Bytes of all views, because everything sent at once is in memory at once, more than once."""
_SKIPPED_MAX: Final = 256
_MISSES: Final = 3
_log = structlog.get_logger(__name__)

_BEGIN: Final = (
    Sent(b"BEGIN"),
    # A transaction that waits for a row lock waits again in the sequential commit, for longer.
    Sent(b"SET LOCAL lock_timeout = '20ms'"),
)
_SETTLE: Final = Sent(b"SET CONSTRAINTS ALL IMMEDIATE")


class PipelinedCommit:
    """Writes commit groups by pipeline, and decides for which groups to try it."""

    def __init__(self, suspects: CrashAttribution) -> None:
        self._suspects = suspects
        self._lost_at = -1
        self._missed: dict[str, int] = {}
        self._skip: dict[str, int] = {}

    def write(self, link: SinkLink, job: CommitJob, parts: Sequence[ViewPart]) -> bool:
        """Write one group's parts and move their progress, up to but without the COMMIT.

        Return False if nothing was written and no transaction is open.

        Raises:
            psycopg.Error: the connection is lost.
        """
        group = parts[0].group
        if job.txid <= self._lost_at or self._suspects.sequential(job.txid):
            return False
        if self._skip.get(group):
            self._skip[group] -= 1
            return False
        writes = self._made(link, job, parts)
        if writes is None:
            return False
        try:
            # The view to blame matters only once the views are written one by one.
            with self._suspects.during(parts[0].view_id, job.txid):
                good = self._sent(link, job, parts, writes)
        except psycopg.Error as error:
            if failures.is_lost(error) or link.sink.closed:
                self._lost_at = job.txid
                raise
            good = False
            _log.debug("not written in one round trip", txid=job.txid, reason=str(error).strip())
        if good:
            self._missed.pop(group, None)
            return True
        link.sink.execute("ROLLBACK")
        self._miss(group)
        return False

    def _miss(self, group: str) -> None:
        """Skip the group for a while after repeated failures, so that it does not pay twice."""
        times = self._missed[group] = self._missed.get(group, 0) + 1
        if times >= _MISSES:
            self._skip[group] = min(2**times, _SKIPPED_MAX)

    def _made(
        self, link: SinkLink, job: CommitJob, parts: Sequence[ViewPart]
    ) -> list[PipelinedWrite] | None:
        all_diffs = [part.diffs for part in parts if part.diffs is not None]
        if max(diffs.num_rows for diffs in all_diffs) > ROWS_MAX:
            return None
        if sum(map(bounds.size_of, all_diffs)) > BYTES_MAX:
            return None
        out = []
        with self._suspects.in_turn() as mark:
            for part, diffs in zip(parts, all_diffs, strict=True):
                mark(part.view_id, job.txid)
                try:
                    write = link.writer.pipelined(part.target, diffs)
                except Exception:  # noqa: BLE001  the sequential commit finds the view with the bug
                    return None
                if write is None or sum(write.wanted) > ROWS_MAX:
                    return None
                out.append(write)
        return out

    def _sent(
        self,
        link: SinkLink,
        job: CommitJob,
        parts: Sequence[ViewPart],
        writes: Sequence[PipelinedWrite],
    ) -> bool:
        """Send all statements; return whether all answers are as expected."""
        known = [part.known for part in parts if part.known]
        rights = [right for part in parts for right in part.rights]
        altered = definitions.asking(known)
        lacking = privileges.asking(rights) if rights else None
        rows = [statement for write in writes for statement in write.statements]
        at = clock.from_postgres(job.commit_time_us)
        noted = [
            statement
            for part in parts
            if part.kept and part.diffs is not None
            for statement in link.writer.notes(part.target, part.diffs, job.moment)
        ]
        moved = [part.progress for part in parts]
        moving = progress.advancing(moved, job.txid, job.attempt, job.lsn, at)
        before = [*_BEGIN, *pipelined_write.fence(writes)]
        after = [s for s in (_SETTLE, altered, lacking, moving) if s is not None]
        answers = link.pipelined.exchange(
            [*before, *rows, *noted, *after], lambda: faults.point(faults.PIPELINE_SENT)
        )
        found = iter(answers[len(before) :])
        wanted = [count for write in writes for count in write.wanted]
        good = all([next(found).count == count for count in wanted])
        # If a history was just removed, the sequential commit handles it.
        good = all([next(found).count == 1 for _ in noted]) and good
        next(found)  # constraints
        good = good and (altered is None or _unaltered(known, next(found)))
        good = good and (lacking is None or not next(found).rows)
        return good and len(next(found).rows) == len(parts)


def _unaltered(known: Sequence[definitions.Definitions], answer: Got) -> bool:
    now = definitions.parse_marks(known, answer.rows)
    return not any(map(definitions.changed, known, now))
