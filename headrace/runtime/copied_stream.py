"""Recorded batches, read once more from the source over a temporary copy of the slot.

    thread of the stream:  connect ─► copy the slot ─► receive ─► cut ─┐
    engine's thread:       extend() ─► cuts                            └─► reach ─► take()

A view needs it if the intake log lacks its batches.  The copy ends with its connection, so it never
outlives the process.  Everything that may wait runs on the stream's own thread: the connection, the
server that decodes, and the pause while enough batches wait to be taken.

* Invariant 1: each batch is cut as it was recorded.  Later transactions wait for their cut.
* Invariant 2: the copy holds back no WAL before the batches that were cut: it is told so at once,
  because a copy that is lost is made again from the slot, which holds everything that is needed.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, ContinuityLost, HeadraceError, TransientError
from headrace.forwarder.batcher import Batch, Batcher
from headrace.forwarder.carried import Opener
from headrace.forwarder.receiver import Origin, PositionGone, Receiver
from headrace.postgres import connect, decoding_standby
from headrace.postgres.timeline import Identity
from headrace.process import faults
from headrace.runtime.positions import BatchRecord

_log = structlog.get_logger(__name__)

NAME: Final = "headrace catch-up"
"""Application name of the connections."""
_INFIX: Final = "_c_"
_SLOT_CHARS_MAX: Final = 63
_WAITING_BYTES: Final = 4 << 20
"""Bytes of cut batches that may wait to be taken, beyond the first one."""
_SILENCE_S_MAX: Final = 90.0
_ASK_S_MIN: Final = 0.002
_ASK_S_MAX: Final = 0.05
"""Bounds of the pause between requests for the server's position while a cut is not reached."""
_NO_SLOT: Final = "53400"
_LIMITS: Final = """
SELECT pg_catalog.current_setting('max_replication_slots')::int,
       pg_catalog.current_setting('max_wal_senders')::int,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication)"""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a copied stream begins, and at which server."""

    txid: int
    """The last batch that is not read."""
    lsn: int
    """Transactions that ended at or before it are not read."""
    identity: Identity | None
    """The server that the position belongs to."""
    token: str | None
    """See ``carried.py``; None: the stream carries no changes of other databases."""


class CopiedStream:
    """A stream from ``beginning`` on; it ends with ``close`` or with an ``error``."""

    def __init__(
        self, settings: Settings, beginning: Beginning, changed: Callable[[], None]
    ) -> None:
        """Begin to connect, on a thread of its own.

        ``changed`` is called, from that thread, when there is a batch to take, and at the end.
        """
        self._settings: Final = settings
        self._beginning: Final = beginning
        self._tell: Final = changed
        self._opener: Final = Opener(beginning.token)
        self._batcher: Final = Batcher(
            start_lsn=beginning.lsn,
            spool_bytes_min=settings.memory.transaction,
            spool_dir=settings.spool_dir,
        )
        self._batcher.divide((), math.inf)  # the cuts are made here
        self._receiver: Receiver | None = None
        self._following: Batch | None = None
        """A transaction that belongs to a later cut."""
        self._whole = Batch()
        """The transactions of the next cut that were received."""
        self._passed = beginning.lsn
        """End of the last batch that was cut."""
        self._changed = threading.Condition()
        # Guarded by the condition.
        self._cuts: deque[BatchRecord] = deque()
        self._ready: deque[Batch] = deque()
        self._waiting = 0
        self._closing = False
        self.known = beginning.txid
        """The last batch whose cut is known; only the engine's thread uses it."""
        self.opened = False
        """Whether the source sends; any thread may read it."""
        self.error: HeadraceError | None = None
        """Why the stream has ended; any thread may read it.  Batches that wait can be taken."""
        self._thread = threading.Thread(target=self._run, name="headrace-catch-up", daemon=True)
        self._thread.start()

    # --- for other threads

    def extend(self, records: Iterable[BatchRecord]) -> None:
        """Add the next recorded batches.  REQUIRES: they follow each other, after ``known``."""
        with self._changed:
            for record in records:
                assert record.txid == self.known + 1, "records have no gap"
                self._cuts.append(record)
                self.known = record.txid
            self._changed.notify_all()

    @property
    def reach(self) -> int:
        """Txid of the last batch that can be taken now; 0: there is none."""
        with self._changed:
            last = self._ready[-1].txid if self._ready else None
        return last or 0

    def take(self, last: int) -> list[Batch]:
        """Return the next batches, up to txid ``last``.  REQUIRES: ``reach >= last``."""
        out = []
        with self._changed:
            while self._ready and (self._ready[0].txid or 0) <= last:
                out.append(self._ready.popleft())
                self._waiting -= out[-1].size
            self._changed.notify_all()
        return out

    @property
    def ended(self) -> bool:
        """Whether its connection is closed, and so its copy of the slot is gone."""
        return not self._thread.is_alive()

    def close(self, *, wait: bool = False) -> None:
        """End the stream; with ``wait``, return when its connection is closed."""
        with self._changed:
            self._closing = True
            receiver = self._receiver
            self._changed.notify_all()
        if receiver is not None:
            receiver.leave()
        if wait:
            self._thread.join()

    # --- the thread

    def _run(self) -> None:
        error: HeadraceError | None = None
        try:
            self._open()
            self._read()
        except PositionGone as gone:
            error = gone
        except ContinuityLost as lost:
            # The stream of the slot itself finds out whether its views can go on.
            error = TransientError(lost.message, detail=lost.detail)
        except HeadraceError as other:
            error = other
        except (psycopg.Error, OSError) as broken:
            error = TransientError(f"the stream broke: {broken}")
        except Exception as bug:  # noqa: BLE001  the engine's thread waits for batches
            _log.exception("stream ended by a bug")
            error = BugError(f"internal error in the stream: {bug!r}")
        finally:
            self._end()
        self.error = error
        self._tell()

    def _end(self) -> None:
        with self._changed:
            receiver, self._receiver = self._receiver, None
            closing = self._closing
        if receiver is not None:
            receiver.close()
        self._batcher.close()
        left = [self._whole, *([self._following] if self._following is not None else [])]
        for batch in [*left, *(self._ready if closing else ())]:
            batch.close()

    def _open(self) -> None:
        """Connect, copy the slot, and start.

        Raises:
            TransientError: that is impossible now; the message names the exhausted setting.
            PositionGone: the slot begins later.
        """
        settings = self._settings
        tail = f"{_INFIX}{secrets.token_hex(4)}"
        origin = Origin(
            decoding_standby.dsn(settings),
            NAME,
            settings.slot_name[: _SLOT_CHARS_MAX - len(tail)] + tail,
            settings.publication_name,
            settings.spool_dir,
            settings.memory.transaction,
            messages=True,
            copied_from=settings.slot_name,
        )
        begin = self._beginning
        try:
            receiver = Receiver(origin, None, begin.lsn, self._on_keepalive, begin.identity)
        except (TransientError, ContinuityLost) as error:
            if isinstance(error, ContinuityLost):
                raise
            raise _exhausted(decoding_standby.dsn(settings), error) from error
        with self._changed:
            self._receiver = receiver
        self.opened = True
        faults.point(faults.SLOT_COPIED)
        _log.info("the slot is copied", slot=origin.slot, after=begin.txid, lsn=begin.lsn)
        self._tell()

    def _read(self) -> None:
        receiver = self._receiver
        assert receiver is not None, "it was opened"
        interval = self._settings.feedback_interval_ms / 1000
        answered = heard = clock.monotonic()
        pause = _ASK_S_MIN
        while not self._closing:
            now = clock.monotonic()
            if not self._wants():
                # The server needs answers, also while nothing is read.
                if now - answered >= interval:
                    receiver.feedback(self._passed, ask=False)
                    answered = clock.monotonic()
                self._pause(max(answered + interval - now, 0.0))
                heard, pause = clock.monotonic(), _ASK_S_MIN
                continue
            every = min(pause, interval)
            if now - answered >= every:
                receiver.feedback(self._passed, ask=True)
                answered = now
                pause = min(2 * pause, _ASK_S_MAX)
            messages, idle = receiver.gather()
            if messages:
                self._add(messages)
                heard = now
            receiver.check_notices()
            self._cut()
            if idle:
                if receiver.wait(max(answered + every - clock.monotonic(), 0.0)):
                    heard = clock.monotonic()
                elif clock.monotonic() - heard > _SILENCE_S_MAX:
                    raise TransientError("the server has been silent for too long")

    def _wants(self) -> bool:
        """Return whether to read on: a cut is known, and few batches wait to be taken."""
        self._cut()
        with self._changed:
            return bool(self._cuts) and self._waiting < _WAITING_BYTES

    def _pause(self, seconds: float) -> None:
        """Wait until there is something to read, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or (bool(self._cuts) and self._waiting < _WAITING_BYTES),
                seconds,
            )

    def _add(self, messages: list[bytes]) -> None:
        self._batcher.add(self._opener.opened(messages))

    def _on_keepalive(self, before: list[bytes], lsn: int, ask: bool) -> None:
        if before:
            self._add(before)
        self._batcher.keepalive(lsn)
        if ask and self._receiver is not None:
            self._receiver.feedback(self._passed, ask=False)

    def _cut(self) -> None:
        """Cut what was received into batches, as far as they are complete."""
        while True:
            with self._changed:
                cut = self._cuts[0] if self._cuts else None
                if cut is None or (self._waiting >= _WAITING_BYTES and self._ready):
                    return
            if not self._complete(cut):
                return
            whole, self._whole = self._whole, Batch()
            whole.txid, whole.end_lsn = cut.txid, cut.end_lsn
            whole.commit_time_us = cut.commit_time_us
            self._passed = max(self._passed, cut.end_lsn)
            with self._changed:
                first = not self._ready
                self._cuts.popleft()
                self._ready.append(whole)
                self._waiting += whole.size
            if first:
                self._tell()

    def _complete(self, cut: BatchRecord) -> bool:
        """Add the transactions of a batch; return whether all of them are there."""
        end = cut.end_lsn
        while self._passed < end and self._whole.end_lsn < end:
            found = self._following or self._batcher.take(0.0)
            if found is None:
                # Everything before an idle position was received.
                return self._batcher.idle_lsn >= end
            if found.end_lsn > end:
                self._following = found
                return True
            self._following = None
            self._whole.add(found)
        return True


def _exhausted(dsn: str, error: TransientError) -> TransientError:
    """Return ``error``, or which setting of the server leaves no room for a copy of the slot."""
    try:
        with connect.session(dsn, name=NAME) as conn:
            row = conn.execute(_LIMITS).fetchone()
    except psycopg.Error:
        return error  # the server cannot be reached at all
    assert row is not None, "a SELECT without FROM has one row"
    slots, senders, sending = row
    if error.code == _NO_SLOT:
        name, value = "max_replication_slots", slots
        message = f"no replication slot is free for a view that catches up: {name} = {value}"
    elif sending >= senders:
        name, value = "max_wal_senders", senders
        message = f"no WAL sender is free for a view that catches up: {name} = {value}"
    else:
        return error
    return TransientError(
        message,
        detail=error.message,
        hint=f"Free one, or set {name} to {value + 1} or more and restart Postgres.",
        sqlstate=_NO_SLOT,
    )
