"""One replication connection: from START_REPLICATION to its end, in a thread of its own.

The thread reads, answers, and confirms; it never processes.  So feedback continues while the
batcher is full or the engine is busy (H34).  A stream that has ended is not restarted: the engine
opens a new one at its own position.  A rewind works the same way.

Source: Postgres manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, TransientError
from headrace.forwarder.batcher import Backlog, Batch, Batcher, Cut
from headrace.forwarder.carried import Opener
from headrace.forwarder.receiver import Origin, Receiver
from headrace.kernels.pgoutput import Commit
from headrace.postgres import decoding_standby
from headrace.postgres.timeline import Identity

_log = structlog.get_logger(__name__)

_SILENCE_S_MAX: Final = 90.0
"""Silence that ends the stream.  We ask every second; decoding may delay the answer."""
_ASK_S_MIN: Final = 0.002
_ASK_S_MAX: Final = 0.05
"""Bounds of the pause between requests for the server's position while a caller waits for one."""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a stream begins."""

    lsn: int
    """LSN at which the processed transactions end."""
    cuts: Sequence[Cut] = ()
    """Recorded batches, which are to end there again."""
    backlog: Backlog | None = None
    """Batches that are taken first."""
    last: Commit | None = None
    """Last transaction received by earlier streams; None: unknown."""


class Stream:
    """A running stream; ``batcher`` returns the received batches.

    ``source`` is an ordinary connection to the same database on the server of the slot, used while
    starting only.
    """

    def __init__(
        self,
        settings: Settings,
        source: psycopg.Connection[Any],
        begin: StreamStart,
        expected: Identity | None = None,
        token: str | None = None,
    ) -> None:
        """Connect and start.

        ``token``: the token of the messages that carry other databases' changes
        (``carried.py``); None: there are none.

        Raises:
            ContinuityLost: it cannot be continued at ``begin`` without loss.
            TransientError: it cannot be started now.
            PrerequisiteError: the server refuses us.
        """
        self._settings = settings
        self._backlog = begin.backlog
        self.start_lsn = begin.lsn
        self.batcher = Batcher(
            start_lsn=begin.lsn,
            cuts=begin.cuts,
            interval_s=settings.batch_interval_ms / 1000,
            rows_max=settings.batch_rows_max,
            bytes_max=settings.memory.changes,
            spool_bytes_min=settings.memory.transaction,
            spool_dir=settings.spool_dir,
        )
        self._confirmed = 0
        self._sent = 0
        """Position that was last sent as the confirmed one."""
        self._asked = 0
        self._stopping = False
        self.token: Final = token
        self._opener: Final = Opener(token)
        origin = Origin(
            decoding_standby.dsn(settings),
            "headrace stream",
            settings.slot_name,
            settings.publication_name,
            settings.spool_dir,
            settings.memory.transaction,
            messages=True,
            standby=bool(settings.decode_from),
        )
        last = begin.last
        repeat_lsn = begin.lsn if last is None else min(begin.lsn, last.commit_lsn)
        with decoding_standby.blamed(settings):
            self._receiver = Receiver(
                origin, source, begin.lsn, self._on_keepalive, expected, repeat_lsn
            )
        if last is not None and self._receiver.begins <= last.commit_lsn:
            self.batcher.expected = last
        self.identity: Final = self._receiver.identity
        self._thread = threading.Thread(target=self._run, name="headrace-stream", daemon=True)
        self._thread.start()

    # --- for the engine

    def take(
        self, timeout_s: float, *, rested_at: float = math.inf, gather_s: float = 0.0
    ) -> Batch | None:
        """Return the next batch; see ``Batcher.take``.

        Raises:
            HeadraceError: the stream has ended, or the backlog cannot be read.
        """
        if self._backlog is not None and self._backlog.left:
            return self._backlog.take()
        return self.batcher.take(timeout_s, rested_at=rested_at, gather_s=gather_s)

    def relieve(self, keep: Callable[[Batch], Backlog | None]) -> bool:
        """Move a waiting batch to other storage; see ``Batcher.relieve``.

        ``keep`` returns where to take the batch from once everything before it is taken.
        """

        def kept(batch: Batch) -> bool:
            at = keep(batch)
            if at is None:
                return False
            if self._backlog is not None and self._backlog.left:
                self._backlog.left += at.left
            else:
                self._backlog = at
            return True

        return self.batcher.relieve(kept)

    @property
    def replaying(self) -> bool:
        """Whether recorded batches are still to come."""
        return bool(self._backlog is not None and self._backlog.left) or self.batcher.replaying

    def confirm(self, lsn: int) -> None:
        """Confirm that everything before ``lsn`` is durable on our side: the source may discard it.

        No other method confirms a position (H14).
        """
        assert lsn >= self._confirmed, "confirmed positions only grow"
        self._confirmed = lsn
        self._wake()

    @property
    def confirmed(self) -> int:
        """Last position confirmed on this connection; 0 if none."""
        return self._confirmed

    @property
    def received(self) -> int:
        """Last position the server has sent."""
        return self._receiver.received

    @property
    def streamed(self) -> tuple[int, int]:
        """See ``Receiver``."""
        return self._receiver.streamed

    @property
    def carries(self) -> bool:
        """Whether changes of other databases are read."""
        return self.token is not None

    @property
    def asked(self) -> int:
        """Number of times the server asked for an immediate reply (it does so when it stops)."""
        return self._asked

    def hurry(self, lsn: int) -> None:
        """Ask the server for its position: a caller waits for everything before ``lsn``."""
        self.batcher.hurry(lsn)
        self._wake()

    def stop(self) -> None:
        """End the stream and wait for its thread; buffered messages are dropped."""
        self._stopping = True
        self._receiver.leave()
        self._thread.join()
        self.batcher.close()

    # --- the thread

    def _run(self) -> None:
        try:
            with decoding_standby.blamed(self._settings):
                self._follow()
        except HeadraceError as error:
            self.batcher.fail(error)
        except Exception as error:  # noqa: BLE001  the engine's thread waits for batches
            _log.exception("stream ended by a bug")
            self.batcher.fail(BugError(f"internal error in the stream: {error!r}"))
        finally:
            self._receiver.close()

    def _follow(self) -> None:
        try:
            try:
                self._read()
            except TransientError:
                if not self._stopping:  # else what it waited for is not needed any more
                    raise
            if self._sent != self._confirmed:
                self._feedback(ask=False)
        except (psycopg.Error, OSError) as error:
            raise TransientError(f"the stream broke: {error}") from error

    def _read(self) -> None:
        receiver, batcher = self._receiver, self.batcher
        last_feedback = clock.monotonic()
        last_input = clock.monotonic()
        interval = self._settings.feedback_interval_ms / 1000
        pause = _ASK_S_MIN
        while not self._stopping:
            now = clock.monotonic()
            # The server replies with its position, which may still be before the one waited for.
            urgent = batcher.urgent
            pause = pause if urgent else _ASK_S_MIN
            every = min(pause, interval) if urgent else interval
            if now - last_feedback >= every or self._sent != self._confirmed:
                self._feedback(ask=True)
                last_feedback = now
                pause = min(2 * pause, _ASK_S_MAX)
            messages, idle = receiver.gather()
            room = self._add(messages) if messages else True
            receiver.check_notices()
            if messages:
                last_input = now
            if not room:
                batcher.wait_for_room(interval)
                last_input = clock.monotonic()
            elif idle:
                left = max(last_feedback + every - clock.monotonic(), 0.0)
                if receiver.wait(left):
                    last_input = clock.monotonic()
                elif clock.monotonic() - last_input > _SILENCE_S_MAX:
                    raise TransientError("the server has been silent for too long")

    def _add(self, messages: list[bytes]) -> bool:
        """Pass messages on, carried ones unpacked; returns whether there is room for more."""
        return self.batcher.add(self._opener.opened(messages))

    def _on_keepalive(self, before: list[bytes], lsn: int, ask: bool) -> None:
        if before:
            self._add(before)
        self.batcher.keepalive(lsn)
        if ask:
            self._asked += 1
            self.batcher.poke()
            self._feedback(ask=False)

    def _feedback(self, *, ask: bool) -> None:
        confirmed = self._confirmed
        self._receiver.feedback(confirmed, ask=ask)
        self._sent = confirmed

    def _wake(self) -> None:
        self._receiver.wake()
