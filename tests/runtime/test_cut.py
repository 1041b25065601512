"""Views that are cut: parts on other workers, the rest here; exact, whichever process is killed when."""

from __future__ import annotations

import random
import shutil
import signal
import threading
from collections.abc import Iterator

import pytest

from headrace.network import link
from headrace.process import faults
from headrace.sql.status import Status
from tests.compared import status_of
from tests.runtime import hosted, test_sharing
from tests.runtime.disturbances import locked, told
from tests.runtime.harness import settings_for, settle
from tests.runtime.hosted import HostProcess, hosting, reached
from tests.runtime.test_sharing import MOST, ROWS, SUMS, change, check, create
from tests.waiting import wait_until

TABLES = test_sharing.TABLES
BOTH = f"SELECT a.name, a.s, b.m FROM ({SUMS}) a FULL JOIN ({MOST}) b ON a.s = b.m + 10"
"""Two groups under a join."""


def cut(running, source, dsn: str, name: str, query: str, more=None, **workers: str) -> int:
    """A view of which other workers have parts, by the kind of their last nodes."""
    placed = {}

    def place() -> None:
        placed.update(hosted.cut(source, name, **workers))

    view = create(running, dsn, name, query, between=place, **(more or {}))
    assert placed
    return view


@pytest.fixture
def worker(database, tmp_path) -> Iterator[HostProcess]:
    """Worker "w1", a process of its own."""
    with hosted.process(settings_for(database, tmp_path / "data"), "w1") as process:
        yield process


def parts(running, view_id: int) -> list:
    return running.on(lambda: running.book.parts_of(running.book.views[view_id]))


def states(store) -> set[str]:
    return {name.partition("_")[0] for name, pairs in store.dump().items() if pairs}


@pytest.mark.parametrize("kind", ["join", "reduce", "source"])
def test_a_part_is_elsewhere(source, database, start, kind):
    running = start()
    with hosting(running.settings, "w1") as host:
        view = cut(running, source, database, "sums", SUMS, **{kind: "w1"})
        create(running, database, "most", MOST)
        for n in range(20):
            change(source, random.Random(n), 3)
        check(running, source, sums=SUMS, most=MOST)
        found = parts(running, view)
        assert len(found) == (2 if kind == "source" else 1)
        assert host.units == {part.id for part in found}
        assert running.book.subplans.keys() == host.units  # "most" shares nothing with it
        here = running.on(lambda: states(running.book.views[view].here))
        there = {name for part in found for name in states(host._units[part.id].here)}
        assert not here & there
        assert "reduce" in (there if kind == "reduce" else here)
        source.execute("DELETE FROM headrace.views WHERE id = %s", (view,))
        running.on(lambda: running.engine.lifecycle.drop(view))
        wait_until(lambda: host.units == set(), "it is gone")
        assert not running.book.subplans
        running.stop()
