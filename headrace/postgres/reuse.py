"""Connections of the builder that are used again.

A new connection costs Postgres a process whose caches are empty: some 20 ms of processor time, more
than most calls need.  So a connection whose user has ended well is kept for a few seconds, and lent
to the next one.

* Nothing of a session passes to the next user: ``DISCARD ALL`` ends its settings, roles, temporary
  objects and locks.  A connection that is not idle, or that any error went through, is closed.
* A cancel that comes late reaches nobody else: who was canceled must not ``keep`` the connection.
* No connection lives for long, so what is set at a database or role counts soon.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg.pq import TransactionStatus

from headrace import clock
from headrace.postgres import connect
from headrace.postgres.connect import Connection

KEPT_S: Final = 5.0
"""Seconds for which nobody used a connection, after which it is closed."""
_AGE_S: Final = 60.0
"""A connection older than that is not lent again."""
_FLUSHES_SINCE: Final = 150_000
_KEPT_MOST: Final = 4
"""Connections that are kept at once, whatever they are for."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    key: Hashable
    conn: Connection
    made: float
    kept: float

    @property
    def old(self) -> bool:
        """Whether the connection is to be closed; all times are of the monotonic clock."""
        now = clock.monotonic()
        return now >= self.kept + KEPT_S or now >= self.made + _AGE_S


Keep = Callable[[], bool]


def always() -> bool:
    """Keep whatever ended without an error."""
    return True


@contextlib.contextmanager
def lent(dsn: str, keep: Keep = always, *, what: str = "builder") -> Iterator[Connection]:
    """A connection of the builder, in autocommit mode; afterwards ``keep`` says whether to keep it.

    ``what``: see ``connect.for_job``.

    Raises:
        HeadraceError: as ``connect.for_job``.
    """
    with _lent((what, dsn), lambda: connect.for_job(dsn, what=what), keep) as conn:
        yield conn


@contextlib.contextmanager
def beside(conn: Connection, keep: Keep) -> Iterator[Connection]:
    """Another connection with the parameters of ``conn``, in autocommit mode; likewise.

    Raises:
        TransientError: the server cannot be reached, or refuses connections for now.
    """
    key = ("beside", conn.info.password, *sorted(conn.info.get_parameters().items()))
    with _lent(key, lambda: connect.duplicate(conn), keep) as other:
        yield other


@contextlib.contextmanager
def _lent(key: Hashable, make: Callable[[], Connection], keep: Keep) -> Iterator[Connection]:
    found = _IDLE.take(key)
    conn, made = (make(), clock.monotonic()) if found is None else (found.conn, found.made)
    kept = False
    try:
        yield conn
        kept = keep() and _clean(conn)
    finally:
        if not kept:
            conn.close()
    if kept:
        _IDLE.put(_Kept(key, conn, made, clock.monotonic()))


def _clean(conn: Connection) -> bool:
    """Have the session forget its user, if it can be used again."""
    if conn.closed or not conn.autocommit:
        return False
    if conn.info.transaction_status != TransactionStatus.IDLE:
        return False
    try:
        if conn.info.server_version >= _FLUSHES_SINCE:
            # What the session has read is counted now, as it would be if the session ended.
            conn.execute("SELECT pg_catalog.pg_stat_force_next_flush()")
        conn.execute("DISCARD ALL")
        connect.unlimited(conn)
    except psycopg.Error:
        return False
    return True


class _Idle:
    """The connections of this process that nobody uses; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[_Kept] = []
        """The longest unused first."""
        self._awaited = False
        """Whether a timer will look for old ones."""

    def take(self, key: Hashable) -> _Kept | None:
        """One that still answers, the last that was used."""
        while True:
            with self._lock:
                found = next((kept for kept in reversed(self._kept) if kept.key == key), None)
                if found is None:
                    return None
                self._kept.remove(found)
            if not found.old:
                with contextlib.suppress(psycopg.Error):
                    found.conn.execute("SELECT")
                    return found
            found.conn.close()

    def put(self, kept: _Kept) -> None:
        """Keep one; with one too many, the longest unused is closed."""
        with self._lock:
            self._kept.append(kept)
            surplus = [self._kept.pop(0)] if len(self._kept) > _KEPT_MOST else []
            self._look_later()
        for one in surplus:
            one.conn.close()

    def _look_later(self) -> None:
        if self._kept and not self._awaited:
            self._awaited = True
            timer = threading.Timer(KEPT_S, self._close_old)
            timer.daemon = True
            timer.start()

    def _close_old(self) -> None:
        with self._lock:
            old = [kept for kept in self._kept if kept.old]
            self._kept = [kept for kept in self._kept if not kept.old]
            self._awaited = False
            self._look_later()
        for kept in old:
            kept.conn.close()


_IDLE: Final = _Idle()
