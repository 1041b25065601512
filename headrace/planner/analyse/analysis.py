"""The connection on which Postgres analyses texts for the planner.

Postgres analyses a text by creating a temporary view of it, in functions of the caller
(``session``).  Both are writes, so the transaction gets an xid.  A replication slot can be created
only when every transaction with an xid has ended, so such a transaction must not stay open while a
plan is computed.  Hence this second connection; the planner's own only reads the catalog.  Its
transaction begins when a text is to be analysed, and is rolled back after ``_IDLE_S`` without
another text.

A caller that has written in its own transaction already has an xid, and its text may name objects
that it has just created.  In that case texts are analysed on the caller's connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg.pq import TransactionStatus

from headrace import clock
from headrace.planner import limits
from headrace.planner.analyse import session
from headrace.postgres import acting, reuse
from headrace.postgres.connect import Connection

_IDLE_S: Final = 0.1
"""Seconds for which the transaction stays open after a text was analysed."""
_CANCEL_S: Final = 5.0
_LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = 1000"
_LOCK_TIMEOUT_BESIDE: Final = "SET LOCAL lock_timeout = 100"
LOCKED: Final = "55P03"
"""SQLSTATE lock_not_available."""


class Analysis:
    """Analyses texts as ``caller``, with the caller's settings."""

    def __init__(self, like: Connection, caller: str | None, settings: Mapping[str, str]) -> None:
        """``like`` is a connection to the same database as the same user."""
        self._like = like
        self._caller = caller
        self._given = settings
        self._settings: Mapping[str, str] = {}
        self._conn: Connection | None = None
        self._lent = ExitStack()
        self._open = False
        self._inside = 0
        self._used = 0.0

    def __enter__(self) -> Self:
        """Connect; ``like`` is in a transaction.

        From then on ``like`` waits for no lock for long (``LOCKED``), as functions such as
        ``pg_get_expr`` do: the lock's holder may itself wait for the other connection.
        """
        self._settings = session.given_settings(self._like, self._given)
        if session.has_xid(self._like):
            self._conn = self._like
        else:
            self._like.execute(_LOCK_TIMEOUT_BESIDE)
            self._conn = self._lent.enter_context(reuse.beside(self._like, limits.wanted))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Roll back and disconnect; nothing is left in the database.  It may be entered again."""
        self._open = False
        if self._own:
            with suppress(psycopg.Error):
                self.conn.rollback()
        self._lent.__exit__(kind, error, traceback)

    @property
    def may_wait(self) -> bool:
        """Whether ``binding`` can be tried again after an error."""
        return self._own

    @property
    def _own(self) -> bool:
        return self._conn is not self._like

    @property
    def conn(self) -> Connection:
        """The connection."""
        assert self._conn is not None, "it is made on entry"
        return self._conn

    @contextmanager
    def binding(self) -> Iterator[Connection]:
        """Yield the connection in a new transaction as the caller, to bind the query in.

        REQUIRES: the query is bound by ``session.bind_query``, and the settings are pinned.

        Raises:
            HeadraceError: ``LOCKED``, a table was locked for a second.  The transaction has an xid,
                so it does not wait for longer.
        """
        if self._own:
            self.conn.rollback()
        self._begin()
        if self._own:
            self.conn.execute(_LOCK_TIMEOUT)
        with self._busy():
            yield self.conn
            self.conn.execute("RESET ROLE")

    @contextmanager
    def analysing(self) -> Iterator[Connection]:
        """Yield the connection for Headrace's own texts; created objects are rolled back."""
        if self.conn.info.transaction_status == TransactionStatus.IDLE:
            self._begin()
            session.employ(self.conn, self._caller)
            session.pin(self.conn)
            self.conn.execute("RESET ROLE")
        with self._busy(), self.conn.transaction(force_rollback=True):
            yield self.conn

    def rest(self) -> None:
        """End the transaction if it has not been used for a moment."""
        if self._open and not self._inside and clock.monotonic() - self._used >= _IDLE_S:
            self.conn.rollback()
            self._open = False

    def _begin(self) -> None:
        if self._own:
            self.conn.execute("BEGIN")
            self._open = True
        if self._caller is not None:
            acting.become(self.conn, self._caller)
        session.adopt(self.conn, self._settings)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self._inside += 1
        try:
            with limits.cancelling(lambda: self.conn.cancel_safe(timeout=_CANCEL_S)):
                yield
        finally:
            self._inside -= 1
            self._used = clock.monotonic()
