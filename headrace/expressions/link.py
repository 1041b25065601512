"""One connection that evaluates: what it is set to, its statements, and how to end one.

A statement is waited for in short pieces, between which the bound of the thread is asked whether to go
on; its rows are taken as they come, so that never all of them are in memory before anybody has counted.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from headrace import bounds, clock, pinned
from headrace.errors import DefiniteFailure

_NAME: Final = "headrace eval"
_CANCEL_S: Final = 0.5
_GRACE_S: Final = 0.25
_ROWS_AT_ONCE: Final = 16
"""Rows that libpq gathers before we see them: each may be as large as the largest value."""
_GONE_CHECK_MS: Final = 500
_PREPARED_MAX: Final = 500
_CHUNKED: Final = psycopg.capabilities.has_stream_chunked()


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


@dataclass(slots=True)
class Link:
    """An open connection."""

    key: Key
    conn: psycopg.Connection
    _prepared: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    """Names of prepared statements, by whose they are and their text.

    To each its own: what a name in the text meant for one who has gone may be gone as well, and
    Postgres does not analyse a prepared statement anew when a type is dropped.
    """

    @classmethod
    def to(cls, key: Key) -> Link:
        """A new one.

        Raises:
            Unconnected: there is none to be had.
            DefiniteFailure: the settings cannot be made.
        """
        dsn = make_conninfo(key.dsn, application_name=_NAME)
        try:
            conn = psycopg.connect(
                dsn, autocommit=True, client_encoding="UTF8", prepare_threshold=None
            )
        except psycopg.Error as error:
            raise Unconnected(error) from error
        try:
            _configure(conn, key)
        except BaseException:
            conn.close()
            raise
        return cls(key, conn)

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

    def run(
        self, sql: bytes, params: Sequence[bytes], *, whose: int
    ) -> Iterator[PGresult]:
        """Results with the rows of a statement, a few rows in each.

        ``whose``: a number that nobody else has for whom the statement is prepared.

        Whoever does not take all of them must ``end`` the statement.

        Raises:
            psycopg.Error: Postgres' error, or the connection is gone.
            HeadraceError: what the thread's bound says.
        """
        pgconn = self.conn.pgconn
        wait = _Wait(pgconn.socket)
        name = self._prepared.get((whose, sql))
        if name is None:
            if len(self._prepared) >= _PREPARED_MAX:
                self.conn.execute("DEALLOCATE ALL")
                self._prepared.clear()
            name = b"h%d" % len(self._prepared)
            pgconn.send_prepare(name, sql)
            for _ in _rows(_results(pgconn, wait)):
                pass
            self._prepared[whose, sql] = name
        pgconn.send_query_prepared(name, params)
        if _CHUNKED:
            pgconn.set_chunked_rows_mode(_ROWS_AT_ONCE)
        else:
            pgconn.set_single_row_mode()
        yield from _rows(_results(pgconn, wait))

    def end(self) -> bool:
        """Have the statement that is under way end, and close; False: its backend goes on."""
        with contextlib.suppress(psycopg.Error):
            self.conn.cancel_safe(timeout=_CANCEL_S)
        ended = _ends(self.conn.pgconn)
        self.conn.close()
        return ended


class _Wait:
    """Waits for one socket, a moment at a time."""

    def __init__(self, socket: int) -> None:
        self._socket = socket
        self._poll = select.poll()

    def __call__(self, *, write: bool = False) -> None:
        """Until something can be read (or written), or the bound is to be asked again."""
        self._poll.register(
            self._socket, select.POLLIN | (select.POLLOUT if write else 0)
        )
        self._poll.poll(bounds.WAIT_S_MAX * 500)


def _results(pgconn: psycopg.pq.abc.PGconn, wait: _Wait) -> Iterator[PGresult]:
    """Results of what was sent, under the thread's bound."""
    bound = bounds.current()
    began = clock.monotonic()

    def waited() -> None:
        nonlocal began
        now = clock.monotonic()
        began, took = now, now - began
        if bound is not None:
            bound.waited(took)

    while pgconn.flush():
        wait(write=True)
        pgconn.consume_input()
        waited()
    while True:
        while pgconn.is_busy():
            wait()
            pgconn.consume_input()
            waited()
        result = pgconn.get_result()
        if result is None:
            return
        yield result
        began = clock.monotonic()


def _ends(pgconn: psycopg.pq.abc.PGconn) -> bool:
    """Whether what was sent is over within a moment; its results are thrown away."""
    until = clock.monotonic() + _GRACE_S
    wait = _Wait(pgconn.socket)
    try:
        while True:
            while pgconn.is_busy():
                if clock.monotonic() > until:
                    return False
                wait()
                pgconn.consume_input()
            if pgconn.get_result() is None:
                return True
    except psycopg.Error:
        return True  # the connection is gone, and so is the backend


def _rows(results: Iterator[PGresult]) -> Iterator[PGresult]:
    """The results without an error, which is raised when all have been taken."""
    failed: PGresult | None = None
    try:
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                failed = result
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
            conn.execute(
                f"SET client_connection_check_interval = {_GONE_CHECK_MS}".encode()
            )
        conn.execute(f"SELECT {calls}".encode(), values)
    except psycopg.Error as error:
        if pinned.is_lost(error):
            raise Unconnected(error) from error
        # No row is to blame, whatever class it is of.
        message = error.diag.message_primary or str(error)
        raise DefiniteFailure(message, sqlstate=error.sqlstate) from error
