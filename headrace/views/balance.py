"""drain_worker and rebalance: move running views to other workers, by their load."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import structlog

from headrace.counting import counted, noun
from headrace.errors import HeadraceError, QueryCancelled, TransientError, UserError
from headrace.planner.placement.balance import ViewLoad, balanced, emptied
from headrace.population import placing
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.placing import Placement
from headrace.postgres.connect import Connection
from headrace.sql import nodes, views
from headrace.sql.nodes import MAIN
from headrace.sql.status import OWNED, Status
from headrace.sql.verbs import DrainWorker, Rebalance
from headrace.views import placement, workers

_LEFT: Final = (*OWNED, Status.ERROR)
"""Status of the views that leave a drained worker."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Movable:
    """The views that can be moved, and the workers that have room."""

    names: dict[int, str]
    status: dict[int, str]
    loads: list[ViewLoad]
    busy_us: dict[int, int]
    """Microseconds that each view has taken since its worker started."""
    workers: list[str]
    cut: dict[int, dict[str, str]]
    """Views that are cut into parts, with their workers; ``rebalance`` does not move them."""


def drain_worker(context: JobContext, job: Job, request: DrainWorker) -> dict[str, Any]:
    """Move all views of a worker to others, so that it can be removed.

    Raises:
        UndefinedError: 42704, there is no such worker.
        UserError: 55000, it is ``main``, or some view could not be moved.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        placing.check_known(conn, request.name)
        if request.name == MAIN:
            raise UserError(
                'worker "main" cannot be drained',
                detail="It reads the source and writes the results.",
                hint="CALL headrace.rebalance(true) moves views to others.",
                sqlstate="55000",
            )
        known = movable(context, job, conn, _LEFT)
    moves: list[tuple[int, Placement]] = [
        (move.view, move.worker) for move in emptied(known.loads, request.name, known.workers)
    ]
    for view_id, parts in known.cut.items():
        left = {node: worker for node, worker in parts.items() if worker != request.name}
        if left != parts:
            moves.append((view_id, left or MAIN))
    failed = [error for move in moves if (error := _leave(context, job, known, *move))]
    if failed:
        raise UserError(
            f'worker "{request.name}" is not drained: {len(failed)} of'
            f" {counted(len(moves), 'view')} {noun(len(failed), 'stays', 'stay')}",
            detail="; ".join(failed),
            hint="Resume or drop these, or see what holds them, and call it again.",
            sqlstate="55000",
        )
    told = ", ".join(f"{known.names[view_id]} to {_shown(to)}" for view_id, to in moves)
    return {"notice": f"moved: {told}" if told else "there was no view on it"}


def rebalance(context: JobContext, job: Job, request: Rebalance) -> list[list[Any]]:
    """Return a row for each view that should move, with the columns of ``sql/rebalance.sql``.

    With ``apply`` the views are moved. A view that cannot be moved stays, and its row has the
    reason.

    Raises:
        PrivilegeError: the caller is not a member of the engine's role.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        known = movable(context, job, conn, (Status.RUNNING,))
    loads = {load.view: load for load in known.loads}
    out = []
    for move in balanced(known.loads, known.workers):
        error = _move(context, job, known, move.view, move.worker) if request.apply else None
        load = loads[move.view]
        out.append(
            [
                *(known.names[move.view], load.worker, move.worker, known.busy_us[move.view]),
                *(request.apply and error is None, error),
            ]
        )
    return out


def movable(context: JobContext, job: Job, conn: Connection, of: Collection[str]) -> Movable:
    """Return the views of a status ``of``, and the workers that calls may move them to."""
    placed = {i: at for i, at in nodes.placements(conn).items() if at.status in of}
    found = {
        view_id: _counted(context, job, view_id) for view_id, at in placed.items() if not at.parts
    }
    loads = [
        ViewLoad(view_id, placed[view_id].whole, _busy(rows)) for view_id, rows in found.items()
    ]
    busy_us = {
        view_id: sum(row["busy_us"] for row in rows or ()) for view_id, rows in found.items()
    }
    names = {view_id: at.name for view_id, at in placed.items()}
    cut = {view_id: at.parts for view_id, at in placed.items() if at.parts}
    status = {view_id: at.status for view_id, at in placed.items()}
    return Movable(
        names,
        status,
        loads,
        busy_us,
        [
            MAIN,
            *(n.name for n in nodes.listed(conn) if not n.lost and not nodes.is_executor(n.name)),
        ],
        cut,
    )


def _leave(
    context: JobContext, job: Job, known: Movable, view_id: int, to: Placement
) -> str | None:
    """Move a view from its worker; return the reason if it stays.

    A stopped view only gets a new placement in the catalog, which the next fill uses.
    """
    if known.status[view_id] == Status.PAUSED:
        return f"{known.names[view_id]}: it is paused"
    if known.status[view_id] != Status.ERROR:
        return _move(context, job, known, view_id, to)
    parts = {} if isinstance(to, str) else to
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        views.set_placement(conn, view_id, to, parts)
    return None


def _counted(context: JobContext, job: Job, view_id: int) -> list[dict[str, Any]] | None:
    """Return the statistics of the view's own collections; None: the worker does not answer."""
    try:
        rows: list[dict[str, Any]] = context.worker.call("stats", {"view_id": view_id}, job)
    except TransientError:
        return None
    return [row for row in rows if not row["shared"]]


def _busy(rows: list[dict[str, Any]] | None) -> float | None:
    """Return the view's load in microseconds per second; None: unknown.

    Rates and not sums are compared, because views started at different times.
    """
    if rows is None:
        return None
    if not any(row["since_s"] for row in rows):
        return 0.0  # no row has arrived
    if not placing.is_enough(rows):
        return None
    return float(sum(row["busy_us"] / row["since_s"] for row in rows))


def _shown(to: Placement) -> str:
    return to if isinstance(to, str) else ", ".join(sorted({*to.values(), MAIN}))


def _move(context: JobContext, job: Job, known: Movable, view_id: int, to: Placement) -> str | None:
    """Move a view; return the reason if it could not be moved."""
    name = known.names[view_id]
    job.say(f"moving {name} to {_shown(to)}")
    try:
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            view = views.of_id(conn, view_id)
            if view is None:
                return None  # dropped meanwhile
        placement.move(context, job, view, to, None)
    except QueryCancelled:
        raise
    except HeadraceError as error:
        job.check()
        _log.warning("view not moved", view=name, to=_shown(to), reason=error.message)
        return f"{name}: {error.message}"
    return None
