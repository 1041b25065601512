"""Threads that take turns over a virtual clock: one seed, one order of events.

Each task is a real thread, but only the task that holds the *baton* runs.  It passes the baton on
where it blocks, and sometimes where it could go on.  A seeded generator chooses the next task.  The
clock stands still while a task runs, but for a microsecond for each look at it.  When no task can
run, it jumps to the next deadline.  Sometimes it jumps although a task could run: that task is slow.

* Invariant 1: one task runs at a time, so the tasks need no other lock.
* Invariant 2: after the end of a process, each of its tasks gets ``Killed`` at its next step.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import random
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final

STEPS_MAX: Final = 300_000
"""Steps of a run that does not end."""
_STARVED: Final = 0.01
"""Probability that time passes although a task could run."""
_TICK_S: Final = 1e-6
_STUCK_S: Final = 120.0
"""Seconds of real time after which a task that does not pass the baton on is reported."""


class Killed(BaseException):
    """Ends a task of a process that is gone."""


class Broken(AssertionError):
    """An invariant does not hold, or the run does not end."""


class Process:
    """Tasks that end together."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.dead = False
        self.error: BaseException | None = None
        """The error of a task that nothing has handled."""
        self.kill_in: int | None = None
        """Number of steps of this process until ``on_kill``."""
        self.on_kill: Callable[[], None] = lambda: None


class Task:
    """One thread of a process."""

    def __init__(self, name: str, process: Process, work: Callable[[], Any]) -> None:
        self.name: Final = name
        self.process = process
        self.work: Final = work
        self.baton: Final = threading.Semaphore(0)
        self.ready = True
        self.deadline: float | None = None
        self.woken = False
        self.done = False
        self.joiners: list[Task] = []
        self.cpu_s = 0.0
        """Processor time in simulated seconds."""
        self.thread: threading.Thread | None = None


class Scheduler:
    """The tasks of a run; see the module text."""

    def __init__(self, seed: int | str) -> None:
        self.random: Final = random.Random(seed)
        self.now: float = 1_000.0
        self.steps = 0
        self.failure: str | None = None
        self.trace: Final = hashlib.sha256()
        self.log: Final[list[str]] = []
        """The last events, for the report of a failure."""
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._main: Task | None = None
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self._moved = 0

    # --- running

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work`` as the first task until it ends; end all other tasks.

        Raises:
            Broken: an invariant did not hold.
        """
        main = self._main = Task("main", Process("main"), work)
        self._tasks.append(main)
        self._current = main
        self._start(main)
        main.baton.release()
        moved = -1
        while not self._ended.wait(_STUCK_S):
            if moved == self._moved:
                sys.stderr.write(self.stacks())
                message = f"task {self._current and self._current.name} is stuck in real time"
                raise Broken(message)
            moved = self._moved
        if self._error is not None:
            raise self._error

    def spawn(self, name: str, work: Callable[[], Any], process: Process | None = None) -> Task:
        """Start a task, in the process of the current one by default."""
        task = Task(name, process or self.current.process, work)
        self._tasks.append(task)
        self._start(task)
        return task

    def _start(self, task: Task) -> None:
        task.thread = threading.Thread(target=self._body, args=(task,), name=task.name, daemon=True)
        task.thread.start()

    def _body(self, task: Task) -> None:
        task.baton.acquire()
        try:
            if not task.process.dead:
                task.work()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  the run reports it
            if task is self._main:
                self._error = error
            else:
                task.process.error = task.process.error or error
                self.note(f"{task.name} ended: {error!r}")
        finally:
            task.done = True
            task.ready = False
            self._tasks.remove(task)
            for joiner in task.joiners:
                self.wake(joiner)
            if task is self._main:
                self._finish()
            elif self._main is None:
                self._pass_on(self._tasks[0] if self._tasks else None)
            else:
                self._pass_on(self._choose())

    def _finish(self) -> None:
        """End the other tasks, one after the other, as the first one has ended."""
        for task in self._tasks:
            task.process.dead = True
            task.ready = True
        self._main = None
        self._pass_on(self._tasks[0] if self._tasks else None)

    def _pass_on(self, task: Task | None) -> None:
        self._current = task
        if task is None:
            self._ended.set()
        else:
            task.baton.release()

    # --- the current task

    @property
    def current(self) -> Task:
        """The task that runs."""
        assert self._current is not None, "within a run"
        return self._current

    @property
    def inside(self) -> bool:
        """Whether the caller's thread is the task that runs."""
        task = self._current
        return task is not None and task.thread is threading.current_thread()

    def clock(self) -> float:
        """Return the virtual time in seconds; a task may have to stop here."""
        self.now += _TICK_S
        self.pause(0.02)
        return self.now

    def pause(self, probability: float) -> None:
        """Let other tasks run, with this probability."""
        if self.inside:
            self.check()
            if self.random.random() < probability:
                self._switch()

    def stand(self, seconds: float) -> None:
        """Let this task stand still for some virtual time."""
        self.block(self.now + max(seconds, 0.0))

    def block(self, deadline: float | None) -> bool:
        """Stop until ``wake`` or the deadline; return whether it was ``wake``."""
        self.check()
        task = self.current
        task.ready, task.woken, task.deadline = False, False, deadline
        try:
            self._switch()
        finally:
            task.ready, task.deadline = True, None
        return task.woken

    def wake(self, task: Task) -> None:
        """Let a blocked task go on."""
        if not task.ready and not task.done:
            task.ready = task.woken = True

    def check(self) -> None:
        """Raise Killed in a process that has ended."""
        if self.inside and self.current.process.dead:
            raise Killed

    def call_at(self, at: float, work: Callable[[], None]) -> None:
        """Call ``work``, which must not block, at a virtual time."""
        heapq.heappush(self._calls, (at, next(self._numbers), work))

    # --- ends

    def kill(self, process: Process) -> None:
        """End a process; its tasks end at their next step."""
        process.dead = True
        for task in self._tasks:
            if task.process is process:
                task.ready = True

    def reap(self, process: Process) -> None:
        """Wait until no task of a dead process is left."""
        while any(task.process is process for task in self._tasks):
            self.stand(0.001)

    def alive(self, process: Process) -> bool:
        """Return whether a process has tasks."""
        return any(task.process is process for task in self._tasks)

    def fail(self, what: str) -> None:
        """Note the first invariant that does not hold, and end the process of this task."""
        if self.failure is None:
            self.failure = what
            self.note(f"BROKEN: {what}")
        if self.current is not self._main:
            self.kill(self.current.process)
            raise Killed
        raise Broken(self.failure)

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        line = f"{self.now:12.6f} {event}"
        self.trace.update(line.encode())
        self.log.append(line)

    @contextlib.contextmanager
    def within(self, process: Process) -> Iterator[None]:
        """Let the tasks that the block starts belong to ``process``."""
        task, before = self.current, self.current.process
        task.process = process
        try:
            yield
        finally:
            task.process = before

    # --- choosing

    def _switch(self) -> None:
        task = self.current
        self.steps += 1
        self._moved += 1
        self._count_down(task)
        following = self._choose()
        if following is not task:
            self._current = following
            following.baton.release()
            task.baton.acquire()
        if task is self._main and self.failure is not None:
            raise Broken(self.failure)
        if task.process.dead:
            raise Killed

    def _count_down(self, task: Task) -> None:
        process = task.process
        if process.kill_in is not None and not process.dead:
            process.kill_in -= 1
            if process.kill_in <= 0:
                process.kill_in = None
                process.on_kill()

    def _choose(self) -> Task:
        main = self._main
        if self.steps > STEPS_MAX and main is not None and self.failure is None:
            self.failure = "the run does not end:\n" + self.stacks()
        if self.failure is not None and main is not None and not main.done:
            main.ready = True
            return main
        while True:
            starved = self.random.random() < _STARVED
            self._pass_time(jump=starved)
            ready = [task for task in self._tasks if task.ready]
            if ready:
                chosen = ready[0] if len(ready) == 1 else self.random.choice(ready)
                self.trace.update(chosen.name.encode())
                return chosen
            if not self._pass_time(jump=True):
                assert main is not None, "all other tasks can run"
                self.failure = "deadlock: no task can run\n" + self.stacks()
                main.ready = True
                return main

    def _pass_time(self, *, jump: bool) -> bool:
        """Wake the tasks whose deadline has come; ``jump``: first let time pass until the next."""
        deadlines = [t.deadline for t in self._tasks if not t.ready and t.deadline is not None]
        if self._calls:
            deadlines.append(self._calls[0][0])
        if not deadlines:
            return False
        if jump:
            self.now = max(self.now, min(deadlines))
        if min(deadlines) <= self.now:
            for task in self._tasks:
                if not task.ready and task.deadline is not None and task.deadline <= self.now:
                    task.ready = True
            while self._calls and self._calls[0][0] <= self.now:
                heapq.heappop(self._calls)[2]()
        return True

    def stacks(self) -> str:
        """Return where each task stands."""
        frames, out = sys._current_frames(), []
        for task in self._tasks:
            ident = task.thread.ident if task.thread is not None else None
            frame = frames.get(ident) if ident is not None else None
            lines = traceback.format_stack(frame)[-6:] if frame is not None else ["nowhere\n"]
            out.append(f"--- {task.process.name}/{task.name} deadline {task.deadline}\n")
            out += [line for line in lines if "simulation/scheduler" not in line]
        return "".join(out)
