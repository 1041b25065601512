"""In-process population, for views whose states fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import reader, rows
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.feeding import Feeding
from headrace.population.job import Job
from headrace.population.snapshot import SnapshotRef
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.state.loaded import Pieces
from headrace.state.memory import MemoryStore

_PART = "0"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of an in-process population."""

    plan: PhysicalPlan
    sizes: Mapping[str, TableSize]
    """Sizes of the tables, by source ID."""
    feeding: Feeding | None = None
    """The view that feeds this one, if any."""
    elsewhere: SourceSnapshots | None = None
    """Snapshots of the sources that some of the tables are in."""


def populate(
    job: Job,
    dsn: str,
    inputs: Inputs,
    ref: SnapshotRef,
    remote: RemoteEvaluator | None,
    staging: Staging,
) -> tuple[int, Callable[[], None]]:
    """Fill ``staging`` with the result rows at snapshot ``ref``.

    Return the number of rows, and a function that adds the states.

    Raises:
        SnapshotLost: the snapshot is gone; begin anew with another.
    """
    plan, feeding = inputs.plan, inputs.feeding
    store = MemoryStore(undo=False)
    flow = Dataflow(plan, store, remote, ref.start_lsn, repeats=True)
    done = 0
    with (
        reader.joined(dsn, ref, job.wanted) as conn,
        job.cancelling(lambda: conn.cancel_safe(timeout=5.0)),
    ):
        if plan.temporal:
            flow.begin(0, 0, _now(conn))
        if feeding is not None:
            done = feeding.load(flow, conn)
        for source in _in_order(plan, inputs.sizes):
            with _reading(job, conn, source, inputs.elsewhere) as batches:
                for columns in batches:
                    flow.load(source.table_oid, columns)
                    bounds.progress()
                    done += len(columns[0])
                    job.rows(done)
        reader.prove(conn, ref)
    job.check()
    job.complete(done)
    result = flow.end(0)
    job.check()
    runs = {name: _while_wanted(job, pieces) for name, pieces in store.runs().items()}
    count = staging.write_rows(_PART, rows.render(plan.sink.schema, result))
    return count, partial(staging.write_states, _PART, runs)


@contextlib.contextmanager
def _reading(
    job: Job, conn: Connection, source: SourceSpec, elsewhere: SourceSnapshots | None
) -> Iterator[Iterator[list[pa.Array]]]:
    """Yield the rows of ``source``, from this database or another."""
    if elsewhere is None or source.table_oid not in elsewhere.stand_ins:
        with contextlib.closing(reader.read(conn, source)) as batches:
            yield batches
        return
    with (
        elsewhere.reading(source) as (other, there),
        job.cancelling(lambda: other.cancel_safe(timeout=5.0)),
        contextlib.closing(reader.read(other, there, plain=True)) as batches,
    ):
        yield batches


def instant(dsn: str, ref: SnapshotRef) -> int:
    """Return ``now()`` in snapshot ``ref``, for readers that use several transactions."""
    with reader.joined(dsn, ref) as conn:
        return _now(conn)


def _while_wanted(job: Job, pieces: Pieces) -> Pieces:
    for piece in pieces:
        job.check()
        yield piece


def _in_order(plan: PhysicalPlan, sizes: Mapping[str, TableSize]) -> list[SourceSpec]:
    """Return one source of each table, small tables first.

    Later rows look up their matches in memory, so the largest table, the last, need not be there.
    """
    first = {source.table_oid: source for source in reversed(plan.sources)}
    return sorted(first.values(), key=lambda source: (sizes[source.id].rows, source.table_oid))


def _now(conn: Connection) -> int:
    """Return ``now()`` of the reading transaction, in microseconds since 2000-01-01 UTC."""
    row = conn.execute(
        "SELECT pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.now()"
        " - '2000-01-01 00:00:00+00'::pg_catalog.timestamptz) * 1000000)"
        "::pg_catalog.int8"
    ).fetchone()
    assert row is not None, "the time is a row"
    return int(row[0])
