"""A cursor: the place of one view, or of several, that stand further back than all others.

A cursor decodes as a connection of its own would: it has its own decoder, and its own descriptions
of tables.  So it disturbs neither the stream nor another cursor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.forwarder.batcher import Batch
from headrace.kernels.pgoutput import Changes, Decoder
from headrace.postgres.numbering import Observation
from headrace.runtime.columns import Columns, Description, Types
from headrace.runtime.incoming import StreamFrames
from headrace.runtime.watch import TableFacts, Watch

OnEngine = Callable[[Callable[[], Any]], Any]
"""Runs a function on the engine's thread, and returns its result."""


class Cursor(ABC):
    """A position among the recorded batches; one thread at a time uses it."""

    def __init__(self, after: int, watch: Watch, on_engine: OnEngine) -> None:
        """Stand after txid ``after``."""
        self.txid = after
        """The last txid that was read."""
        self._decoder: Final = Decoder()
        self._tables: Final = _Tables(watch, on_engine)

    def read(
        self, last: int, attempt: int, types: Types, facts: TableFacts
    ) -> tuple[StreamFrames, Batch]:
        """Return the rows of the txids up to ``last`` as those of one txid, and their batch.

        ``facts``: those of the tables that are read by the views that take the rows.  REQUIRES:
        the txids can be read, and the frames are read to the end.

        Raises:
            TransientError: they cannot be read here any more.
        """
        self._tables.facts = facts
        whole = Batch(first=self.txid + 1)
        for batch in self._batches(last):
            whole.add(batch)
        self.txid = whole.txid = last
        instant = whole.commit_time_us
        frames = StreamFrames(whole, self._decoder, last, attempt, self._tables, instant, types)
        return frames, whole

    @abstractmethod
    def _batches(self, last: int) -> Iterable[Batch]:
        """Iterate over the next batches up to txid ``last``, each cut as it was recorded."""


class _Tables:
    """The descriptions of tables that one cursor has read; see ``incoming.Describer``.

    The engine's thread is busy with the views that lead, so it is only asked about transactions
    that ``facts`` do not show.
    """

    def __init__(self, watch: Watch, on_engine: OnEngine) -> None:
        self.facts = TableFacts()
        self._watch: Final = watch
        self._on_engine: Final = on_engine
        self._columns: Final = Columns(self._observe)

    def described(self, found: Sequence[Description]) -> dict[int, HeadraceError]:
        self._columns.describe(found)
        if self.facts.show({description.xid for description in found}):
            return {}
        errors: dict[int, HeadraceError]
        errors, self.facts = self._on_engine(
            partial(self._watch.check_lagging, found, self.facts.views)
        )
        return errors

    def numbered(
        self, changes: Changes, xid: int, read: Mapping[int, int] | None
    ) -> pa.RecordBatch:
        return self._columns.numbered(changes, xid, read)

    def _observe(self, table: int, xid: int) -> Iterable[Observation]:
        if self.facts.show({xid}):
            return self.facts.observations(table)
        found: list[Observation] = self._on_engine(
            lambda: list(self._watch.observations(table, xid))
        )
        return found
