"""Attribution of a worker's deaths to a view, by the marks after each death."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.errors import BugError, TransientError
from headrace.runtime.crash_attribution import LOADING, CrashAttribution

DIES = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from headrace.runtime.crash_attribution import CrashAttribution
made = CrashAttribution(Path(sys.argv[1]))
marked = []
def work(unit, txid):
    with made.during(unit, txid):
        marked[0].set()
        Event().wait()
for mark in sys.argv[2:]:
    marked[:] = [Event()]
    Thread(target=work, args=map(int, mark.split('@')), daemon=True).start()
    marked[0].wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def die(folder: Path, *marks: str) -> None:
    """Kill a worker while its threads work for ``unit@txid``."""
    done = subprocess.run([sys.executable, "-c", DIES, str(folder), *marks], check=False)
    assert done.returncode == -9


def test_deaths_amid_a_view_that_was_alone_name_it(tmp_path):
    die(tmp_path, "1@7", "2@7")
    assert not CrashAttribution(tmp_path).sequential(7)
    die(tmp_path, "2@7", "3@8")
    made = CrashAttribution(tmp_path)
    assert made.sequential(7) and not made.sequential(8)
    assert made.repeated == [2]
    for _ in range(3):
        made = CrashAttribution(tmp_path)
        assert made.sequential(7) and not made.guilty
        die(tmp_path, "2@7")
    made = CrashAttribution(tmp_path)
    assert made.guilty == {2}
    assert not made.sequential(7), "the others go on as ever"
    assert CrashAttribution(tmp_path).guilty == {2}, "until the catalog says so"
    made.stopped()
    assert not CrashAttribution(tmp_path).guilty


def test_deaths_at_batches_that_were_committed_say_nothing(tmp_path):
    for txid in range(5, 12):
        die(tmp_path, f"2@{txid}")
        made = CrashAttribution(tmp_path)
        assert not made.guilty and not made.sequential(txid)
        made.review({2: txid}.get)


def test_a_view_that_committed_the_batch_is_a_suspect_no_longer(tmp_path):
    die(tmp_path, "2@7")
    die(tmp_path, "2@7")
    made = CrashAttribution(tmp_path)
    made.review({2: 6}.get)
    assert made.sequential(7)
    made.review({2: 7}.get)
    assert not made.sequential(7) and made.quiet
    die(tmp_path, "2@7")
    assert not CrashAttribution(tmp_path).guilty


def test_a_view_that_is_not_processed_is_a_suspect_no_longer(tmp_path):
    die(tmp_path, "2@7", "3@7")
    made = CrashAttribution(tmp_path)
    made.review({3: 6}.get)
    assert not made.quiet
    die(tmp_path, "2@7", "3@7")
    assert CrashAttribution(tmp_path).repeated == [3]


def test_commits_of_others_acquit_no_view_that_lags(tmp_path):
    for leading in range(40, 44):
        die(tmp_path, "2@7", f"3@{leading}")
        made = CrashAttribution(tmp_path)
        assert not made.guilty
        made.review({2: 6, 3: leading}.get)
    die(tmp_path, "2@7")
    assert CrashAttribution(tmp_path).guilty == {2}


def test_two_suspects_are_told_apart(tmp_path):
    for _ in range(6):
        die(tmp_path, "2@7", "3@40")
        made = CrashAttribution(tmp_path)
        assert not made.guilty
    assert sorted(made.repeated) == [2, 3]
    for _ in range(3):
        assert not CrashAttribution(tmp_path).guilty
        die(tmp_path, "3@40")
    assert CrashAttribution(tmp_path).guilty == {3}


def test_kills_that_meet_now_this_now_that_view_name_nobody(tmp_path):
    for unit in (2, 2, 2, 2, 3, 2, 2, 3):
        die(tmp_path, f"{unit}@7")
        made = CrashAttribution(tmp_path)
        assert not made.guilty
    assert made.sequential(7)


def test_a_death_amid_no_view_says_nothing(tmp_path):
    for _ in range(6):
        die(tmp_path)
    made = CrashAttribution(tmp_path)
    assert not made.guilty and not made.sequential(1)


def test_views_that_are_taken_in_are_found_too(tmp_path):
    for _ in range(5):
        die(tmp_path, f"-4@{LOADING}")
    assert CrashAttribution(tmp_path).guilty == {-4}


def test_who_is_asked_to_end_does_not_die_of_its_work(tmp_path):
    for _ in range(6):
        made = CrashAttribution(tmp_path)
        with suppress(BugError), made.during(2, 7):
            made.close()
            raise BugError("killed here, it would leave no mark")
    with made.during(2, 7):
        pass
    assert not CrashAttribution(tmp_path).sequential(7)


@pytest.mark.parametrize(
    ("error", "counts"), [(TransientError("away"), False), (BugError("no"), True)]
)
def test_what_ends_the_process_counts_as_a_death(tmp_path, error, counts):
    for _ in range(5):
        made = CrashAttribution(tmp_path)
        with suppress(type(error)), made.during(2, 7):
            raise error
    assert CrashAttribution(tmp_path).guilty == ({2} if counts else set())


def test_a_damaged_record_is_forgotten(tmp_path):
    die(tmp_path, "2@7")
    for _ in range(4):
        (tmp_path / "worker.deaths").write_text('{"suspects": 3}')
        die(tmp_path, "2@7")
    assert not CrashAttribution(tmp_path).guilty
