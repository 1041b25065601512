"""The position that may be confirmed to a source, which then discards the changes before it."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from headrace import clock
from headrace.postgres import standbys
from headrace.types import Lsn

_ASK_S: Final = 0.2
"""Seconds between two questions to the main database."""
_WAIT_S: Final = 5.0
"""Seconds after which a standby that lags is not waited for: the source keeps WAL meanwhile."""


class Confirmation:
    """Confirmation of what is committed in the main database, and on its standbys.

    After the promotion of a standby, the main database may lack its last commits, and must get the
    changes in them again.
    """

    def __init__(self, main: psycopg.Connection[Any]) -> None:
        self._main: Final = main
        self._confirmed = Lsn(0)
        self._pending: tuple[Lsn, Lsn, float] | None = None
        """A position that is committed, the LSN of the main database after that commit, and when
        it was read."""
        self._ask_at = 0.0

    def of(self, committed: Lsn) -> Lsn:
        """Return the position to confirm, at most ``committed``.

        Raises:
            psycopg.Error: the connection to the main database is lost.
        """
        now = clock.monotonic()
        if now < self._ask_at:
            return self._confirmed
        self._ask_at = now + _ASK_S
        found = standbys.progress(self._main)
        if not found.standbys:
            self._confirmed, self._pending = committed, None
            return self._confirmed
        if self._pending is not None:
            position, written, since = self._pending
            if not found.behind(written) or now > since + _WAIT_S:
                self._confirmed, self._pending = position, None
        if self._pending is None and committed > self._confirmed:
            self._pending = committed, found.written, now
        return self._confirmed
