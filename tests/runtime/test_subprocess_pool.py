"""Processes that answer requests: pipes that hang, processes that end, idle ones."""

from __future__ import annotations

import gc
import os
import select
import signal
from pathlib import Path

import pytest

from headrace.process import subprocess_pool
from headrace.process.subprocess_pool import Subprocess, SubprocessPool
from tests.waiting import wait_until

ECHO = """
from headrace.process.subprocess_pool import read_frame, write_frame
while (frame := read_frame(0)) is not None:
    write_frame(1, frame)
"""
HALF = """
import os, time
from headrace.process.subprocess_pool import framed, read_frame
os.write(1, framed(read_frame(0))[:-1])
time.sleep(3600)
"""
LARGE = bytes(1 << 20)
"""More than a pipe holds."""


class Ended(Exception):
    """Raised by a check, as a cancel is."""


def started(program: str = ECHO) -> Subprocess:
    return Subprocess(("-c", program), os.environ)


def never() -> None:
    """Wait on."""


def soon() -> None:
    """Wait no more."""
    raise Ended


def ask(process: Subprocess, frame: bytes) -> bytes | None:
    process.send(frame, never)
    return process.receive(never)


@pytest.mark.parametrize("frame", [b"", b"x", LARGE], ids=["empty", "short", "large"])
def test_a_frame_comes_back(frame):
    process = started()
    assert ask(process, frame) == frame
    assert ask(process, frame) == frame
    assert process.end() == -signal.SIGKILL


def test_a_check_ends_each_wait():
    process = started()
    ask(process, b"x")
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Ended):
        process.receive(soon)
    with pytest.raises(Ended):
        process.send(LARGE, soon)
    assert process.end() == -signal.SIGKILL


def test_a_check_ends_the_wait_for_the_rest_of_an_answer():
    process = started(HALF)
    process.send(b"xx", never)
    answers = select.poll()  # a descriptor may be too high for ``select``
    answers.register(process._answers, select.POLLIN)
    assert answers.poll(), "the part that it has sent is there"
    with pytest.raises(Ended):
        process.receive(soon)
    process.end()


def test_a_process_that_has_exited_has_no_answer():
    process = started("import sys; sys.exit(3)")
    assert ask(process, LARGE) is None
    assert process.end() == 3


def test_no_process_and_no_descriptor_is_left(monkeypatch):
    monkeypatch.setattr(subprocess_pool, "IDLE_S", 0.05)
    gc.collect()  # earlier tests may have left some
    before = len(list(Path("/proc/self/fd").iterdir()))
    pool = SubprocessPool(started)
    used = [pool.take() for _ in range(3)]
    for process in used:
        assert ask(process, b"x") == b"x"
        pool.give_back(process)
    wait_until(lambda: not pool._idle, "idle ones are ended")
    wait_until(lambda: not any(Path(f"/proc/{p.pid}").exists() for p in used), "none is a zombie")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_an_idle_process_is_used_again_unless_it_has_exited():
    pool = SubprocessPool(started)
    first = pool.take()
    pool.give_back(first)
    assert pool.take() is first
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: first.has_exited, "it ends")
    pool.give_back(first)
    second = pool.take()
    assert ask(second, b"x") == b"x"
    pool.close()
    pool.give_back(second)
    assert second.has_exited
