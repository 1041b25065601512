"""One replication connection: from START_REPLICATION to its end, in a thread of its own.

The thread reads, answers, and confirms; it never processes.  So feedback goes on while the
batcher is full or the engine is busy (H34).  A stream that has ended is not mended: the engine
opens the next one at its own position, which is also how it goes back (rewind).

Source: Postgres manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

import math
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog
from psycopg import pq, sql

from headrace import clock
from headrace.config import Settings
from headrace.errors import BugError, ContinuityLost, HeadraceError, TransientError
from headrace.forwarder.batcher import Backlog, Batch, Batcher, Cut
from headrace.postgres import connect, failures
from headrace.postgres import slot as setup
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)

_HEADER: Final = 25
_KEEPALIVE: Final = struct.Struct("!cQqB")
_FEEDBACK: Final = struct.Struct("!cQQQqB")
_READ_CHUNK: Final = 512
_SILENCE_S_MAX: Final = 90.0
"""We ask for an answer every second; decoding a huge transaction may delay it."""
_CONTINUITY: Final = frozenset(("55000", "42704", "58P01"))
"""Slot lost or unusable, slot or publication gone, WAL removed."""
_ACTIVE_ATTEMPTS: Final = 50
_ASK_S_MIN: Final = 0.002
_ASK_S_MAX: Final = 0.05
"""How often the server is asked for its position while somebody waits for one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The server a stream comes from; LSNs mean nothing on another (H24, H25)."""

    system_id: str
    timeline: int


class Stream:
    """A running stream from ``start_lsn``; ``batcher`` gives what it receives.

    ``source`` is an ordinary connection to the same database, used while starting only.
    """

    def __init__(
        self,
        settings: Settings,
        source: psycopg.Connection[Any],
        start_lsn: int,
        cuts: Sequence[Cut] = (),
        expected: Identity | None = None,
        backlog: Backlog | None = None,
    ) -> None:
        """Connect and start; what is kept in ``backlog`` is taken first.

        Raises:
            ContinuityLost: it cannot be continued at ``start_lsn`` without loss.
            TransientError: it cannot be started now.
            PrerequisiteError: the server refuses us.
        """
        self._settings = settings
        self._backlog = backlog
        self.start_lsn = start_lsn
        self.batcher = Batcher(
            start_lsn=start_lsn,
            cuts=cuts,
            interval_s=settings.batch_interval_ms / 1000,
            rows_max=settings.batch_rows_max,
            bytes_max=settings.memory.changes,
            spool_bytes_min=settings.memory.transaction,
            spool_dir=settings.spool_dir,
        )
        self._confirmed = 0
        self._received = start_lsn
        self._asked = 0
        self._stopping = False
        self._notice: str | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._conn = self._connect()
        try:
            self.identity = self._identify(expected)
            self._start(source)
        except BaseException:
            self._close()
            raise
        self._thread = threading.Thread(target=self._run, name="headrace-stream", daemon=True)
        self._thread.start()

    # --- for the engine

    def take(
        self, timeout_s: float, *, rested_at: float = math.inf, gather_s: float = 0.0
    ) -> Batch | None:
        """The next batch: see ``Batcher.take``.

        Raises:
            HeadraceError: what ended the stream; what is kept cannot be read.
        """
        if self._backlog is not None and self._backlog.left:
            return self._backlog.take()
        return self.batcher.take(timeout_s, rested_at=rested_at, gather_s=gather_s)

    def relieve(self, keep: Callable[[Batch], Backlog | None]) -> bool:
        """Have a batch that waits kept elsewhere: see ``Batcher.relieve``.

        ``keep`` says where it is to be taken, should nothing before it be left there.
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
        """Everything before ``lsn`` is durable on our side: the source may forget it.

        The only way a position is ever confirmed (H14).
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
        return self._received

    @property
    def asked(self) -> int:
        """How often the server has asked for an answer at once (it does when it stops)."""
        return self._asked

    def hurry(self, lsn: int) -> None:
        """Somebody waits for everything before ``lsn``: the server is asked where it is."""
        self.batcher.hurry(lsn)
        self._wake()

    def stop(self) -> None:
        """End the stream and wait for its thread; what is buffered is dropped."""
        self._stopping = True
        self._wake()
        self._thread.join()
        self.batcher.close()

    # --- starting

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            conn = connect.session(self._settings.source, name="headrace stream", replication=True)
        except psycopg.Error as error:
            self._wake_in.close()
            self._wake_out.close()
            raise failures.classify(error) from error
        conn.pgconn.notice_handler = self._on_notice
        return conn

    def _identify(self, expected: Identity | None) -> Identity:
        result = self._conn.pgconn.exec_(b"IDENTIFY_SYSTEM")
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise TransientError(_text(result))
        system, timeline = result.get_value(0, 0), result.get_value(0, 1)
        assert system is not None, "IDENTIFY_SYSTEM has no NULL"
        assert timeline is not None, "IDENTIFY_SYSTEM has no NULL"
        found = Identity(system.decode(), int(timeline))
        if expected is not None and found != expected:
            raise ContinuityLost(
                "the source is another server, or was restored or failed over",
                detail=f"It is system {found.system_id}, timeline {found.timeline};"
                f" expected {expected.system_id}, {expected.timeline}.",
            )
        return found

    def _start(self, source: psycopg.Connection[Any]) -> None:
        settings = self._settings
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {})"
        ).format(
            sql.SQL(settings.slot_name),
            sql.SQL(format_lsn(self.start_lsn)),
            sql.Literal(f'"{settings.publication_name}"'),
        )
        text = command.as_string(self._conn).encode()
        for attempt in range(_ACTIVE_ATTEMPTS):
            result = self._conn.pgconn.exec_(text)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
            code = _code(result)
            if code == "55006":
                self._free(source, attempt)
                continue
            if code in _CONTINUITY:
                raise ContinuityLost(
                    f'slot "{settings.slot_name}" cannot be continued: {_text(result)}',
                    hint="The views must be created again.",
                )
            raise TransientError(_text(result), sqlstate=code)
        else:
            raise TransientError(
                f'slot "{settings.slot_name}" is in use by another process', sqlstate="55006"
            )
        self._check_position(source)

    def _free(self, source: psycopg.Connection[Any], attempt: int) -> None:
        """End our own walsender of an earlier connection, which has not noticed yet."""
        try:
            state = setup.slot_state(source, self._settings.slot_name)
            if state is not None and state.active_pid is not None:
                source.execute(
                    "SELECT pg_catalog.pg_terminate_backend(pid)"
                    " FROM pg_catalog.pg_stat_activity"
                    " WHERE pid = %s AND usename = current_user"
                    " AND application_name = 'headrace stream'",
                    (state.active_pid,),
                )
        except psycopg.Error as error:
            raise failures.classify(error) from error
        clock.sleep(min(0.005 * (attempt + 1), 0.2))

    def _check_position(self, source: psycopg.Connection[Any]) -> None:
        """Being started further on is silent (E17): look after starting."""
        try:
            state = setup.slot_state(source, self._settings.slot_name)
        except psycopg.Error as error:
            raise failures.classify(error) from error
        if state is None:
            raise ContinuityLost(f'slot "{self._settings.slot_name}" is gone')
        if state.wal_status == "lost":
            raise ContinuityLost(
                f'slot "{self._settings.slot_name}" has lost WAL it needs',
                hint="See max_slot_wal_keep_size.",
            )
        if state.confirmed > self.start_lsn:
            raise ContinuityLost(
                f'slot "{self._settings.slot_name}" is ahead of our state',
                detail=f"It is at {format_lsn(state.confirmed)}, our state at"
                f" {format_lsn(self.start_lsn)}: somebody else used or re-created it.",
            )

    # --- the thread

    def _run(self) -> None:
        try:
            self._read()
        except HeadraceError as error:
            self.batcher.fail(error)
        except (psycopg.Error, OSError) as error:
            self.batcher.fail(TransientError(f"the stream broke: {error}"))
        except Exception as error:  # noqa: BLE001  the engine's thread waits for batches
            _log.exception("stream ended by a bug")
            self.batcher.fail(BugError(f"internal error in the stream: {error!r}"))
        finally:
            self._close()

    def _read(self) -> None:
        pgconn = self._conn.pgconn
        batcher = self.batcher
        last_feedback = clock.monotonic()
        last_input = clock.monotonic()
        sent = 0
        interval = self._settings.feedback_interval_ms / 1000
        pause = _ASK_S_MIN
        while not self._stopping:
            now = clock.monotonic()
            # It tells its position when asked; it may not have come as far as is waited for.
            urgent = batcher.urgent
            pause = pause if urgent else _ASK_S_MIN
            every = min(pause, interval) if urgent else interval
            if now - last_feedback >= every or sent != self._confirmed:
                sent = self._feedback(ask=True)
                last_feedback = now
                pause = min(2 * pause, _ASK_S_MAX)
            messages, idle = self._gather(pgconn)
            room = batcher.add(messages) if messages else True
            if self._notice is not None:
                # 18 skips changes of a publication that is missing, with a notice only (E12).
                raise ContinuityLost(f"the server sent a notice within the stream: {self._notice}")
            if messages:
                last_input = now
            if not room:
                batcher.wait_for_room(interval)
                last_input = clock.monotonic()
            elif idle:
                left = max(last_feedback + every - clock.monotonic(), 0.0)
                if self._wait(left):
                    last_input = clock.monotonic()
                elif clock.monotonic() - last_input > _SILENCE_S_MAX:
                    raise TransientError("the server has been silent for too long")
        if sent != self._confirmed:
            self._feedback(ask=False)

    def _gather(self, pgconn: Any) -> tuple[list[bytes], bool]:
        """Messages that have arrived, and whether there are no more now."""
        out: list[bytes] = []
        get = pgconn.get_copy_data
        while len(out) < _READ_CHUNK:
            size, data = get(1)
            if size > 0:
                kind = data[0]
                if kind == b"w"[0]:
                    out.append(bytes(data[_HEADER:]))
                elif kind == b"k"[0]:
                    self._on_keepalive(bytes(data), out)
                    out = []
                else:
                    raise ContinuityLost(f"unknown replication message {kind}")
            elif size == 0:
                return out, True
            else:
                raise self._ended(pgconn)
        return out, False

    def _on_keepalive(self, data: bytes, before: list[bytes]) -> None:
        if before:
            self.batcher.add(before)
        _, lsn, _, ask = _KEEPALIVE.unpack(data)
        self._received = max(self._received, lsn)
        self.batcher.keepalive(lsn)
        if ask:
            self._asked += 1
            self.batcher.poke()
            self._feedback(ask=False)

    def _feedback(self, *, ask: bool) -> int:
        confirmed = self._confirmed
        # "written" must not be 0 for ever: the server shows it, and counts our replies by it.
        message = _FEEDBACK.pack(
            b"r", max(confirmed, self._received), confirmed, confirmed, 0, int(ask)
        )
        self._conn.pgconn.put_copy_data(message)
        self._conn.pgconn.flush()
        return confirmed

    def _wait(self, timeout_s: float) -> bool:
        """Wait for input, a wake-up or the time-out; whether there was input."""
        handle = self._conn.pgconn.socket
        wake = self._wake_in.fileno()
        # Not select(): a worker has a file open for each piece of state, and it stops at 1 024.
        wanted = select.poll()
        wanted.register(handle, select.POLLIN)
        wanted.register(wake, select.POLLIN)
        ready = {number for number, _ in wanted.poll(timeout_s * 1000)}
        if wake in ready:
            self._wake_in.recv(4096)
        if handle in ready:
            self._conn.pgconn.consume_input()
            return True
        return False

    def _ended(self, pgconn: Any) -> HeadraceError:
        """Why the server ended the stream."""
        result = pgconn.get_result()
        code = _code(result) if result is not None else None
        text = _text(result) if result is not None else "the server closed the stream"
        if code in _CONTINUITY:
            return ContinuityLost(f"the stream cannot be continued: {text}")
        return TransientError(text, sqlstate=code or "08006")

    def _on_notice(self, result: Any) -> None:
        self._notice = _text(result)

    def _wake(self) -> None:
        try:
            self._wake_out.send(b"x")
        except OSError:
            _log.debug("stream has ended already")

    def _close(self) -> None:
        self._conn.close()
        self._wake_in.close()
        self._wake_out.close()


def _code(result: Any) -> str | None:
    value = result.error_field(pq.DiagnosticField.SQLSTATE)
    return value.decode() if value else None


def _text(result: Any) -> str:
    value = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    if value:
        return str(value.decode(errors="replace"))
    return str(result.error_message.decode(errors="replace")).strip() or "unknown error"
