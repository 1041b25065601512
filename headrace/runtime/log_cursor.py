"""A cursor in the intake log: reads batches again, for views that stand further back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.forwarder.batcher import Batch
from headrace.runtime import packing
from headrace.runtime.cursor import Cursor, OnEngine
from headrace.runtime.intake_log import IntakeLog
from headrace.runtime.watch import Watch


class LogCursor(Cursor):
    """A position in the log.  REQUIRES: the log has the batches that are read."""

    def __init__(self, log: IntakeLog, after: int, watch: Watch, on_engine: OnEngine) -> None:
        """Stand after txid ``after``."""
        super().__init__(after, watch, on_engine)
        self._intake_log: Final = log
        self._told: dict[bytes, bytes] = {}

    def _batches(self, last: int) -> Iterable[Batch]:
        for txid in range(self.txid + 1, last + 1):
            yield packing.unpack(txid, self._intake_log.read(txid), self._told)
