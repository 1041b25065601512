"""Finds the owner whose function terminates the sessions in which functions of other owners run.

Functions of all owners run as one role, and a role may terminate its own sessions.  After such a
termination the statements of owners run one at a time for ``PROBATION_S``: so a statement that is
tried again cannot be hit by that of another owner.  After each of them an idle session of the same
role, the probe, is asked for an answer.  A probe that was terminated proves which owner did it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import LimitExceeded
from headrace.postgres.connect import for_values
from headrace.process import bounds

PROBATION_S: Final = 60.0
"""How long statements run one at a time after a session was terminated."""
TERMINATIONS_MAX: Final = 3
"""Proven terminations of an owner in ``WINDOW_S`` after which its statements are refused."""
WINDOW_S: Final = 600.0
_WAIT_S: Final = 0.05
_NAME: Final = "headrace eval probe"
_PROBE: Final = "SELECT 1"

_log = structlog.get_logger(__name__)


class Terminations:
    """Orders the statements of owners in one process; for any number of threads."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._running = 0
        self._alone: str | None = None
        """The owner whose statement runs while no other may."""
        self._until = -1.0
        """When the probation ends."""
        self._proven: dict[str, deque[float]] = {}
        self._probe: psycopg.Connection | None = None

    def admit(self, owner: str) -> None:
        """Raise LimitExceeded if the owner has terminated sessions too often."""
        times = self._proven.get(owner)
        if times is None:
            return
        while times and times[0] < clock.monotonic() - WINDOW_S:
            times.popleft()
        if len(times) >= TERMINATIONS_MAX:
            raise LimitExceeded(
                "a function of the view's owner terminates sessions",
                detail=f"It has done so {len(times)} times in {WINDOW_S / 60:.0f} minutes; other"
                " views have their functions evaluated in these sessions.",
                hint="Remove pg_terminate_backend from the functions that the view calls.",
            )

    @contextlib.contextmanager
    def statement(self, dsn: str, owner: str) -> Iterator[None]:
        """Run a statement with code of ``owner``, alone if a session was terminated lately.

        Raises:
            HeadraceError: the bound of the thread ends the waiting.
        """
        alone = self._begin(owner)
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
                # and the backend acts on it before it answers.  A server that is shut down lets no
                # other probe in.
                if there and not self._probed(dsn) and self._probe is not None:
                    self._prove(owner)
        finally:
            self._end(alone=alone)

    def noticed(self, owner: str, *, proven: bool) -> None:
        """Note that a session of ``owner`` was lost; call it inside of ``statement``.

        ``proven``: it was opened for the statement, and was terminated.
        """
        with self._turn:
            self._until = clock.monotonic() + PROBATION_S
            alone = self._alone == owner
        if alone and proven:
            self._prove(owner)  # no other owner's code was running in this process

    def close(self) -> None:
        """Close the probe."""
        with self._turn:
            if self._probe is not None:
                self._probe.close()
                self._probe = None

    def _begin(self, owner: str) -> bool:
        with self._turn:
            while True:
                alone = clock.monotonic() < self._until
                if self._alone is None and not (alone and self._running):
                    break
                self._turn.wait(_WAIT_S)
                bounds.check()
            self._running += 1
            if alone:
                self._alone = owner
        return alone

    def _end(self, *, alone: bool) -> None:
        with self._turn:
            self._running -= 1
            if alone:
                self._alone = None
            self._turn.notify_all()

    def _prove(self, owner: str) -> None:
        with self._turn:
            now = clock.monotonic()
            self._until = now + PROBATION_S
            times = self._proven.setdefault(owner, deque(maxlen=TERMINATIONS_MAX))
            times.append(now)
        _log.warning("function terminates sessions", owner=owner, times=len(times))

    def _probed(self, dsn: str) -> bool:
        """Return whether the probe answers; else open another.  REQUIRES: the turn."""
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
