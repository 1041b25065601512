"""Computes views anew whose missing changes would take longer.

After an outage, or a long pause, a view may lack more changes than its tables have rows.  To
process them takes longer than a population, which reads each row once and writes only rows that
differ.  So the remaining time of each lagging view is measured, and compared with the time of its
last population.  A resync without a call (``views/resync.py``) then computes the query at a new
snapshot, in process or on Spark, and writes the difference in one transaction; the worker leaves
the backlog of the view alone meanwhile.  No other view notices.

Views that lead share one thread, and so do those that catch up.  The views of one thread are all
computed anew, or none: each of them delays the others.

After a try a view is left alone for a while, which doubles: under overload it falls behind again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

import psycopg
import structlog

from headrace import clock, errors
from headrace.config import Settings
from headrace.postgres.connect import async_session
from headrace.process import tasks
from headrace.server import unasked
from headrace.server.commands import Commands
from headrace.sql import backlogs, states
from headrace.sql.backlogs import AsyncConnection, LaggingView

_LOOK_S: Final = 1.0
_MEASURED_S: Final = 3.0
"""Shortest time that a rate is measured over."""
_WINDOW_S: Final = 30.0
"""Longest one."""
_WORTH_S: Final = 5.0
"""A view that needs less to catch up is left alone."""
_STEPS: Final = 3
"""Number of different positions that tell a rate."""
_PAUSE_S: Final = 60.0
"""Shortest pause after a try."""
_PAUSE_COSTS: Final = 10
"""Shortest pause, in multiples of the population's cost."""
_PAUSE_S_MAX: Final = 6 * 3600.0

_log = structlog.get_logger(__name__)
Key = tuple[str, str]
"""Name and time of creation: a resync gives a view another id."""


class Episode:
    """A time in which one view lags; a state machine without a clock.

    Positions are LSNs.  The rows that the sink writes are in the WAL, too, so the server's present
    position is too far a target.  The target is the one of the first look, and then of the look at
    which the view reached the last target.
    """

    def __init__(self) -> None:
        self._target = 0
        self._seen: deque[tuple[float, int]] = deque()
        """Positions of the last looks: (time, LSN)."""

    def look(self, now: float, covered: int, wal: int) -> None:
        """Note the position of the view, and that of the server."""
        if covered >= self._target:
            self._target = wal
            self._seen.clear()
        self._seen.append((now, covered))
        while now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    @property
    def left_s(self) -> float | None:
        """Seconds until the view reaches its target; None: unknown."""
        if not self._seen:
            return None
        (began, first), (now, last) = self._seen[0], self._seen[-1]
        # A view in a long batch stands still: one step tells no rate.  A resync steps back.
        steps = len({at for _, at in self._seen})
        if now - began < _MEASURED_S or steps < _STEPS or last <= first:
            return None
        # The first seconds of a catch-up are slow: a worker has started, and loads its states.
        since, at = next(seen for seen in reversed(self._seen) if now - seen[0] >= _MEASURED_S)
        rate = max((last - first) / (now - began), (last - at) / (now - since))
        return (self._target - last) / rate


class Pauses:
    """The times at which views may be tried again; a state machine without a clock."""

    def __init__(self) -> None:
        self._due: dict[Key, tuple[float, float]] = {}
        """When each is due, and the length of the pause before that."""

    def over(self, key: Key, now: float) -> bool:
        """Return whether a view may be tried."""
        return key not in self._due or now >= self._due[key][0]

    def begin(self, key: Key, now: float, cost_s: float) -> None:
        """Begin a pause, of twice the length of the last one unless that is long ago."""
        self._due = {k: (at, s) for k, (at, s) in self._due.items() if now < at + s + _PAUSE_S}
        _, last_s = self._due.get(key, (0.0, 0.0))
        pause_s = min(max(_PAUSE_S, _PAUSE_COSTS * cost_s, 2 * last_s), _PAUSE_S_MAX)
        self._due[key] = (now + pause_s, pause_s)


def worth_computing(views: Iterable[tuple[Episode, LaggingView]]) -> dict[int, float]:
    """Return the views of one thread to compute anew: ids, and seconds that each may take."""
    found = [
        (view, left_s)
        for episode, view in views
        if (left_s := episode.left_s) is not None and left_s >= _WORTH_S
    ]
    left_s = max((left_s for _, left_s in found), default=0.0)
    total_s = sum(view.cost_s for view, _ in found)
    if total_s >= left_s:
        return {}
    return {view.id: left_s * view.cost_s / max(total_s, 1e-3) for view, _ in found}


class Backlogs:
    """Looks for views that lag, and resyncs those for which that is faster."""

    def __init__(self, settings: Settings, commands: Commands) -> None:
        self._settings = settings
        self._commands = commands
        self._places = asyncio.Semaphore(max(settings.populations_max, 1))
        self._episodes: dict[Key, Episode] = {}
        self._pauses = Pauses()
        self._jobs: dict[Key, asyncio.Task[None]] = {}
        self._notes = True
        """Whether notes of an earlier process may be there."""
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking; if ``recompute_backlogs`` is off, only remove old notes."""
        self._main = asyncio.create_task(tasks.forever("backlogs", self._serve, _LOOK_S))

    async def stop(self) -> None:
        """Stop, and cancel the running resyncs."""
        found = [task for task in (self._main, *self._jobs.values()) if task is not None]
        for task in found:
            task.cancel()
        for task in found:
            await tasks.end(task)

    async def _serve(self) -> None:
        source, wanted = self._settings.source, self._settings.recompute_backlogs
        while wanted or self._notes:
            try:
                async with await async_session(source, name="headrace backlogs") as conn:
                    if self._notes:
                        await states.end_anew(conn)
                        self._notes = False
                    while wanted:
                        await self._look(conn)
                        await asyncio.sleep(_LOOK_S)
            except (psycopg.Error, errors.HeadraceError) as error:
                _log.warning("backlogs not looked for", reason=str(error).strip())
                await asyncio.sleep(_LOOK_S)

    async def _look(self, conn: AsyncConnection) -> None:
        found = {_key(view): view for view in await backlogs.lagging(conn)}
        now = clock.monotonic()
        self._episodes = {key: self._episodes.get(key, Episode()) for key in found}
        for key, view in found.items():
            self._episodes[key].look(now, view.covered, view.wal)
        free = [v for k, v in found.items() if k not in self._jobs and self._pauses.over(k, now)]
        for leads in (True, False):
            # The views of one thread.
            views = [view for view in free if view.leads == leads]
            chosen = worth_computing((self._episodes[_key(view)], view) for view in views)
            for view in views:
                if view.id in chosen:
                    self._pauses.begin(_key(view), now, view.cost_s)
                    job = self._try(view, chosen[view.id])
                    self._jobs[_key(view)] = asyncio.create_task(job)

    async def _try(self, view: LaggingView, within_s: float) -> None:
        """Resync a view in its turn, unless it has caught up by then."""
        try:
            async with self._places:
                episode = self._episodes.get(_key(view))
                left_s = None if episode is None else episode.left_s
                if left_s is None:
                    return
                await self._note(view, left_s)
                because = f"it would have taken about {left_s:.0f} s more to catch up"
                error = await unasked.resync(
                    self._commands, view.id, view.name, view.owner, because, within_s=within_s
                )
            if error is not None:
                _log.info("view goes on catching up", view=view.name, reason=error.message)
                await self._note(view, None)
        finally:
            self._jobs.pop(_key(view), None)

    async def _note(self, view: LaggingView, left_s: float | None) -> None:
        """Note with a view that it is computed anew; None: remove the note."""
        try:
            async with await async_session(self._settings.source, name="headrace backlogs") as conn:
                await states.end_anew(conn, view.id)
                if left_s is not None:
                    await states.tell_anew(conn, view.id, left_s)
        except (psycopg.Error, errors.HeadraceError) as error:
            _log.warning("backlogs not looked for", reason=str(error).strip())


def _key(view: LaggingView) -> Key:
    return view.name, view.made
