"""The builder process: plans, populates, drops and indexes views, and starts Spark for that.

    commander ──rpc──► builder ──rpc──► worker (hold, adopt, release, drop)

The fork server starts it, or ``python -m headrace.views.builder``, with the settings in
HEADRACE_SETTINGS. Each request runs in a thread with its own connections. Populations wait for a
snapshot together, and load in parallel within their limit. Drops and indexes do not wait for them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg
import structlog

from headrace import clock, events
from headrace.config import Settings
from headrace.errors import HeadraceError, QueryCancelled, TransientError, UndefinedError
from headrace.planner import limits
from headrace.population import snapshot as snapshots
from headrace.population import staging
from headrace.population.context import JobContext
from headrace.population.job import Job
from headrace.population.spark import Spark
from headrace.postgres import reuse
from headrace.postgres.failures import as_headrace
from headrace.process import imports, memory, parent, rpc, tasks, thread_pools
from headrace.sql import views
from headrace.sql.verbs import VERBS, Verb, ViewRequest
from headrace.views import (
    advise,
    alter,
    assertions,
    balance,
    check,
    create,
    drop,
    executors,
    explain,
    history,
    indexes,
    insight,
    latency,
    links,
    owners,
    pause,
    placement,
    placement_report,
    points,
    rename,
    repair,
    resync,
    sources,
    verify,
    what_if,
    why,
    workers,
)
from headrace.views.crash_loop_guard import CrashLoopGuard
from headrace.views.quotas import Turns

_log = structlog.get_logger(__name__)
_CALLS_PER_ROLE: Final = 8
"""Limit of the threads of a role's calls that do not populate; each may wait for long."""
_POPULATIONS: Final = 16
"""Limit of concurrent populations: each takes a thread and, at times, a connection."""
_STOP_S: Final = 8.0
_RETRY_S: Final = 0.5
_WORKER_WAIT_S: Final = 5.0
"""Time that a call waits for a worker that starts again, which takes half a second."""
_CONNECT_S: Final = 0.05
_HANDOVER_S: Final = 10.0

Work = Callable[[Job], Any]
Act = Callable[[JobContext, Job, Any], Any]
DOES: Final[dict[str, Act]] = {
    "create_view": create.create_view,
    "drop_view": drop.drop_view,
    "create_assertion": assertions.create_assertion,
    "drop_assertion": assertions.drop_assertion,
    "create_index": indexes.create_index,
    "drop_index": indexes.drop_index,
    "explain_view": explain.explain_view,
    "check_view": check.check_view,
    "advise": advise.advise,
    "pause_view": pause.pause_view,
    "resume_view": pause.resume_view,
    "alter_view": alter.alter_view,
    "rename_view": rename.rename_view,
    "set_history": history.set_history,
    "create_connection_point": points.create_connection_point,
    "drop_connection_point": points.drop_connection_point,
    "set_latency": latency.set_latency,
    "set_owner": owners.set_owner,
    "set_placement": placement.set_placement,
    "resync_view": resync.resync_view,
    "verify_view": verify.verify_view,
    "why": why.why,
    "why_not": why.why_not,
    "what_if_plan": what_if.what_if_plan,
    "what_if_hold": what_if.what_if_hold,
    "what_if_rows": what_if.what_if_rows,
    "what_if": what_if.what_if,
    "queues": insight.queues,
    "memory": insight.memory,
    "batches": insight.batches,
    "view_stats": insight.view_stats,
    "workers": workers.workers,
    "add_worker": workers.add_worker,
    "create_worker_token": workers.create_worker_token,
    "remove_worker": workers.remove_worker,
    "links": links.links,
    "add_link": links.add_link,
    "drop_link": links.drop_link,
    "drain_worker": balance.drain_worker,
    "rebalance": balance.rebalance,
    "explain_placement": placement_report.explain_placement,
    "sources": sources.shown,
    "add_source": sources.add_source,
    "drop_source": sources.drop_source,
    "create_logical_table": sources.create_logical_table,
}
"""The function that carries out each verb, given its request."""


class WorkerLink:
    """An RPC client of the worker for job threads; it connects when needed."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._path = settings.worker_socket
        self._loop = loop
        self._peer: rpc.Peer | None = None
        self._lock = asyncio.Lock()

    def call(
        self,
        method: str,
        params: dict[str, Any],
        job: Job | None = None,
        *,
        cancellable: bool = True,
    ) -> Any:
        """See ``context.WorkerProtocol``; REQUIRES: not on the event loop's thread."""
        if job is not None and cancellable:
            job.check()
        say = None if job is None else _saying(job)
        request = self._patient(method, params, say)
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        if job is None or not cancellable:
            return future.result()
        try:
            with job.cancelling(future.cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            job.check()
            raise
        finally:
            future.cancel()  # has no effect if it is done

    async def start(self, holds: list[str]) -> None:
        """Tell the worker which holds still belong to a job."""
        await self.request("start", {"holds": holds})

    async def request(
        self, method: str, params: dict[str, Any], progress: rpc.Progress | None = None
    ) -> Any:
        """Send a request; raise TransientError while the worker is down."""
        peer = await self._connected()
        return await peer.call(method, params, progress)

    async def _patient(
        self, method: str, params: dict[str, Any], progress: rpc.Progress | None
    ) -> Any:
        """Send a request as ``request`` does, and wait a while for a worker that starts again."""
        until = clock.monotonic() + _WORKER_WAIT_S
        while True:
            try:
                await self._connected()
                break
            except TransientError:
                if clock.monotonic() >= until:
                    raise
                await asyncio.sleep(_CONNECT_S)
        return await self.request(method, params, progress)

    async def _connected(self) -> rpc.Peer:
        async with self._lock:
            if self._peer is None or self._peer.closed.is_set():
                try:
                    self._peer = await rpc.connect(self._path)
                except OSError as error:
                    raise TransientError(
                        "the worker process is not running", hint=rpc.AGAIN
                    ) from error
            return self._peer


def _saying(job: Job) -> rpc.Progress:
    return lambda step: job.say(str(step["message"]))


class Builder:
    """The RPC handlers that the commander calls."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings = settings
        self._loop = loop
        self._spark = Spark(settings)
        self._worker = WorkerLink(settings, loop)
        self._context = JobContext(settings, self._worker, self._spark)
        self._populations = asyncio.Semaphore(_POPULATIONS)
        self._turns = Turns(settings, settings.populations_per_role_max)
        self._others = Turns(settings, _CALLS_PER_ROLE)
        self._pool = ThreadPoolExecutor(thread_pools.CALLS, thread_name_prefix="job")
        self._jobs: set[Job] = set()
        self._running: set[asyncio.Future[Any]] = set()
        self._poison = CrashLoopGuard(settings.run_dir)

    @property
    def handlers(self) -> dict[str, rpc.Handler]:
        """Handlers by method name."""
        verbs = {name: self._handler(VERBS[name], act) for name, act in DOES.items()}
        own = {
            "holds": self._holds,
            "check": self._check,
            "nodes": self._nodes,
            "spread": self._spread,
            "gather": self._gather,
        }
        return {**verbs, **own}

    @property
    def holds(self) -> list[str]:
        """Names of the jobs that hold back the slot."""
        return sorted(job.name for job in self._jobs)

    def start(self) -> None:
        """Remove what a dead builder left; with ``spark_warm``, start Spark in the background."""
        self._context.reader.warm()
        clean_up(self._settings)
        if self._settings.spark_warm:
            self._spark.begin()

    async def greet_worker(self) -> None:
        """Finish the handovers of a dead builder, then have the worker release its holds.

        The order matters: a hold retains the WAL that a view needs until it is handed over.
        """
        folder = self._settings.staging_dir
        sealed = await asyncio.to_thread(staging.sealed, folder)
        sealed = [view_id for view_id in sealed if view_id not in self._context.live]
        # The worker keeps a moved view suspended until the hold of that job is released.
        moved = [i for i in sealed if await asyncio.to_thread(staging.is_moved, folder, i)]
        handovers = [
            asyncio.create_task(self._hand_over(view_id))
            for view_id in sealed
            if view_id not in moved
        ]
        if handovers:
            # A view that waits for a lock on its table must not retain the source's WAL for ever.
            await asyncio.wait(handovers, timeout=_HANDOVER_S)
        while True:
            try:
                await self._worker.start(self.holds)
                break
            except TransientError:
                await asyncio.sleep(_RETRY_S)
        handovers += [asyncio.create_task(self._hand_over(view_id)) for view_id in moved]
        await asyncio.gather(*handovers)
        with contextlib.suppress(HeadraceError):
            await self._forget_gone()

    async def _hand_over(self, view_id: int) -> None:
        """Have the worker adopt a populated view; idempotent."""
        while True:
            try:
                await self._worker.request("adopt", {"view_id": view_id})
            except TransientError:
                await asyncio.sleep(_RETRY_S)
            except UndefinedError:
                break  # dropped or replaced: its staged states are not needed any more
            except HeadraceError as error:
                _log.warning("view not adopted", view=view_id, reason=error.message)
                return
            else:
                break
        staged = staging.of_view(self._settings.staging_dir, view_id)
        await asyncio.to_thread(staged.remove)

    async def _forget_gone(self) -> None:
        """Tell the worker about views that a dead builder dropped without telling it."""
        known = (await self._worker.request("status", {}))["views"]
        # The catalog must be read after the worker's answer: the worker's views were in it before.
        listed = await asyncio.to_thread(view_ids, self._settings)
        for view in known:
            if view["id"] not in listed:
                await self._worker.request("drop", {"view_id": view["id"]})

    async def stop(self) -> None:
        """Cancel all jobs, wait until they have cleaned up, and stop Spark."""
        self._poison.close()
        jobs = list(self._jobs)
        for job in jobs:
            await self._loop.run_in_executor(None, job.cancel)
        if self._running:
            await asyncio.wait(self._running, timeout=_STOP_S)
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._spark.stop)
        await asyncio.to_thread(self._context.reader.close)
        await asyncio.to_thread(self._context.planners.close)

    # --- handlers

    def _handler(self, verb: Verb, act: Act) -> rpc.Handler:
        async def handle(params: dict[str, Any], progress: rpc.Progress) -> Any:
            request = verb.request.of_message(params)

            def work(job: Job) -> Any:
                if not isinstance(request, ViewRequest):
                    return act(self._context, job, request)
                job.unasked = request.unasked
                call = functools.partial(act, self._context, job, request)
                return repair.after_repair(self._context, job, request, call)

            large = _text_bytes(params) >= memory.LARGE_BYTES
            if not isinstance(request, ViewRequest) or not verb.fills:
                async with self._others.turn(request.caller, lambda: None):
                    return await self._run(work, progress, large=large)

            def filling(job: Job) -> Any:
                unasked = request.unasked
                with self._poison.filling(request.name, unasked=unasked, wait=job.wait):
                    return work(job)

            async with self._turn(request.caller, progress):
                return await self._run(filling, progress, large=large)

        return handle

    async def _holds(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        return self.holds

    async def _nodes(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        """Return the names of the other processes (``workers.extra_processes``)."""

        def work(job: Job) -> dict[str, list[str]]:
            with job.connection(self._settings.source, what="builder") as conn:
                return workers.extra_processes(conn)

        return await self._run(work, progress)

    async def _spread(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        """Move views to executors (``executors.spread``)."""
        most = int(params["count_max"])
        return await self._run(lambda job: executors.spread(self._context, job, most), progress)

    async def _gather(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        """Move views home (``executors.gather``)."""
        return await self._run(lambda job: executors.gather(self._context, job), progress)

    async def _check(self, params: dict[str, Any], progress: rpc.Progress) -> Any:
        return {"jobs": sorted(job.name for job in self._jobs), "spark": self._spark.status}

    @contextlib.asynccontextmanager
    async def _turn(self, caller: str | None, progress: rpc.Progress) -> AsyncIterator[None]:
        """Wait for the turn of one population, within the limits of its role and of the builder."""

        def waits() -> None:
            progress({"phase": "pending"})

        async with self._turns.turn(caller, waits):
            if self._populations.locked():
                waits()
            async with self._populations:
                yield

    async def _run(self, work: Work, progress: rpc.Progress, *, large: bool = False) -> Any:
        """Run ``work`` in a thread; pass on a cancel, and wait until the job has cleaned up.

        ``large``: the job takes much memory, which is returned to the system afterwards.
        """

        def report(message: dict[str, Any]) -> None:
            self._loop.call_soon_threadsafe(progress, message)

        job = Job(report)
        future = self._loop.run_in_executor(self._pool, _thrifty if large else _guarded, work, job)
        self._jobs.add(job)
        self._running.add(future)
        try:
            while True:
                try:
                    return await asyncio.shield(future)
                except asyncio.CancelledError:
                    if future.cancelled():
                        raise
                    # If the job has committed already, its result is returned all the same.
                    await self._loop.run_in_executor(None, job.cancel)
        finally:
            self._jobs.discard(job)
            self._running.discard(future)


def _text_bytes(params: dict[str, Any]) -> int:
    """Return the approximate number of characters of a command's text."""
    return sum(len(text) for text in params.values() if isinstance(text, str))


def _thrifty(work: Work, job: Job) -> Any:
    """Call ``_guarded``, then return the memory of this thread to the system."""
    try:
        return _guarded(work, job)
    finally:
        memory.give_back()


def _guarded(work: Work, job: Job) -> Any:
    """Run ``work`` and translate its errors; after a cancel, every error becomes QueryCancelled."""
    try:
        with limits.interruptible(job.check, job.cancelling):
            return work(job)
    except QueryCancelled:
        raise
    except (HeadraceError, psycopg.Error) as error:
        job.check()
        if isinstance(error, psycopg.Error):
            raise as_headrace(error) from error
        raise
    except Exception:
        _log.exception("job failed", job=job.name)
        raise


def view_ids(settings: Settings) -> set[int]:
    """Return the ids of all views in the catalog."""
    with reuse.lent(settings.source) as conn:
        return views.ids(conn)


def clean_up(settings: Settings) -> None:
    """Remove slots and files that populations of an earlier builder left.

    The commander removes catalog rows (``server.janitor``), and restarts the creation of views that
    were created without waiting.
    """
    shutil.rmtree(settings.forks_dir, ignore_errors=True)
    with reuse.lent(settings.source) as conn:
        if not views.installed(conn):
            return
        slots = snapshots.remove_slots(conn, settings.slot_name)
        kept = views.ids(conn, finished=True)
    removed = staging.remove_orphans(settings.staging_dir, kept)
    if slots or removed:
        _log.info("left-over populations removed", slots=slots, directories=removed)


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, or until the commander is gone."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    parent.watch(loop, stopping.set)
    builder = Builder(settings, loop)
    await asyncio.to_thread(builder.start)
    settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.builder_socket.unlink(missing_ok=True)
    server = await rpc.serve(settings.builder_socket, builder.handlers)
    greeting = asyncio.create_task(tasks.forever("greeting", builder.greet_worker, _RETRY_S))
    _log.info("builder ready", pid=os.getpid())
    try:
        await stopping.wait()
    finally:
        server.close()
        greeting.cancel()
        await builder.stop()


def main() -> int:
    """Run the process; the entry point."""
    settings = Settings.from_env()
    imports.keep_pandas_out()
    events.start(settings, "builder")
    os.umask(0o077)
    try:
        asyncio.run(serve(settings))
    except HeadraceError as error:
        _log.error("builder cannot run", reason=error.message, code=error.code)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
