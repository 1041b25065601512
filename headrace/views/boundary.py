"""A snapshot at which a running view has a known txid, while writes go on.

The worker ends a batch exactly at the snapshot's position: it cuts batches while a *tap* exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError, TransientError
from headrace.population import elsewhere
from headrace.population import snapshot as snapshots
from headrace.population.context import JobContext
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.job import Job
from headrace.population.snapshot import Snapshot
from headrace.postgres.connect import Connection
from headrace.sql import origins
from headrace.sql.views import ViewRow


@dataclass(frozen=True, slots=True)
class Boundary:
    """The last txid of a view before a snapshot."""

    txid: int
    instant: int
    """The view's now() at that txid, in microseconds since 2000-01-01 UTC; 0: it reads no clock."""


@contextlib.contextmanager
def tapped(context: JobContext, job: Job, view: ViewRow, attempt: int) -> Iterator[Path]:
    """Have batches cut, and yield the file with what is written into the view's table."""
    about = {"view_id": view.id, "job": job.name, "apart_s": snapshots.apart_s(attempt)}
    try:
        answer = context.worker.call("tap", about, job)
        yield Path(answer["path"])
    finally:
        untap(context, job)


def untap(context: JobContext, job: Job) -> None:
    """End the tap, if there is one; without a worker there is none."""
    with contextlib.suppress(HeadraceError):
        context.worker.call("untap", {"job": job.name})


@contextlib.contextmanager
def snapshot_of(
    context: JobContext, job: Job, conn: Connection, tables: tuple[int, ...], number: str
) -> Iterator[tuple[Snapshot, SourceSnapshots | None, contextlib.ExitStack]]:
    """Yield a snapshot with a position, and those of other databases that ``tables`` are in.

    ``number`` is unique among the jobs.  The replicators pause until the stack is closed.

    Raises:
        PrerequisiteError: 55P03, transactions stay open.
    """
    settings = context.settings
    dsn = settings.source
    beyond = origins.standing_in(conn, tables)
    if beyond and not settings.population_lock_wait_ms:
        snapshots.wait_for_writers(job, dsn)
    with (
        elsewhere.hold_snapshots(job, settings, beyond, number) as (sources, standing),
        snapshots.export(
            job,
            dsn,
            slot_name=settings.slot_name,
            number=number,
            wait_ms=elsewhere.wait_ms(settings, standing=bool(beyond)),
        ) as snapshot,
    ):
        yield snapshot, sources, standing


def reached(context: JobContext, job: Job, view_id: int, lsn: int, *, temporal: bool) -> Boundary:
    """Wait until the view of the tap has everything before ``lsn``.

    Raises:
        TransientError: the view has not read its clock yet (``temporal``).
    """
    while True:
        job.check()
        about = {"job": job.name, "view_id": view_id, "lsn": lsn}
        answer = context.worker.call("tapped", about, job)
        if answer is not None:
            found = Boundary(int(answer["txid"]), int(answer["instant"]))
            if temporal and not found.instant:
                raise TransientError("the view's clock has not been read yet", sqlstate="40001")
            return found
