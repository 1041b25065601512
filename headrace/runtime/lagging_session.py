"""The exchange of a session for units that lag: their batches are processed beside all others.

The coordinator sends no other message about such a unit before it has the result of its batch.  So
this thread is the only one that works on the unit meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from headrace.network.messages import BeginBatch
from headrace.network.port import Ended, FlightSession
from headrace.runtime.row_transfer import Inbox

_log = structlog.get_logger(__name__)

Batch = Callable[[FlightSession, BeginBatch, Inbox], None]
"""Processes a batch whose rows come from the inbox, and sends the result."""


class LaggingSession:
    """The second exchange of one session."""

    def __init__(self, name: str, batch: Batch, fail: Callable[[], None]) -> None:
        """Create it for the session of this name; ``fail`` ends the session after a bug."""
        self.name: Final = name
        self._batch = batch
        self._fail = fail
        self._inbox: Final = Inbox()
        self._lock: Final = threading.Lock()
        """Held while a batch begins, and while memory of any unit is moved."""
        self._working = False
        self._thread: threading.Thread | None = None
        self._closed = False

    def serve(self, session: FlightSession) -> None:
        """Read the exchange's messages, and process its batches, until it ends."""
        with self._lock:
            if self._closed or self._thread is not None:
                return
            self._thread = threading.Thread(
                target=self._work, args=(session,), name="headrace-session-lagging"
            )
            self._thread.start()
        try:
            while True:
                self._inbox.put(session.receive())
        except Ended:
            self._inbox.put(None)
        self._thread.join()

    @contextmanager
    def resting(self) -> Iterator[bool]:
        """Let no batch begin inside the context; yield whether none is being processed."""
        with self._lock:
            yield not self._working

    def close(self) -> None:
        """Return when no batch is processed any more.  REQUIRES: its units were interrupted."""
        with self._lock:
            self._closed = True
        self._inbox.close()
        if self._thread is not None:
            self._thread.join()

    def _work(self, session: FlightSession) -> None:
        try:
            while True:
                word, _ = self._inbox.next()
                if isinstance(word, BeginBatch):  # else the end of a batch that was answered
                    self._process(session, word)
        except Ended:
            pass
        except Exception:  # noqa: BLE001  the coordinator begins another session
            _log.exception("session ended by a bug")
            self._fail()
        self._inbox.close()

    def _process(self, session: FlightSession, word: BeginBatch) -> None:
        with self._lock:
            self._working = True
        try:
            self._batch(session, word, self._inbox)
        finally:
            with self._lock:
                self._working = False
