"""The collections of one view, run in a fixed order.

    ingest(changes) ──► Source ──► … ──► Join ──► … ──► Sink ──► end(txid): diffs of the view

All edges are synchronous: a message reaches the sink before the next one is read.  So replay is
deterministic, and a TimeEnd reaches a collection only after every diff of its txid.

A new view starts with its population: any number of ``load`` calls, then ``end(0)``.  A view
restored from its state starts with the txid after that of the state.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace import clock
from headrace.collections import build, plan
from headrace.collections.base import Collection, Message, cut
from headrace.collections.calendar import Calendar
from headrace.collections.changes import TableChanges
from headrace.collections.plan import PhysicalPlan
from headrace.collections.sink import Sink
from headrace.collections.source import Source, load_batch, load_columns
from headrace.collections.temporal import Temporal
from headrace.errors import BugError, RowsLost
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import buffers
from headrace.process import bounds
from headrace.state.contract import StateStore
from headrace.types import Diffs, TimeEnd, arrow_schema, diff_batch

__all__ = ["Dataflow", "load_columns"]


class Dataflow:
    """The dataflow of one view.

    After an exception it must not be used again: roll the store back and build a new one.
    """

    words: Final = "the result"

    def __init__(
        self,
        physical: PhysicalPlan,
        store: StateStore,
        remote: RemoteEvaluator | None,
        start_lsn: int,
        *,
        repeats: bool = False,
    ) -> None:
        """Build the collections of a plan over ``store``.

        Changes before ``start_lsn`` are ignored, because population has read them.
        ``repeats``: the first result may repeat a row instead of giving it a weight.
        """
        self._plan = physical
        self._made_s = clock.monotonic()
        self._nodes: dict[str, Collection] = {}
        self._users: dict[str, list[tuple[Collection, int]]] = {}
        self._sources: dict[int, list[plan.SourceSpec]] = {}
        self._txid = -1
        self._now = (0, 0)
        self._clocks: list[Temporal | Calendar] = []
        self._still = (0, 0)
        """Timestamps from the first to before the second, at which nothing is due."""
        self._fed: Counter[str] = Counter()
        self._failed = False
        self._out: list[pa.RecordBatch] = []
        self._roots: list[Collection] = []
        """Collections without inputs."""
        self._sink = physical.sink.id
        schema = arrow_schema(physical.sink.schema)
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        for node in physical.nodes:
            made = build.make(node, physical, store, remote, start_lsn)
            self._nodes[node.id] = made
            self._users[node.id] = []
            if not plan.inputs(node):
                self._roots.append(made)
            for port, name in enumerate(plan.inputs(node)):
                self._users[name].append((made, port))
            if isinstance(made, Sink):
                made.repeats = repeats
            if isinstance(made, Temporal | Calendar):
                self._clocks.append(made)
            if isinstance(node, plan.SourceSpec):
                self._sources.setdefault(node.table_oid, []).append(node)

    @property
    def tables(self) -> frozenset[int]:
        """OIDs of the tables that the view reads."""
        return frozenset(self._sources)

    def begin(self, txid: int, attempt: int, instant: int = 0) -> None:
        """Assign the changes ingested from now on to this attempt of ``txid``.

        Without this call they belong to the first attempt of the next txid.
        ``instant``: the value of now() in the txid's record, in microseconds since 2000-01-01 UTC.
        """
        if txid <= self._txid:
            raise BugError(f"txid {txid} begins after the end of {self._txid}")
        self._now = (txid, attempt)
        self._still = (0, 0)
        for made in self._clocks:
            made.instant = instant

    @property
    def now(self) -> int | None:
        """The least timestamp of what reads the clock in it; None without any."""
        found = {made.now for made in self._clocks}
        return min((n for n in found if n is not None), default=None)

    def crossing(self, instant: int) -> int:
        """Return how many rows would change at ``instant`` (``Temporal.crossing``)."""
        return sum(made.crossing(instant) for made in self._clocks)

    def changed(self, instant: int) -> int:
        """Return when a value of the calendar began that the rows lack at ``instant``; or 0."""
        calendars = (made for made in self._clocks if isinstance(made, Calendar))
        return max((made.changed(instant) for made in calendars), default=0)

    def due(self, instant: int) -> bool:
        """Return whether ``instant`` alone may change anything; cheap if not."""
        if self._still[0] <= instant < self._still[1]:
            return False
        until = min((made.until(instant) for made in self._clocks), default=instant)
        if until > instant:
            self._still = (instant, until)
        return until <= instant

    def rows(self, instant: int) -> int:
        """Return how many rows ``instant`` may change, of many only some (``Calendar.rows``)."""
        return sum(made.rows(instant) for made in self._clocks)

    def near(self, instant: int) -> int:
        """Return how many rows ``instant`` may change, untested (``Temporal.near``)."""
        return sum(made.near(instant) for made in self._clocks)

    def reached(self, table_oid: int, changes: TableChanges) -> bool:
        """Return whether a change batch of a table may change anything (``Source.reached``)."""
        return any(
            made.reached(changes)
            for node in self._sources.get(table_oid, ())
            if isinstance(made := self._nodes[node.id], Source)
        )

    def ingest(
        self, table_oid: int, changes: pa.RecordBatch, made: TableChanges | None = None
    ) -> None:
        """Process a change batch of a table; ignore tables that the view does not read.

        ``made``: parsed columns and keys of this batch, which other views share.
        """
        if table_oid in self._sources:
            # The rows cost time even where a source filters out all of them.
            size = bounds.size_of(changes) if made is None else made.nbytes
            bounds.admit(changes.num_rows, size)
        for node in self._sources.get(table_oid, ()):
            source = self._nodes[node.id]
            assert isinstance(source, Source), "its spec says so"
            source.made = made
            for batch in cut(changes):
                self._feed(node.id, batch)
            source.made = None

    def feed(self, name: str, diffs: pa.RecordBatch) -> None:
        """Process diffs of the shared subplan that node ``name`` stands for."""
        bounds.admit(diffs.num_rows, bounds.size_of(diffs))
        for batch in cut(diffs):
            self._feed(name, batch)

    def load(self, table_oid: int, columns: list[pa.Array]) -> None:
        """Process typed population rows of a table, with columns as in ``load_columns``.

        REQUIRES: before ``end(0)``, and no ``ingest`` before it.
        """
        if self._txid >= 0:
            raise BugError("population rows after txid 0")
        for made in self._nodes.values():
            made.insert_only = True
        for node in self._sources.get(table_oid, ()):
            for batch in cut(load_batch(node, columns)):
                self._feed(node.id, batch)

    def load_feed(self, name: str, columns: list[pa.Array]) -> None:
        """Process typed population rows of the shared subplan at node ``name``.

        REQUIRES: as ``load``.
        """
        if self._txid >= 0:
            raise BugError("population rows after txid 0")
        for made in self._nodes.values():
            made.insert_only = True
        schema = next(node.schema for node in self._plan.feeds if node.id == name)
        ones = pa.array(np.ones(len(columns[0]), np.int64))
        for batch in cut(diff_batch(schema, columns, ones)):
            self._feed(name, batch)

    def end(self, txid: int, attempt: int = 0) -> pa.RecordBatch:
        """Finish ``txid`` and return the view's consolidated diffs since the last end.

        Raises:
            BugError: a collection did not finish, or a diff has weight 0.
            RowsLost: rows were lost on an edge.
        """
        for made in self._roots:
            self._push(made, TimeEnd(txid, attempt, self._fed[made.id]))
        for made in self._nodes.values():
            made.insert_only = False
            if made.done != txid:
                raise BugError(f'collection "{made.id}" has not finished txid {txid}')
        self._txid, self._now, self._still = txid, (txid + 1, 0), (0, 0)
        self._fed.clear()
        batches, self._out = self._out, []
        result = self._combined(batches)
        # By position, because a view may have a column of that name.
        weights = result.column(result.num_columns - 1).to_numpy()
        rows = buffers.multiplicity(weights)
        if rows < 0:
            raise BugError("the sink sends a diff of weight 0")
        # The sink writes a row as often as its weight says.
        bounds.expect(self, rows)
        return result

    def _combined(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        nothing = self._nothing
        if len(batches) == 1 and batches[0].schema.equals(nothing.schema, check_metadata=True):
            return batches[0]
        table = pa.Table.from_batches(batches, schema=nothing.schema)
        out = table.combine_chunks().to_batches()
        return out[0] if out else nothing

    def metrics(self) -> dict[str, Any]:
        """Return a description and the metrics of each collection, in plan order."""
        since_s = clock.monotonic() - self._made_s
        return {
            name: {"describe": made.describe(), "since_s": since_s, **made.metrics.as_dict()}
            for name, made in self._nodes.items()
        }

    def _take_out(self, outgoing: list[Message]) -> None:
        """Keep the diffs from the sink, and check their number as every receiver does."""
        for message in outgoing:
            if isinstance(message, Diffs):
                self._out.append(message.batch)
            elif (rows := sum(b.num_rows for b in self._out)) != message.rows:
                raise RowsLost(f"got {rows} of the {message.rows} rows of the view")

    def _feed(self, name: str, batch: pa.RecordBatch) -> None:
        self._fed[name] += batch.num_rows
        self._push(self._nodes[name], Diffs(*self._now, batch))

    def _push(self, made: Collection, message: Message) -> None:
        """Deliver one message, and every message that follows from it, down to the sink."""
        if self._failed:
            raise BugError("the dataflow had failed and was not built anew")
        self._failed = True
        waiting: list[tuple[Collection, int, Message]] = [(made, 0, message)]
        while waiting:
            taker, port, taken = waiting.pop()
            outgoing = taker.receive(port, taken)
            if taker.id == self._sink:
                self._take_out(outgoing)
                continue
            users = self._users[taker.id]
            for message in reversed(outgoing):
                for user, user_port in reversed(users):
                    waiting.append((user, user_port, message))
        self._failed = False
