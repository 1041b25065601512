"""Progress of the result tables, for ``list_views()`` and everything that reads it.

The *watermark* is the position before which every running view has everything. The sink thread
publishes it once a second in the application name of its connection, so an idle engine writes
nothing. The slot's confirmed position is no measure of lag, because a paused view holds it back.

A view behind the watermark is *listed*: the commander asks for the list every second, and stores
it in ``headrace.held`` as rows of kind ``behind``. A running view that is behind and not listed yet
holds the watermark back, so no view ever looks further than it is.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from headrace import clock
from headrace.runtime.engine_state import EngineState
from headrace.runtime.views import View
from headrace.sql.status import Status
from headrace.types import format_lsn

LISTED_S: Final = 1.0
"""Seconds: a running view that lags less is not listed, and holds the watermark back."""
_SAMPLES_MAX: Final = 1_000


class Watermark:
    """The watermark of one engine.

    ``behind`` is for the control socket's thread, the other methods are for the sink thread.
    """

    def __init__(self, state: EngineState) -> None:
        self._state: Final = state
        self._asked: frozenset[int] = frozenset()
        """Views in the last list."""
        self._listed: frozenset[int] = frozenset()
        """Views in the last two lists: the commander has stored the older one."""
        self._samples: deque[tuple[float, int]] = deque()
        """Ends of the server's WAL, oldest first: (server time, LSN)."""
        self._since = 0.0
        """All commits before this time are covered; seconds since 1970, 0: unknown."""
        self._looked_at = 0.0

    def lagging_views(self) -> list[dict[str, Any]]:
        """Return views that lack a batch: position covered, time of the first missing commit."""
        state = self._state
        rows: list[dict[str, Any]] = []
        now = self._looked_at  # on the server's clock, like the commit times
        for view in _behind(state, state.position.txid):
            mark = view.mark
            lacking = state.records.get(mark.txid + 1)
            if lacking is None:
                continue
            since = clock.from_postgres(lacking.commit_time_us).timestamp()
            unlisted = view.status == Status.RUNNING and view.id not in self._asked
            if unlisted and now - since < LISTED_S:
                continue
            lsn = format_lsn(state.covered(mark))
            rows.append({"view_id": view.id, "lsn": lsn, "since": since})
        asked = frozenset(int(row["view_id"]) for row in rows)
        self._listed = asked & self._asked
        self._asked = asked
        return rows

    def text(self) -> str:
        """Return the watermark for the application name; '' while it is unknown.

        It is an LSN. The LSN is alone if it covers all that the server had written at the look
        before the last one. Otherwise a time follows, before which all commits are covered.
        """
        state = self._state
        at = state.position
        behind = _behind(state, at.txid)
        running = (v for v in behind if v.status == Status.RUNNING and v.id not in self._listed)
        lsn = min([at.lsn, *(state.covered(view.mark) for view in running)])
        if not lsn or not self._looked_at:
            return ""
        while self._samples and self._samples[0][1] <= lsn:
            self._since = max(self._since, self._samples.popleft()[0])
        last = state.records.get(at.txid)
        if last is not None and lsn == at.lsn:
            committed = clock.from_postgres(last.commit_time_us).timestamp()
            self._since = max(self._since, committed)
        if not self._since:
            return ""
        if not self._samples or self._samples[0][0] == self._looked_at:
            # A keepalive comes once a second, so the last sample cannot be covered yet.
            return format_lsn(lsn)
        return f"{format_lsn(lsn)} {self._since:.1f}"

    def sample(self, at: float, wal: int) -> None:
        """Record the end of the server's WAL at time ``at`` of its clock."""
        self._looked_at = at
        if self._samples and self._samples[-1][1] == wal:
            return
        if len(self._samples) >= _SAMPLES_MAX:
            # Half of the resolution is enough for such a long lag.
            self._samples = deque(list(self._samples)[::2])
        self._samples.append((at, wal))


def _behind(state: EngineState, txid: int) -> list[View]:
    """Return the owned views whose mark is before ``txid``, in the order of their ids."""
    found = state.index.behind(txid)
    views = [unit for unit in found if isinstance(unit, View) and unit.mark.txid < txid]
    return sorted(views, key=lambda view: view.id)
