"""Populations that crash builders."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys

import pytest

from headrace.errors import Deadly
from headrace.views.crash_loop_guard import DEATHS_MAX, CrashLoopGuard

DIES = """
import os, signal, sys, threading
from pathlib import Path
from headrace.views.crash_loop_guard import CrashLoopGuard
guard, names = CrashLoopGuard(Path(sys.argv[1])), sys.argv[2:]
begun = threading.Barrier(len(names))
def fill(name):
    with guard.filling(name, unasked=False, wait=None):
        begun.wait()
        os.kill(os.getpid(), signal.SIGKILL)
for name in names:
    threading.Thread(target=fill, args=(name,)).start()
"""


def die(folder, *names: str) -> None:
    """Let a builder die while it fills views, side by side."""
    subprocess.run([sys.executable, "-c", DIES, str(folder), *names], check=False)


def never(seconds: float) -> None:
    raise AssertionError("it is nobody's turn")


def begin(made: CrashLoopGuard, name: str, *, unasked: bool = True) -> None:
    with made.filling(name, unasked=unasked, wait=never):
        pass


def test_it_is_refused_to_whom_nobody_waits_for(tmp_path):
    for _ in range(DEATHS_MAX):
        begin(CrashLoopGuard(tmp_path), "w")
        die(tmp_path, "v")
    made = CrashLoopGuard(tmp_path)
    for _ in range(2):
        with pytest.raises(Deadly, match="died 2 times while filling"):
            begin(made, "v")
    begin(made, "w")
    begin(made, "v", unasked=False)
    begin(made, "v")  # it has succeeded since
    begin(CrashLoopGuard(tmp_path), "v")


def test_what_was_filled_beside_the_cause_is_not_to_blame(tmp_path):
    for _ in range(DEATHS_MAX):
        die(tmp_path, "v", "w")
    die(tmp_path, "v")
    made = CrashLoopGuard(tmp_path)
    with pytest.raises(Deadly, match="died 3 times while filling"):
        begin(made, "v")
    begin(made, "w")


def test_two_that_may_be_to_blame_take_turns(tmp_path):
    die(tmp_path, "v", "w")
    made = CrashLoopGuard(tmp_path)
    with made.filling("v", unasked=True, wait=never):
        begin(made, "x")
        begin(made, "w", unasked=False)
    die(tmp_path, "v", "w")
    made = CrashLoopGuard(tmp_path)
    with made.filling("v", unasked=True, wait=never):
        with pytest.raises(AssertionError, match="turn"):
            begin(made, "w")
        begin(made, "x")
    begin(made, "w")


def test_a_call_that_is_repeated_makes_no_other_view_suspect(tmp_path):
    for _ in range(3):
        die(tmp_path, "called", "v")
    begin(CrashLoopGuard(tmp_path), "v")


@pytest.mark.parametrize("seed", range(8))
def test_the_cause_is_found_among_many(tmp_path, seed):
    """Populations start in any order beside others, until the builder survives all of them."""
    chance = random.Random(seed)
    kept: list[contextlib.ExitStack] = []
    names = [f"v{n}" for n in range(chance.randint(2, 5))]
    cause, left = chance.choice(names), set(names)
    for _ in range(2 * DEATHS_MAX + len(names)):
        made, running = CrashLoopGuard(tmp_path), set[str]()
        with contextlib.ExitStack() as turn:
            for name in chance.sample(sorted(left), len(left)):
                try:
                    turn.enter_context(made.filling(name, unasked=True, wait=never))
                except Deadly:
                    assert name == cause
                    left.discard(name)
                except AssertionError:
                    continue  # it waits for its turn
                else:
                    running.add(name)
                    if name == cause:
                        break
            kept.append(turn.pop_all())
        made.close()  # all that follows is done by other processes
        if cause in running:
            die(tmp_path, *running)
        else:
            left -= running
            for name in running:
                begin(CrashLoopGuard(tmp_path), name)
    assert not left


def test_an_error_is_no_death(tmp_path):
    for _ in range(4):
        with (
            pytest.raises(MemoryError),
            CrashLoopGuard(tmp_path).filling("v", unasked=True, wait=never),
        ):
            raise MemoryError
    begin(CrashLoopGuard(tmp_path), "v")


def test_one_that_is_asked_to_end_does_not_die_of_it(tmp_path):
    die(tmp_path, "v")
    CrashLoopGuard(tmp_path).close()
    begin(CrashLoopGuard(tmp_path), "v")


@pytest.mark.parametrize("damage", ["[1]", '{"x": 1}', "{", ""])
def test_a_damaged_record_is_forgotten(tmp_path, damage):
    (tmp_path / "builder.deaths").write_text(damage)
    begin(CrashLoopGuard(tmp_path), "v")


def test_a_disk_without_room_stops_nobody(tmp_path):
    die(tmp_path, "v")
    (tmp_path / "builder.draft").mkdir()  # the file cannot be written
    made = CrashLoopGuard(tmp_path)
    begin(made, "v")
    begin(made, "w")
