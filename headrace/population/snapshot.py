"""A snapshot at a known LSN, which many connections can read at once.

Only the snapshot of a new replication slot is consistent with the stream (E1-E4): a transaction
is in the snapshot exactly if its commit LSN is below the slot's consistent point.  So a population
makes a temporary slot, which ends with its connection.

    exporter:  BEGIN; CREATE_REPLICATION_SLOT … TEMPORARY … (SNAPSHOT 'use'); pg_export_snapshot()
    readers:   BEGIN; SET TRANSACTION SNAPSHOT '…'; prove it; COPY …

Invariant 1: rows are used only if the exporter is still alive after they were read (``check``).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog
from psycopg import sql

from headrace import clock
from headrace.errors import HeadraceError, PrerequisiteError, SnapshotLost, UserError
from headrace.population.job import Job
from headrace.postgres.connect import Connection, for_job
from headrace.postgres.failures import as_headrace
from headrace.process import faults
from headrace.types import Lsn, parse_lsn

_log = structlog.get_logger(__name__)
_PING_INTERVAL_S: Final = 10.0
_LOOK_S: Final = 1.0
_LOOK_S_MAX: Final = 10.0
"""Seconds between two looks at the transactions that a new slot waits for: first, and at most."""
_WRITERS_S: Final = 0.5
_OLDEST_SERVER: Final = 150_000
_SLOT_INFIX: Final = "_p_"
WAITING: Final = "waiting for "
"""Prefix of a message that names open transactions."""
_LISTED_MAX: Final = 5
# pg_locks shows which transaction the slot waits for now, even to roles that may not see other
# columns.  The slot may wait for the other transactions that have written next.
_BLOCKERS: Final = """
WITH waiting AS (
  SELECT w.transactionid AS xid FROM pg_catalog.pg_locks w
   WHERE w.pid = %(waits)s AND w.locktype = 'transactionid' AND NOT w.granted),
found AS (
  SELECT coalesce(a.usename, '?') AS role, 'process ' || a.pid AS id, a.xact_start AS since
    FROM pg_catalog.pg_stat_activity a
   WHERE a.pid <> pg_catalog.pg_backend_pid() AND (a.backend_xid IS NOT NULL OR a.pid IN (
         SELECT h.pid FROM pg_catalog.pg_locks h JOIN waiting w ON h.transactionid = w.xid
          WHERE h.locktype = 'transactionid' AND h.granted))
  UNION ALL SELECT p.owner, 'prepared as ' || pg_catalog.quote_literal(p.gid), p.prepared
    FROM pg_catalog.pg_prepared_xacts p)
SELECT pg_catalog.format('transaction of %%s (%%s), started %%s', role, id, coalesce(
       pg_catalog.to_char(since, 'YYYY-MM-DD HH24:MI:SS TZ'), 'at a time that is not shown to us'))
  FROM found ORDER BY since LIMIT %(most)s"""


def apart_s(attempt: int) -> float:
    """Return for how many seconds a worker keeps transactions apart until it knows the position.

    The position must be a boundary between two batches.  It is known when the slot has been made,
    soon after the server has written it.  Other views wait this long if the worker is too slow for
    batches of one transaction, so that only later attempts take long.
    """
    return float(4 ** (attempt - 1))


@dataclass(frozen=True, slots=True)
class SnapshotRef:
    """Reference by which a reader, on any machine, joins the snapshot."""

    name: str
    proof: str
    """``pg_current_snapshot()`` of the exporter, which each reader must see, too."""
    start_lsn: Lsn
    """Consistent point: changes committed below it are in the snapshot, others are not."""


class Snapshot:
    """An exported snapshot and the connection that keeps it alive."""

    def __init__(self, conn: Connection, slot: str, ref: SnapshotRef) -> None:
        self.ref: Final = ref
        self.slot: Final = slot
        self._conn = conn
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._lost: Exception | None = None
        self._thread = threading.Thread(target=self._keep, name=f"snapshot {slot}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Check that the exporter still lives.

        Raises:
            SnapshotLost: the exporter is gone; no row that was read may be used.
        """
        if self._lost is None:
            self._ping()
        if self._lost is not None:
            raise SnapshotLost("the snapshot of the population was lost", detail=str(self._lost))

    def close(self) -> None:
        """End the snapshot; its slot ends with the connection."""
        self._stop.set()
        self._conn.close()
        self._thread.join(timeout=5)

    def _keep(self) -> None:
        while not self._stop.wait(_PING_INTERVAL_S):
            self._ping()
            if self._lost is not None:
                return

    def _ping(self) -> None:
        # NB: statements are allowed: with SNAPSHOT 'use' the snapshot belongs to the transaction.
        with self._lock:
            if self._lost is not None or self._stop.is_set():
                return
            try:
                self._conn.execute("SELECT 1")
            except psycopg.Error as error:
                self._lost = error
                _log.warning("source snapshot lost", slot=self.slot, reason=str(error).strip())


@contextlib.contextmanager
def export(job: Job, dsn: str, *, slot_name: str, number: str, wait_ms: int) -> Iterator[Snapshot]:
    """Yield a snapshot that is valid during the block.

    A slot begins only when the open transactions that have written have ended.  This waits for
    them, and reports them to the job, until the job is cancelled or ``wait_ms`` have passed
    (0 means no limit).
    REQUIRES: the tables have been in the publication, committed, before.

    Raises:
        SnapshotBlocked: transactions (named) have stayed open for ``wait_ms``.
        PrerequisiteError: a slot is missing, the server is too old, or the role may not replicate.
    """
    slot = slot_of(slot_name, number)
    # A walsender waits for the transactions one by one.  Only lock_timeout bounds each wait (E8) if
    # this process is gone by then.  Without it ``remove_slots`` ends the wait.
    conn = for_job(
        dsn, what="snapshot", replication=True, settings={"lock_timeout": f"{wait_ms}ms"}
    )
    try:
        with job.cancelling(lambda: conn.cancel_safe(timeout=5.0)):
            ref = _create(job, conn, dsn, slot, wait_ms)
    except BaseException as error:
        conn.close()
        remove_slot(dsn, slot)
        if isinstance(error, psycopg.Error):
            raise as_headrace(error) from error
        raise
    snapshot = Snapshot(conn, slot, ref)
    _log.info("source snapshot exported", slot=slot, proof=ref.proof)
    try:
        yield snapshot
    finally:
        snapshot.close()


def slot_of(slot_name: str, number: str) -> str:
    """Return the name of the temporary slot of population ``number``; at most 63 bytes."""
    tail = f"{_SLOT_INFIX}{number}"
    return slot_name[: 63 - len(tail)] + tail


def remove_slot(dsn: str, slot: str) -> None:
    """Remove a slot that a broken creation may have left half-made (H8)."""
    try:
        with for_job(dsn, what="janitor") as conn:
            _terminate(conn, "s.slot_name = %s", slot)
    except (HeadraceError, psycopg.Error) as error:
        # The slot is temporary: it ends when its server process notices the disconnection.
        _log.warning("temporary slot not removed yet", slot=slot, reason=str(error))


def remove_slots(conn: Connection, slot_name: str) -> int:
    """Remove the slots of an earlier builder of the same engine; return how many there were."""
    prefix = slot_name[: 63 - len(_SLOT_INFIX)] + _SLOT_INFIX
    return _terminate(conn, "starts_with(s.slot_name, %s)", prefix)


def _terminate(conn: Connection, condition: str, value: str) -> int:
    rows = conn.execute(
        sql.SQL(
            "SELECT pg_terminate_backend(s.active_pid) FROM pg_replication_slots s"
            " WHERE s.temporary AND s.active_pid IS NOT NULL"
            " AND s.database = current_database() AND {}"
        ).format(sql.SQL(condition)),
        (value,),
    ).fetchall()
    return len(rows)


def _make_slot(job: Job, conn: Connection, dsn: str, slot: str, wait_ms: int) -> Lsn:
    """Create the slot with the first command of a transaction, which stays open; return its LSN.

    The wait is not split: a new attempt would also wait for transactions that began meanwhile.
    """
    create = sql.SQL(
        "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use')"
    ).format(sql.Identifier(slot))
    # READ ONLY: PostgreSQL 18 insists (E6).
    conn.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
    faults.point(faults.SLOT_ASKED)
    lookout = _SnapshotWatch(job, conn, dsn, wait_ms / 1000 if wait_ms else math.inf)
    try:
        with lookout:
            row = conn.execute(create).fetchone()
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled) as error:
        job.check()
        if isinstance(error, psycopg.errors.QueryCanceled) and not lookout.late:
            raise
        raise blocked(lookout.blockers or _find_blockers(dsn, lookout.pid)) from error
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise PrerequisiteError(
            "no replication slot is free for the population",
            detail=error.diag.message_primary,
            hint="Raise max_replication_slots and restart the server.",
        ) from error
    assert row is not None, "CREATE_REPLICATION_SLOT answers one row"
    faults.point(faults.SLOT_MADE)
    return parse_lsn(str(row[1]))


class _SnapshotWatch:
    """Reports the transactions that a new slot waits for, and ends the wait at the deadline."""

    def __init__(self, job: Job, conn: Connection, dsn: str, seconds: float) -> None:
        self.pid: Final = conn.info.backend_pid
        self.blockers = ""
        """The transactions that the slot waited for at the last look."""
        self.late = False
        """Whether the deadline has passed."""
        self._job = job
        self._conn = conn
        self._dsn = dsn
        self._deadline = clock.monotonic() + seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)

    def __enter__(self) -> None:
        self._job.check()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        # Wait for the thread, so that its cancel cannot reach the next statement.
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pause = _LOOK_S
        while True:
            left = self._deadline - clock.monotonic()
            if self._over.wait(max(min(left, pause), 0.0)):
                return
            pause = min(2 * pause, _LOOK_S_MAX)
            with contextlib.suppress(HeadraceError, psycopg.Error):
                self.blockers = _find_blockers(self._dsn, self.pid)
            if self.blockers:
                self._job.say(f"{WAITING}{self.blockers}")
            if clock.monotonic() >= self._deadline:
                self.late = True
                with contextlib.suppress(psycopg.OperationalError):
                    self._conn.cancel_safe(timeout=5.0)
                return


def _create(job: Job, conn: Connection, dsn: str, slot: str, wait_ms: int) -> SnapshotRef:
    if conn.info.server_version < _OLDEST_SERVER:
        raise PrerequisiteError("the source must be PostgreSQL 15 or later")
    start_lsn = _make_slot(job, conn, dsn, slot, wait_ms)
    row: Any = conn.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
    return SnapshotRef(str(row[0]), str(row[1]), start_lsn)


def wait_for_writers(job: Job, dsn: str, limit_ms: int = 0) -> None:
    """Wait until all transactions that are open now and have written have ended.

    The next slot then waits only for those that have begun since.  ``limit_ms``: 0 means no limit.

    Raises:
        SnapshotBlocked: they have stayed open for ``limit_ms``.
    """
    until = clock.monotonic() + (limit_ms / 1000 or math.inf)
    with job.connection(dsn, what="snapshot") as conn, job.translating():
        row: Any = conn.execute("SELECT pg_current_xact_id()::text::numeric").fetchone()
        ended = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::numeric >= %s"
        pause = _WRITERS_S
        told_at = clock.monotonic() + _LOOK_S
        while conn.execute(ended, row).fetchone() != (True,):
            if clock.monotonic() >= until:
                raise blocked(_blockers(conn, 0))
            if clock.monotonic() >= told_at and (blockers := _blockers(conn, 0)):
                job.say(f"{WAITING}{blockers}")
            job.wait(pause)
            pause = min(2 * pause, _LOOK_S_MAX)


def _find_blockers(dsn: str, waits: int) -> str:
    with for_job(dsn, what="population") as conn:
        return _blockers(conn, waits)


def _blockers(conn: Connection, waits: int) -> str:
    """Return a text that lists the transactions that a new slot waits for, oldest first.

    ``waits``: PID of the server process that makes the slot; 0 means none yet.
    """
    rows = conn.execute(_BLOCKERS, {"waits": waits, "most": _LISTED_MAX}).fetchall()
    return ", ".join(str(row[0]) for row in rows)


class SnapshotBlocked(PrerequisiteError):
    """Transactions have stayed open for longer than a slot may wait."""


def blocked(blockers: str) -> UserError:
    """Return the error for a slot that has waited too long for ``blockers``."""
    return SnapshotBlocked(
        "the population cannot start while transactions that write stay open",
        detail=f"Open: {blockers}." if blockers else None,
        hint="Let them end (COMMIT, ROLLBACK, COMMIT PREPARED, pg_terminate_backend)"
        " and create the view again; or set population_lock_wait_ms to 0, to wait for them.",
        sqlstate="55P03",
    )
