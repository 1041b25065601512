"""queues, memory, batches and view_stats: the worker's statistics, for views the caller may see.

The worker reports all views by id; these functions return those whose owner the caller acts for,
by name. Statistics of the process and the stream are only for members of the engine's role.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace import clock
from headrace.population import names
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.sql import views
from headrace.sql.verbs import Request, ViewStats
from headrace.sql.views import Seen

Row = list[Any]


def queues(context: JobContext, job: Job, request: Request) -> list[Row]:
    """Return a row for each queue and reader, with the columns of ``sql/queues.sql``.

    Raises:
        TransientError: the worker is not running.
    """
    found = context.worker.call("queues", {}, job)
    seen = _seen(context, job, request)
    out = []
    for row in found:
        reader = _reader(seen, row)
        if reader:
            kind = row["kind"]
            out.append(
                [
                    *(_subplan(row["id"]) if row["id"] else kind, reader, ", ".join(row["nodes"])),
                    *(row["rows"], row["bytes"], row["blocks"], row["contiguous"]),
                    *(row["resident_bytes"], row["base_txid"], row["front_txid"]),
                    *(row["tail_txid"], row["head_txid"], row["behind_bytes"]),
                    *(kind, row["priority"], row["resident_pct"], row["running"]),
                ]
            )
    return sorted(out, key=lambda row: (row[0], row[1]))


def _reader(seen: Seen, row: dict[str, Any]) -> str:
    """Return the names of a queue's readers that the caller may see."""
    if row["views"] is None:
        return "all views" if seen.everything else ""
    names = _names(seen, row["views"])
    return f"{_subplan(row['reader'])} of {names}" if names and row["reader"] < 0 else names


def memory(context: JobContext, job: Job, request: Request) -> list[Row]:
    """Return a row for each use of memory, with the columns of ``sql/memory.sql``.

    Raises:
        TransientError: the worker is not running.
    """
    found = context.worker.call("memory", {}, job)
    seen = _seen(context, job, request)
    out: list[Row] = []
    for row in found:
        if row["views"] is None:
            if seen.everything:
                out.append([row["part"], None, row["bytes"], row["limit"]])
            continue
        names = _names(seen, row["views"])
        if names:
            out.append([row["part"], names, row["bytes"], row["limit"]])
    return out


def batches(context: JobContext, job: Job, request: Request) -> list[Row]:
    """Return a row for each recent batch, with the columns of ``sql/batches.sql``.

    Raises:
        TransientError: the worker is not running.
    """
    found = context.worker.call("batches", {}, job)
    if not _seen(context, job, request).everything:
        return []
    return [
        [
            *(row["txid"], row["attempt"], row["state"]),
            None if "at_us" not in row else clock.text(row["at_us"]),
            *(row.get("transactions"), row.get("rows"), row.get("views")),
            *(_us(row.get(name)) for name in ("process_ms", "wait_ms", "write_ms", "fresh_ms")),
        ]
        for row in found
    ]


def _us(ms: float | None) -> int | None:
    return None if ms is None else round(ms * 1000)


def view_stats(context: JobContext, job: Job, request: ViewStats) -> list[Row]:
    """Return a row for each collection, with the columns of ``sql/view_stats.sql``.

    Raises:
        UndefinedError: 42P01, no such view.
        PrivilegeError: the caller is not its owner.
        TransientError: the worker is not running.
    """
    shown = _seen(context, job, request).names
    if request.name is not None:
        with job.connection(context.settings.source, what="builder") as conn, job.translating():
            view = names.find_owned(conn, request.name, request.caller, request.settings)
        shown = {view.id: shown.get(view.id, request.name)}
    return [
        [
            *(row["node"], row["collection"], row["shared"], row["worker"]),
            *(row["rows_in"], row["rows_out"], row["batches"], row["busy_us"], row["cpu_us"]),
            *(row["state_rows"], row["state_bytes"], row["state_exact"]),
            *(row["queued_rows"], row["queued_bytes"], name),
        ]
        for view_id, name in sorted(shown.items(), key=lambda each: each[1])
        for row in context.worker.call("stats", {"view_id": view_id}, job)
    ]


def _seen(context: JobContext, job: Job, request: Request) -> Seen:
    with job.connection(context.settings.source, what="builder") as conn:
        return views.seen(conn, request.caller)


def _names(seen: Seen, ids: Collection[int]) -> str:
    return ", ".join(sorted(seen.names[number] for number in ids if number in seen.names))


def _subplan(number: int) -> str:
    return f"subplan {abs(number)}"
