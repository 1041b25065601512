"""add_worker, remove_worker and workers: the processes that views may be placed on.

These functions change the catalog. The commander reads the answer, and starts or ends processes
on this machine (``server/supervisor.py``). A worker on another machine is started there, with its
token (``runtime/joined.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from typing import Any, Final

from headrace.config import Settings
from headrace.errors import (
    DuplicateError,
    HeadraceError,
    PrivilegeError,
    UndefinedError,
    UserError,
)
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.postgres.connect import Connection
from headrace.process import keys, rpc
from headrace.sql import meta, nodes, origins, views
from headrace.sql.nodes import MAIN, STRATEGIES, PlacedView
from headrace.sql.verbs import AddWorker, CreateWorkerToken, RemoveWorker, Request

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ASK_S: Final = 2.0
_CAPACITY_MAX: Final = 1_000_000


def add_worker(context: JobContext, job: Job, request: AddWorker) -> dict[str, Any]:
    """Add a worker on this machine.

    Raises:
        UserError: 42602, an invalid name; 22023, capacity out of range, or the path of the data
            directory is too long.
        DuplicateError: 42710, there is one of that name.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    _check_name(request.name)
    if not 0 <= request.capacity <= _CAPACITY_MAX:
        raise UserError(
            f"the capacity of a worker must be from 0 to {_CAPACITY_MAX}, not {request.capacity}",
            hint="It is the number of collections that strategies may place there.",
            sqlstate="22023",
        )
    settings = context.settings
    rpc.check(settings.flight_socket(request.name), settings.of_worker(request.name).worker_socket)
    with job.connection(settings.source, what="builder") as conn, job.translating():
        check_caller(conn, request)
        if not nodes.insert(conn, request.name, request.capacity):
            raise DuplicateError(f'worker "{request.name}" already exists')
        return {"others": extra_processes(conn)}


def create_worker_token(
    context: JobContext, job: Job, request: CreateWorkerToken
) -> dict[str, Any]:
    """Add a worker on another machine; an earlier token for it becomes void.

    The answer has the token, unless the caller has made one and sent its digest.

    Raises:
        UserError: 42602, an invalid name; 22023, the digest is invalid.
        DuplicateError: 42710, a worker of that name is on this machine.
        PrivilegeError: the caller is not a member of the engine's role.
    """
    _check_name(request.name)
    settings, secret = context.settings, secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).digest()
    if request.digest is not None:
        if not _DIGEST.fullmatch(request.digest):
            raise UserError("the digest of the token is not a SHA-256", sqlstate="22023")
        digest = bytes.fromhex(request.digest)
    with job.connection(settings.source, what="builder") as conn, job.translating():
        check_caller(conn, request)
        with conn.transaction():
            meta.put(
                conn, "certificate", keys.load_or_create(settings.keys_dir).certificate.decode()
            )
            if not nodes.invite(conn, request.name, digest):
                raise DuplicateError(
                    f'worker "{request.name}" is on this machine', hint="It needs no token."
                )
    return {"token": f"{request.name}.{secret}" if request.digest is None else None}


def remove_worker(context: JobContext, job: Job, request: RemoveWorker) -> dict[str, Any]:
    """Remove a worker on which no view is placed.

    Raises:
        UndefinedError: 42704, there is none of that name.
        PrivilegeError: the caller is not a member of the engine's role.
        UserError: 55006, views are placed on it.
    """
    with job.connection(context.settings.source, what="builder") as conn, job.translating():
        check_caller(conn, request)
        with conn.transaction():
            if not nodes.delete(conn, request.name):
                raise UndefinedError(f'worker "{request.name}" does not exist')
            placed = nodes.placed(conn, request.name)
            if placed:
                raise UserError(
                    f'worker "{request.name}" is in use',
                    detail=f"Views on it: {', '.join(placed)}.",
                    hint="CALL headrace.set_placement(view, worker) moves them.",
                    sqlstate="55006",
                )
        return {"others": extra_processes(conn)}


def workers(context: JobContext, job: Job, request: Request) -> list[list[Any]]:
    """Return a row for each worker, with the columns of ``sql/workers.sql``."""
    settings = context.settings
    with job.connection(settings.source, what="builder") as conn:
        seen = views.seen(conn, request.caller)
        found = nodes.listed(conn) if seen.everything else []
        at = nodes.placements(conn)
    if not seen.everything:
        return []
    away = sum(node.whole for node in found)
    main = _asked(settings)
    linked = main["linked"] if main is not None else {}
    moved = _moved(context, at)
    rows = [_row(MAIN, main, len(seen.names) - away, None)]
    for node in found:
        if not node.far:
            told = _asked(settings.of_worker(node.name))
            row = _row(node.name, told, node.views, node.since)
            row[-1] = moved.get(node.name)
            rows.append(row)
            continue
        known = linked.get(node.name)
        if known is None and node.seen and not node.views:
            known = {"pid": None, "memory_bytes": None}  # not connected: it has no view
        row = _row(node.name, known, node.views, node.since, node.address)
        if node.address is None:
            row[1] = "invited"
        rows.append(row)
    lost = {node.name for node in found if node.lost}
    return [[row[0], "lost" if row[0] in lost else row[1], *row[2:]] for row in rows]


def extra_processes(conn: Connection) -> dict[str, list[str]]:
    """Return the names, by kind, of the processes that the commander must run besides its own."""
    return {
        "worker": [node.name for node in nodes.listed(conn) if not node.far],
        "source": [row.name for row in origins.listed(conn)],
    }


def _check_name(name: str) -> None:
    if not nodes.is_name(name):
        raise UserError(
            f'invalid name of a worker: "{name}"',
            hint="It has 1 to 20 characters of a-z, 0-9 and _, and begins with a letter.",
            sqlstate="42602",
        )
    if name == MAIN:
        raise DuplicateError(
            'worker "main" already exists', hint="It reads the source and writes the results."
        )
    if nodes.is_executor(name):
        raise UserError(
            f'invalid name of a worker: "{name}"',
            hint=f'Names that begin with "{nodes.EXECUTOR}" are reserved.',
            sqlstate="42602",
        )
    if name in STRATEGIES:
        raise UserError(
            f'a worker cannot be called "{name}"',
            hint="Option placement uses this name for a strategy.",
            sqlstate="42602",
        )


def _row(
    name: str,
    status: dict[str, Any] | None,
    count: int,
    since: str | None,
    address: str | None = None,
) -> list[Any]:
    if status is None:
        return [name, "down", None, count, None, since, address, None, None]
    told = (status["pid"], count, status["memory_bytes"], since, address, status.get("cpu_s"))
    return [name, "running", *told, None]


def _moved(context: JobContext, placed: dict[int, PlacedView]) -> dict[str, str]:
    """Return which views the engine has moved to its executors, and why, by executor."""
    said: dict[str, list[str]] = {}
    for view_id, at in placed.items():
        if nodes.is_executor(at.whole):
            worker, why = context.moved.get(view_id, ("", ""))
            why = why if worker == at.whole else "moved before the engine's last start"
            said.setdefault(at.whole, []).append(f"{at.name}: {why}")
    return {worker: "; ".join(texts) for worker, texts in said.items()}


def _asked(settings: Settings) -> dict[str, Any] | None:
    """Return the status that a worker's process reports; None: it does not answer."""

    async def ask() -> dict[str, Any]:
        peer = await rpc.connect(settings.worker_socket)
        try:
            answer: dict[str, Any] = await peer.call("status", {})
            return answer
        finally:
            await peer.close()

    try:
        return asyncio.run(asyncio.wait_for(ask(), _ASK_S))
    except (OSError, TimeoutError, HeadraceError):
        return None


def check_caller(conn: Connection, request: Request) -> None:
    """Raise PrivilegeError unless the caller is a member of the engine's role."""
    if not views.seen(conn, request.caller).everything:
        raise PrivilegeError(
            "permission denied to control workers and sources",
            hint=f'Only members of role "{conn.info.user}" may.',
        )
