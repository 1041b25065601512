"""Refills stopped views automatically.

``RULES`` maps the reason of a stop (SQLSTATE) to the option of create_view that governs it:

* ``on_change``: the structure of the tables has changed.  ``follow`` refills the view if its query
  stays as it is, only over other values (a wider column, a new partition), ``resync`` in any case.
* ``on_damage``: data that Headrace made was lost or damaged: state, stream, result table (also that
  of a view below, from which the view was filled).
* none: a view that has exceeded a limit catches up alone in this way, with any options.

With ``stop`` the view keeps its last consistent contents until a user resyncs it.  A failed attempt
is reported in the view's message and repeated, at growing intervals; ``tries`` limits how often. At
most as many attempts run at once as populations may: many views may stop at one time.  A view
waits for those that it reads.  The view's note keeps a record of them (``list_views()``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from headrace import clock, errors
from headrace.config import Settings
from headrace.counting import counted
from headrace.postgres.connect import async_dicts
from headrace.process import tasks
from headrace.server import unasked
from headrace.server.commands import Commands
from headrace.server.tries import WINDOW_S, Tries
from headrace.sql import restored, states
from headrace.sql.states import AsyncConnection, StoppedView, WaitedView
from headrace.sql.view_spec import ViewSpec


@dataclass(frozen=True, slots=True)
class MendingRule:
    """Rule for refilling the views that one kind of error has stopped."""

    option: str | None = None
    """The option that governs it; None: always."""
    values: tuple[str, ...] = ()
    """Values of that option that allow it."""
    tries_max: int | None = None
    """Limit of tries (``tries``); None: no limit, but growing intervals while it fails."""


_DAMAGE: Final = MendingRule("on_damage", ("resync",), tries_max=3)
RULES: Final[dict[str, MendingRule]] = {
    errors.StructureChanged.sqlstate: MendingRule("on_change", ("follow", "resync")),
    errors.DefiniteFailure.sqlstate: MendingRule("on_change", ("resync",)),
    errors.StateDamaged.sqlstate: _DAMAGE,
    errors.ContinuityLost.sqlstate: _DAMAGE,
    errors.SinkTableError.sqlstate: _DAMAGE,
    # Not the view's own damage, so it may come any number of times.
    errors.RowsInDoubt.sqlstate: MendingRule("on_damage", ("resync",)),
    # The view is planned over the tables then, so it may go on without the view below.
    errors.BelowStopped.sqlstate: MendingRule(),
    # The view catches up alone, apart from the others.
    errors.LimitExceeded.sqlstate: MendingRule(tries_max=3),
}
"""By SQLSTATE. Code of a user may raise any of them: then refilling fails as well."""

_LOOK_S: Final = 1.0
_FAILED: Final = "A resync failed: "
_OVER: Final = "Headrace does not try it again: "
_WAITS: Final = "it waits to be rebuilt automatically"
_BEGUN: Final = "it is being rebuilt automatically"
_UNTRIED: Final = errors.TransientError | errors.UndefinedError | errors.Deadly
"""No try was made, or it was interrupted, or the view with that id is gone."""

_ALTERED: Final = "40001"
"""SQLSTATE of a refill during which a table or a view below was altered (``TableChanged``)."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    row: StoppedView
    task: asyncio.Task[errors.HeadraceError | None]


class Resumer:
    """Looks for stopped views, and resyncs them."""

    def __init__(
        self,
        settings: Settings,
        commands: Commands,
        orphaned: Callable[[errors.PrerequisiteError | None], None] = lambda _: None,
    ) -> None:
        """Take ``orphaned``, which is called when the catalog of the views is gone.

        It gets an error if there is another catalog, which must not be used.
        """
        self._settings = settings
        self._commands = commands
        self._orphaned = orphaned
        self._side_by_side = max(settings.populations_max, 1)
        self._tries: dict[tuple[str, str], Tries] = {}
        """By name and time of creation: a resync gives a view another id."""
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking."""
        loop = tasks.forever("stopped views", self._serve, _LOOK_S)
        self._main = asyncio.create_task(loop)

    async def stop(self) -> None:
        """Stop, and cancel the running resyncs."""
        tasks: list[asyncio.Task[Any]] = [job.task for job in self._jobs.values()]
        if self._main:
            tasks.append(self._main)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _serve(self) -> None:
        while True:
            try:
                source = self._settings.source
                async with await async_dicts(source, name="headrace resumer") as conn:
                    # The connection string may lead to another database than at the start.
                    if stale := await asyncio.to_thread(restored.look, source):
                        self._orphaned(stale)
                        return
                    while True:
                        await self._look(conn)
                        await self._rest()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                _log.error("schema headrace is gone")
                self._orphaned(None)
                return
            except psycopg.Error as error:
                _log.warning("stopped views not looked for", reason=str(error))
                await asyncio.sleep(_LOOK_S)

    async def _rest(self) -> None:
        """Wait for a while, or until a job has ended."""
        tasks = [job.task for job in self._jobs.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(_LOOK_S)

    async def _look(self, conn: AsyncConnection) -> None:
        for view in [v for v, job in self._jobs.items() if job.task.done()]:
            await self._ended(conn, self._jobs.pop(view))
        publication = self._settings.publication_name
        found = await states.stopped(conn, list(RULES), publication)
        rows = [row for row in found if _governed(row)]
        now = clock.monotonic()
        self._forget({_view(row) for row in rows}, now)
        due = []
        early = self._early(rows)
        for row in rows:
            if _view(row) in self._jobs or row.id in early:
                continue
            tries = self._record_try(row)
            if tries.due(now, row.mark):
                due.append(row)
            elif tries.over and _OVER not in (row.tried or ""):
                await self._give_up(conn, row, tries)
        free = self._side_by_side - len(self._jobs)
        await states.note(conn, [row.id for row in due[:free]], _BEGUN)
        await states.note(conn, [*(row.id for row in due[free:]), *early], _WAITS)
        for row in due[:free]:
            self._jobs[_view(row)] = _Job(row, asyncio.create_task(self._resync(row)))

    def _early(self, rows: Sequence[StoppedView]) -> set[int]:
        """Return the ids of views that read another one whose refill is under way or comes first.

        A view cannot be planned over one that has stopped.  A view below that stays stopped after
        an attempt is not waited for, so the attempt above reports it.
        """
        first = {row.id for row in rows if row.tried is None}
        first |= {job.row.id for job in self._jobs.values()}
        return {r.id for r in rows if _view(r) not in self._jobs and not first.isdisjoint(r.below)}

    def _record_try(self, row: StoppedView) -> Tries:
        """Return the tries of a stopped view; new ones if a call refilled it after the last."""
        tries = self._tries.get(_view(row))
        if tries is None or (tries.over and tries.view_id != row.id):
            tries = self._tries[_view(row)] = Tries()
        tries.bound, tries.view_id = RULES[row.sqlstate].tries_max, row.id
        return tries

    def _forget(self, stopped: set[tuple[str, str]], now: float) -> None:
        """Forget the tries of views that have run for a while, or that a call has refilled."""
        kept = stopped | self._jobs.keys()
        for view in [v for v in self._tries if v not in kept]:
            if self._tries[view].over or self._tries[view].forget(now):
                del self._tries[view]

    async def _resync(self, row: StoppedView) -> errors.HeadraceError | None:
        """Resync a view; return the error if that fails."""
        error = await unasked.resync(self._commands, row.id, row.name, row.owner, row.reason)
        if error is not None:
            _log.warning("view stays stopped", view=row.name, reason=error.message)
        return error

    async def _ended(self, conn: AsyncConnection, job: _Job) -> None:
        row, now = job.row, clock.monotonic()
        tries = self._tries[_view(row)]
        error = job.task.result()
        if error is None:
            tries.filled(now)
            return
        passing = _passing(error)
        tries.failed(now, passing=passing)
        if passing and error.code == _ALTERED:
            return  # the next try plans it again, and views above wait for that
        why = "; ".join(filter(None, (error.message, error.detail)))
        await states.record_attempt(conn, row, f"{_FAILED}{why.rstrip('.')}.")

    async def _give_up(self, conn: AsyncConnection, row: StoppedView, tries: Tries) -> None:
        """Report that no more tries are made."""
        _log.warning("view is left stopped", view=row.name, tries=tries.spent)
        many = f"{counted(tries.spent, 'try', 'tries')} within {WINDOW_S / 60:.0f} minutes did not help."
        told = " ".join(filter(None, (row.tried, _OVER + many)))
        await states.record_attempt(conn, row, told)


def _view(row: StoppedView) -> tuple[str, str]:
    return row.name, row.made


def mends(view: WaitedView) -> bool:
    """Return whether a stopped view is refilled automatically and no attempt has failed yet."""
    return view.sqlstate in RULES and view.tried is None and _governed(view)


def _governed(row: StoppedView | WaitedView) -> bool:
    """Return whether the view's options allow refilling."""
    assert row.sqlstate is not None, "it has stopped"
    rule = RULES[row.sqlstate]
    if rule.option is None:
        return True
    said = getattr(row, rule.option)
    by_default = getattr(ViewSpec(), rule.option)
    return (by_default if said is None else said) in rule.values


def _passing(error: errors.HeadraceError) -> bool:
    """Return whether the error says nothing about the view."""
    if isinstance(error, _UNTRIED):
        return True
    # Another job uses the view, or a server answered our statements with a transient error.
    return not isinstance(error, errors.DefiniteFailure) and errors.transient(error.code)
