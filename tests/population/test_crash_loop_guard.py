"""Populations that crash builders."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.errors import Deadly
from headrace.views.crash_loop_guard import DEATHS_MAX, CrashLoopGuard

DIES = """
import os, signal, sys
from pathlib import Path
from headrace.views.crash_loop_guard import CrashLoopGuard
with CrashLoopGuard(Path(sys.argv[1])).filling(sys.argv[2], unasked=False):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die(folder, name: str) -> None:
    subprocess.run([sys.executable, "-c", DIES, str(folder), name], check=False)


def begin(made: CrashLoopGuard, name: str, *, unasked: bool = True) -> None:
    with made.filling(name, unasked=unasked):
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


def test_an_error_is_no_death(tmp_path):
    for _ in range(4):
        with pytest.raises(MemoryError), CrashLoopGuard(tmp_path).filling("v", unasked=True):
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
