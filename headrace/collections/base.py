"""Base class of all collections: interface, TimeEnd alignment over ports, and metrics.

A subclass is a pure function of diffs and state: it implements ``apply`` (one record batch of diffs
on one port) and ``time_end`` (all ports have finished a txid), both returning record batches of
diffs.  It never sees an edge, the txid of a diff, a clock or another collection.

A dataflow, whose edges are all synchronous, calls ``process`` and ``finish`` in the order of its
plan.  Other edges call ``receive``, which enforces the contract of times:

* Invariant 1: a txid is finished only when its TimeEnd has arrived on *all* ports (T-22, E-22);
  then, and only then, one TimeEnd goes out, after every diff of that txid.
* Invariant 2: no diff may arrive at or below a txid that its port has ended (BugError).
* Invariant 3: a port that runs ahead of the others is held back: messages after its TimeEnd
  are applied only when the others have reached that txid too.
* Invariant 4: a TimeEnd carries the number of rows sent.  If another number has arrived,
  the batch fails and is run again (T-29).
* Invariant 5: one attempt of a txid: messages of an earlier attempt are dropped and counted; one
  of a later attempt is a bug, because the state holds rows of the earlier one (T-17).
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import pyarrow as pa

from headrace.errors import BugError, RowsLost
from headrace.kernels import packed, rows
from headrace.kernels.buffers import Int64s
from headrace.kernels.numbering import Consolidator
from headrace.kernels.packed import Packed
from headrace.process import bounds
from headrace.state.contract import StateStore
from headrace.types import Diffs, Schema, TimeEnd, arrow_schema, arrow_type

ROWS_PER_BATCH_MAX: Final = 65_536
"""Maximum rows of a record batch; the dataflow cuts larger ones."""

Message = Diffs | TimeEnd


@dataclass(slots=True)
class Metrics:
    """Numbers of one collection since it was built."""

    rows_in: list[int]
    """Per port."""
    batches_in: list[int]
    """Per port."""
    rows_out: int = 0
    bytes_out: int = 0
    batches_out: int = 0
    time_ends: int = 0
    dropped: int = 0
    """Messages of an earlier attempt."""
    busy_ns: int = 0
    """Time spent inside ``apply`` and ``time_end``, in nanoseconds."""
    cpu_ns: int = 0
    """``busy_ns`` without the time spent waiting for Postgres."""

    def took(self, busy_ns: int, waited_ns: int) -> None:
        """Add the duration of a call, of which ``waited_ns`` was spent waiting for Postgres."""
        self.busy_ns += busy_ns
        self.cpu_ns += max(busy_ns - waited_ns, 0)

    def as_dict(self) -> dict[str, int | list[int]]:
        """Return the numbers as plain data for status views."""
        return {
            "rows_in": list(self.rows_in),
            "batches_in": list(self.batches_in),
            "rows_out": self.rows_out,
            "bytes_out": self.bytes_out,
            "batches_out": self.batches_out,
            "time_ends": self.time_ends,
            "dropped": self.dropped,
            "busy_ns": self.busy_ns,
            "cpu_ns": self.cpu_ns,
        }


@dataclass(slots=True)
class _Port:
    """One input: its progress, and the messages that it sent ahead of the other inputs."""

    ended: int = -1
    arrived: int = -1
    """Txid of the last TimeEnd received; ``ended`` follows once that TimeEnd is no longer held
    back."""
    rows: int = 0
    """Rows received since the last TimeEnd."""
    held: deque[Message] = field(default_factory=deque)


class Collection(ABC):
    """A running node of the physical plan; the module docstring gives the contract.

    Attributes:
        id: The node's id; its states are called ``id`` or ``id.<part>``.
        schema: Columns of its output (``__weight`` comes last in every batch).
        ports: Number of inputs; a collection without inputs has one port for TimeEnds
            (and, if it is a source, for the rows that it reads).
        metrics: Numbers since it was built.
        insert_only: Set by the driver while population feeds one source snapshot: every row
            is then a row of the result at that snapshot, and none is retracted.
    """

    words: ClassVar[str] = "an intermediate result"
    """Description of the node's output in the query, for the error about too many rows."""

    begins: ClassVar[bool] = False
    """Whether its output is the transaction's own rows, the base for limits on all other output."""

    def __init__(self, node_id: str, schema: Schema, ports: int = 1) -> None:
        self.id: Final = node_id
        self.schema: Final = schema
        self.ports: Final = ports
        self.metrics: Final = Metrics([0] * ports, [0] * ports)
        self.insert_only = False
        self._inputs = [_Port() for _ in range(ports)]
        self._done = -1
        self._sent = 0
        self._attempts: dict[int, int] = {}

    # --- verbs of a subclass

    def open(self, store: StateStore) -> None:  # noqa: B027  stateless: nothing to take
        """Open its states in ``store``; called once, before anything else."""

    @abstractmethod
    def apply(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the diffs that follow immediately from the diffs ``batch`` on ``port``."""

    def time_end(self, txid: int) -> list[pa.RecordBatch]:
        """Return the diffs that follow only once every input is complete up to ``txid``."""
        return []

    @abstractmethod
    def describe(self) -> str:
        """Return one deterministic line for EXPLAIN and logs."""

    # --- the edge

    @final
    def receive(self, port: int, message: Message) -> list[Message]:
        """Take one message from the edge at ``port``; return the outgoing messages, in order.

        Raises:
            BugError: a time moved backwards, or an attempt forward (Invariants 2 and 5).
            RowsLost: fewer or more rows arrived than were sent (Invariant 4).
        """
        source = self._inputs[port]
        if message.attempt != self._attempts.setdefault(message.txid, message.attempt):
            self._drop(message)
            return []
        if message.txid <= source.arrived:
            raise BugError(
                f'collection "{self.id}" got {type(message).__name__} of txid {message.txid} on '
                f"port {port}, which had ended txid {source.arrived}"
            )
        if isinstance(message, Diffs):
            source.rows += message.batch.num_rows
        elif source.rows != message.rows:
            raise RowsLost(
                f'collection "{self.id}" got {source.rows} of the {message.rows} rows that were'
                f" sent to port {port} for txid {message.txid}"
            )
        else:
            source.arrived, source.rows = message.txid, 0
        if source.ended > self._done or source.held:
            source.held.append(message)
            return []
        out: list[Message] = []
        self._take(port, message, out)
        return out

    def _drop(self, message: Message) -> None:
        """Count a message of an earlier attempt; one of a later attempt is a bug."""
        known = self._attempts[message.txid]
        if message.attempt > known:
            raise BugError(
                f'collection "{self.id}" got attempt {message.attempt} of txid {message.txid}'
                f" while it holds rows of attempt {known}"
            )
        self.metrics.dropped += 1

    def _take(self, port: int, message: Message, out: list[Message]) -> None:
        if isinstance(message, Diffs):
            self._send(self.process(port, message.batch), message, out)
            return
        self._inputs[port].ended = message.txid
        finished = message.txid if self.ports == 1 else min(p.ended for p in self._inputs)
        if finished > self._done:
            self._finish(finished, message, out)

    def _finish(self, txid: int, message: Message, out: list[Message]) -> None:
        self._send(self.finish(txid), message, out)
        out.append(TimeEnd(txid, message.attempt, self._sent))
        self._sent = 0
        # Keep the attempt of this txid too, so that late messages of an earlier attempt are
        # recognised.
        if len(self._attempts) > 1:
            self._attempts = {t: a for t, a in self._attempts.items() if t >= txid}
        for port, source in enumerate(self._inputs):
            # Invariant 3: release the held messages until the port is ahead again.
            while source.held and source.ended <= self._done:
                self._take(port, source.held.popleft(), out)

    def _send(self, batches: list[pa.RecordBatch], cause: Message, out: list[Message]) -> None:
        out.extend(Diffs(cause.txid, cause.attempt, batch) for batch in batches)
        self._sent += sum(batch.num_rows for batch in batches)

    @final
    def process(self, port: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return what follows from diffs at once (``apply``); count it, and check its limits.

        Raises:
            LimitExceeded: the output exceeds a limit of this thread's bound.
        """
        metrics = self.metrics
        metrics.rows_in[port] += batch.num_rows
        metrics.batches_in[port] += 1
        started, waited = time.perf_counter_ns(), bounds.waited_ns()
        batches = self.apply(port, batch)
        metrics.took(time.perf_counter_ns() - started, bounds.waited_ns() - waited)
        return self._admitted(batches) if batches else batches

    @final
    def finish(self, txid: int) -> list[pa.RecordBatch]:
        """Return what follows from the end of a txid on all inputs (``time_end``), as ``process``.

        REQUIRES: all diffs of the txid were processed.
        """
        metrics = self.metrics
        started, waited = time.perf_counter_ns(), bounds.waited_ns()
        batches = self.time_end(txid)
        metrics.took(time.perf_counter_ns() - started, bounds.waited_ns() - waited)
        metrics.time_ends += 1
        self._done = txid
        return self._admitted(batches) if batches else batches

    def _admitted(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return those of ``batches`` that have rows; count them, and check their limits."""
        rows, size = bounds.measured(batches)
        if self.begins:
            bounds.admit(rows, size)
        else:
            bounds.made(self, rows, size)
        sent = [batch for batch in batches if batch.num_rows]
        metrics = self.metrics
        metrics.rows_out += rows
        metrics.bytes_out += size
        metrics.batches_out += len(sent)
        return sent


def cut(batch: pa.RecordBatch, rows_max: int = ROWS_PER_BATCH_MAX) -> list[pa.RecordBatch]:
    """Cut ``batch`` into pieces of at most ``rows_max`` rows, without copying; none if empty."""
    rows = batch.num_rows
    if 0 < rows <= rows_max:
        return [batch]
    return [batch.slice(start, rows_max) for start in range(0, rows, rows_max)]


def encode(columns: list[pa.Array], count: int) -> Packed:
    """Return the exact identities of ``count`` rows (``kernels.rows``), also without columns."""
    return rows.pack_rows(columns) if columns else packed.empty(count)


def keys_of(columns: Sequence[pa.Array], oids: Sequence[int], count: int) -> Packed:
    """Return canonical keys of ``count`` rows, in which NULLs are equal; also without columns."""
    return rows.pack_keys(columns, oids) if columns else packed.empty(count)


@functools.lru_cache(maxsize=4096)
def layout_of(schema: Schema) -> rows.Layout:
    """Return the layout of rows with the columns of ``schema``, and of its diff batches."""
    return rows.Layout([arrow_type(field.oid) for field in schema], arrow_schema(schema))


def split(schema: Schema, batch: pa.RecordBatch) -> tuple[Packed, Int64s]:
    """Return the encoded rows of a diff batch with columns of ``schema``, and their weights."""
    return rows.pack_batch(batch, layout_of(schema))


def decode(encoded: Packed, schema: Schema, weights: Int64s) -> pa.RecordBatch:
    """Return the diffs of rows that ``encode`` made from columns of ``schema``."""
    return rows.unpack_batch(encoded, layout_of(schema), weights)


def under(schema: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a diff batch with the names of ``schema``, whose types are those of its columns."""
    named, own = arrow_schema(schema), batch.schema
    if own.equals(named, check_metadata=True):
        return batch
    if layout_of(schema).fits(own):
        return rows.relabel(batch, named)
    return pa.RecordBatch.from_arrays(batch.columns, schema=named)


def columns_of(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of a diff batch without ``__weight``."""
    return [batch.column(place) for place in range(batch.num_columns - 1)]


def weights_of(batch: pa.RecordBatch) -> Int64s:
    """Return the weights of a diff batch."""
    weights: Int64s = batch.column(batch.num_columns - 1).to_numpy()
    return weights


class Diffed:
    """Consolidated diffs of one txid: rows inserted and retracted within it cancel out."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows = Consolidator()
        self._only: pa.RecordBatch | None = None
        """The only diff so far, of a batch of one row: most small transactions have no other."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the diffs of ``batch``."""
        only, self._only = self._only, None
        if only is not None:
            self._add(only)
        elif batch.num_rows == 1 and not len(self._rows):
            self._only = batch
            return
        self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        self._rows.add(*split(self._schema, batch))

    def take(self) -> list[pa.RecordBatch]:
        """Return everything added since the last call: each row once, none with weight 0."""
        if self._only is not None:
            only, self._only = self._only, None
            return [under(self._schema, only)]
        if not len(self._rows):
            return []
        encoded, weights = self._rows.items()
        self._rows = Consolidator()
        return cut(decode(encoded, self._schema, weights))
