"""Locks, conditions, events, threads, queues and futures over the scheduler.

``installed`` puts them in the place of ``threading``, ``queue`` and ``concurrent.futures`` in every
module of the package, wherever a module has them under any name.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import queue
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pytest

from headrace import clock
from tests.simulation.scheduler import Killed, Scheduler, Task

_PAUSE: Final = 0.1
"""Probability that another task runs before a lock is taken."""


class Lock:
    """A lock; with ``again``, its owner may take it again."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler = scheduler
        self._again = again
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        if not scheduler.inside:
            return True  # a finalizer after the run
        task = scheduler.current
        if self._again and self._owner is task:
            self._depth += 1
            return True
        scheduler.check()
        scheduler.pause(_PAUSE)
        deadline = scheduler.now + timeout if timeout >= 0 else None
        while self._owner is not None:
            if not blocking or (deadline is not None and scheduler.now >= deadline):
                return False
            self._waiting.append(task)
            try:
                scheduler.block(deadline)
            finally:
                if task in self._waiting:
                    self._waiting.remove(task)
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        scheduler = self._scheduler
        if not scheduler.inside:
            return
        if self._owner is not scheduler.current:
            if scheduler.current.process.dead:
                return  # it ended while it waited
            message = "a lock is released by another task"
            raise RuntimeError(message)
        self._depth -= 1
        if not self._depth:
            self._owner = None
            for task in self._waiting:
                scheduler.wake(task)

    def give_up(self) -> int:
        """Release it wholly; return how often it was taken."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def take_again(self, depth: int) -> None:
        """Take it as often as before ``give_up``."""
        self.acquire()
        self._depth = depth

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """A condition with its lock."""

    def __init__(self, scheduler: Scheduler, lock: Lock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock if lock is not None else Lock(scheduler, again=True)
        self._waiting: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        scheduler.check()
        task = scheduler.current
        self._waiting.append(task)
        depth = self._lock.give_up()
        try:
            return scheduler.block(None if timeout is None else scheduler.now + timeout)
        finally:
            if task in self._waiting:
                self._waiting.remove(task)
            if not task.process.dead:
                self._lock.take_again(depth)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._scheduler.now + timeout
        while not (found := predicate()):
            left = None if until is None else until - self._scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        for task in self._waiting[:n]:
            self._waiting.remove(task)
            self._scheduler.wake(task)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """A flag that tasks wait for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._waiting:
            self._scheduler.wake(task)
        self._scheduler.pause(_PAUSE)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        scheduler.check()
        until = None if timeout is None else scheduler.now + timeout
        task = scheduler.current
        while not self._set and (until is None or scheduler.now < until):
            self._waiting.append(task)
            try:
                scheduler.block(until)
            finally:
                self._waiting.remove(task)
        return self._set


class Barrier:
    """A place where a number of tasks wait for each other, once."""

    def __init__(self, scheduler: Scheduler, parties: int) -> None:
        self._left = parties
        self._met = Event(scheduler)

    def wait(self) -> None:
        self._left -= 1
        if not self._left:
            self._met.set()
        self._met.wait()


class Thread:
    """A thread as a task of the process that creates it."""

    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., Any],
        name: str = "thread",
        args: Sequence[Any] = (),
        *,
        daemon: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._work = lambda: target(*args)
        self.name = name
        self.daemon = daemon
        self._task: Task | None = None

    def start(self) -> None:
        self._scheduler.check()
        self._task = self._scheduler.spawn(self.name, self._work)
        self._scheduler.pause(_PAUSE)

    def join(self, timeout: float | None = None) -> None:
        scheduler, task = self._scheduler, self._task
        scheduler.check()
        until = None if timeout is None else scheduler.now + timeout
        while task is not None and not task.done and (until is None or scheduler.now < until):
            task.joiners.append(scheduler.current)
            scheduler.block(until)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done


class Fifo:
    """An unbounded queue."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._items: deque[Any] = deque()
        self._changed = Condition(scheduler)

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._items)
            return self._items.popleft()


class Future(concurrent.futures.Future[Any]):
    """A future whose callers wait on the scheduler."""

    scheduler: Scheduler

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition(self.scheduler)  # type: ignore[assignment]


class Executor:
    """A pool of tasks."""

    def __init__(self, scheduler: Scheduler, workers: int, name: str) -> None:
        self._scheduler = scheduler
        self._workers = workers
        self._name = name
        self._work: deque[tuple[Future, Callable[[], Any]] | None] = deque()
        self._changed = Condition(scheduler)
        self._threads: list[Thread] = []
        self._closed = False

    def submit(self, work: Callable[..., Any], *args: Any) -> Future:
        future = Future()
        with self._changed:
            self._work.append((future, lambda: work(*args)))
            self._changed.notify()
        if len(self._threads) < self._workers:
            thread = Thread(self._scheduler, self._run, f"{self._name}-{len(self._threads)}")
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._work or self._closed)
                if not self._work:
                    return
                item = self._work.popleft()
            assert item is not None, "only work is put"
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except Killed:
                raise
            except BaseException as error:  # noqa: BLE001  the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._changed:
            self._closed = True
            if cancel_futures:
                self._work.clear()
            self._changed.notify_all()
        for thread in self._threads if wait else ():
            thread.join()


class _Time:
    """The module ``time``, with the simulated processor time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def thread_time(self) -> float:
        return self._scheduler.current.cpu_s if self._scheduler.inside else 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def _threading(scheduler: Scheduler) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        Lock=lambda: Lock(scheduler),
        RLock=lambda: Lock(scheduler, again=True),
        Condition=lambda lock=None: Condition(scheduler, lock),
        Event=lambda: Event(scheduler),
        Barrier=lambda parties: Barrier(scheduler, parties),
        Thread=lambda **kwargs: Thread(scheduler, **kwargs),
        local=threading.local,
        get_ident=threading.get_ident,
        current_thread=threading.current_thread,
        main_thread=threading.main_thread,
    )


def _wait(scheduler: Scheduler) -> Callable[..., None]:
    def wait(futures: Iterable[Future], timeout: float | None = None) -> None:
        until = None if timeout is None else scheduler.now + timeout
        for future in futures:
            left = None if until is None else max(until - scheduler.now, 0.0)
            with contextlib.suppress(TimeoutError):
                future.exception(left)

    return wait


ELSEWHERE = tuple(
    f"headrace.{part}"
    for part in (
        *("console", "embedded", "planner", "population", "postgres.reuse"),
        *("reading", "server", "sources", "views"),
    )
)
"""Modules that the engine does not use: threads of earlier tests may still run them."""


@contextlib.contextmanager
def installed(scheduler: Scheduler) -> Iterator[pytest.MonkeyPatch]:
    """Let the modules of the engine use the scheduler's threads and its clock meanwhile."""
    future = type("Future", (Future,), {"scheduler": scheduler})
    Future.scheduler = scheduler
    replaced: list[tuple[Any, Any]] = [
        (threading, _threading(scheduler)),
        (queue, types.SimpleNamespace(SimpleQueue=lambda: Fifo(scheduler))),
        (concurrent.futures.Future, future),
        (concurrent.futures.ThreadPoolExecutor, lambda n, name="": Executor(scheduler, n, name)),
        (concurrent.futures.wait, _wait(scheduler)),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in sorted(sys.modules.items()):
            if not name.startswith("headrace.") or name.startswith(ELSEWHERE) or module is None:
                continue
            for attribute, value in list(vars(module).items()):
                for real, simulated in replaced:
                    if value is real:
                        patch.setattr(module, attribute, simulated)
        patch.setattr(clock, "monotonic", scheduler.clock)
        patch.setattr(clock, "sleep", scheduler.stand)
        patch.setattr("headrace.process.bounds.time", _Time(scheduler))
        yield patch
