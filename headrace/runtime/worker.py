"""The worker process: a fork of the fork server, or ``python -m headrace.runtime.worker``.

The main thread runs the control socket, one thread the engine, one the stream. The process ends
when its parent dies, and cleanly on SIGTERM: the current batch is finished, state and position are
durable, and the source is told. A second SIGTERM ends it at once, which is as safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import structlog

from headrace import events
from headrace.config import Settings
from headrace.errors import QueryCancelled, UserError
from headrace.process import entry, imports, parent, rpc, shares, tasks
from headrace.process.rpc import Progress
from headrace.runtime import activity, durable_units, insight, measures, operators
from headrace.runtime.engine import Engine
from headrace.runtime.engine_state import EngineState
from headrace.types import format_lsn

_log = structlog.get_logger(__name__)
_PATIENCE_S: Final = 0.5
"""Seconds after which a call that waits for a tap gets an answer, so that it can be cancelled."""
_TELL_S: Final = 1.0
_TELL_S_MAX: Final = 10.0
"""Seconds between messages to a call that waits for the engine: first interval, and maximum."""
_POLL_S: Final = 0.05
_SOON_S: Final = 0.01


class Worker:
    """The engine and its control socket."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._engine = Engine(settings)
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="headrace-engine")
        self._beside = ThreadPoolExecutor(1, "headrace-holds")
        self._suspending: set[str] = set()
        """Jobs that may have suspended views, which only the engine's thread can resume."""

    async def main(self) -> None:
        """Serve until the engine ends."""
        settings = self._settings
        settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.worker_socket.unlink(missing_ok=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._on_signal, number)
        parent.watch(self._loop, self._engine.stop)
        self._thread.start()
        server = await rpc.serve(
            settings.worker_socket,
            {
                "start": self._start,
                "hold": self._hold,
                "release": self._release,
                "adopt": self._adopt,
                "drop": self._drop,
                "pause": self._pause,
                "resume": self._doing(_of_view(self._engine.lifecycle.resume)),
                "suspend": self._suspend,
                "options": self._doing(_of_view(self._engine.lifecycle.look_again)),
                "wait": self._wait,
                "tap": self._tap,
                "tapped": self._tapped,
                "untap": self._untap,
                "attach": self._doing(_attach(self._engine)),
                "attached": self._doing(_attached(self._engine), still=True),
                "fail_batch": self._fail_batch,
                "status": self._status,
                "queues": _telling(self._engine, insight.queues),
                "memory": _telling(self._engine, insight.memory),
                "gauges": _gauges(self._engine),
                "measures": _measures(self._engine),
                "load": _load(self._engine),
                "held": _held(self._engine),
                "batches": _telling(self._engine, insight.batches),
                "links": _telling(self._engine, insight.links),
                "stats": _telling_of_view(self._engine, operators.stats),
                "carries": self._doing(_carries(self._engine)),
                "move": _move(self._engine, self._suspending),
                "keep": _keep(self._engine, self._suspending),
                "place": self._doing(_place(self._engine), still=True),
                "durable_units": _durable_units(self._engine),
                "unpublishing": _unpublishing(self._engine),
                "stop": self._stop,
            },
        )
        try:
            await self._done
        finally:
            server.close()
            settings.worker_socket.unlink(missing_ok=True)
            self._beside.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._engine.run()
        except Exception as caught:  # noqa: BLE001  the process ends with it, in main
            error = caught
            _log.exception("engine ended", story=self._engine.state.story.lines())
        with contextlib.suppress(RuntimeError):  # the loop has ended first
            self._loop.call_soon_threadsafe(self._ended, error)

    def _ended(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def _on_signal(self, number: int) -> None:
        # A second signal has its default effect.
        self._loop.remove_signal_handler(number)
        self._engine.stop()

    # --- control messages

    async def _start(self, params: dict[str, Any], _: Progress) -> dict[str, Any]:
        jobs = {_job(job) for job in params.get("holds", ())}
        await self._on_engine(lambda: self._engine.lifecycle.keep_pins(jobs))
        return self._summary()

    async def _hold(self, params: dict[str, Any], _: Progress) -> dict[str, Any]:
        job, holds = _job(_need(params, "job")), self._engine.state.holds
        while not holds.open:  # noqa: ASYNC110  rare, and the engine knows no loop
            await asyncio.sleep(_POLL_S)
        # This thread waits for the disk, but not for a batch.
        hold = await self._loop.run_in_executor(self._beside, holds.grant, job)
        return {"txid": hold.txid, "lsn": hold.lsn}

    async def _release(self, params: dict[str, Any], progress: Progress) -> None:
        job = _job(_need(params, "job"))
        if job in self._suspending:
            await self._on_engine(
                lambda: self._engine.lifecycle.release(job), still=True, progress=progress
            )
            self._suspending.discard(job)
            return
        holds = self._engine.state.holds
        await self._loop.run_in_executor(self._beside, holds.release, job)

    async def _adopt(self, params: dict[str, Any], progress: Progress) -> dict[str, Any]:
        view_id = int(_need(params, "view_id"))
        future = await self._on_engine(
            lambda: self._engine.lifecycle.adopt(view_id), still=True, progress=progress
        )
        await self._await_result(asyncio.wrap_future(future), progress)
        view = self._engine.state.views.get(view_id)
        return {"txid": view.mark.txid if view else 0}

    async def _drop(self, params: dict[str, Any], _: Progress) -> None:
        view_id = int(_need(params, "view_id"))
        self._engine.interrupt(view_id)
        await self._soon(lambda: self._engine.lifecycle.drop(view_id), still=True)

    async def _pause(self, params: dict[str, Any], progress: Progress) -> None:
        view_id, caller = int(_need(params, "view_id")), params.get("caller")
        pause = self._engine.lifecycle.pause
        async with self._interrupting(view_id):
            await self._on_engine(lambda: pause(view_id, caller), progress=progress)

    def _doing(self, act: Callable[[dict[str, Any]], Any], *, still: bool = False) -> rpc.Handler:
        async def handle(params: dict[str, Any], progress: Progress) -> Any:
            return await self._on_engine(lambda: act(params), still=still, progress=progress)

        return handle

    async def _suspend(self, params: dict[str, Any], progress: Progress) -> None:
        view_id, job = int(_need(params, "view_id")), _job(_need(params, "job"))

        def suspend() -> None:
            if job not in self._engine.state.holds.jobs():
                raise QueryCancelled(f'job "{job}" has ended')
            # Not earlier: a job that is cancelled before need not wait for the engine.
            self._suspending.add(job)
            self._engine.lifecycle.suspend(view_id, job)

        await self._on_engine(suspend, progress=progress)

    async def _wait(self, params: dict[str, Any], _: Progress) -> None:
        view_id, lsn = int(_need(params, "view_id")), int(_need(params, "lsn"))
        waits = self._engine.waits
        future = await self._on_engine(lambda: waits.wait(view_id, lsn), quiet=False)
        await asyncio.wrap_future(future)

    async def _tap(self, params: dict[str, Any], progress: Progress) -> dict[str, Any]:
        view_id, job = int(_need(params, "view_id")), _job(_need(params, "job"))
        lifecycle, apart_s = self._engine.lifecycle, params.get("apart_s")
        path = await self._on_engine(
            lambda: lifecycle.tap(view_id, job, apart_s), progress=progress
        )
        return {"path": str(path)}

    async def _tapped(self, params: dict[str, Any], _: Progress) -> dict[str, Any] | None:
        """Return the last txid before ``lsn``; None: the view is not there yet, ask again."""
        job, lsn = _job(_need(params, "job")), int(_need(params, "lsn"))
        view_id = int(_need(params, "view_id"))
        waits, taps = self._engine.waits, self._engine.taps
        await self._on_engine(lambda: taps.cut_until(job, view_id, lsn), quiet=False)
        future = await self._on_engine(lambda: waits.wait(view_id, lsn), quiet=False)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await asyncio.wrap_future(future)
        except TimeoutError:
            return None
        txid = await self._on_engine(lambda: taps.position(job, view_id, lsn))
        instant = await self._on_engine(lambda: taps.instant(job, view_id, txid))
        return {"txid": txid, "instant": instant}

    async def _untap(self, params: dict[str, Any], _: Progress) -> None:
        job = _job(_need(params, "job"))
        await self._soon(lambda: self._engine.taps.end(job))

    async def _fail_batch(self, params: dict[str, Any], _: Progress) -> None:
        txid, caller = int(_need(params, "txid")), _need(params, "caller")
        await self._on_engine(lambda: self._engine.fail_batch(txid, caller), quiet=False)

    async def _status(self, params: dict[str, Any], _: Progress) -> dict[str, Any]:
        state = self._engine.state
        stream = state.stream
        return self._summary() | {
            "views": [
                {
                    "id": view.id,
                    "name": view.target.shown,
                    "status": view.status,
                    "cursor": view.cursor,
                    "message": view.message,
                    "txid": view.mark.txid,
                    "lsn": format_lsn(view.mark.lsn),
                    "shares": self._engine.sharing.shared_nodes(view),
                    "collections": view.dataflow.metrics()
                    if params.get("metrics") and view.dataflow
                    else None,
                }
                for view in list(state.views.values())
            ],
            "holds": {j: format_lsn(h.lsn) for j, h in state.holds.jobs().items()},
            "stream": stream.batcher.statistics() if stream else None,
            "in_flight": [
                {"txid": f.txid, "attempt": f.attempt, "state": f.state.value}
                for f in state.pipeline.flights()
            ],
            "checkpoints": state.checkpoints.statistics(),
            "retained": state.retained.statistics(),
        }

    async def _stop(self, params: dict[str, Any], _: Progress) -> None:
        self._engine.stop()

    def _summary(self) -> dict[str, Any]:
        state = self._engine.state
        error = state.error or state.checkpoints.error
        return {
            "pid": os.getpid(),
            "cpu_s": round(time.process_time(), 3),
            "memory_bytes": state.opened.memory_bytes if state.opened is not None else 0,
            "running": state.stream is not None,
            "txid": state.position.txid,
            "lsn": format_lsn(state.position.lsn),
            "confirmed": format_lsn(state.confirmed),
            "batches": state.batches,
            "reconnects": state.reconnects,
            "error": error.fields() if error else None,
            "linked": {
                host.name: {"pid": host.pid, "memory_bytes": host.memory_bytes}
                for host in list(state.hosts.values())
                if host.up
            },
        }

    async def _on_engine(
        self,
        work: Any,
        *,
        quiet: bool = True,
        still: bool = False,
        progress: Progress | None = None,
    ) -> Any:
        future = asyncio.wrap_future(self._engine.submit(work, quiet=quiet, still=still))
        return await (future if progress is None else self._await_result(future, progress))

    @contextlib.asynccontextmanager
    async def _interrupting(self, view_id: int) -> AsyncIterator[None]:
        """Interrupt the view's work repeatedly, so that the block does not wait long for it."""

        async def interrupt() -> None:
            while True:
                await asyncio.sleep(_PATIENCE_S)
                self._engine.interrupt(view_id)

        loop = tasks.forever("interrupt", interrupt, _PATIENCE_S)
        task = asyncio.create_task(loop)
        try:
            yield
        finally:
            task.cancel()

    async def _soon(self, work: Callable[[], None], *, still: bool = False) -> None:
        """Run ``work`` on the engine's thread; do not wait for its end if the engine is busy."""
        future = asyncio.wrap_future(self._engine.submit(work, still=still))
        future.add_done_callback(_log_failure)
        await asyncio.wait((future,), timeout=_PATIENCE_S)
        if future.done():
            future.result()

    async def _await_result(self, future: asyncio.Future[Any], progress: Progress) -> Any:
        """Return the result of ``future``; tell ``progress`` why it takes time."""
        pause = _TELL_S
        try:
            while not (await asyncio.wait((future,), timeout=pause))[0]:
                what = self._engine.doing()
                if what is not None:
                    progress({"message": f"waiting for {what}"})
                pause = min(2 * pause, _TELL_S_MAX)
        except asyncio.CancelledError:
            # Work that has not begun is not done.
            future.cancel()
            raise
        return future.result()


def _telling(engine: Engine, tell: Callable[[EngineState], Any]) -> rpc.Handler:
    """Return a handler that reads beside the engine, which may be inside a long batch."""

    async def handle(params: dict[str, Any], _: Progress) -> Any:
        return await asyncio.to_thread(tell, engine.state)

    return handle


def _gauges(engine: Engine) -> rpc.Handler:
    async def handle(params: dict[str, Any], _: Progress) -> Any:
        whole = bool(params.get("whole", True))
        return await asyncio.to_thread(insight.gauges, engine.state, whole=whole)

    return handle


def _telling_of_view(engine: Engine, tell: Callable[[EngineState, int], Any]) -> rpc.Handler:

    async def handle(params: dict[str, Any], _: Progress) -> Any:
        return await asyncio.to_thread(tell, engine.state, int(_need(params, "view_id")))

    return handle


def _load(engine: Engine) -> rpc.Handler:
    """Return a handler that tells the load; it is told how many executors run, for the memory."""
    beside = 0

    async def handle(params: dict[str, Any], _: Progress) -> dict[str, Any]:
        nonlocal beside
        count, state = int(_need(params, "executors")), engine.state
        if count != beside:
            bytes_max = shares.states_beside(state.settings, count)
            engine.submit(lambda: state.db.limit(bytes_max))
            beside = count
        return {
            "pid": os.getpid(),
            "overloaded": engine.capacity.processing_limits,
            "cpu_s": time.process_time(),
        }

    return handle


def _held(engine: Engine) -> rpc.Handler:
    async def handle(params: dict[str, Any], _: Progress) -> Any:
        works = activity.describe(engine.state, engine.works(), engine.writes)
        behind, cursors = engine.watermark.lagging_views(), insight.cursors(engine.state)
        return {"works": works, "behind": behind, "cursors": cursors}

    return handle


def _measures(engine: Engine) -> rpc.Handler:
    async def handle(params: dict[str, Any], _: Progress) -> Any:
        most = int(_need(params, "collections_max"))
        return await asyncio.to_thread(measures.measures, engine.state, most)

    return handle


def _of_view(act: Callable[[int], None]) -> Callable[[dict[str, Any]], None]:
    return lambda params: act(int(_need(params, "view_id")))


def _attach(engine: Engine) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def attach(params: dict[str, Any]) -> dict[str, Any]:
        view_id, reader = int(_need(params, "view_id")), int(_need(params, "reader"))
        return {"feeder": engine.attaching.attach(view_id, reader, _job(_need(params, "job")))}

    return attach


def _attached(engine: Engine) -> Callable[[dict[str, Any]], bool]:
    return lambda params: engine.attaching.attached(
        int(_need(params, "feeder")), _job(_need(params, "job"))
    )


def _move(engine: Engine, suspending: set[str]) -> rpc.Handler:
    """Write a view's states into a file; the handler returns facts on them, or None."""

    async def move(params: dict[str, Any], _: Progress) -> dict[str, Any] | None:
        view_id, job = int(_need(params, "view_id")), _job(_need(params, "job"))
        path = Path(_need(params, "path"))

        async def ask(work: Callable[[], Any]) -> Any:
            return await asyncio.wrap_future(engine.submit(work))

        suspending.add(job)
        if not await ask(lambda: engine.moving.begin(view_id, job)):
            return None
        facts: dict[str, Any] | None = None
        while facts is None:
            facts = await ask(lambda: engine.moving.ready(view_id, job))
            await asyncio.sleep(0 if facts else _SOON_S)
        if not facts:
            return None
        await asyncio.to_thread(await ask(lambda: engine.moving.exporter(view_id, job, path)))
        return facts

    return move


def _keep(engine: Engine, suspending: set[str]) -> rpc.Handler:
    """Suspend a view with durable states; the handler returns facts on them, or why not."""

    async def keep(params: dict[str, Any], _: Progress) -> dict[str, Any]:
        view_id, job = int(_need(params, "view_id")), _job(_need(params, "job"))

        async def ask(work: Callable[[], Any]) -> Any:
            return await asyncio.wrap_future(engine.submit(work))

        nodes = [str(node) for node in _need(params, "nodes")]
        suspending.add(job)
        why = await ask(lambda: engine.keeping.begin(view_id, job, nodes))
        if why is not None:
            return {"why": why}
        facts: dict[str, Any] | None = None
        while facts is None:
            facts = await ask(lambda: engine.keeping.ready(view_id, job))
            await asyncio.sleep(0 if facts else _SOON_S)
        return facts

    return keep


def _durable_units(engine: Engine) -> rpc.Handler:
    """Return a handler that waits until states have everything before an LSN, durably.

    It returns facts on the units; see ``durable_units.py``.
    """

    async def handle(params: dict[str, Any], _: Progress) -> dict[str, Any]:
        lsn, tables = int(_need(params, "lsn")), set(map(int, _need(params, "tables")))
        units, waits = engine.durable_units, engine.waits

        async def ask(work: Callable[[], Any], *, quiet: bool = True) -> Any:
            return await asyncio.wrap_future(engine.submit(work, quiet=quiet))

        leading = await ask(lambda: units.leading(tables), quiet=False)
        if leading is not None:
            # It makes the stream hurry.
            await asyncio.wrap_future(await ask(lambda: waits.wait(leading, lsn), quiet=False))
        wanted: Any = None
        while wanted is None:
            wanted = await ask(lambda: units.wanted(lsn, tables))
            await asyncio.sleep(0 if wanted else _SOON_S)
        found: Any = None
        while found is None:
            found = await ask(lambda: units.durable(wanted))
            await asyncio.sleep(_SOON_S if found is None else 0)
        describe = bool(params.get("describe", False))
        return await asyncio.to_thread(durable_units.told, wanted, found, describe=describe)

    return handle


def _place(engine: Engine) -> Callable[[dict[str, Any]], str]:
    return lambda params: engine.moving.place(
        int(_need(params, "view_id")),
        str(_need(params, "worker")),
        dict(_need(params, "parts")),
        _job(_need(params, "job")),
    )


def _carries(engine: Engine) -> Callable[[dict[str, Any]], bool]:
    """Return whether changes of other databases are read; if not, make the stream do so soon."""

    def carries(params: dict[str, Any]) -> bool:
        stream = engine.state.stream
        if stream is None or stream.carries:
            return stream is not None
        engine.rewind_soon()
        return False

    return carries


def _unpublishing(engine: Engine) -> rpc.Handler:
    async def handle(params: dict[str, Any], _: Progress) -> None:
        engine.unpublishing([int(entry) for entry in _need(params, "entries")])

    return handle


def _log_failure(future: asyncio.Future[Any]) -> None:
    """Log a failure whose caller may have been answered before."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.warning("command failed", reason=str(error))


def _need(params: dict[str, Any], name: str) -> Any:
    if name not in params:
        raise UserError(f'parameter "{name}" is missing')
    return params[name]


def _job(value: Any) -> str:
    return str(value["job"] if isinstance(value, dict) else value)


async def _main() -> None:
    settings = Settings.from_env()
    imports.keep_pandas_out()
    events.start(settings, "worker")
    os.umask(0o077)
    # gRPC would log when a worker on another machine shows a wrong certificate.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    await Worker(settings).main()


def main() -> int:
    """Run the process; return 0 after a clean end, 1 after an error."""
    return entry.run(_main)


if __name__ == "__main__":
    sys.exit(main())
