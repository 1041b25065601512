"""Processes that answer requests, one at a time, and may hang or be killed at any time.

Requests and answers are frames on the standard input and output of the process: eight bytes of
length, then the content.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace import clock
from headrace.errors import TransientError

IDLE_S: Final = 30.0
"""Seconds without a request after which a process is ended."""
_POLL_MS: Final = 100
"""Milliseconds between two checks."""
_LENGTH: Final = 8

Check = Callable[[], object]
"""Called repeatedly during a wait; an exception ends the wait."""


def framed(frame: bytes) -> bytes:
    """Return a frame with its length before it."""
    return len(frame).to_bytes(_LENGTH) + frame


def read_frame(descriptor: int, wait: Callable[[], object] = lambda: None) -> bytes | None:
    """Return the next frame; None: the other side is gone.

    ``wait`` is called before each read, which blocks until there is something to read.
    """
    head = _read(descriptor, _LENGTH, wait)
    return None if head is None else _read(descriptor, int.from_bytes(head), wait)


def write_frame(descriptor: int, frame: bytes) -> None:
    """Write a frame.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    rest = memoryview(framed(frame))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read(descriptor: int, length: int, wait: Callable[[], object]) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        wait()
        piece = os.read(descriptor, min(length - len(parts), 1 << 20))
        if not piece:
            return None
        parts += piece
    return bytes(parts)


def _await(descriptor: int, event: int, check: Check) -> None:
    """Wait until the pipe is ready for ``event``, or the other side is gone."""
    poll = select.poll()  # unlike select, it takes descriptors beyond 1023
    poll.register(descriptor, event)
    while not poll.poll(_POLL_MS):
        check()


class Subprocess:
    """One process.  A method that waits calls ``check`` repeatedly, also if the process hangs."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """Start this interpreter with ``arguments``.

        Raises:
            TransientError: 53000, it cannot be started now.
        """
        try:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env,
            )
        except OSError as error:
            raise TransientError(
                f"the process that reads queries cannot be started: {error}", sqlstate="53000"
            ) from error
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        self._requests: Final = self._process.stdin.fileno()
        self._answers: Final = self._process.stdout.fileno()
        os.set_blocking(self._requests, False)
        self.has_answered = False
        """Whether it has answered a request."""

    @property
    def pid(self) -> int:
        """Process ID."""
        return self._process.pid

    @property
    def has_exited(self) -> bool:
        """Whether the process has exited."""
        return self._process.poll() is not None

    def send(self, frame: bytes, check: Check) -> None:
        """Send a request.  If the process has exited, ``receive`` will report it."""
        rest = memoryview(framed(frame))
        with contextlib.suppress(BrokenPipeError):
            while rest:
                _await(self._requests, select.POLLOUT, check)
                rest = rest[os.write(self._requests, rest) :]

    def send_at_once(self, frame: bytes) -> None:
        """Send a short frame unless the process is gone, or reads nothing."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._requests, framed(frame))

    def receive(self, check: Check) -> bytes | None:
        """Return the answer to a request; None: the process has exited."""
        frame = read_frame(self._answers, lambda: _await(self._answers, select.POLLIN, check))
        self.has_answered |= frame is not None
        return frame

    def end(self) -> int:
        """Kill the process unless it has exited; return its status, negative after a signal."""
        self._process.kill()
        with self._process:
            return self._process.wait()


class SubprocessPool:
    """Idle processes; thread-safe."""

    def __init__(self, start: Callable[[], Subprocess], *, lasting: bool = False) -> None:
        """``start`` returns a new process; ``lasting``: idle ones are not ended."""
        self._start = start
        self._lasting = lasting
        self._lock = threading.Lock()
        self._idle: list[tuple[Subprocess, float]] = []
        """Idle processes, with the time since when, on the monotonic clock."""
        self._awaited = False
        """Whether a timer is set to end old ones."""
        self._closed = False

    def take(self) -> Subprocess:
        """Return an idle process, or else a new one.

        Raises:
            TransientError: 53000, it cannot be started now.
        """
        while True:
            with self._lock:
                if not self._idle:
                    break
                process, _ = self._idle.pop()
            if not process.has_exited:
                return process
            process.end()
        return self._start()

    def give_back(self, process: Subprocess) -> None:
        """Take back a process that has answered its last request."""
        with self._lock:
            if not self._closed:
                self._idle.append((process, clock.monotonic()))
                self._end_later()
                return
        process.end()

    def close(self) -> None:
        """End each idle process at once, and each busy one when it is given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for process, _ in idle:
            process.end()

    def _end_later(self) -> None:
        if self._idle and not self._awaited and not self._lasting:
            self._awaited = True
            timer = threading.Timer(IDLE_S, self._end_old)
            timer.daemon = True
            timer.start()

    def _end_old(self) -> None:
        until = clock.monotonic() - IDLE_S
        with self._lock:
            old = [process for process, since in self._idle if since <= until]
            self._idle = [(process, since) for process, since in self._idle if since > until]
            self._awaited = False
            self._end_later()
        for process in old:
            process.end()
