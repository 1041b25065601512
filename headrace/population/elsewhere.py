"""Population of tables in other databases, consistent with the snapshot of the main database.

    replicator pauses at p ─► snapshot of the source, at R ─► replicator goes on to R, and pauses
                         ─► snapshot here, at L ─► replicator goes on

So the WAL here has before L exactly the transactions that the source committed before R.  Rows read
there at R are consistent with rows read here at L, and the stream has all changes from L on.  Views
that read the source are delayed meanwhile.  Therefore the job waits for open transactions on both
sides before the replicator pauses, and after ``_STANDS_MS`` it starts over.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec.structs import replace
from psycopg import sql

from headrace import clock
from headrace.collections.plan import SourceSpec
from headrace.collections.source import load_columns
from headrace.config import Settings
from headrace.errors import TransientError
from headrace.population import reader, tables
from headrace.population import snapshot as snapshots
from headrace.population.job import Job
from headrace.population.reader import TableOrigin
from headrace.population.snapshot import Snapshot, SnapshotBlocked
from headrace.population.tables import TableChanged, TableSize
from headrace.postgres.connect import Connection, for_job
from headrace.sql import origins
from headrace.sql.origins import SourceRow, StandIn
from headrace.types import Lsn

_POLL_S: Final = 0.005
_STANDS_MS: Final = 10_000
"""Longest pause of a replicator for one attempt at a snapshot."""
_PATIENCE_S: Final = 60.0
"""Longest time until a source's changes have arrived up to its snapshot."""


_guard: Final = threading.Lock()
_locks: Final[dict[str, threading.Lock]] = {}
"""By source: lock of the job that reads it.  All jobs run in one process, the builder."""


@dataclass(slots=True)
class SourceSnapshots:
    """Snapshots of sources, and the shadow tables, by OID."""

    stand_ins: Mapping[int, StandIn]
    rows: Mapping[str, SourceRow]
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    """By source, like ``rows``."""

    def origin(self, spec: SourceSpec) -> TableOrigin | None:
        """Return the table of a source that ``spec`` stands for; None: it is a table of here."""
        row = self.stand_ins.get(spec.table_oid)
        if row is None:
            return None
        dsn, ref = self.rows[row.source].dsn, self.snapshots[row.source].ref
        with reader.joined(dsn, ref) as conn:
            return TableOrigin(row.source, dsn, ref, _there(conn, spec, row))

    def fill(self, conn: Connection) -> None:
        """Copy the rows of the snapshots into the shadow tables, in ``conn``'s transaction.

        REQUIRES: the caller rolls the transaction back.
        """
        conn.execute("SELECT set_config('headrace.filling', 'on', true)")
        for row in self.stand_ins.values():
            here, columns = _here(conn, row.table_oid)
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            there = sql.Identifier(row.schema_name, row.table_name)
            snapshot = self.snapshots[row.source]
            with (
                reader.joined(self.rows[row.source].dsn, snapshot.ref) as other,
                conn.cursor() as target,
                other.cursor() as cursor,
            ):
                tables.hold(other, there, row.origin_oid, _changed(row))
                # Start reading before the first write: a refusal there leaves nothing half done.
                out = cursor.copy(sql.SQL("COPY {} ({}) TO STDOUT").format(there, names))
                into = target.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(here, names))
                with out as pieces, into as copy:
                    for piece in pieces:
                        copy.write(piece)

    def check(self) -> None:
        """Raise SnapshotLost unless all snapshots still exist."""
        for snapshot in self.snapshots.values():
            snapshot.check()


def size(conn: Connection, spec: SourceSpec, row: StandIn) -> TableSize:
    """Return the size of the table in the source that shadow table ``row`` stands for.

    Raises:
        TransientError: the source cannot be reached.
    """
    with for_job(_running(conn, row.source).dsn, what="population") as other:
        return tables.size(other, _there(other, spec, row))


@contextlib.contextmanager
def hold_snapshots(
    job: Job, settings: Settings, stand_ins: Mapping[int, StandIn], number: str
) -> Iterator[tuple[SourceSnapshots | None, contextlib.ExitStack]]:
    """Yield snapshots of the sources of ``stand_ins``, and a stack that ends the pause.

    The replicators pause until the stack is closed.  Without shadow tables the snapshots are None.

    Raises:
        TransientError: a source, or its replicator, cannot be reached.
        SnapshotBlocked: 55P03, transactions stay open there for ``population_lock_wait_ms``.
    """
    with contextlib.ExitStack() as kept, contextlib.ExitStack() as standing:
        if not stand_ins:
            yield None, standing
            return
        conn = kept.enter_context(job.connection(settings.source, what="source"))
        names = sorted({row.source for row in stand_ins.values()})
        rows = {name: _running(conn, name) for name in names}
        out = SourceSnapshots(stand_ins, rows)
        for name in names:  # all jobs lock in the same order
            row = rows[name]
            job.phase("snapshot", message=f"waiting for source {name}")
            kept.enter_context(_alone(job, conn, name))
            standing.callback(_release, settings, name)
            out.snapshots[name] = _snapshot(job, settings, conn, row, number, kept)
            origins.hold_at(conn, name, out.snapshots[name].ref.start_lsn)
        for name in names:
            _reached(job, conn, name, out.snapshots[name].ref.start_lsn)
        yield out, standing


@contextlib.contextmanager
def _alone(job: Job, conn: Connection, name: str) -> Iterator[None]:
    """Lock a source for one job; ``conn`` marks it as held until ``conn`` is closed."""
    with _guard:
        lock = _locks.setdefault(name, threading.Lock())
    while not lock.acquire(blocking=False):
        job.wait(_POLL_S)
    try:
        # The session of a killed builder holds it until the server notices.
        while origins.is_held(conn, name):
            job.wait(_POLL_S)
        origins.mark_holder(conn, name)
        yield
    finally:
        lock.release()


def wait_ms(settings: Settings, *, standing: bool) -> int:
    """Return the milliseconds that one attempt at a snapshot may wait; 0 means no limit.

    ``standing``: replicators are paused meanwhile, which delays all views on their sources.
    """
    limit = settings.population_lock_wait_ms
    return min(limit, _STANDS_MS) or _STANDS_MS if standing else limit


def _snapshot(
    job: Job,
    settings: Settings,
    conn: Connection,
    row: SourceRow,
    number: str,
    kept: contextlib.ExitStack,
) -> Snapshot:
    """Pause the replicator and return a snapshot of the source; closing ``kept`` ends it.

    Without a limit on the wait, first wait for open transactions while the replicator still runs.
    """
    limit_s = settings.population_lock_wait_ms / 1000 or math.inf
    until = clock.monotonic() + limit_s
    for attempt in itertools.count(1):
        if limit_s == math.inf:
            snapshots.wait_for_writers(job, row.dsn)
        origins.hold_here(conn, row.name)
        try:
            return kept.enter_context(
                snapshots.export(
                    job,
                    row.dsn,
                    slot_name=row.slot,
                    number=f"{number.replace('-', '_')}_{attempt}",
                    wait_ms=wait_ms(settings, standing=True),
                )
            )
        except SnapshotBlocked:
            if clock.monotonic() >= until:
                raise
            _release(settings, row.name)
    raise AssertionError("the loop has no end")


def _release(settings: Settings, name: str) -> None:
    with for_job(settings.source, what="source") as conn:
        origins.release(conn, name)


def _running(conn: Connection, name: str) -> SourceRow:
    row = origins.find(conn, name)
    if row is None:
        raise TableChanged(f'source "{name}" was dropped')
    if row.state in ("down", "lost"):
        raise TransientError(
            f'source "{name}" cannot be read now: it is {row.state}',
            detail=row.problem,
            hint="See SELECT * FROM headrace.sources();",
            sqlstate="55000",
        )
    return row


def _reached(job: Job, conn: Connection, name: str, lsn: Lsn) -> None:
    """Wait until the WAL here has all that the source committed before ``lsn``."""
    until = clock.monotonic() + _PATIENCE_S
    while True:
        asked = origins.asked(conn, name)
        if asked is None:
            raise TableChanged(f'source "{name}" was dropped')
        if asked.position >= lsn:
            return
        _running(conn, name)
        if clock.monotonic() > until:
            raise TransientError(
                f'changes of source "{name}" do not come',
                hint="See SELECT * FROM headrace.sources();",
                sqlstate="55000",
            )
        job.wait(_POLL_S)


def _there(conn: Connection, spec: SourceSpec, row: StandIn) -> SourceSpec:
    """Translate ``spec`` from the shadow table to the table in the source, by column name.

    Raises:
        TableChanged: the table does not match its shadow table any more.
    """
    found = conn.execute(
        "SELECT n.nspname, c.relname, (SELECT jsonb_object_agg(a.attname, a.attnum)"
        "  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (row.origin_oid,),
    ).fetchone()
    numbers: dict[str, Any] = found[2] or {} if found else {}
    if found is None or any(c.name not in numbers for c in load_columns(spec)):
        raise _changed(row)
    columns, key = (
        tuple(replace(c, attnum=int(numbers.get(c.name, c.attnum))) for c in part)
        for part in (spec.columns, spec.key)
    )
    there = replace(
        spec,
        table_oid=row.origin_oid,
        schema_name=found[0],
        table_name=found[1],
        columns=columns,
        key=key,
    )
    # Check types and replica identity, too.
    tables.shape(conn, [there])
    return there


def _here(conn: Connection, oid: int) -> tuple[sql.Identifier, list[str]]:
    """Return the name and the columns of a shadow table."""
    row: Any = conn.execute(
        "SELECT n.nspname, c.relname, (SELECT array_agg(a.attname::text ORDER BY a.attnum)"
        "  FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    return sql.Identifier(*row[:2]), row[2]


def _changed(row: StandIn) -> TableChanged:
    return TableChanged(
        f'table "{row.schema_name}"."{row.table_name}" of source "{row.source}" is not what'
        " it was when the source was added",
        hint="Drop what reads the source, drop_source, and add it again.",
    )
