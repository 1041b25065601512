"""In-process population, for views whose states fit into memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import PhysicalPlan, SourceSpec
from headrace.expressions.remote import RemoteEvaluator
from headrace.population import reader, rows
from headrace.population.elsewhere import SourceSnapshots
from headrace.population.feeding import Feeding
from headrace.population.inputs import Inputs
from headrace.population.job import Job
from headrace.population.snapshot import SnapshotRef
from headrace.population.staging import Staging
from headrace.population.tables import TableSize
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.state.loaded import Pieces
from headrace.state.memory import MemoryStore

_PART = "0"


def populate(
    job: Job,
    dsn: str,
    inputs: Inputs,
    ref: SnapshotRef,
    remote: RemoteEvaluator | None,
    staging: Staging,
    feedings: Sequence[Feeding] = (),
) -> tuple[int, Callable[[], None]]:
    """Fill ``staging`` with the result rows at snapshot ``ref``.

    ``feedings``: the views that feed this one.
    Return the number of rows, and a function that adds the states.

    Raises:
        SnapshotLost: the snapshot is gone; begin anew with another.
    """
    plan = inputs.plan
    store = MemoryStore(undo=False)
    flow = Dataflow(plan, store, remote, ref.start_lsn, repeats=True)
    done = 0
    with (
        reader.joined(dsn, ref, job.wanted) as conn,
        job.cancelling(lambda: conn.cancel_safe(timeout=5.0)),
    ):
        if plan.temporal:
            flow.begin(0, inputs.clock(dsn, ref))
        for source in _in_order(plan, feedings, inputs.sizes):
            if isinstance(source, Feeding):
                done = source.load(flow, conn, done)
                continue
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
    origin = None if elsewhere is None else elsewhere.origin(source)
    if origin is None:
        with contextlib.closing(reader.read(conn, source)) as batches:
            yield batches
        return
    with (
        reader.joined(origin.dsn, origin.ref) as other,
        job.cancelling(lambda: other.cancel_safe(timeout=5.0)),
        contextlib.closing(reader.read(other, origin.table, plain=True)) as batches,
    ):
        yield batches


def _while_wanted(job: Job, pieces: Pieces) -> Pieces:
    for piece in pieces:
        job.check()
        yield piece


def _in_order(
    plan: PhysicalPlan, feedings: Sequence[Feeding], sizes: Mapping[str, TableSize]
) -> list[SourceSpec | Feeding]:
    """Return one source of each table, and the feeding views, small tables first.

    Later rows look up their matches in memory, so the largest table, the last, need not be there.
    """
    first = {source.table_oid: source for source in reversed(plan.sources)}
    read: list[SourceSpec | Feeding] = [*first.values(), *feedings]

    def size(one: SourceSpec | Feeding) -> tuple[int, int]:
        node = one.node if isinstance(one, Feeding) else one
        return sizes[node.id].rows, node.table_oid

    return sorted(read, key=size)
