"""What a stateful collection may ask of its state: arrays of bytes in, arrays of bytes out.

Two shapes.  A ``MapState`` is key -> value.  An ``IndexState`` is an indexed Z-set: key -> row ->
weight; keys are prefix-free (``kernels.keys.encode_keys`` makes them so) and rows come back in byte
order. A ``VersionedStore`` knows which txid wrote what: it takes back the last ones,
and is checkpointed as of a committed one while later ones are processed.

Two implementations behind one contract: ``state.memory`` (tests, Spark executors) and
``state.rocks`` (one database, atomic checkpoints of all).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.kernels.buffers import Int64s
from headrace.kernels.packed import Packed


class MapState(Protocol):
    """key -> value."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values of ``keys`` in order; ``None`` where absent."""

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set each key; ``None`` deletes it.  A later duplicate key wins."""

    def load(self, keys: Packed, values: Packed) -> None:
        """Put keys none of which is there, as a population does, which reads no state of its own.

        One that is loaded twice is a BugError: at once, or when the state is read or written.
        """

    def scan(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """All entries in physical order (``layout``), in bounded chunks of (keys, values).

        Entries of a chunk that was given out may be put or deleted meanwhile.
        """


class IndexState(Protocol):
    """key -> row -> weight (never 0)."""

    def scan_many(self, keys: Sequence[bytes]) -> tuple[list[int], list[bytes], list[int]]:
        """(position in ``keys``, row, weight) of all rows under each key, by position and row."""

    def first_many(
        self, keys: Sequence[bytes], count: int, starts: Sequence[bytes] | None = None
    ) -> tuple[list[int], list[bytes], list[int]]:
        """Like ``scan_many``, but at most ``count`` rows under each key.

        ``starts[i]``: rows before it in byte order are left out; it costs nothing to skip them.
        """

    def add_many(
        self, keys: Sequence[bytes], rows: Sequence[bytes], weights: Sequence[int]
    ) -> None:
        """Add ``weights`` to the rows' weights; a weight that becomes 0 disappears."""

    def load(self, keys: Packed, rows: Packed, weights: Int64s) -> None:
        """``add_many`` for a population."""

    def weight_many(self, keys: Sequence[bytes], rows: Sequence[bytes]) -> list[int]:
        """Current weight of each (key, row); 0 where absent."""

    def extreme_many(self, keys: Sequence[bytes], *, last: bool) -> list[bytes | None]:
        """First (or last) row in byte order under each key; ``None`` where the key has no row."""

    def before_many(self, keys: Sequence[bytes], bounds: Sequence[bytes]) -> list[bytes | None]:
        """Last row in byte order before ``bounds[i]`` under each key; ``None``: there is none."""


class StateStore(Protocol):
    """All state of one view."""

    def map(self, name: str) -> MapState:
        """The map state called ``name`` (made when missing)."""

    def index(self, name: str) -> IndexState:
        """The index state called ``name`` (made when missing)."""


class VersionedStore(StateStore, Protocol):
    """All state of one view, whose versions are txids.  One thread uses it.

    Several txids may be in flight: begun, not committed.  They begin and commit in order.
    """

    def begin(self, txid: int) -> None:
        """What is written from now on belongs to ``txid``, which is above all before it.

        A txid may begin while earlier ones wait for their commit: it reads what they wrote.
        """

    def prepare(self) -> None:
        """The txid begun last is whole: nothing is written until the next one begins.

        REQUIRES: called before the sink writes its diffs.

        Raises:
            BugError: a weight is negative.
            StateDamaged: what is stored cannot be read.
        """

    def commit(self, txid: int) -> None:
        """The sink has committed ``txid``, the least one in flight."""

    def rollback(self, txid: int) -> int:
        """Forget what every txid from ``txid`` on wrote; none of them is in flight any more.

        Returns:
            The txid whose state it has now: the one before ``txid``, or an earlier one (never
            less than the last checkpoint's): the txids after it must be processed again.
        """


class Checkpoint(Protocol):
    """A checkpoint under way."""

    written: bool
    """Whether ``write`` has succeeded."""

    def write(self, *, sync: bool) -> None:
        """Store it, on any one thread while the others go on; may be repeated if it fails.

        ``sync`` waits for the disk; without it a crash of the machine (not of the process) may
        lose the whole checkpoint, never a part of it.

        Raises:
            TransientError: it cannot be written now (53100: the disk is full); nothing was.
            StateDamaged: the database is damaged.
        """


class VersionedDatabase(Protocol):
    """The states of all views of a worker, and small metadata."""

    def begin_checkpoint(
        self, stores: Sequence[tuple[Any, int]], meta: Mapping[bytes, bytes | None]
    ) -> Checkpoint:
        """A checkpoint of stores at their committed txids, and of ``meta`` (None deletes).

        O(1) per state.  Everything becomes durable in one atomic write, or nothing.  At most
        one checkpoint is under way at a time.
        """

    def end_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Free what is durable now; if it was not written, all is as before it began.

        REQUIRES: ``write`` is not running.
        """

    def put_meta(self, meta: Mapping[bytes, bytes | None], *, sync: bool) -> None:
        """Write small metadata at once, also while a checkpoint is being written.

        With ``sync`` everything written before, checkpoints too, is on disk afterwards.
        """
