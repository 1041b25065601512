"""One connection that evaluates expressions: its settings, its statements, and how to end one.

The wait for a statement is split into short pieces.  Between them the resource bound of the thread
decides whether to go on.  Rows are read as they arrive and counted before all are in memory.

A statement that may run user code is sent in its own transaction, as one message:

    BEGIN READ ONLY │ the statement │ Sync │ ROLLBACK │ Sync

A function may change any setting of its session, even the default that transactions are read only.
It cannot change that of its own transaction, and ROLLBACK reverts all settings before another
statement runs.  Such a statement is not prepared: code that can run EXECUTE could replace it.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from headrace import clock
from headrace.errors import DefiniteFailure
from headrace.postgres import failures
from headrace.postgres.connect import for_values
from headrace.process import bounds

_NAME: Final = "headrace eval"
_CANCEL_S: Final = 0.5
_GRACE_S: Final = 0.25
_ROWS_AT_ONCE: Final = 16
"""Rows that libpq collects in one result; each may be as large as the largest value."""
_GONE_CHECK_MS: Final = 500
_PREPARED_MAX: Final = 500
_CHUNKED: Final = psycopg.capabilities.has_stream_chunked()
_BEGIN: Final = b"BEGIN READ ONLY"
_ROLLBACK: Final = b"ROLLBACK"


@dataclass(frozen=True, slots=True)
class Key:
    """The properties of a connection; a session with an equal key can use it unchanged."""

    dsn: str
    settings: tuple[tuple[str, str], ...]
    owner: str | None
    """Owner of the user code that runs on it; None: only built-in functions run."""


class Unconnected(Exception):
    """A connection cannot be opened now."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error: Final = error
        self.at: Final = clock.monotonic()


@dataclass(slots=True)
class Link:
    """An open connection."""

    key: Key
    conn: psycopg.Connection
    seen_at: float
    """A time on the monotonic clock at which the session had not been terminated."""
    _prepared: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    """Names of prepared statements, by the session that prepared them and their text.

    Sessions do not share them.  A name in the text may have meant an object that is gone by now,
    and Postgres does not re-analyse a prepared statement when a type is dropped.
    """
    _syncs: int = 0
    """Syncs that were sent and are not yet answered."""

    @classmethod
    def to(cls, key: Key) -> Link:
        """Open a connection for ``key``.

        Raises:
            Unconnected: it cannot be opened.
            DefiniteFailure: the settings cannot be applied.
        """
        began = clock.monotonic()
        try:
            conn = for_values(key.dsn, name=_NAME)
        except psycopg.Error as error:
            raise Unconnected(error) from error
        try:
            _configure(conn, key)
        except BaseException:
            conn.close()
            raise
        return cls(key, conn, began)

    def pass_to(self, key: Key) -> bool:
        """Reset the session and set it up for ``key``; False if it must be closed instead.

        Raises:
            DefiniteFailure: the settings cannot be applied; the connection is closed.
        """
        # User code may leave state that DISCARD does not remove (variables of a language).
        ours = self.key.owner is None and key.owner is None
        if not ours or self.key.dsn != key.dsn or self.conn.closed:
            return False
        try:
            self.conn.execute("DISCARD ALL")
            _configure(self.conn, key)
        except (psycopg.Error, Unconnected):
            return False
        except DefiniteFailure:
            self.conn.close()
            raise
        self._prepared.clear()
        self.key = key
        return True

    def run(self, sql: bytes, params: Sequence[bytes], *, whose: int) -> Iterator[PGresult]:
        """Run a statement and yield its results, a few rows in each.

        ``whose``: unique number of the session for which the statement is prepared.

        A caller that does not consume all results must call ``end``.

        Raises:
            psycopg.Error: an error of Postgres, or the connection is lost.
            HeadraceError: the thread's resource bound is exceeded.
        """
        began = clock.monotonic()
        if self.key.owner is None:
            yield from self._run_prepared(sql, params, whose)
        else:
            yield from self._run_alone(sql, params)
        self.seen_at = began

    def _run_prepared(self, sql: bytes, params: Sequence[bytes], whose: int) -> Iterator[PGresult]:
        pgconn = self.conn.pgconn
        name = self._prepared.get((whose, sql))
        if name is None:
            if len(self._prepared) >= _PREPARED_MAX:
                self.conn.execute("DEALLOCATE ALL")
                self._prepared.clear()
            name = b"h%d" % len(self._prepared)
            pgconn.send_prepare(name, sql)
            for _ in _rows(_Answers(pgconn).one()):
                pass
            self._prepared[whose, sql] = name
        pgconn.send_query_prepared(name, params)
        _take_few(pgconn)
        yield from _rows(_Answers(pgconn).one())

    def _run_alone(self, sql: bytes, params: Sequence[bytes]) -> Iterator[PGresult]:
        """Run in a separate transaction, which is rolled back."""
        pgconn = self.conn.pgconn
        try:
            pgconn.enter_pipeline_mode()
            pgconn.send_query_params(_BEGIN, None)
            pgconn.send_query_params(sql, params)
            pgconn.pipeline_sync()
            # After the Sync, so that it is executed even if the statement fails.
            pgconn.send_query_params(_ROLLBACK, None)
            pgconn.pipeline_sync()
            self._syncs = 2
            yield from _rows(self._piped(_Answers(pgconn)))
        except psycopg.Error:
            self._leave_pipeline()
            raise
        self._leave_pipeline()

    def _piped(self, answers: _Answers) -> Iterator[PGresult]:
        """Yield the results of the statement that has rows, and the errors of all three."""
        begun = False
        while self._syncs:
            result = answers.next()
            if result is None:
                if answers.pgconn.status == ConnStatus.BAD:
                    return
                continue
            match result.status:
                case ExecStatus.PIPELINE_SYNC:
                    self._syncs -= 1
                case ExecStatus.COMMAND_OK if not begun:
                    begun = True
                    # The row mode of the next statement can be set only when this one has ended.
                    ended = answers.next()
                    assert ended is None, "a statement has one result"
                    _take_few(answers.pgconn)
                case ExecStatus.COMMAND_OK | ExecStatus.PIPELINE_ABORTED:
                    pass
                case _:
                    yield result

    def _leave_pipeline(self) -> None:
        """Leave pipeline mode, outside of any transaction; close the connection if that fails."""
        pgconn = self.conn.pgconn
        try:
            pgconn.exit_pipeline_mode()
        except psycopg.Error:
            self.conn.close()  # something was not sent, or not answered
            return
        # A role that may cancel our statements may have canceled the ROLLBACK.
        if pgconn.transaction_status != TransactionStatus.IDLE:
            self.conn.close()

    def end(self) -> bool:
        """Cancel the running statement and close; return False if its backend goes on."""
        with contextlib.suppress(psycopg.Error):
            self.conn.cancel_safe(timeout=_CANCEL_S)
        ended = self._ends()
        self.conn.close()
        return ended

    def _ends(self) -> bool:
        """Discard results; return whether all statements end within ``_GRACE_S``."""
        pgconn, until = self.conn.pgconn, clock.monotonic() + _GRACE_S
        wait = _Wait(pgconn.socket)
        try:
            while True:
                while pgconn.is_busy():
                    if clock.monotonic() > until:
                        return False
                    wait()
                    pgconn.consume_input()
                result = pgconn.get_result()
                if result is None:
                    if not self._syncs or pgconn.status == ConnStatus.BAD:
                        return True
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._syncs -= 1
        except psycopg.Error:
            return True  # the connection is lost, so the backend has ended


class _Wait:
    """Waits for one socket, for a short time per call."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._poll = select.poll()

    def __call__(self, *, write: bool = False) -> None:
        """Wait until the socket is readable (or writable), or the bound must be checked again."""
        self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if write else 0))
        self._poll.poll(bounds.WAIT_S_MAX * 500)


class _Answers:
    """Receives the results of what was sent, under the thread's resource bound."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        self.pgconn = pgconn
        self._wait = _Wait(pgconn.socket)
        self._bound = bounds.current()
        self._sent = False

    def one(self) -> Iterator[PGresult]:
        """Yield the results of one statement, outside of a pipeline."""
        while (result := self.next()) is not None:
            yield result

    def next(self) -> PGresult | None:
        """Return the next result; None: the statement has no more."""
        pgconn, began = self.pgconn, clock.monotonic()
        while not self._sent:
            self._sent = not pgconn.flush()
            if not self._sent:
                self._wait(write=True)
                pgconn.consume_input()
                began = self._waited(began)
        while pgconn.is_busy():
            self._wait()
            pgconn.consume_input()
            began = self._waited(began)
        return pgconn.get_result()

    def _waited(self, since: float) -> float:
        now = clock.monotonic()
        if self._bound is not None:
            self._bound.waited(now - since)
        return now


def _take_few(pgconn: psycopg.pq.abc.PGconn) -> None:
    """Make libpq return the rows of the next statement a few at a time."""
    if _CHUNKED:
        pgconn.set_chunked_rows_mode(_ROWS_AT_ONCE)
    else:
        pgconn.set_single_row_mode()


def _rows(results: Iterator[PGresult]) -> Iterator[PGresult]:
    """Yield the results without an error; raise the first error after the last result."""
    failed: PGresult | None = None
    try:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                failed = failed or result
            else:
                yield result
    except psycopg.Error:
        # If the server reported why it ends the session, that error says more than this one.
        if failed is None:
            raise
    if failed is not None:
        raise error_from_result(failed, "utf-8")


def _configure(conn: psycopg.Connection, key: Key) -> None:
    calls = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(key.settings))
    values = [text for pair in key.settings for text in pair]
    try:
        # A backend whose client is gone notices that, where the platform supports it.
        with contextlib.suppress(psycopg.errors.InvalidParameterValue):
            conn.execute(f"SET client_connection_check_interval = {_GONE_CHECK_MS}".encode())
        conn.execute(f"SELECT {calls}".encode(), values)
    except psycopg.Error as error:
        if failures.is_lost(error):
            raise Unconnected(error) from error
        # No row caused it; its SQLSTATE class does not matter.
        message = error.diag.message_primary or str(error)
        raise DefiniteFailure(message, sqlstate=error.sqlstate) from error
