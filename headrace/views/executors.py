"""Executors: workers on this machine that the engine itself adds under overload, and removes.

They are ordinary workers with a reserved name, so restarts, crashes and lost links are handled as
for those.  Only views that can move with their states go there; nothing is filled anew for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import psycopg
import structlog

from headrace import clock
from headrace.errors import HeadraceError, QueryCancelled, UserError
from headrace.planner.placement.balance import ViewMove, balanced
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.process import rpc
from headrace.sql import nodes, views
from headrace.sql.nodes import MAIN
from headrace.sql.status import Status
from headrace.views import placement, workers
from headrace.views.balance import Movable, movable

_WHY: Final = "this process was the limit"
_STAYS_S: Final = 600.0
"""Seconds for which a view that could not be moved stays where it is."""
_log = structlog.get_logger(__name__)


def spread(context: JobContext, job: Job, count_max: int) -> dict[str, Any]:
    """Move the costliest views from ``main`` to executors.

    ``count_max``: limit of executors.  If one more is needed, it is added, and the answer has its
    name (``added``) and the processes that have to run (``others``); views move there in the next
    call, when its process is up.

    Raises:
        TransientError: the source cannot be reached.
    """
    with job.connection(context.settings.source, what="builder") as conn:
        mine = _listed(conn)
        known = movable(context, job, conn, (Status.RUNNING,))
        new = _added(context, conn, known, mine, count_max)
        if new is not None:
            return {"others": workers.extra_processes(conn), "added": new}
    for move in _spread(known, mine, _staying(context)):
        _move(context, job, known, move)
    return {}


def gather(context: JobContext, job: Job) -> dict[str, Any]:
    """Move all views of executors home; remove those that are empty then.

    The answer has the processes that have to run (``others``).

    Raises:
        TransientError: the source cannot be reached.
    """
    with job.connection(context.settings.source, what="builder") as conn:
        mine = _listed(conn)
        known = movable(context, job, conn, (Status.RUNNING,))
    staying = _staying(context)
    for load in known.loads:
        if load.worker in mine and load.view not in staying:
            _move(context, job, known, ViewMove(load.view, MAIN))
    with job.connection(context.settings.source, what="builder") as conn:
        for name in mine:
            with conn.transaction():
                # A view that is placed there meanwhile waits for the row's lock, and finds it gone.
                if nodes.delete(conn, name) and nodes.placed(conn, name):
                    raise psycopg.Rollback
        left = _listed(conn)
        for name in set(mine) - set(left):
            _log.info("executor removed", worker=name)
        return {"others": workers.extra_processes(conn)}


def _listed(conn: Connection) -> list[str]:
    return [n.name for n in nodes.listed(conn) if nodes.is_executor(n.name)]


def _added(
    context: JobContext, conn: Connection, known: Movable, mine: list[str], count_max: int
) -> str | None:
    """Add an executor if views would move to it and not to those that exist; return its name."""
    if len(mine) >= count_max or _spread(known, mine, _staying(context)):
        return None
    taken = {node.name for node in nodes.listed(conn)}
    numbers = (f"{nodes.EXECUTOR}{n}" for n in range(1, len(taken) + 2))
    new = next(name for name in numbers if name not in taken)
    if not _spread(known, [*mine, new], _staying(context)):
        return None
    settings = context.settings
    try:
        rpc.check(settings.flight_socket(new), settings.of_worker(new).worker_socket)
    except UserError as error:
        _log.warning("executor cannot be added", reason=error.message, detail=error.detail)
        return None
    # Without capacity, so that strategies place nothing there.
    nodes.insert(conn, new, 0)
    _log.info("executor added", worker=new, reason=_WHY)
    return new


def _spread(known: Movable, mine: list[str], staying: Collection[int]) -> list[ViewMove]:
    """Return the moves from ``main`` to executors; views of other workers are a user's concern."""
    ours = [x for x in known.loads if x.worker in (MAIN, *mine)]
    at = {load.view: load.worker for load in ours}
    loads = [x for x in ours if x.view not in staying]
    moves = balanced(loads, [MAIN, *mine]) if loads else []
    return [m for m in moves if at[m.view] == MAIN and m.worker != MAIN]


def _staying(context: JobContext) -> set[int]:
    now = clock.monotonic()
    return {view_id for view_id, until in context.staying.items() if now < until}


def _move(context: JobContext, job: Job, known: Movable, move: ViewMove) -> None:
    """Move a view with its states; one that cannot be moved stays for a while."""
    name = known.names[move.view]
    try:
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            view = views.of_id(conn, move.view)
        if view is None:
            return  # dropped meanwhile
        placement.move(context, job, view, move.worker, None, refill=False)
    except QueryCancelled:
        raise
    except HeadraceError as error:
        job.check()
        context.staying[move.view] = clock.monotonic() + _STAYS_S
        _log.info("view stays", view=name, to=move.worker, reason=error.message)
        return
    context.moved.pop(move.view, None)
    if move.worker != MAIN:
        why = f"{_WHY}, since {clock.now():%Y-%m-%d %H:%M:%S} UTC"
        context.moved[move.view] = (move.worker, why)
