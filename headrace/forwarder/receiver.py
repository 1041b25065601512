"""One replication connection: started at a position, read message by message, and answered.

The owner reads it in a separate thread and decides which LSN is confirmed.  A connection that has
ended is not reused.

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
from headrace.postgres import connect, failures, timeline
from headrace.postgres import slot as setup
from headrace.postgres.timeline import Identity
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)

_HEADER: Final = 25
_KEEPALIVE: Final = struct.Struct("!cQqB")
_FEEDBACK: Final = struct.Struct("!cQQQqB")
_READ_CHUNK: Final = 512
_CONTINUITY: Final = frozenset(("55000", "42704", "58P01"))
"""Slot lost or unusable, slot or publication gone, WAL removed."""
_ACTIVE_ATTEMPTS: Final = 50
_ANSWER_S_MAX: Final = 30.0
_WAITS_FOR_STANDBYS: Final = b"StandbySlotsHaveCaughtup"
"""The server's function that warns while ``synchronized_standby_slots`` holds up the stream."""
_INVALIDATED: Final = {
    "wal_removed": "It needed more WAL than max_slot_wal_keep_size allows.",
    "rows_removed": "Rows of the catalog that it needed were removed; see hot_standby_feedback.",
    "wal_level_insufficient": "wal_level of the primary was below logical.",
    "recovery_conflict": "Rows of the catalog that it needed were removed; see hot_standby_feedback."
    " Or wal_level of the primary was below logical.",
    "idle_timeout": "It was not used for longer than idle_replication_slot_timeout.",
}
"""Explanations of the reasons for which servers invalidate slots."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Parameters of the connection: the source, the slot, the publication and the limits."""

    dsn: str
    name: str
    """Application name of the connections, as the server shows it."""
    slot: str
    publication: str
    spool_dir: Path
    """Folder for uncommitted transactions that are too large for memory."""
    bytes_max: int
    """Bytes of uncommitted transactions that may be in memory."""
    messages: bool = False
    """Whether logical messages are sent as well (pg_logical_emit_message)."""
    copied_from: str = ""
    """A slot; then ``slot`` is a copy of it, which exists as long as the connection."""
    standby: bool = False
    """Whether the server may be promoted, or follow another primary, while it sends."""


class SourceSwitched(TransientError):
    """A standby was promoted; whether the stream goes on is found out at the next attempt."""


class PositionGone(ContinuityLost):
    """A slot cannot send the changes after a position, though its own stream may go on."""


class Receiver:
    """A running replication connection for one thread, except ``wake`` and ``received``."""

    def __init__(
        self,
        origin: Origin,
        ordinary: psycopg.Connection[Any] | None,
        start_lsn: int,
        on_keepalive: Callable[[list[bytes], int, bool], None],
        expected: Identity | None = None,
        repeat_lsn: int | None = None,
    ) -> None:
        """Connect and start; ``ordinary`` is a connection to the same database, used only here.

        ``repeat_lsn``: LSN before ``start_lsn`` from which on the server sends again what it still
        may; see ``begins``.

        A stream from a copied slot needs no such connection.

        ``on_keepalive`` gets the messages before the keepalive, its position, and whether the
        server asks for an immediate reply.

        Raises:
            ContinuityLost: it cannot be continued at ``start_lsn`` without loss.
            TransientError: it cannot be started now.
            PrerequisiteError: the server refuses us.
        """
        self._origin = origin
        self._on_keepalive = on_keepalive
        self.start_lsn: Final = start_lsn
        self.begins = start_lsn if repeat_lsn is None else repeat_lsn
        """Transactions whose commit record is at or after this LSN are sent."""
        self.received = start_lsn
        """Last position that the server has sent."""
        self._streams = streamed.Streams(origin.spool_dir, origin.bytes_max)
        self._whole: Iterator[list[bytes]] | None = None
        """Messages of a streamed transaction that has ended; they precede all that arrives next."""
        self._notice: str | None = None
        self._waits = ""
        """Why the server has sent nothing for a while, as it said last."""
        self._leaving = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._witness: psycopg.Connection[Any] | None = None
        """A second connection, which says on which timeline the server is (``_prove``)."""
        self._conn = self._connect()
        try:
            self.identity: Final = self._identify(self._conn, expected)
            if origin.standby:
                self._witness = self._session()
                self._identify(self._witness, self.identity)
            if ordinary is None:
                self._copy()
            self._start(ordinary)
        except BaseException:
            self.close()
            raise

    # --- starting

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            conn = self._session()
        except BaseException:
            self._wake_in.close()
            self._wake_out.close()
            raise
        conn.pgconn.notice_handler = self._on_notice
        return conn

    def _session(self) -> psycopg.Connection[Any]:
        try:
            return connect.session(self._origin.dsn, name=self._origin.name, replication=True)
        except psycopg.Error as error:
            raise failures.classify(error) from error

    def _identify(self, conn: psycopg.Connection[Any], expected: Identity | None) -> Identity:
        found = timeline.identify(conn)
        if expected is None or found == expected:
            return found
        if self._origin.standby:
            raise SourceSwitched(f"it has changed to timeline {found.timeline}")
        if found.system_id == expected.system_id and found.timeline > expected.timeline:
            raise SourceSwitched(f"the source has begun timeline {found.timeline}")
        raise timeline.other(found, expected)

    def _copy(self) -> None:
        """Make the copy of the slot.

        Raises:
            PositionGone: the copied slot begins after ``start_lsn``.
            TransientError: it cannot be copied now; SQLSTATE 53400: no slot is free.
        """
        origin = self._origin
        try:
            self._conn.execute(
                "SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, true)",
                (origin.copied_from, origin.slot),
            )
            state = setup.slot_state(self._conn, origin.slot)
        except psycopg.Error as error:
            known = failures.classify(error)
            raise TransientError(
                known.message, detail=known.detail, sqlstate=error.sqlstate or "08006"
            ) from error
        if state is None or state.confirmed > self.start_lsn:
            at = "gone" if state is None else f"at {format_lsn(state.confirmed)}"
            raise PositionGone(
                "the source no longer has the changes that the view lacks",
                detail=f'The view is at {format_lsn(self.start_lsn)}, slot "{origin.copied_from}" is'
                f" {at}. Another program has used or re-created the slot.",
            )

    def _start(self, ordinary: psycopg.Connection[Any] | None) -> None:
        origin = self._origin
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} ({}, publication_names {}{})"
        ).format(
            sql.SQL(origin.slot),
            sql.SQL(format_lsn(self.begins)),
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
            if code == "55006" and ordinary is not None:
                self._free(ordinary, attempt)
                continue
            if code in _CONTINUITY:
                if ordinary is not None:
                    self._check_position(ordinary)  # it knows a better reason
                raise ContinuityLost(
                    f'slot "{origin.slot}" cannot be resumed: {_text(result)}',
                    hint="The views must be created again.",
                )
            raise TransientError(_text(result), sqlstate=code)
        else:
            raise TransientError(
                f'slot "{origin.slot}" is in use by another process', sqlstate="55006"
            )
        if ordinary is not None:
            self._check_position(ordinary)

    def _free(self, ordinary: psycopg.Connection[Any], attempt: int) -> None:
        """Terminate our own walsender of an earlier connection that has not noticed its end yet."""
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
        """Check the slot's position after the start: the server skips ahead silently (E17)."""
        try:
            state = setup.slot_state(ordinary, self._origin.slot)
        except psycopg.Error as error:
            raise failures.classify(error) from error
        if state is None:
            raise ContinuityLost(f'slot "{self._origin.slot}" is gone')
        if state.wal_status == "lost" or state.lost_because is not None:
            reason = state.lost_because or "wal_removed"
            raise ContinuityLost(
                f'slot "{self._origin.slot}" was invalidated by the server: {reason}',
                detail=_INVALIDATED.get(reason),
            )
        if state.confirmed > self.start_lsn:
            raise ContinuityLost(
                f'slot "{self._origin.slot}" is ahead of the engine state',
                detail=f"It is at {format_lsn(state.confirmed)}, the state at"
                f" {format_lsn(self.start_lsn)}. Another program has used or re-created"
                f" the slot.",
            )
        self.begins = max(self.begins, state.confirmed)

    # --- reading

    def gather(self) -> tuple[list[bytes], bool]:
        """Return the messages that have arrived, and whether no more are there now.

        Raises:
            HeadraceError: the server has ended the stream, with the reason.
            SourceSwitched: they may belong to another timeline.
        """
        out, idle = self._gather()
        if out:
            self._prove()
        return out, idle

    def _gather(self) -> tuple[list[bytes], bool]:
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
                    self._prove()
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

    def _prove(self) -> None:
        """Check that all that has arrived is of the timeline on which the stream began.

        A server sends only what it has replayed.  If it is on that timeline now, it was when it
        sent.  The stream itself does not tell: it goes on over a promotion.

        Raises:
            SourceSwitched: the server is on another timeline.
            TransientError: it does not answer, or ``leave`` was called.
        """
        if self._witness is None:
            return
        pgconn = self._witness.pgconn
        pgconn.send_query(timeline.IDENTIFY)
        pgconn.flush()
        until = clock.monotonic() + _ANSWER_S_MAX
        while pgconn.is_busy():
            ready = self._poll(max(until - clock.monotonic(), 0.0), pgconn.socket)
            if self._leaving or clock.monotonic() >= until:
                raise TransientError("the server does not say on which timeline it is")
            if pgconn.socket in ready:
                pgconn.consume_input()
        result = pgconn.get_result()
        while pgconn.get_result() is not None:
            pass
        found = timeline.identity(result)
        if found != self.identity:
            raise SourceSwitched(f"it has changed to timeline {found.timeline}")

    @property
    def streamed(self) -> tuple[int, int]:
        """Bytes that open streamed transactions take in memory and on disk."""
        return self._streams.held

    def check_notices(self) -> None:
        """Raise ContinuityLost if the server has sent one that may mean a loss.

        Postgres 18 skips changes of a missing publication with only a notice (E12).
        """
        if self._notice is not None:
            raise ContinuityLost(f"the server sent a notice within the stream: {self._notice}")

    def feedback(self, confirmed: int, *, ask: bool) -> None:
        """Send the confirmed LSN to the server; with ``ask`` it replies with its position."""
        # "written" must not stay 0: the server shows it, and counts our replies by it.
        message = _FEEDBACK.pack(
            b"r", max(confirmed, self.received), confirmed, confirmed, 0, int(ask)
        )
        self._conn.pgconn.put_copy_data(message)
        self._conn.pgconn.flush()

    def wait(self, timeout_s: float, *others: int) -> bool:
        """Wait for input, ``wake``, one of the ``others`` (files) or the time-out.

        Returns whether there was input.
        """
        handle = self._conn.pgconn.socket
        if handle in self._poll(timeout_s, handle, *others):
            self._conn.pgconn.consume_input()
            return True
        return False

    def _poll(self, timeout_s: float, *files: int) -> set[int]:
        """Wait for input of one of the ``files``, ``wake`` or the time-out; return the former."""
        wake = self._wake_in.fileno()
        # Not select(), which stops at 1 024 files: a worker has a file open for each state.
        wanted = select.poll()
        for number in (wake, *files):
            wanted.register(number, select.POLLIN)
        ready = {number for number, _ in wanted.poll(timeout_s * 1000)}
        if wake in ready:
            self._wake_in.recv(4096)
        return ready

    def wake(self) -> None:
        """Make ``wait`` return; from any thread."""
        try:
            self._wake_out.send(b"x")
        except OSError:
            _log.debug("stream has ended already")

    def leave(self) -> None:
        """Make ``gather`` and ``wait`` return or raise soon, to ``close``; from any thread."""
        self._leaving = True
        self.wake()

    def close(self) -> None:
        """Disconnect."""
        self._conn.close()
        if self._witness is not None:
            self._witness.close()
        self._streams.close()
        self._wake_in.close()
        self._wake_out.close()

    def _ended(self, pgconn: Any) -> HeadraceError:
        """Return the error with which the server ended the stream."""
        result = pgconn.get_result()
        code = _code(result) if result is not None else None
        text = _text(result) if result is not None else "the server closed the stream"
        if code in _CONTINUITY:
            return ContinuityLost(f"the stream cannot be resumed: {text}")
        return TransientError(text, sqlstate=code or "08006")

    def _on_notice(self, result: Any) -> None:
        text = _text(result)
        # Texts are translated, and SQLSTATEs shared; the function in the server is neither.
        if result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) != _WAITS_FOR_STANDBYS:
            self._notice = text
        elif text != self._waits:
            self._waits = text
            _log.warning("the source waits for a standby", reason=text)


def _code(result: Any) -> str | None:
    value = result.error_field(pq.DiagnosticField.SQLSTATE)
    return value.decode() if value else None


def _text(result: Any) -> str:
    value = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    if value:
        return str(value.decode(errors="replace"))
    return str(result.error_message.decode(errors="replace")).strip() or "unknown error"
