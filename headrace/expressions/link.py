"""One connection that evaluates: what it is set to, its statements, and how to end one.

A statement is waited for in short pieces, between which the bound of the thread is asked whether to
go on; its rows are taken as they come, so that never all of them are in memory before anybody has
counted.

What may run code of users does so in a transaction of its own, in one message:

    BEGIN READ ONLY │ the statement │ Sync │ ROLLBACK │ Sync

A function may alter any setting of its session, also that transactions are read only; but not of
the transaction that it runs in, and with that go all settings, before another statement runs.  Nor
is such a statement kept prepared: whoever can EXECUTE can put another one under its name.
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
"""Rows that libpq gathers before we see them: each may be as large as the largest value."""
_GONE_CHECK_MS: Final = 500
_PREPARED_MAX: Final = 500
_CHUNKED: Final = psycopg.capabilities.has_stream_chunked()
_BEGIN: Final = b"BEGIN READ ONLY"
_ROLLBACK: Final = b"ROLLBACK"


@dataclass(frozen=True, slots=True)
class Key:
    """Who can use a connection as it is."""

    dsn: str
    settings: tuple[tuple[str, str], ...]
    owner: str | None
    """Whose code runs on it; None: that of nobody but Postgres."""


class Unconnected(Exception):
    """No connection can be had now."""

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
    """Names of prepared statements, by whose they are and their text.

    To each its own: what a name in the text meant for one who has gone may be gone as well, and
    Postgres does not analyse a prepared statement anew when a type is dropped.
    """
    _syncs: int = 0
    """Those that were sent and are not answered yet."""

    @classmethod
    def to(cls, key: Key) -> Link:
        """A new one.

        Raises:
            Unconnected: there is none to be had.
            DefiniteFailure: the settings cannot be made.
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
        """Forget everything and be one for ``key``; False if it must be closed instead.

        Raises:
            DefiniteFailure: the settings cannot be made; it is closed.
        """
        # Code of a user leaves more than DISCARD takes away (a language's own variables).
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
        """Results with the rows of a statement, a few rows in each.

        ``whose``: a number that nobody else has for whom the statement is prepared.

        Whoever does not take all of them must ``end`` the statement.

        Raises:
            psycopg.Error: Postgres' error, or the connection is gone.
            HeadraceError: what the thread's bound says.
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
        """In a transaction of its own, which leaves nothing behind that it could take back."""
        pgconn = self.conn.pgconn
        try:
            pgconn.enter_pipeline_mode()
            pgconn.send_query_params(_BEGIN, None)
            pgconn.send_query_params(sql, params)
            pgconn.pipeline_sync()
            # Behind the Sync: so it is carried out whatever becomes of the statement.
            pgconn.send_query_params(_ROLLBACK, None)
            pgconn.pipeline_sync()
            self._syncs = 2
            yield from _rows(self._piped(_Answers(pgconn)))
        except psycopg.Error:
            self._settle()
            raise
        self._settle()

    def _piped(self, answers: _Answers) -> Iterator[PGresult]:
        """Results of the one statement that has any, and errors of all."""
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
                    # Rows of the next one can be asked for by the few when this one has ended.
                    ended = answers.next()
                    assert ended is None, "a statement has one result"
                    _take_few(answers.pgconn)
                case ExecStatus.COMMAND_OK | ExecStatus.PIPELINE_ABORTED:
                    pass
                case _:
                    yield result

    def _settle(self) -> None:
        """Be as before a pipeline, outside of any transaction; or closed."""
        pgconn = self.conn.pgconn
        try:
            pgconn.exit_pipeline_mode()
        except psycopg.Error:
            self.conn.close()  # something was not sent, or not answered
            return
        # Whoever may cancel statements of the role can have met the ROLLBACK.
        if pgconn.transaction_status != TransactionStatus.IDLE:
            self.conn.close()

    def end(self) -> bool:
        """Have the statement that is under way end, and close; False: its backend goes on."""
        with contextlib.suppress(psycopg.Error):
            self.conn.cancel_safe(timeout=_CANCEL_S)
        ended = self._ends()
        self.conn.close()
        return ended

    def _ends(self) -> bool:
        """Whether what was sent is over within a moment; its results are thrown away."""
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
            return True  # the connection is gone, and so is the backend


class _Wait:
    """Waits for one socket, a moment at a time."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._poll = select.poll()

    def __call__(self, *, write: bool = False) -> None:
        """Until something can be read (or written), or the bound is to be asked again."""
        self._poll.register(self._socket, select.POLLIN | (select.POLLOUT if write else 0))
        self._poll.poll(bounds.WAIT_S_MAX * 500)


class _Answers:
    """Results of what was sent, waited for under the thread's bound."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        self.pgconn = pgconn
        self._wait = _Wait(pgconn.socket)
        self._bound = bounds.current()
        self._sent = False

    def one(self) -> Iterator[PGresult]:
        """Those of one statement, outside of a pipeline."""
        while (result := self.next()) is not None:
            yield result

    def next(self) -> PGresult | None:
        """The next one; None: a statement has no more."""
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
    """Have the rows of the statement that is next come a few at a time."""
    if _CHUNKED:
        pgconn.set_chunked_rows_mode(_ROWS_AT_ONCE)
    else:
        pgconn.set_single_row_mode()


def _rows(results: Iterator[PGresult]) -> Iterator[PGresult]:
    """The results without an error; the first is raised when all have been taken."""
    failed: PGresult | None = None
    try:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                failed = failed or result
            else:
                yield result
    except psycopg.Error:
        # The end of a session is told before the connection ends: that says more.
        if failed is None:
            raise
    if failed is not None:
        raise error_from_result(failed, "utf-8")


def _configure(conn: psycopg.Connection, key: Key) -> None:
    calls = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(key.settings))
    values = [text for pair in key.settings for text in pair]
    try:
        # One whose client has gone away notices that, where the platform can tell.
        with contextlib.suppress(psycopg.errors.InvalidParameterValue):
            conn.execute(f"SET client_connection_check_interval = {_GONE_CHECK_MS}".encode())
        conn.execute(f"SELECT {calls}".encode(), values)
    except psycopg.Error as error:
        if failures.is_lost(error):
            raise Unconnected(error) from error
        # No row is to blame, whatever class it is of.
        message = error.diag.message_primary or str(error)
        raise DefiniteFailure(message, sqlstate=error.sqlstate) from error
