"""The collections of one view, run in a fixed order.

    ingest(changes) ──► Source ──► … ──► Join ──► … ──► Sink ──► end(txid): diffs of the view

All edges are synchronous: the consequences of a diff reach the sink before the next diff is read.
Collections end a txid in the order of the plan, each after all that it reads.  So replay is
deterministic, and edges carry rows only, no ends of txids.

A new view starts with its population: any number of ``load`` calls, then ``end(0)``.  A view
restored from its state starts with the txid after that of the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace import clock
from headrace.collections import build, plan
from headrace.collections.base import Collection, cut
from headrace.collections.calendar import Calendar
from headrace.collections.changes import TableChanges
from headrace.collections.plan import PhysicalPlan
from headrace.collections.sink import Sink
from headrace.collections.source import Source, load_batch, load_columns
from headrace.collections.temporal import Temporal
from headrace.errors import BugError
from headrace.expressions.remote import RemoteEvaluator
from headrace.kernels import buffers
from headrace.process import bounds
from headrace.state.contract import StateStore
from headrace.types import arrow_schema, diff_batch

__all__ = ["Dataflow", "load_columns"]


@dataclass(slots=True, eq=False)
class _Node:
    """A collection, and those that read its output, each at one of its ports."""

    made: Collection
    users: list[tuple[_Node, int]] = field(default_factory=list)


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
        self._nodes: dict[str, _Node] = {}
        """In the order of the plan."""
        self._sources: dict[int, list[plan.SourceSpec]] = {}
        self._txid = -1
        self._clocks: list[Temporal | Calendar] = []
        self._still = (0, 0)
        """Timestamps from the first to before the second, at which nothing is due."""
        self._failed = False
        self._loading = False
        self._out: list[pa.RecordBatch] = []
        schema = arrow_schema(physical.sink.schema)
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        for node in physical.nodes:
            made = build.make(node, physical, store, remote, start_lsn)
            one = self._nodes[node.id] = _Node(made)
            for port, name in enumerate(plan.inputs(node)):
                self._nodes[name].users.append((one, port))
            if isinstance(made, Sink):
                made.repeats = repeats
            if isinstance(made, Temporal | Calendar):
                self._clocks.append(made)
            if isinstance(node, plan.SourceSpec):
                self._sources.setdefault(node.table_oid, []).append(node)
        self._sink: Final = self._nodes[physical.sink.id].made

    @property
    def tables(self) -> frozenset[int]:
        """OIDs of the tables that the view reads."""
        return frozenset(self._sources)

    def begin(self, txid: int, instant: int = 0) -> None:
        """Begin ``txid``, to which the changes ingested from now on belong.

        ``instant``: the value of now() in the txid's record, in microseconds since 2000-01-01 UTC.
        """
        if txid <= self._txid:
            raise BugError(f"txid {txid} begins after the end of {self._txid}")
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
            if isinstance(made := self._nodes[node.id].made, Source)
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
            source = self._nodes[node.id].made
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
        self._load()
        for node in self._sources.get(table_oid, ()):
            for batch in cut(load_batch(node, columns)):
                self._feed(node.id, batch)

    def load_feed(self, name: str, columns: list[pa.Array]) -> None:
        """Process typed population rows of the shared subplan at node ``name``.

        REQUIRES: as ``load``.
        """
        if self._txid >= 0:
            raise BugError("population rows after txid 0")
        self._load()
        schema = next(node.schema for node in self._plan.feeds if node.id == name)
        ones = pa.array(np.ones(len(columns[0]), np.int64))
        for batch in cut(diff_batch(schema, columns, ones)):
            self._feed(name, batch)

    def end(self, txid: int) -> pa.RecordBatch:
        """Finish ``txid`` and return the view's consolidated diffs since the last end.

        Raises:
            BugError: a diff has weight 0, or ``txid`` had ended.
        """
        if txid <= self._txid:
            raise BugError(f"txid {txid} ends after the end of {self._txid}")
        self._enter()
        for node in self._nodes.values():
            batches = node.made.finish(txid)
            if batches:
                self._hand_on(node, batches)
        self._failed = False
        if self._loading:
            self._loading = False
            for node in self._nodes.values():
                node.made.insert_only = False
        self._txid, self._still = txid, (0, 0)
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
            name: {
                "describe": node.made.describe(),
                "since_s": since_s,
                **node.made.metrics.as_dict(),
            }
            for name, node in self._nodes.items()
        }

    def _load(self) -> None:
        self._loading = True
        for node in self._nodes.values():
            node.made.insert_only = True

    def _enter(self) -> None:
        """Begin a step that leaves the dataflow failed unless it ends."""
        if self._failed:
            raise BugError("the dataflow had failed and was not built anew")
        self._failed = True

    def _feed(self, name: str, batch: pa.RecordBatch) -> None:
        self._enter()
        node = self._nodes[name]
        self._hand_on(node, node.made.process(0, batch))
        self._failed = False

    def _hand_on(self, node: _Node, batches: list[pa.RecordBatch]) -> None:
        """Process the output of a collection, and all that follows from it, down to the sink."""
        waiting: list[tuple[_Node, int, pa.RecordBatch]] = []
        while True:
            if node.made is self._sink:
                self._out += batches
            elif batches:
                more = [(user, port, batch) for batch in batches for user, port in node.users]
                waiting += reversed(more)
            if not waiting:
                return
            node, at, batch = waiting.pop()
            batches = node.made.process(at, batch)
