"""One replication connection: started at a position, read message by message, answered.

Who has one reads it in a thread of its own, and decides what is confirmed; a connection that has
ended is not mended.

Source: Postgres manual, "Streaming Replication Protocol".
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import structlog
from psycopg import pq, sql

from headrace import clock
from headrace.errors import ContinuityLost, HeadraceError, TransientError
from headrace.forwarder import streamed
from headrace.postgres import connect, failures
from headrace.postgres import slot as setup
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)

_HEADER: Final = 25
_KEEPALIVE: Final = struct.Struct("!cQqB")
_FEEDBACK: Final = struct.Struct("!cQQQqB")
_READ_CHUNK: Final = 512
_CONTINUITY: Final = frozenset(("55000", "42704", "58P01"))
"""Slot lost or unusable, slot or publication gone, WAL removed."""
_ACTIVE_ATTEMPTS: Final = 50


@dataclass(frozen=True, slots=True)
class Identity:
    """The server a stream comes from; LSNs mean nothing on another (H24, H25)."""

    system_id: str
    timeline: int


@dataclass(frozen=True, slots=True)
class Origin:
    """What is read, and who reads it."""

    dsn: str
    name: str
    """Of the connections, as the server shows them."""
    slot: str
    publication: str
    spool_dir: Path
    """Where what is too large for memory waits for the end of its transaction."""
    bytes_max: int
    """Memory for that, in bytes."""
    messages: bool = False
    """Whether logical messages are sent as well (pg_logical_emit_message)."""


class Receiver:
    """A running replication connection; but for ``wake`` and ``received`` of one thread."""

    def __init__(
        self,
        origin: Origin,
        ordinary: psycopg.Connection[Any],
        start_lsn: int,
        on_keepalive: Callable[[list[bytes], int, bool], None],
        expected: Identity | None = None,
    ) -> None:
        """Connect and start; ``ordinary`` is a connection to the same database, used now only.

        ``on_keepalive`` is given the messages that came before it, its position, and whether the
        server asks for an answer at once.

        Raises:
            ContinuityLost: it cannot be continued at ``start_lsn`` without loss.
            TransientError: it cannot be started now.
            PrerequisiteError: the server refuses us.
        """
        self._origin = origin
        self._on_keepalive = on_keepalive
        self.start_lsn: Final = start_lsn
        self.received = start_lsn
        """Last position that the server has sent."""
        self._streams = streamed.Streams(origin.spool_dir, origin.bytes_max)
        self._whole: Iterator[list[bytes]] | None = None
        """Of a transaction that has ended: it comes before all that the server sends next."""
        self._notice: str | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._conn = self._connect()
        try:
            self.identity: Final = self._identify(expected)
            self._start(ordinary)
        except BaseException:
            self.close()
            raise

    # --- starting

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            conn = connect.session(self._origin.dsn, name=self._origin.name, replication=True)
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

    def _start(self, ordinary: psycopg.Connection[Any]) -> None:
        origin = self._origin
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} ({}, publication_names {}{})"
        ).format(
            sql.SQL(origin.slot),
            sql.SQL(format_lsn(self.start_lsn)),
            sql.SQL(streamed.OPTIONS),
            sql.Literal(f'"{origin.publication}"'),
            sql.SQL(", messages 'true'" if origin.messages else ""),
        )
        text = command.as_string(self._conn).encode()
        for attempt in range(_ACTIVE_ATTEMPTS):
            result = self._conn.pgconn.exec_(text)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
            code = _code(result)
            if code == "55006":
                self._free(ordinary, attempt)
                continue
            if code in _CONTINUITY:
                raise ContinuityLost(
                    f'slot "{origin.slot}" cannot be continued: {_text(result)}',
                    hint="The views must be created again.",
                )
            raise TransientError(_text(result), sqlstate=code)
        else:
            raise TransientError(
                f'slot "{origin.slot}" is in use by another process', sqlstate="55006"
            )
        self._check_position(ordinary)

    def _free(self, ordinary: psycopg.Connection[Any], attempt: int) -> None:
        """End our own walsender of an earlier connection, which has not noticed yet."""
        try:
            state = setup.slot_state(ordinary, self._origin.slot)
            if state is not None and state.active_pid is not None:
                ordinary.execute(
                    "SELECT pg_catalog.pg_terminate_backend(pid)"
                    " FROM pg_catalog.pg_stat_activity"
                    " WHERE pid = %s AND usename = current_user"
                    " AND application_name = %s",
                    (state.active_pid, self._origin.name),
                )
        except psycopg.Error as error:
            raise failures.classify(error) from error
        clock.sleep(min(0.005 * (attempt + 1), 0.2))

    def _check_position(self, ordinary: psycopg.Connection[Any]) -> None:
        """Being started further on is silent (E17): look after starting."""
        try:
            state = setup.slot_state(ordinary, self._origin.slot)
        except psycopg.Error as error:
            raise failures.classify(error) from error
        if state is None:
            raise ContinuityLost(f'slot "{self._origin.slot}" is gone')
        if state.wal_status == "lost":
            raise ContinuityLost(
                f'slot "{self._origin.slot}" has lost WAL it needs',
                hint="See max_slot_wal_keep_size.",
            )
        if state.confirmed > self.start_lsn:
            raise ContinuityLost(
                f'slot "{self._origin.slot}" is ahead of our state',
                detail=f"It is at {format_lsn(state.confirmed)}, our state at"
                f" {format_lsn(self.start_lsn)}: somebody else used or re-created it.",
            )

    # --- reading

    def gather(self) -> tuple[list[bytes], bool]:
        """Messages that have arrived, and whether there are no more now.

        Raises:
            HeadraceError: the server has ended the stream, and why.
        """
        if self._whole is not None:
            more = next(self._whole, None)
            if more is not None:
                return more, False
            self._whole = None
        out: list[bytes] = []
        pgconn, streams = self._conn.pgconn, self._streams
        get = pgconn.get_copy_data
        inside = streams.inside
        while len(out) < _READ_CHUNK:
            size, data = get(1)
            if size > 0:
                kind = data[0]
                if kind == b"w"[0]:
                    message = bytes(data[_HEADER:])
                    if not inside and message[0] not in streamed.KINDS:
                        out.append(message)
                        continue
                    self._whole = streams.take(message)
                    inside = streams.inside
                    if self._whole is not None:
                        break
                elif kind == b"k"[0]:
                    _, lsn, _, ask = _KEEPALIVE.unpack(bytes(data))
                    self.received = max(self.received, lsn)
                    self._on_keepalive(out, lsn, bool(ask))
                    out = []
                else:
                    raise ContinuityLost(f"unknown replication message {kind}")
            elif size == 0:
                return out, True
            else:
                raise self._ended(pgconn)
        return out, False

    @property
    def streamed(self) -> tuple[int, int]:
        """Bytes that transactions which have not ended take in memory and on disk."""
        return self._streams.held

    def check_notices(self) -> None:
        """Raise ContinuityLost if the server has sent one.

        18 skips changes of a publication that is missing, with a notice only (E12).
        """
        if self._notice is not None:
            raise ContinuityLost(f"the server sent a notice within the stream: {self._notice}")

    def feedback(self, confirmed: int, *, ask: bool) -> None:
        """Tell the server what may be forgotten; ``ask``: it answers with its position."""
        # "written" must not be 0 for ever: the server shows it, and counts our replies by it.
        message = _FEEDBACK.pack(
            b"r", max(confirmed, self.received), confirmed, confirmed, 0, int(ask)
        )
        self._conn.pgconn.put_copy_data(message)
        self._conn.pgconn.flush()

    def wait(self, timeout_s: float, *others: int) -> bool:
        """Wait for input, ``wake``, one of the ``others`` (files) or the time-out.

        Whether there was input.
        """
        handle = self._conn.pgconn.socket
        wake = self._wake_in.fileno()
        # Not select(): a worker has a file open for each piece of state, and it stops at 1 024.
        wanted = select.poll()
        for number in (handle, wake, *others):
            wanted.register(number, select.POLLIN)
        ready = {number for number, _ in wanted.poll(timeout_s * 1000)}
        if wake in ready:
            self._wake_in.recv(4096)
        if handle in ready:
            self._conn.pgconn.consume_input()
            return True
        return False

    def wake(self) -> None:
        """Have ``wait`` return; for any thread."""
        try:
            self._wake_out.send(b"x")
        except OSError:
            _log.debug("stream has ended already")

    def close(self) -> None:
        """Disconnect."""
        self._conn.close()
        self._streams.close()
        self._wake_in.close()
        self._wake_out.close()

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


def _code(result: Any) -> str | None:
    value = result.error_field(pq.DiagnosticField.SQLSTATE)
    return value.decode() if value else None


def _text(result: Any) -> str:
    value = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    if value:
        return str(value.decode(errors="replace"))
    return str(result.error_message.decode(errors="replace")).strip() or "unknown error"
