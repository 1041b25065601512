"""Other workers for an engine under test: in this process, or as separate processes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

import psycopg
from psycopg.types.json import Jsonb

from headrace.collections import plan
from headrace.config import Settings
from headrace.network.ends import Near
from headrace.runtime.worker_service import WorkerService
from tests.engines import Child
from tests.runtime.harness import Running
from tests.waiting import wait_until


def settings_of(settings: Settings, name: str) -> Settings:
    """Return the settings of another worker of the engine with ``settings``."""
    return settings.of_worker(name)


@contextlib.contextmanager
def hosting(settings: Settings, name: str) -> Iterator[WorkerService]:
    """Run a worker on threads of this process."""
    own = settings_of(settings, name)
    for folder in (own.run_dir, settings.run_dir):
        folder.mkdir(parents=True, exist_ok=True)
    host = WorkerService(own)
    host.listen(Near(settings.flight_socket(name)))
    try:
        yield host
    finally:
        host.close()


class HostProcess:
    """A worker as a separate process."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.settings = settings
        self._name = name
        self._child: Child | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that was started last."""
        assert self._child is not None, "it was started"
        return self._child.process

    @property
    def dead(self) -> bool:
        """Whether it has ended."""
        return self._child is None or self.process.poll() is not None

    def start(self, **environment: str) -> None:
        own = settings_of(self.settings, self._name)
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        self._child = Child("headrace.runtime.worker_process", own, **environment)

    def wait(self) -> None:
        """Wait until the worker listens."""
        path = self.settings.flight_socket(self._name)
        wait_until(path.exists, "it listens")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.process.wait()
            assert self._child is not None, "it was started"
            self._child.hang_up()


@contextlib.contextmanager
def process(settings: Settings, name: str) -> Iterator[HostProcess]:
    """Run a worker as a separate process."""
    made = HostProcess(settings, name)
    made.start()
    try:
        yield made
    finally:
        made.kill()


def place(source: psycopg.Connection, view: str, worker: str) -> None:
    """Place a view that is not adopted yet."""
    source.execute(
        "UPDATE headrace.views SET options = coalesce(options, '{}')"
        " || jsonb_build_object('placement', %s::text) WHERE view_name = %s",
        (worker, view),
    )


def cut(source: psycopg.Connection, view: str, workers: dict[str, str]) -> dict[str, str]:
    """Place parts of a view that is not adopted yet, by the kind of their last node."""
    [(data,)] = source.execute("SELECT plan FROM headrace.views WHERE view_name = %s", (view,))
    found = {
        node.id: workers[plan.kind(type(node)).lower()]
        for node in plan.from_json(data).nodes
        if plan.kind(type(node)).lower() in workers
    }
    source.execute(
        "UPDATE headrace.views SET placed_parts = %s WHERE view_name = %s", (Jsonb(found), view)
    )
    return found


def reached(running: Running, view_id: int) -> None:
    """Wait until a view advances again."""

    def goes() -> bool:
        view = running.book.views.get(view_id)
        return view is not None and view.live and running.book.missing(view) is None

    wait_until(goes, f"view {view_id} goes on")
