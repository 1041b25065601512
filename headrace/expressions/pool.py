"""The connection pool on which all views of a process evaluate expressions.

A connection belongs to a *key*: its DSN, its settings, and the owner whose code runs on it.  When
all connections are open, the least recently used idle one is given to another key.  It is reset
with ``DISCARD ALL`` if only built-in functions run on it, and else replaced by a new connection.
So code of one owner never sees state that code of another has left in a session.

A backend that does not end its statement when it is canceled is *abandoned*: the client side is
closed at once, and ``pg_terminate_backend`` is repeated until the backend is gone.  An owner with
too many abandoned backends is refused until then.

A function may terminate the sessions of other owners' functions (``terminations.py``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
import structlog

from headrace.errors import HeadraceError, LimitExceeded
from headrace.expressions import terminations
from headrace.expressions.link import Key, Link
from headrace.expressions.terminations import Terminations
from headrace.postgres import connect
from headrace.process import bounds

CONNECTIONS_MAX: Final = 4
"""Default size of a pool."""
LOST_MAX: Final = 2
"""Number of abandoned backends at which an owner's statements are refused."""
_WAIT_S: Final = 0.05
_REAP_S: Final = 1.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Lost:
    """An abandoned backend."""

    dsn: str
    pid: int
    who: str
    owned: bool
    """Whether it runs user code."""
    began: str = ""
    """Start time of the backend, as reported by Postgres; a later backend may reuse the PID."""


class Pool:
    """A pool of at most ``size`` connections; thread-safe."""

    def __init__(self, size: int = CONNECTIONS_MAX, folder: Path | None = None) -> None:
        """Create a pool; processes take turns at user code by ``folder`` (None: they do not)."""
        self._size = max(size, 1)
        self._turn = threading.Condition()
        self._idle: deque[Link] = deque()
        """Idle connections; the most recently used is last."""
        self._open = 0
        """Number of connections that are idle, in use, or being opened."""
        self._lost: list[_Lost] = []
        self._reaper: threading.Thread | None = None
        self._closed = threading.Event()
        self.blocks: Final[dict[Hashable, tuple[list[int], list[bytes]]]] = {}
        """Values of the calendar that all views share (``calendar.py``)."""
        self._terminations = Terminations() if folder is None else terminations.shared(folder)

    @property
    def lost(self) -> int:
        """Number of abandoned backends."""
        return len(self._lost)

    def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self._closed.set()
        with self._turn:
            idle = list(self._idle)
            self._idle.clear()
            self._open -= len(idle)
        for link in idle:
            link.conn.close()
        self._terminations.close()

    @contextlib.contextmanager
    def link(self, key: Key, who: str) -> Iterator[Link]:
        """Lend a connection for ``key``, for a statement of owner ``who``.

        Raises:
            Unconnected: it cannot be opened.
            DefiniteFailure: its settings cannot be applied.
            LimitExceeded: ``who`` has too many abandoned backends, or has terminated sessions.
            SessionsTerminated: the statement has terminated a session, once too often.
        """
        self._admit(who)
        with contextlib.ExitStack() as stack:
            if key.owner is not None:
                stack.enter_context(self._terminations.statement(key.dsn, who))
            link = self._take(key)
            try:
                yield link
            finally:
                self._give_back(link)

    def terminated(self, link: Link, who: str, *, proven: bool) -> None:
        """Record that ``link`` was lost; ``proven``: terminated while ``who``'s statement ran."""
        if link.key.owner is not None:
            self._terminations.noticed(who, since=link.seen_at, proven=proven)

    def not_opened(self, key: Key, who: str, *, since: float) -> None:
        """Record that a session for a statement of ``who`` ended while it was being opened."""
        if key.owner is not None:
            self._terminations.noticed(who, since=since, proven=False)

    @property
    def proofs(self) -> dict[str, int]:
        """Number of sessions that each owner has terminated recently."""
        return self._terminations.proofs

    def search(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which this thread may evaluate functions that terminate sessions."""
        return self._terminations.search()

    def forget(self, dsn: str) -> None:
        """Close the idle connections to ``dsn``; one was lost, so these may be lost too."""
        with self._turn:
            gone = [link for link in self._idle if link.key.dsn == dsn]
            for link in gone:
                self._idle.remove(link)
            self._open -= len(gone)
            self._turn.notify_all()
        for link in gone:
            link.conn.close()

    def end(self, link: Link, who: str) -> None:
        """End the statement on ``link`` within a short time; abandon its backend if needed."""
        pid = link.conn.info.backend_pid
        if link.end():
            return
        _log.warning("backend abandoned", pid=pid)
        owned = link.key.owner is not None
        if owned:
            self._terminations.lose_backend()
        with self._turn:
            self._lost.append(_Lost(link.key.dsn, pid, who, owned))
            if self._reaper is None:
                self._reaper = threading.Thread(
                    target=self._reap, name="headrace-reaper", daemon=True
                )
                self._reaper.start()

    def _admit(self, who: str) -> None:
        self._terminations.admit(who)
        if sum(lost.who == who for lost in list(self._lost)) >= LOST_MAX:
            raise LimitExceeded(
                "expressions of the view's owner cannot be evaluated now",
                detail="Earlier expressions are still running, although they were canceled and"
                " their sessions were terminated.",
                hint="Change the functions that the view calls, so that they end.",
            )

    def _take(self, key: Key) -> Link:
        victim = None
        with self._turn:
            while True:
                for link in reversed(self._idle):
                    if link.key == key:
                        self._idle.remove(link)
                        return link
                if self._open < self._size:
                    self._open += 1
                    break
                if self._idle:
                    victim = self._idle.popleft()
                    break
                self._turn.wait(_WAIT_S)
                # A waiting caller uses nothing, but its bound may tell it to stop.
                bounds.check()
        try:
            if victim is not None:
                if victim.pass_to(key):
                    return victim
                victim.conn.close()
            return Link.to(key)
        except BaseException:
            self._left()
            raise

    def _give_back(self, link: Link) -> None:
        with self._turn:
            kept = not link.conn.closed and not self._closed.is_set()
            if kept:
                self._idle.append(link)
                self._turn.notify()
        if not kept:
            link.conn.close()
            self._left()

    def _left(self) -> None:
        with self._turn:
            self._open -= 1
            self._turn.notify()

    def _reap(self) -> None:
        """Terminate abandoned backends until none is left."""
        while True:
            for lost in list(self._lost):
                try:
                    gone = _terminated(lost)
                except (HeadraceError, psycopg.Error) as error:
                    _log.info("abandoned backend not reached", reason=str(error))
                    continue
                if gone:
                    self._lost.remove(lost)
                    if lost.owned:
                        self._terminations.find_backend()
            with self._turn:
                if not self._lost or self._closed.is_set():
                    self._reaper = None
                    return
            self._closed.wait(_REAP_S)


def _terminated(lost: _Lost) -> bool:
    """Terminate a backend, as its own role may; return whether it is gone already."""
    with connect.connect(lost.dsn, name="headrace reaper") as conn:
        row = conn.execute(
            "SELECT backend_start::text, pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid = %s AND (%s = '' OR backend_start::text = %s)",
            (lost.pid, lost.began, lost.began),
        ).fetchone()
    if row is None:
        return True
    lost.began = str(row[0])
    return False
