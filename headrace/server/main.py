"""The commander process: installs the schema, starts the children, listens, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog
import uvloop

from headrace import events
from headrace.config import Settings
from headrace.errors import HeadraceError, PrerequisiteError, TransientError
from headrace.postgres import connect, decoding_standby, encoding, failures
from headrace.postgres import slot as setup
from headrace.process import directory_lock, durable, password_files, rpc, secret_files
from headrace.process.fork_server import ForkServer
from headrace.runtime import ownership
from headrace.server import janitor
from headrace.server.backlogs import Backlogs
from headrace.server.clients import ClientCalls
from headrace.server.commands import CommandPeer, Commands
from headrace.server.direct import Direct
from headrace.server.event_copier import EventCopier
from headrace.server.executors import Executors
from headrace.server.health import Health
from headrace.server.listener import Listener
from headrace.server.observer import Observer
from headrace.server.publication_guard import PublicationGuard
from headrace.server.recorder import Recorder
from headrace.server.reload import Reload
from headrace.server.resumer import Resumer, mends
from headrace.server.supervisor import Supervisor
from headrace.server.traces import Traces
from headrace.server.upstream import SourceAddress
from headrace.server.waits import SessionWaits
from headrace.server.webhooks import WebhookSender
from headrace.sql import install, meta, publication_trigger
from headrace.sql.views import Unfinished

if TYPE_CHECKING:
    from headrace.console.port import HttpPort

_ELSEWHERE: Final = "If the connection string leads to another server now, mend that first."
_log = structlog.get_logger(__name__)
_STOP_S_MAX: Final = 25.0
"""Seconds until a stop is forced: a little more than both children may take."""


def version() -> str:
    """Return the version of the installed package."""
    return metadata.version("headrace")


def run(
    settings: Settings, fork_server: ForkServer, again: Callable[[], Settings] | None = None
) -> int:
    """Run until a signal; return the exit status.

    ``again`` reads the settings once more, for RELOAD; None: they stay as they are.
    """
    loaded = settings
    events.start(settings, "commander")
    os.umask(0o077)
    rpc.check(settings.worker_socket, settings.builder_socket)
    with lock_data_dir(settings.data_dir):
        settings, database = prepare(settings)
        commander = Commander(settings, database, fork_server)
        if again is not None:
            commander.reloads(loaded, again)
        return uvloop.run(commander.run())


@contextlib.contextmanager
def lock_data_dir(path: Path) -> Any:
    """Hold the exclusive lock on the data directory while inside.

    Raises:
        PrerequisiteError: another engine uses the directory.
    """
    try:
        durable.make_folder(path, 0o700)
    except OSError as error:
        raise PrerequisiteError(
            f'data directory "{path}" cannot be created: {error.strerror}',
            hint="Choose another one with --data-dir or HEADRACE_DATA_DIR.",
        ) from error
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    with directory_lock.held(path):
        yield


def prepare(settings: Settings) -> tuple[Settings, str]:
    """Check the source and install the schema; return the completed settings and the database.

    Raises:
        PrerequisiteError: the first thing that is missing, or another engine runs there.
        TransientError: the source cannot be reached.
    """
    for folder in (settings.run_dir, settings.staging_dir, settings.tmp_dir):
        durable.make_folder(folder, 0o700)
    for given in filter(None, (settings.source, settings.decode_from)):
        password_files.check(given)
    secret_files.restrict(install.eval_password(settings.data_dir))
    try:
        with connect.session(settings.source, name="headrace") as conn:
            problems: Sequence[HeadraceError] = (
                encoding.problems(conn)
                or install.hindrances(conn)
                or setup.preflight(conn, settings)
                or _of_standby(conn, settings)
            )
            if problems:
                if len(problems) > 1:
                    _log.warning("more is missing", count=len(problems) - 1, see="headrace check")
                raise problems[0]
            ownership.check_alone(conn)
            install.install(conn)
            meta.put(conn, "slot_name", settings.slot_name)
            meta.put(conn, "publication_name", settings.publication_name)
            meta.put(conn, "release", version())
            meta.put(conn, "wal_budget_bytes", str(settings.wal_budget_bytes))
            meta.put(conn, "wal_retention", settings.wal_retention)
            publication_trigger.ensure(conn, wanted=settings.event_trigger)
            if not settings.eval_dsn:
                dsn = install.ensure_eval_role(conn, settings.data_dir, settings.source)
                settings = settings.replace(eval_dsn=dsn or "")
            return settings, conn.info.dbname
    except psycopg.OperationalError as error:
        raise TransientError(
            f"could not connect to the source database: {str(error).strip()}"
        ) from error


def _of_standby(conn: psycopg.Connection[Any], settings: Settings) -> Sequence[HeadraceError]:
    """Return what keeps the standby from decoding.  One that is away is waited for later."""
    if not settings.decode_from:
        return []
    try:
        return decoding_standby.check(conn, settings)
    except TransientError as error:
        _log.warning("standby not ready", reason=error.message, detail=error.detail)
        return []


class Commander:
    """All parts of the running server."""

    def __init__(self, settings: Settings, database: str, fork_server: ForkServer) -> None:
        self._settings = settings
        self._supervisor = Supervisor(settings, fork_server, self._before_builder)
        worker = self._supervisor.worker.peer
        self._waits = SessionWaits(settings.source, worker, mends)
        self._commands = Commands(
            settings,
            self._builder,
            self._waits,
            worker,
            settings.commands_per_role_max,
            self._supervisor.see,
        )
        self._webhooks = WebhookSender(settings, version())
        self._recorder = Recorder(settings, self._waits, self._webhooks.wake)
        self._direct = Direct(settings, self._commands, self._recorder.wake)
        self._listener = Listener(
            settings, SourceAddress.of(settings.source), database, self._commands.run
        )
        self._commands.handle(ClientCalls(self._listener.port).handlers())
        self._resumer = Resumer(settings, self._commands, self._on_orphaned)
        self._backlogs = Backlogs(settings, self._commands)
        self._guard = PublicationGuard(settings, worker)
        self._purge = janitor.Purge(settings)
        self._observer = Observer(settings, worker, self._commands.fillings)
        self._event_copier = EventCopier(settings)
        self._executors = Executors(settings, self._supervisor)
        self._traces = Traces(settings, version(), worker)
        self._status = 0
        self._health = Health(settings, self._supervisor, version(), self._sessions, worker)
        self._again: set[asyncio.Task[None]] = set()
        self._reload: Reload | None = None
        self._stop = asyncio.Event()

    def reloads(self, loaded: Settings, again: Callable[[], Settings]) -> None:
        """Allow ``reload()``: ``again`` rereads the settings, which were ``loaded``."""
        port = self._listener.port
        tell = self._supervisor.set_log_level
        reload = Reload(loaded, again, port, self._commands.limit, tell)
        self._commands.handle(ClientCalls(port, reload).handlers())
        self._reload = reload

    async def run(self) -> int:
        """Start everything, print the ready line, and stop everything on a signal."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._guard.start()
        self._supervisor.start()
        http: HttpPort | None = None
        try:
            stopped = asyncio.create_task(self._stop.wait())
            ready = asyncio.create_task(self._supervisor.ready())
            await asyncio.wait((stopped, ready), return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                await ready
                self._recorder.start()
                self._webhooks.start()
                self._direct.start()
                self._resumer.start()
                self._backlogs.start()
                self._purge.start()
                self._observer.start()
                self._event_copier.start()
                self._executors.start()
                self._traces.start()
                host, port = await self._listener.start()
                if self._settings.http:
                    http = await self._serve_http()
                await self._direct.connected.wait()
                shown = f"[{host}]" if ":" in host else host
                sys.stdout.write(f"headrace ready on {shown}:{port}\n")
                sys.stdout.flush()
                await stopped
            ready.cancel()
        finally:
            _log.info("stopping")
            if http:
                await http.close()
            await self._listener.close()
            await self._purge.stop()
            await self._observer.stop()
            await self._event_copier.stop()
            await self._executors.stop()
            await self._traces.stop()
            await self._backlogs.stop()
            await self._resumer.stop()
            await self._direct.stop()
            await self._recorder.stop()
            await self._webhooks.stop()
            await self._waits.close()
            await self._supervisor.stop()
            await self._guard.stop()
        return self._status

    async def _serve_http(self) -> HttpPort:
        from headrace.server.http import http_port  # a web server, rarely needed

        http = http_port(self._settings, self._health, self._commands, version())
        host, port = await http.start()
        _log.info("http", address=f"{host}:{port}", token_file=http.token_file, login=http.login)
        return http

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._end_at_once()
        self._stop.set()
        # Do not wait longer than this, for example for a source that hangs during a call.
        asyncio.get_running_loop().call_later(_STOP_S_MAX, self._end_at_once)

    def _on_hangup(self) -> None:
        if self._reload is not None:
            task = asyncio.create_task(self._reload.after_signal())
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    def _on_orphaned(self, stale: PrerequisiteError | None) -> None:
        """Stop with status 1, because the list of views is gone, or is another one: ``stale``."""
        if stale is not None:
            _log.error("another database answers", reason=stale.message, hint=_ELSEWHERE)
        else:
            _log.error(
                "schema headrace was dropped",
                hint="If it was dropped, result tables are ordinary tables now: start headrace"
                f" again for new views. {_ELSEWHERE}",
            )
        self._status = 1
        if not self._stop.is_set():
            self._on_signal()

    def _end_at_once(self) -> None:
        """Exit without clean-up: as safe as kill -9, because the children follow."""
        _log.warning("stopped at once")
        os._exit(1)

    def _sessions(self) -> int:
        return len(self._listener.port.sessions)

    async def _builder(self) -> CommandPeer:
        return await self._supervisor.builder.peer()

    async def _before_builder(self, peer: rpc.Peer) -> None:
        """Clean up after a dead builder; start again the views created without waiting."""
        try:
            rows = await asyncio.to_thread(janitor.clean, self._settings)
        except psycopg.Error as error:
            raise failures.classify(error) from error
        for row in rows:
            task = asyncio.create_task(self._create_again(row))
            self._again.add(task)
            task.add_done_callback(self._again.discard)

    async def _create_again(self, row: Unfinished) -> None:
        try:
            await self._commands.create_again(row)
        except HeadraceError as error:
            _log.warning("view was not created", view=row.name, reason=str(error))
