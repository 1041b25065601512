"""Rows of a txid as units ingest them: decoded from the stream, with numbered columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Begin, Changes, Decoder, RelationChanged, RequestNamed
from headrace.runtime.columns import Description, Types
from headrace.runtime.edges import TableDiffs
from headrace.types import Diffs

_NO_COLUMNS: Final[Mapping[int, int]] = {}


class Describer(Protocol):
    """Knowledge of tables (``runtime.watch``)."""

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        """Take table descriptions; return the views, by ID, that must not take rows after them."""

    def numbered(
        self, changes: Changes, xid: int, read: Mapping[int, int] | None
    ) -> pa.RecordBatch:
        """Return a change batch with columns ``n:<attnum>``; ``xid`` is its last transaction.

        ``read``: the columns to include, and their types; None: all, as texts.
        """


class Frames(ABC):
    """The change batches of one batch, in chunks; may be read again (after a failure)."""

    def __init__(self, first: int, txid: int, attempt: int, instant: int, oldest_us: int) -> None:
        """Create frames for the txids from ``first`` to ``txid``, processed as one, ``txid``.

        ``instant`` is the recorded time of the batch, microseconds since 2000-01-01 UTC.  All views
        that read the clock take part, even if none of their tables has changed.
        """
        self.first: Final = first
        self.txid: Final = txid
        self.attempt: Final = attempt
        self.instant: Final = instant
        self.oldest_us: Final = oldest_us
        self.xids: dict[int, int] = {}
        """XIDs of its transactions by the LSN that their rows have, in the order of their commits;
        filled while the rows are read from the stream or the log."""
        self.requests: dict[int, str] = {}
        """Ids of the requests that transactions belong to, by the same LSNs; filled likewise."""
        self.stopped: dict[int, HeadraceError] = {}
        """Views that must not take the rows, by ID; filled while the rows are read."""

    @abstractmethod
    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Iterate over chunks of frames.  REQUIRES: read to the end."""

    @abstractmethod
    def all(self) -> list[TableDiffs] | None:
        """Return every frame, or None when they do not fit into memory."""


class StreamFrames(Frames):
    """Frames of a batch of the stream or the log, decoded."""

    def __init__(
        self,
        batch: Batch,
        decoder: Decoder,
        txid: int,
        attempt: int,
        describer: Describer,
        instant: int = 0,
        types: Types | None = None,
    ) -> None:
        """Create frames of ``batch``; ``describer`` gets new table descriptions before their rows.

        Columns in ``types`` are parsed once, into values, and other columns are left out.  Without
        ``types``, all columns come as text.
        """
        super().__init__(batch.first or txid, txid, attempt, instant, batch.oldest_us)
        self._types = types
        self.pass_on: list[Callable[[list[TableDiffs] | None], None]] = []
        """Functions called with each chunk once, and with None at the end."""
        self._describer = describer
        self._batch = batch
        self._decoder = decoder
        self._kept: list[list[TableDiffs]] | None = None

    def __iter__(self) -> Iterator[list[TableDiffs]]:
        """Iterate over chunks.  REQUIRES: read to the end; the decoder must see every message."""
        if self._kept is not None:
            yield from self._kept
            return
        kept, xid, lsn = [], 0, 0
        for messages in self._batch.chunks():
            events = [*self._decoder.feed(messages), *self._decoder.flush()]
            found = []
            for event in events:
                if isinstance(event, Begin):
                    lsn = event.final_lsn
                    self.xids[lsn] = xid = event.xid
                elif isinstance(event, RequestNamed):
                    self.requests[lsn] = event.id
                elif isinstance(event, RelationChanged):
                    found.append(Description(xid, event.relation))
            if found:
                self.stopped |= self._describer.described(found)
            chunk = [
                TableDiffs(e.relation.oid, Diffs(self.txid, self.attempt, self._numbered(e)))
                for e in events
                if isinstance(e, Changes)
            ]
            if not self._batch.spooled:
                kept.append(chunk)
            self._pass(chunk)
            yield chunk
        self._pass(None)
        if not self._batch.spooled:
            self._kept = kept

    def _pass(self, chunk: list[TableDiffs] | None) -> None:
        for put in self.pass_on:
            put(chunk)

    def _numbered(self, changes: Changes) -> pa.RecordBatch:
        read = None if self._types is None else self._types.get(changes.relation.oid, _NO_COLUMNS)
        return self._describer.numbered(changes, self.xids[changes.last_lsn], read)

    def all(self) -> list[TableDiffs] | None:
        """Return every frame, or None when they do not fit into memory."""
        if self._batch.spooled or self._kept is None:
            return None
        return [frame for chunk in self._kept for frame in chunk]
