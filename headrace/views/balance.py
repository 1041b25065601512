"""drain_worker and rebalance: running views to other workers, by what they give them to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from headrace.errors import HeadraceError, QueryCancelled, UserError
from headrace.planner.placement.balance import ViewLoad, ViewMove, balanced, emptied
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.sql import nodes, views
from headrace.sql.nodes import MAIN
from headrace.sql.verbs import DrainWorker, Rebalance
from headrace.views import placement, workers

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    """The views that can be moved, and where there is room."""

    names: dict[int, str]
    loads: list[ViewLoad]
    workers: list[str]


def drain_worker(context: JobContext, job: Job, request: DrainWorker) -> dict[str, Any]:
    """Move all views of a worker to others; then it can be removed.

    Raises:
        UndefinedError: 42704, there is no such worker.
        UserError: 55000, it is the one that writes, or some view could not be moved.
        PrivilegeError: the caller is no member of the engine's role.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        workers.check(conn, request.name)
        if request.name == MAIN:
            raise UserError(
                'worker "main" cannot be drained',
                detail="It takes what comes and writes what goes.",
                hint="CALL headrace.rebalance(true) moves views to others.",
                sqlstate="55000",
            )
        known = _known(context, job, conn)
    moves = emptied(known.loads, request.name, known.workers)
    failed = [error for move in moves if (error := _move(context, job, known, move))]
    if failed:
        raise UserError(
            f'worker "{request.name}" is not drained: {len(failed)} of {len(moves)} views stay',
            detail="; ".join(failed),
            hint="Drop these, or see what holds them, and call it again.",
            sqlstate="55000",
        )
    told = ", ".join(f"{known.names[move.view]} to {move.worker}" for move in moves)
    return {"notice": f"moved: {told}" if told else "there was no view on it"}


def rebalance(context: JobContext, job: Job, request: Rebalance) -> list[list[Any]]:
    """A row for each view that should move; the columns of ``sql/rebalance.sql``.

    With ``apply`` they are moved.  What cannot be moved stays, and says why.

    Raises:
        PrivilegeError: the caller is no member of the engine's role.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        workers.check_caller(conn, request)
        known = _known(context, job, conn)
    loads = {load.view: load for load in known.loads}
    out = []
    for move in balanced(known.loads, known.workers):
        error = _move(context, job, known, move) if request.apply else None
        load = loads[move.view]
        out.append(
            [
                *(known.names[move.view], load.worker, move.worker, int(load.busy)),
                *(request.apply and error is None, error),
            ]
        )
    return out


def _known(context: JobContext, job: Job, conn: Connection) -> _Known:
    placed = nodes.placements(conn)
    loads = []
    for view_id, (_, worker) in placed.items():
        busy = sum(
            row["busy_us"]
            for row in context.worker.call("stats", {"view_id": view_id}, job)
            if not row["shared"]
        )
        loads.append(ViewLoad(view_id, worker, float(busy)))
    names = {view_id: name for view_id, (name, _) in placed.items()}
    return _Known(names, loads, [MAIN, *(node.name for node in nodes.listed(conn))])


def _move(context: JobContext, job: Job, known: _Known, move: ViewMove) -> str | None:
    """Move a view; why it could not be."""
    name = known.names[move.view]
    job.say(f"moving {name} to {move.worker}")
    try:
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            view = views.of_id(conn, move.view)
            if view is None:
                return None  # dropped meanwhile
        placement.move(context, job, view, move.worker, None)
    except QueryCancelled:
        raise
    except HeadraceError as error:
        job.check()
        _log.warning("view not moved", view=name, to=move.worker, reason=error.message)
        return f"{name}: {error.message}"
    return None
