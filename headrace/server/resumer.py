"""Fills stopped views anew by itself, so that nobody need think of it.

``RULES`` says after which kind of stop (by SQLSTATE), and which option of create_view governs it:

* ``on_change``: a change of the tables' structure.  ``follow`` fills anew where the query stands as
  it is, only over other values (a wider column, a new partition), ``resync`` after any change.
* ``on_damage``: what Headrace has made was lost or spoilt: state, stream, result table.
* none: a view that has exceeded a limit catches up alone in this way, whatever its options say.

With ``stop`` the view keeps its last consistent contents until somebody resyncs it.  An attempt
that fails is told in the view's message and made again after a while, ever more rarely; how often
at most, ``tries`` decides.  No more are under way at once than populations may load: so many views
may have stopped at one moment.  What has been done stays in the view's note (``list_views()``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog

from headrace import clock, errors
from headrace.config import Settings
from headrace.population.options import ViewOptions
from headrace.postgres.connect import async_dicts
from headrace.process import tasks
from headrace.server.commands import Commands
from headrace.server.context import CallContext
from headrace.server.procedures import Invocation
from headrace.server.tries import WINDOW_S, Tries
from headrace.sql import states
from headrace.sql.states import AsyncConnection, StoppedView, WaitedView


@dataclass(frozen=True, slots=True)
class MendingRule:
    """When views that one kind of error has stopped are filled anew."""

    option: str | None = None
    """The option that governs it; None: always."""
    values: tuple[str, ...] = ()
    """Values of that option with which it is done."""
    tries_max: int | None = None
    """How often at most (``tries``); None: any number, ever more rarely while it fails."""


_DAMAGE: Final = MendingRule("on_damage", ("resync",), tries_max=3)
RULES: Final[dict[str, MendingRule]] = {
    errors.StructureChanged.sqlstate: MendingRule("on_change", ("follow", "resync")),
    errors.DefiniteFailure.sqlstate: MendingRule("on_change", ("resync",)),
    errors.StateDamaged.sqlstate: _DAMAGE,
    errors.ContinuityLost.sqlstate: _DAMAGE,
    errors.SinkTableError.sqlstate: _DAMAGE,
    # It catches up alone, beside the others.
    errors.LimitExceeded.sqlstate: MendingRule(tries_max=3),
}
"""By SQLSTATE.  Code of a user may raise any of them: then filling anew fails as well."""

_LOOK_S: Final = 1.0
_FAILED: Final = "A resync failed: "
_OVER: Final = "It is not tried again by itself: "
_WAITS: Final = "it waits to be filled anew by itself"
_BEGUN: Final = "it is being filled anew by itself"
_UNTRIED: Final = errors.TransientError | errors.UndefinedError | errors.Deadly
"""No try was made, or it was interrupted; there may be no such view any more, of that id."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    row: StoppedView
    task: asyncio.Task[errors.HeadraceError | None]


class Resumer:
    """Looks for stopped views, and has them resynced."""

    def __init__(
        self, settings: Settings, commands: Commands, orphaned: Callable[[], None] = lambda: None
    ) -> None:
        """``orphaned`` is called when the catalog of the views is gone."""
        self._settings = settings
        self._commands = commands
        self._orphaned = orphaned
        self._side_by_side = max(settings.populations_max, 1)
        self._tries: dict[tuple[str, str], Tries] = {}
        """By name and time of creation: a resync gives a view another id."""
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._main: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        loop = tasks.forever("stopped views", self._serve, _LOOK_S)
        self._main = asyncio.create_task(loop)

    async def stop(self) -> None:
        """End, and cancel what is being done."""
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
                    while True:
                        await self._look(conn)
                        await self._rest()
            except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
                _log.error("schema headrace is gone")
                self._orphaned()
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
        for row in rows:
            if _view(row) in self._jobs:
                continue
            tries = self._book(row)
            if tries.due(now, row.mark):
                due.append(row)
            elif tries.over and _OVER not in (row.tried or ""):
                await self._give_up(conn, row, tries)
        free = self._side_by_side - len(self._jobs)
        await states.note(conn, [row.id for row in due[:free]], _BEGUN)
        await states.note(conn, [row.id for row in due[free:]], _WAITS)
        for row in due[:free]:
            self._jobs[_view(row)] = _Job(row, asyncio.create_task(self._resync(row)))

    def _book(self, row: StoppedView) -> Tries:
        """The tries of a stopped view; new ones, if somebody has filled it by a call."""
        tries = self._tries.get(_view(row))
        if tries is None or (tries.over and tries.view_id != row.id):
            tries = self._tries[_view(row)] = Tries()
        tries.bound, tries.view_id = RULES[row.sqlstate].tries_max, row.id
        return tries

    def _forget(self, stopped: set[tuple[str, str]], now: float) -> None:
        """Forget the tries of views that have run for a while, or were filled by a call."""
        kept = stopped | self._jobs.keys()
        for view in [v for v in self._tries if v not in kept]:
            if self._tries[view].over or self._tries[view].forget(now):
                del self._tries[view]

    async def _resync(self, row: StoppedView) -> errors.HeadraceError | None:
        """Why it failed, if it did."""
        name = row.name
        # Somebody else may have done it while this waited for other jobs.
        because = row.reason
        only = {"of": row.id, "because": because, "unasked": True}
        try:
            await self._commands.run(
                Invocation("resync_view", {"name": name, **only}),
                CallContext(row.owner, {}),
                lambda line: _log.info("resync", view=name, line=line),
            )
        except errors.HeadraceError as error:
            _log.warning("view stays stopped", view=name, reason=error.message)
            return error
        except Exception as error:  # noqa: BLE001  the boundary of one view's resync
            _log.exception("resync ended by a bug", view=name)
            return errors.BugError(f"internal error in filling the view anew: {error!r}")
        _log.info("view filled anew", view=name, because=because)
        return None

    async def _ended(self, conn: AsyncConnection, job: _Job) -> None:
        row, now = job.row, clock.monotonic()
        tries = self._tries[_view(row)]
        error = job.task.result()
        if error is None:
            tries.filled(now)
            return
        tries.failed(now, passing=_passing(error))
        why = "; ".join(filter(None, (error.message, error.detail)))
        await states.tell(conn, row, _FAILED + why)

    async def _give_up(self, conn: AsyncConnection, row: StoppedView, tries: Tries) -> None:
        """Say that no more tries are made."""
        _log.warning("view is left stopped", view=row.name, tries=tries.spent)
        many = f"{tries.spent} tries within {WINDOW_S / 60:.0f} minutes did not help."
        told = " ".join(filter(None, (row.tried, _OVER + many)))
        await states.tell(conn, row, told)


def _view(row: StoppedView) -> tuple[str, str]:
    return row.name, row.made


def mends(view: WaitedView) -> bool:
    """Whether a stopped view is filled anew without a call, and no attempt has failed yet."""
    return view.sqlstate in RULES and view.tried is None and _governed(view)


def _governed(row: StoppedView | WaitedView) -> bool:
    """Whether its options want it to be filled anew."""
    assert row.sqlstate is not None, "it has stopped"
    rule = RULES[row.sqlstate]
    if rule.option is None:
        return True
    said = getattr(row, rule.option)
    by_default = getattr(ViewOptions(), rule.option)
    return (by_default if said is None else said) in rule.values


def _passing(error: errors.HeadraceError) -> bool:
    """Whether it says nothing about the view."""
    if isinstance(error, _UNTRIED):
        return True
    # Another job is at the view, or a server has answered so to statements of ours.
    return not isinstance(error, errors.DefiniteFailure) and errors.transient(error.code)
