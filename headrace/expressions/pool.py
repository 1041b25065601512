"""The few connections over which all views of a process have their expressions evaluated.

A connection belongs to a *key*: where it goes, its settings, and whose code runs on it.  When all
are taken, the one that was used least recently is given to another key: with ``DISCARD ALL`` where
only built-in functions run, else by closing it and opening another.  So code of one owner never
finds what that of another has left in a session.

A backend that does not end its statement when it is told to is *abandoned*: our side is closed at
once, and it is terminated again and again until it is gone.  Who leaves too many of them is asked
nothing more until then.

A function may terminate the sessions of other owners' functions (``terminations.py``).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
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
"""What a pool has that nobody told otherwise."""
LOST_MAX: Final = 2
"""Backends of one owner's that may go on without us."""
_WAIT_S: Final = 0.05
_REAP_S: Final = 1.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Lost:
    """A backend that has not ended when it was told to."""

    dsn: str
    pid: int
    who: str
    owned: bool
    """Whether it runs code of a user."""
    began: str = ""
    """When it was started, as Postgres says: another may have its number later."""


class Pool:
    """At most ``size`` connections; for any number of threads."""

    def __init__(self, size: int = CONNECTIONS_MAX, folder: Path | None = None) -> None:
        """``folder``: where processes take turns with code of users; None: they do not."""
        self._size = max(size, 1)
        self._turn = threading.Condition()
        self._idle: deque[Link] = deque()
        """The one that was used last stands last."""
        self._open = 0
        """Connections that are idle, used, or being opened."""
        self._lost: list[_Lost] = []
        self._reaper: threading.Thread | None = None
        self._closed = threading.Event()
        self._terminations = Terminations() if folder is None else terminations.shared(folder)

    @property
    def lost(self) -> int:
        """How many backends are there that ought to have ended."""
        return len(self._lost)

    def close(self) -> None:
        """Close what nobody uses now, and the others when they come back."""
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
        """A connection for ``key``, on which a statement of ``who`` is to run.

        Raises:
            Unconnected: there is none to be had.
            DefiniteFailure: its settings cannot be made, or too many backends of ``who`` go on, or
                code of ``who`` has terminated sessions.
            SessionsTerminated: the statement has done so, once too often.
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
        """Note that ``link`` was lost; ``proven``: terminated while a statement of ``who`` ran."""
        if link.key.owner is not None:
            self._terminations.noticed(who, since=link.seen_at, proven=proven)

    def not_opened(self, key: Key, who: str, *, since: float) -> None:
        """Note that a session for a statement of ``who`` has ended while it was being opened."""
        if key.owner is not None:
            self._terminations.noticed(who, since=since, proven=False)

    @property
    def proofs(self) -> dict[str, int]:
        """How often owners have terminated sessions lately."""
        return self._terminations.proofs

    def search(self) -> contextlib.AbstractContextManager[None]:
        """Inside, this thread may evaluate functions that have terminated sessions."""
        return self._terminations.search()

    def forget(self, dsn: str) -> None:
        """A connection to ``dsn`` was lost: the idle ones may be as well."""
        with self._turn:
            gone = [link for link in self._idle if link.key.dsn == dsn]
            for link in gone:
                self._idle.remove(link)
            self._open -= len(gone)
            self._turn.notify_all()
        for link in gone:
            link.conn.close()

    def end(self, link: Link, who: str) -> None:
        """End the statement that runs on ``link``, in a moment, whatever it does."""
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
                "no expression is evaluated for the view's owner just now",
                detail="Earlier ones go on, though they were canceled and their sessions"
                " terminated.",
                hint="Make the functions end that the view calls.",
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
                # Who waits does no work, but may be told to end.
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
        """Terminate abandoned backends until there are none."""
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
    """Whether a backend is gone; it is told to end, as its own role may."""
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
