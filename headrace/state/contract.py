"""Interfaces of the state of stateful collections: packed strings in, packed strings out.

There are two shapes.  A ``MapState`` is key -> value.  An ``IndexState`` is an indexed Z-set: key
-> row -> weight; keys are prefix-free (``kernels.keys.encode_keys`` makes them so) and rows are
returned in byte order.  A ``VersionedStore`` records which txid wrote each value: it can roll back
the last ones, and is checkpointed as of a committed txid while later ones are processed.

Two implementations: ``state.memory`` (tests, Spark executors) and ``state.rocks`` (one database,
atomic checkpoints of all states).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Nullable, Packed

Scanned = tuple[Int64s, Packed, Int64s]
"""Rows under keys: the position of each row's key in the request, the rows, their weights."""


class MapState(Protocol):
    """key -> value."""

    def get_many(self, keys: Packed) -> Nullable:
        """Return the values of ``keys`` in order; None where absent."""

    def put_many(self, keys: Packed, values: Nullable) -> None:
        """Set each key; None deletes it.  A later duplicate key wins."""

    def load(self, keys: Packed, values: Packed) -> None:
        """Add keys that are all absent, without reading the state; for a population.

        A key that is loaded twice is a BugError, raised now or when the state is read or written.
        """

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield all entries in physical order (``layout``), in bounded chunks of (keys, values).

        Entries of a chunk that was yielded may be put or deleted meanwhile.
        """


class IndexState(Protocol):
    """key -> row -> weight (never 0)."""

    def scan_many(self, keys: Packed) -> Scanned:
        """Return every row of the keys, by position and row."""

    def first_many(self, keys: Packed, count: int, starts: Packed | None = None) -> Scanned:
        """Return the result of ``scan_many`` limited to ``count`` rows under each key.

        ``starts``: for each key the least row to return; skipping rows before it costs nothing.
        """

    def add_many(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """Add ``weights`` to the rows' weights; a weight that becomes 0 disappears."""

    def load(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """Add rows as ``add_many`` does; for a population."""

    def weight_many(self, keys: Packed, rows: Packed) -> Int64s:
        """Return the current weight of each (key, row); 0 where absent."""

    def extreme_many(self, keys: Packed, *, last: bool) -> Nullable:
        """Return the first or last row in byte order under each key; None: it has no row."""

    def before_many(self, keys: Packed, bounds: Packed) -> Nullable:
        """Return the last row in byte order before the bound of each key, or None."""


class StateStore(Protocol):
    """All state of one view."""

    def map(self, name: str) -> MapState:
        """Return the map state called ``name``, which is created if missing."""

    def index(self, name: str) -> IndexState:
        """Return the index state called ``name``, which is created if missing."""


class VersionedStore(StateStore, Protocol):
    """All state of one view, whose versions are txids.  One thread uses it.

    Several txids may be in flight: begun, not committed.  They begin and commit in order.
    """

    def begin(self, txid: int) -> None:
        """Begin ``txid``, to which later writes belong; it is above all earlier txids.

        A txid may begin while earlier ones wait for their commit; it reads their writes.
        """

    def prepare(self) -> None:
        """Finish the txid that began last: nothing is written until the next one begins.

        REQUIRES: called before the sink writes the diffs of the txid.

        Raises:
            BugError: a weight is negative.
            StateDamaged: the stored state cannot be read.
        """

    def commit(self, txid: int) -> None:
        """Mark ``txid``, the lowest one in flight, as committed by the sink."""

    def rollback(self, txid: int) -> int:
        """Discard the writes of ``txid`` and all later ones; none of them is in flight afterwards.

        Returns:
            The txid of the state now: the one before ``txid``, or an earlier one (never below
            the last checkpoint's).  The txids after it must be processed again.
        """


class Checkpoint(Protocol):
    """A checkpoint in progress."""

    written: bool
    """Whether ``write`` has succeeded."""

    def write(self, *, sync: bool) -> None:
        """Write the checkpoint, on any one thread while other threads go on; may be retried.

        With ``sync``, wait for the disk.  Without it a crash of the machine (not of the process)
        may lose the whole checkpoint, never a part of it.

        Raises:
            TransientError: it cannot be written now (53100: disk full); nothing was written.
            StateDamaged: the database is damaged.
        """


class VersionedDatabase(Protocol):
    """The states of all views of a worker, and small metadata."""

    def begin_checkpoint(
        self, stores: Sequence[tuple[Any, int]], meta: Mapping[bytes, bytes | None]
    ) -> Checkpoint:
        """Return a new checkpoint of stores at their committed txids, and of ``meta``.

        A ``None`` in ``meta`` deletes the entry.  O(1) per state.  The write is atomic.  At most
        one checkpoint is in progress at a time.
        """

    def end_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Free memory that is durable now; if the write failed, restore the state before it.

        REQUIRES: ``write`` is not running.
        """

    def put_meta(self, meta: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Write small metadata at once, also while a checkpoint is being written.

        With ``sync`` all earlier writes, checkpoints included, are on disk afterwards.
        """
