"""Detection of the owner whose function terminates the sessions of other owners' functions.

Functions of all owners run as one role, and a role may terminate its own sessions.  An owner is
*suspected* for ``PROBATION_S`` if its statement may have run when a session was terminated.  A
statement of a suspected owner runs alone: no process of this machine runs a statement of any owner
beside it.  So a retried statement cannot be hit by that of another owner.  After such a statement
an idle session of the same role, the probe, is queried.  If the probe was terminated, the owner is
proven to have done it.  A statement that has waited ``PATIENCE_S`` for other processes runs without
a turn, and nothing is proven while it runs.

The processes of a machine take turns and share their findings through files (``turns.py``).  Other
machines have their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.counting import counted
from headrace.errors import LimitExceeded, SessionsTerminated
from headrace.expressions.turns import EvaluationTurns, Loss, Proof
from headrace.postgres.connect import for_values
from headrace.process import bounds

PROBATION_S: Final = 60.0
"""How long an owner is suspected after a session was terminated."""
TERMINATIONS_MAX: Final = 3
"""Proven terminations of an owner in ``WINDOW_S`` after which its statements are refused."""
WINDOW_S: Final = 600.0
PATIENCE_S: Final = 1.0
"""Seconds that a statement waits for those of other processes.  A statement of a population may
take a minute, and the engine has to go on.  After a timeout statements do not wait until one has
got a turn again."""
_WAIT_S: Final = 0.05
_NAME: Final = "headrace eval probe"
_PROBE: Final = "SELECT 1"
_MESSAGE: Final = "a function of the view's owner terminates sessions"
_HINT: Final = "Remove pg_terminate_backend from the functions that the view calls."

_log = structlog.get_logger(__name__)


class _Here(threading.local):
    searching = False
    """Whether this thread searches for the row on which a function terminates sessions."""


class Terminations:
    """Schedules the statements of owners in one process; thread-safe."""

    def __init__(self, folder: Path | None = None) -> None:
        """Share findings with other processes in ``folder``; None: this is the only one."""
        self._turn = threading.Condition()
        self._turns: Final = EvaluationTurns(folder)
        """Turns among the processes; guarded by ``_turn``."""
        self._learned = 0
        """Number of the last event of the record that was processed."""
        self._queue: deque[object] = deque()
        """Tickets of statements that wait for their turn, first come first."""
        self._running = Counter[str]()
        """Number of running statements by owner."""
        self._ended: dict[str, float] = {}
        """When the last statement of each owner ended."""
        self._alone: str | None = None
        """The owner whose statement runs alone."""
        self._proof = False
        """Whether the statement that runs alone has terminated a session."""
        self._certain = False
        """Whether, when the statement that runs alone began, nothing else could terminate a
        session."""
        self._alone_since = 0.0
        self._patient = True
        """Whether the last statement that waited for other processes got its turn."""
        self._suspected: dict[str, float] = {}
        """Until when each owner is suspected."""
        self._probe: psycopg.Connection | None = None
        self._here = _Here()

    def admit(self, owner: str) -> None:
        """Raise LimitExceeded if the owner has terminated sessions too often."""
        times = self._times(owner)
        if times >= TERMINATIONS_MAX and not self._here.searching:
            raise LimitExceeded(_MESSAGE, detail=_detail(times), hint=_HINT)

    @contextlib.contextmanager
    def search(self) -> Iterator[None]:
        """Return a context in which this thread's statements run alone and end at the first proof.

        A refused owner is admitted, since the search for the row evaluates its functions again.
        """
        self._here.searching = True
        try:
            yield
        finally:
            self._here.searching = False

    @contextlib.contextmanager
    def statement(self, dsn: str, owner: str) -> Iterator[None]:
        """Run a statement with code of ``owner``, alone if the owner is suspected.

        Raises:
            SessionsTerminated: the statement has terminated a session, once too often.
            HeadraceError: the thread's resource bound ends the wait.
        """
        alone, entered = self._begin(owner)
        try:
            if not alone:
                yield
                return
            self._probed(dsn)
            there = self._probe is not None
            try:
                yield
            finally:
                # The signal reaches the probe's backend before the statement that sent it returns,
                # and the backend handles it before it answers.  If the server is shutting down,
                # no new probe can connect.
                if there and not self._probed(dsn) and self._probe is not None:
                    self._prove(owner)
                if self._proof:
                    self._classify(owner)
        finally:
            self._end(owner, alone=alone, entered=entered)

    def noticed(self, owner: str, *, since: float, proven: bool) -> None:
        """Record that a session of ``owner`` was lost; call it inside of ``statement``.

        ``since``: a time on the monotonic clock at which the session existed.  ``proven``: it was
        opened for the statement, and was terminated.
        """
        with self._turn:
            self._learn()
            self._turns.add_loss(since, clock.monotonic())
            self._learn()
            alone = self._alone == owner
        if alone and proven:
            self._prove(owner)  # no other owner's code was running

    def lose_backend(self) -> None:
        """Record that an abandoned backend still runs code of an owner."""
        with self._turn:
            self._turns.lose_backend()

    def find_backend(self) -> None:
        """Record that an abandoned backend has ended."""
        with self._turn:
            self._turns.find_backend()

    def close(self) -> None:
        """Close the probe, unless a running statement relies on it."""
        with self._turn:
            if self._probe is not None and self._alone is None:
                self._probe.close()
                self._probe = None

    @property
    def proofs(self) -> dict[str, int]:
        """Number of sessions that each owner has terminated recently, over all processes."""
        now = clock.monotonic()
        with self._turn:
            found = self._turns.read().proofs
        return dict(Counter(p.owner for p in found if now - WINDOW_S <= p.at <= now))

    def _begin(self, owner: str) -> tuple[bool, bool]:
        """Wait for a turn, first come first served.

        Returns:
            Whether the statement runs alone; whether this process has got a turn.
        """
        ticket, entered = object(), False
        waited_since: float | None = None
        with self._turn:
            self._queue.append(ticket)
            try:
                while True:
                    self._learn()
                    alone = self._is_suspected(owner)
                    free = self._alone is None and not (alone and self._running)
                    if free and self._queue[0] is ticket:
                        now = clock.monotonic()
                        if entered := self._turns.enter(alone=alone):
                            self._patient = True
                            break
                        waited_since = now if waited_since is None else waited_since
                        if not self._patient or now - waited_since > PATIENCE_S:
                            self._patient = False
                            self._turns.enter_anyway(now)
                            break
                    self._turn.wait(_WAIT_S)
                    bounds.check()
                self._running[owner] += 1
                if alone:
                    self._alone, self._proof = owner, False
                    self._alone_since = clock.monotonic()
                    self._certain = entered and not self._turns.has_lost
            finally:
                if self._queue[0] is ticket:
                    self._turns.give_up()
                self._queue.remove(ticket)
                self._turn.notify_all()
        return alone, entered

    def _end(self, owner: str, *, alone: bool, entered: bool) -> None:
        with self._turn:
            self._running[owner] -= 1
            self._running += Counter()  # without zeros
            self._ended[owner] = clock.monotonic()
            if entered:
                self._turns.leave(alone=alone)
            else:
                self._turns.leave_anyway(self._ended[owner])
            if alone:
                self._alone = None
            self._turn.notify_all()

    def _learn(self) -> None:
        """Process the new events of all processes."""
        for event in self._turns.read().events:
            if event.number <= self._learned:
                continue
            self._learned, until = event.number, event.at + PROBATION_S
            if event.at > clock.monotonic():
                continue  # the machine was restarted since
            if isinstance(event, Loss):
                names = {name for name, ended in self._ended.items() if ended >= event.since}
                self._suspected |= dict.fromkeys((*names, *self._running), until)
            elif isinstance(event, Proof):  # the other owners are cleared
                self._suspected = {event.owner: until}

    def _is_suspected(self, owner: str) -> bool:
        until = self._suspected.get(owner)
        if until is not None and until <= clock.monotonic():
            del self._suspected[owner]
            until = None
        return until is not None or self._here.searching

    def _prove(self, owner: str) -> None:
        """Record a termination by the statement that runs alone."""
        with self._turn:
            if self._proof or not self._certain or self._was_disturbed():
                return
            self._proof = True
            now = clock.monotonic()
            self._learn()
            self._turns.add_proof(owner, now, now - WINDOW_S, TERMINATIONS_MAX)
            self._learn()
        _log.warning("function terminates sessions", owner=owner, times=self._times(owner))

    def _was_disturbed(self) -> bool:
        """Return whether a statement without a turn has run beside the one that runs alone."""
        disorder = self._turns.read().disorder
        return self._turns.has_lost or self._alone_since <= disorder <= clock.monotonic()

    def _classify(self, owner: str) -> None:
        """Raise SessionsTerminated at ``TERMINATIONS_MAX`` terminations, or in a search."""
        times = self._times(owner)
        if times >= TERMINATIONS_MAX or self._here.searching:
            raise SessionsTerminated(_MESSAGE, detail=_detail(times), hint=_HINT)

    def _times(self, owner: str) -> int:
        return self.proofs.get(owner, 0)

    def _probed(self, dsn: str) -> bool:
        """Return whether the probe answers; else open a new one.  REQUIRES: the turn."""
        probe = self._probe
        if probe is not None:
            with contextlib.suppress(psycopg.Error):
                probe.execute(_PROBE)
                return True
            probe.close()
        try:
            self._probe = for_values(dsn, name=_NAME)
        except psycopg.Error:
            self._probe = None
        return False


_shared: dict[Path, Terminations] = {}
_sharing: Final = threading.Lock()


def shared(folder: Path) -> Terminations:
    """Return this process's instance for a folder; it lives as long as the process."""
    with _sharing:
        if folder not in _shared:
            _shared[folder] = Terminations(folder)
        return _shared[folder]


def _detail(times: int) -> str:
    return (
        f"It has done so {counted(times, 'time')} in {WINDOW_S / 60:.0f} minutes; functions of other views"
        f" are evaluated in the same sessions."
    )
