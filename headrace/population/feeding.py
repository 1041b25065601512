"""Population of a view with the rows of another view (options ``from`` and ``first_rows``).

    attach ─► tap ─► slot's snapshot at LSN L ─► the feeding view's table in it, at txid t
                     │  a batch ends exactly at L (because of the tap)
                     └── + changes written from t to L (the tap) ── = the view's rows at L

So these rows are consistent with the tables that are read in the snapshot.  If the new view reads
feeding views only, no batch has to end at L: their rows are those of the last batch before L.  The
tables below the feeding view are not read, and its query is not computed again.  From *attach* on
the worker keeps the changes that the view sends after L (``runtime/sharing.py``), until the new
view reads them.

On Spark, tasks read block ranges of the table in the same snapshot (``fed_rows.py``).

* Invariant: the loaded rows are the multiset of rows that the view sent up to L; a row that was
  retracted by then is not loaded.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from headrace import clock
from headrace.collections import members, plan, stacking
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import FeedSpec, SourceColumn, SourceSpec
from headrace.collections.source import only_wanted
from headrace.errors import (
    DefiniteFailure,
    HeadraceError,
    SnapshotLost,
    TransientError,
    UndefinedError,
    UserError,
)
from headrace.population import fed_rows, reader, tables
from headrace.population.context import JobContext
from headrace.population.fed_rows import FedRows, Remaining
from headrace.population.handover import Handover
from headrace.population.job import Job
from headrace.population.snapshot import Snapshot
from headrace.population.tables import TableSize
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.sql import progress, views


class Feeding:
    """The feeding view, for one attempt to populate the new view."""

    def __init__(self, context: JobContext, job: Job, worker: Handover, node: FeedSpec) -> None:
        self.node: Final = node
        self.view_id = 0
        """ID of the feeding view, once it is attached."""
        self.feeder = 0
        """The shared subplan that supplies the rows after the population."""
        self.tables: frozenset[int] = frozenset()
        """The tables that the feeding view's plan reads."""
        self._context = context
        self._job = job
        self._worker = worker
        self._storage: object = None
        self._source: SourceSpec
        self._path: Path
        self._last = 0
        """The last txid before the snapshot; 0 means none since the tap began."""

    @contextlib.contextmanager
    def attached(self, conn: Connection, reader_id: int, patience_s: float) -> Iterator[None]:
        """Have the worker keep what the feeding view sends for ``reader_id`` during the block.

        ``patience_s``: how long to wait for a view that has to catch up first.

        Raises:
            DefiniteFailure: the feeding view does not run.
            TransientError: it has not caught up.
            SnapshotLost: the feeding view was resynced meanwhile.
        """
        self._find(conn)
        job = self._job
        try:
            about = {"view_id": self.view_id, "job": job.name, "reader": reader_id}
            self.feeder = int(self._worker.call("attach", about, patience_s)["feeder"])
        except UndefinedError as error:
            raise _lost(error) from error
        try:
            yield
        finally:
            with contextlib.suppress(HeadraceError):
                self._context.worker.call("untap", {"job": job.name})

    def _find(self, conn: Connection) -> None:
        """Look up the feeding view and its table in the catalog."""
        node = self.node
        view_id = views.of_table(conn, node.table_oid)
        stored = None if view_id is None else views.stored(conn, view_id)
        if view_id is None or stored is None:
            raise UndefinedError(f"view {node.view} was dropped", sqlstate="42P01")
        lower = plan.from_json(stored.plan)
        self.view_id, self.tables = view_id, members.tables(lower)[lower.sink.id]
        self._source, self._storage = _table_of(conn, node)
        if not stacking.fits(node, lower):
            raise tables.changed(self._source)

    def tap(self, apart_s: float | None) -> None:
        """Capture what the feeding view writes from now on, before a snapshot is made.

        ``apart_s``: given if the rows must be those of exactly that snapshot (``apart_s`` in
        ``snapshot.py``).

        Raises:
            SnapshotLost: the feeding view does not run any more.
        """
        about = {"view_id": self.view_id, "job": self._job.name, "apart_s": apart_s}
        try:
            self._path = Path(self._worker.call("tap", about)["path"])
        except (DefiniteFailure, UserError) as error:
            self._job.check()
            raise _lost(error) from error

    def reach(self, snapshot: Snapshot, patience_s: float) -> None:
        """Wait until the feeding view has written the batches before the snapshot.

        Raises:
            SnapshotLost: no batch ended there, but one must; the view has stopped; or it was not
                there after ``patience_s``, as while its table is locked.  Begin anew.
        """
        deadline = clock.monotonic() + patience_s
        lsn = int(snapshot.ref.start_lsn)
        about = {"job": self._job.name, "view_id": self.view_id, "lsn": lsn}
        while True:
            self._job.check()
            try:
                answer = self._context.worker.call("tapped", about, self._job)
            except (DefiniteFailure, TransientError, UndefinedError) as error:
                self._job.check()
                raise _lost(error) from error
            if answer is not None:
                self._last = int(answer["txid"])
                return
            if clock.monotonic() > deadline:
                raise SnapshotLost(f"view {self.node.view} has not reached the snapshot in time")

    def load(self, flow: Dataflow, conn: Connection, done: int = 0) -> int:
        """Load the feeding view's rows as of ``conn``'s snapshot; return how many were read.

        ``done``: the rows of other tables that were read before; they count.

        Raises:
            SnapshotLost: the feeding view was resynced.
            StateDamaged: its table lacks rows that the view has written.
        """
        fed, read = self.rows(conn), done
        remaining = Remaining(fed)
        with contextlib.closing(reader.read(conn, fed.source)) as batches:
            for columns in batches:
                read += len(columns[0])
                flow.load_feed(self.node.id, remaining.of(columns))
                bounds.progress()
                self._job.rows(read)
        flow.load_feed(self.node.id, remaining.end())
        flow.load_feed(self.node.id, fed_rows.typed(fed.added, self.node.schema))
        return read

    def rows(self, conn: Connection) -> FedRows:
        """Return how the view's rows differ from its table in ``conn``'s snapshot.

        Raises:
            SnapshotLost: the feeding view was resynced.
        """
        first = progress.written(conn, self.view_id)
        if first is None:
            raise _lost(UndefinedError(f"view {self.node.view} was dropped"))
        net = self._pending(first)
        added = b"".join((row + b"\n") * count for row, count in net.items() if count > 0)
        removed = b"".join((row + b"\n") * -count for row, count in net.items() if count < 0)
        if self._source.pushdown:
            # Rows that the pushed-down filter excludes are not read, so they are not omitted.
            schema = self.node.schema
            gone = only_wanted(self._source, fed_rows.typed(removed, schema))
            removed = fed_rows.rendered(gone, schema)
        return FedRows(self._source, self.node.view, added, removed)

    def check(self, conn: Connection) -> None:
        """Raise TableChanged if the table was rewritten while it was read."""
        if _table_of(conn, self.node)[1] != self._storage:
            raise tables.changed(self._source)

    def prove(self, conn: Connection) -> None:
        """Check that the rows belong to the feeding view, and that its later changes are kept.

        Raises:
            SnapshotLost: the view was rebuilt, or the worker has not kept all changes that it sent.
        """
        if views.of_table(conn, self.node.table_oid) != self.view_id:
            raise SnapshotLost(f"view {self.node.view} was rebuilt meanwhile")
        known = self._worker.call("attached", {"feeder": self.feeder, "job": self._job.name})
        if not known:
            raise SnapshotLost(
                f"the rows that view {self.node.view} sent meanwhile were not stored"
            )

    def _pending(self, first: int) -> Counter[bytes]:
        """Return the net weight of each row (COPY text) in the changes after txid ``first``."""
        net: Counter[bytes] = Counter()
        written = self._path.read_bytes() if self._last > first else b""
        # A write beyond the boundary may be under way, and end in the middle of a row.
        for line in written.rpartition(b"\n")[0].splitlines():
            txid, weight, row = line.split(b"\t", 2)
            if first < int(txid) <= self._last:
                net[row] += int(weight)
        return net


def size(conn: Connection, node: FeedSpec) -> TableSize:
    """Return the size of the feeding view's table; with a filter, the rows that match it.

    Raises:
        UndefinedError: the view was dropped.
    """
    source, _ = _table_of(conn, node)
    found = tables.size(conn, source)
    matching = reader.estimated(conn, source) if source.pushdown else None
    return found if matching is None else replace(found, rows=min(found.rows, matching))


def _lost(error: HeadraceError) -> SnapshotLost:
    return SnapshotLost("the source of the view changed meanwhile", detail=error.message)


def _table_of(conn: Connection, node: FeedSpec) -> tuple[SourceSpec, object]:
    """Return the view's table as a source with the feed's schema, and its file node."""
    row: Any = conn.execute(
        "SELECT n.nspname, c.relname, pg_relation_filenode(c.oid),"
        " (SELECT jsonb_object_agg(a.attname, a.attnum) FROM pg_attribute a"
        "   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (node.table_oid,),
    ).fetchone()
    numbers = {} if row is None else row[3]
    if row is None or any(field.name not in numbers for field in node.schema):
        raise UndefinedError(f"view {node.view} was dropped", sqlstate="42P01")
    columns = tuple(
        SourceColumn(numbers[f.name], f.name, f.oid, f.typmod, f.collation) for f in node.schema
    )
    source = SourceSpec(
        node.id,
        node.table_oid,
        row[0],
        row[1],
        columns,
        (),
        full_identity=True,
        pushdown=node.pushdown,
        schema=node.schema,
        wanted=node.wanted,
    )
    return source, row[2]
