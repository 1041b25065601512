"""In-process population: for small tables, where starting Spark tasks would cost more."""

from __future__ import annotations

from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import reader, rows
from headrace.population.job import Job
from headrace.population.snapshot import SnapshotRef
from headrace.population.staging import Staging
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.state.memory import MemoryStore

_PART = "0"


def populate(
    job: Job,
    dsn: str,
    plan: PhysicalPlan,
    ref: SnapshotRef,
    remote: RemoteEvaluator | None,
    staging: Staging,
) -> int:
    """Fill ``staging`` with the result rows and states at snapshot ``ref``; returns the rows.

    Raises:
        SnapshotLost: the snapshot is gone; begin anew with another.
    """
    store = MemoryStore(undo=False)
    flow = Dataflow(plan, store, remote, ref.start_lsn)
    done = 0
    with reader.joined(dsn, ref) as conn, job.cancelling(lambda: conn.cancel_safe(timeout=5.0)):
        if plan.temporal:
            flow.begin(0, 0, _now(conn))
        for table in {source.table_oid for source in plan.sources}:
            for source in plan.sources:
                if source.table_oid != table:
                    continue
                for columns in reader.read(conn, source):
                    flow.load(table, columns)
                    bounds.progress()
                    done += len(columns[0])
                    job.rows(done)
                break
        reader.prove(conn, ref)
    job.check()
    job.complete(done)
    result = flow.end(0)
    job.check()
    staging.write_state(_PART, store.runs())
    return staging.write_rows(_PART, rows.render(plan.sink.schema, result))


def _now(conn: Connection) -> int:
    """now() of the reading transaction, in microseconds since 2000-01-01 UTC."""
    row = conn.execute(
        "SELECT pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.now()"
        " - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)"
        "::pg_catalog.int8"
    ).fetchone()
    assert row is not None, "the time is a row"
    return int(row[0])
