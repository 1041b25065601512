"""The first contents of a view that is fed from a connection point: the rows of another view.

    attach ─► tap ─► slot's snapshot at LSN L ─► the view's table in it, at txid t
                     │  batches end exactly at L (the tap cuts)
                     └── + what was written from t to L (the tap) ── = the view's rows at L

So they are of the same moment as the rows of the tables that are read in the snapshot, and nothing
that is below the view is read or computed again.  What the view sends after L is kept by the worker
from *attach* on (``runtime/sharing.py``), until the new view reads it.

* Invariant: what is loaded is what the view sent up to L, as a multiset: a row that is taken back
  is not loaded at all.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.collections import plan
from headrace.collections.dataflow import Dataflow
from headrace.collections.plan import FeedSpec, SourceColumn, SourceSpec
from headrace.collections.source import only_wanted
from headrace.errors import (
    HeadraceError,
    SnapshotLost,
    StateDamaged,
    TransientError,
    UndefinedError,
)
from headrace.kernels import copytext, text
from headrace.population import reader, tables
from headrace.population.context import JobContext
from headrace.population.handover import Handover
from headrace.population.job import Job
from headrace.population.snapshot import Snapshot
from headrace.population.tables import TableSize
from headrace.postgres.connect import Connection
from headrace.process import bounds
from headrace.sql import points, progress, views
from headrace.types import Schema


class Feeding:
    """The view that feeds a new one, for one attempt to populate that."""

    def __init__(self, context: JobContext, job: Job, worker: Handover, node: FeedSpec) -> None:
        self.node: Final = node
        self._context = context
        self._job = job
        self._worker = worker
        self._view_id = 0
        self._storage: object = None
        self._source: SourceSpec
        self._path: Path
        self._last = 0
        """The last txid before the snapshot; 0: none since the tap began."""
        self._feeder = 0
        """The shared subplan that the rows come from, after the first contents."""

    @contextlib.contextmanager
    def attached(self, conn: Connection, reader_id: int) -> Iterator[None]:
        """Inside, what the view sends is kept for the view ``reader_id``.

        Raises:
            DefiniteFailure: the view does not run.
            SnapshotLost: it was filled anew meanwhile.
        """
        self._find(conn)
        job = self._job
        try:
            about = {"view_id": self._view_id, "job": job.name}
            attached = self._worker.call("attach", {**about, "reader": reader_id})
            self._feeder = int(attached["feeder"])
            self._path = Path(self._worker.call("tap", about)["path"])
        except UndefinedError as error:
            raise _lost(error) from error
        try:
            yield
        finally:
            with contextlib.suppress(HeadraceError):
                self._context.worker.call("untap", {"job": job.name})

    def _find(self, conn: Connection) -> None:
        """The view and its table as they are now."""
        node = self.node
        view_id = points.view_of(conn, node.table_oid)
        stored = None if view_id is None else views.stored(conn, view_id)
        if view_id is None or stored is None:
            raise UndefinedError(f"view {node.view} was dropped", sqlstate="42P01")
        self._view_id = view_id
        sends = plan.from_json(stored.plan).sink.schema
        self._source, self._storage = _table_of(conn, node)
        if [(f.name, f.oid) for f in sends] != [(f.name, f.oid) for f in node.schema]:
            raise tables.changed(self._source)

    def size(self, conn: Connection) -> TableSize:
        """How much there is to read."""
        return tables.size(conn, _table_of(conn, self.node)[0])

    def reach(self, snapshot: Snapshot) -> None:
        """Wait until the view has come as far as the snapshot.

        Raises:
            SnapshotLost: it did not stop there; begin anew.
            DefiniteFailure: it has stopped.
        """
        lsn = int(snapshot.ref.start_lsn)
        about = {"job": self._job.name, "lsn": lsn}
        while True:
            self._job.check()
            try:
                answer = self._context.worker.call("tapped", about, self._job)
            except (TransientError, UndefinedError) as error:
                self._job.check()
                raise _lost(error) from error
            if answer is not None:
                self._last = int(answer["txid"])
                return

    def load(self, flow: Dataflow, conn: Connection) -> int:
        """Load the rows of the view, as of the snapshot that ``conn`` is in; how many were read.

        Raises:
            SnapshotLost: the view was filled anew.
            StateDamaged: its table does not have what the view has written into it.
        """
        first = progress.written(conn, self._view_id)
        if first is None:
            raise _lost(UndefinedError(f"view {self.node.view} was dropped"))
        added, removed = self._pending(first)
        read = 0
        with contextlib.closing(reader.read(conn, self._source)) as batches:
            for columns in batches:
                read += len(columns[0])
                flow.load_feed(self.node.id, _without(removed, columns, self.node.schema))
                bounds.progress()
                self._job.rows(read)
        if removed.total():
            raise StateDamaged(
                f"the table of view {self.node.view} lacks rows that the view has written",
                hint=f"CALL headrace.resync_view('{self.node.view}').",
            )
        for columns in added:
            flow.load_feed(self.node.id, columns)
        return read

    def check(self, conn: Connection) -> None:
        """Raise TableChanged if the table was made anew while it was read."""
        if _table_of(conn, self.node)[1] != self._storage:
            raise tables.changed(self._source)

    def prove(self) -> dict[str, Any]:
        """What the worker has to know: where the rows come from, and whose the first ones are.

        Raises:
            SnapshotLost: the worker has not kept all that was sent.
        """
        known = self._worker.call("attached", {"feeder": self._feeder, "job": self._job.name})
        if not known:
            raise SnapshotLost(f"what view {self.node.view} sent meanwhile was not kept")
        return {"feeds": {self.node.id: self._feeder}, "fed_by": self._view_id}

    def _pending(self, first: int) -> tuple[list[list[pa.Array]], Counter[bytes]]:
        """What was written into the table after txid ``first``: rows to add, and to leave out."""
        net: Counter[bytes] = Counter()
        written = self._path.read_bytes() if self._last > first else b""
        # What is being written behind the boundary may end in the middle of a row.
        for line in written.rpartition(b"\n")[0].splitlines():
            txid, weight, row = line.split(b"\t", 2)
            if first < int(txid) <= self._last:
                net[row] += int(weight)
        schema, pushed = self.node.schema, self._source.pushdown
        added = [
            _typed(
                b"".join((row + b"\n") * count for row, count in net.items() if count > 0), schema
            )
        ]
        gone = _typed(
            b"".join((row + b"\n") * -count for row, count in net.items() if count < 0), schema
        )
        # Of what is not read, nothing is to be left out.
        removed = _lines(only_wanted(self._source, gone) if pushed else gone, schema)
        return added, Counter(removed)


def _lost(error: HeadraceError) -> SnapshotLost:
    return SnapshotLost("what feeds the view changed meanwhile", detail=error.message)


def _table_of(conn: Connection, node: FeedSpec) -> tuple[SourceSpec, object]:
    """The view's table, as a source of all that the view sends; and where its rows are stored."""
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
        *(node.id, node.table_oid, row[0], row[1], columns, ()),
        full_identity=True,
        pushdown=node.pushdown,
        schema=node.schema,
        wanted=node.wanted,
    )
    return source, row[2]


def _typed(lines: bytes, schema: Schema) -> list[pa.Array]:
    """Columns of COPY text."""
    values = copytext.split(lines, len(schema))
    return [text.parse(v, f.oid) for v, f in zip(values, schema, strict=True)]


def _lines(columns: list[pa.Array], schema: Schema) -> list[bytes]:
    """COPY text of each row."""
    values = [text.render(v, f.oid) for v, f in zip(columns, schema, strict=True)]
    return bytes(copytext.join(values)).splitlines()


def _without(removed: Counter[bytes], columns: list[pa.Array], schema: Schema) -> list[pa.Array]:
    """Rows but for as many of each as are ``removed``, which are counted off there."""
    if not removed.total():
        return columns
    keep = []
    for line in _lines(columns, schema):
        gone = line in removed and removed[line] > 0
        if gone:
            removed[line] -= 1
        keep.append(not gone)
    mask = pa.array(keep, pa.bool_())
    return [column.filter(mask) for column in columns]
