"""Trouble inside one view that is not an error of its source: a bug, no memory, a damaged row."""

from __future__ import annotations

import os
import resource

import psycopg
import pytest

from headrace.collections.dataflow import Dataflow
from headrace.errors import BugError, DefiniteFailure, StateDamaged
from headrace.expressions import ir
from headrace.kernels import copytext
from headrace.sink.writer import SinkWriter
from headrace.types import BOOL
from tests.compared import differs, status_of
from tests.runtime.harness import create_view, settle, source_plan
from tests.waiting import wait_until

QUERY = "SELECT * FROM items"


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text);
INSERT INTO items VALUES (1, 'one');
"""


@pytest.fixture
def running(source, start):
    return start()


def two_views(running, source, database) -> tuple[int, int]:
    physical = source_plan(source, "items")
    return tuple(create_view(running, database, name, physical, QUERY) for name in ("v", "w"))


ERRORS = [KeyError("x"), MemoryError(), RecursionError(), AssertionError("never")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("place", ["dataflow", "write"])
def test_a_bug_stops_its_view_only(running, source, database, monkeypatch, error, place):
    two_views(running, source, database)
    victim = running.on(lambda: min(running.book.views))
    if place == "dataflow":
        begin = Dataflow.ingest
        flows = []

        def ingest(self, *args):
            if self is running.book.views[victim].dataflow:
                flows.append(self)
                raise error
            return begin(self, *args)

        monkeypatch.setattr(Dataflow, "ingest", ingest)
    else:
        insert = SinkWriter._insert

        def broken(self, target, *args):
            if target.view_id == victim:
                raise error
            insert(self, target, *args)

        monkeypatch.setattr(SinkWriter, "_insert", broken)
    source.execute("INSERT INTO items VALUES (2, 'two')")
    settle(running, source)
    status, code, message = status_of(source, "v")
    assert (status, code) == ("error", "XX000")
    assert type(error).__name__ in message
    assert differs(source, "w", QUERY) == []
    assert running.error is None


def test_no_memory_in_the_middle_of_a_copy(running, source, database, monkeypatch):
    """The connection is inside COPY then; it is used again for the other view."""
    two_views(running, source, database)
    join = copytext.join
    left = [1]

    def failing(columns):
        if left and left.pop():
            raise MemoryError
        return join(columns)

    monkeypatch.setattr(copytext, "join", failing)
    source.execute("INSERT INTO items VALUES (2, 'two')")
    settle(running, source)
    assert status_of(source, "v")[0] == "error"
    assert differs(source, "w", QUERY) == []


def test_a_catalog_row_that_cannot_be_read(running, source, start, database):
    number, _ = two_views(running, source, database)
    running.stop()
    source.execute("UPDATE headrace.views SET plan = '{\"nodes\": 7}' WHERE id = %s", (number,))
    second = start()
    source.execute("INSERT INTO items VALUES (2, 'two')")
    settle(second, source)
    status, code, _ = status_of(source, "v")
    assert (status, code) == ("error", StateDamaged.sqlstate)
    assert differs(source, "w", QUERY) == []


def test_more_than_a_thousand_open_files(source, database, start):
    """States of many views are many files; the stream's connection has a descriptor above them."""
    files = []
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] < 4_000:
        pytest.skip("so many files may not be opened here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))
    try:
        files += [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
        running = start()
        two_views(running, source, database)
        source.execute("INSERT INTO items VALUES (2, 'two')")
        settle(running, source)
        assert differs(source, "v", QUERY) == []
    finally:
        for file in files:
            os.close(file)


def test_rights_that_end_while_a_view_is_blocked(running, source, database):
    """The view cannot even be locked for a check then; the other views go on."""
    two_views(running, source, database)
    source.execute("CREATE SCHEMA elsewhere")
    with psycopg.connect(database) as blocker:
        blocker.execute("LOCK TABLE v IN SHARE MODE")
        source.execute("INSERT INTO items VALUES (2, 'two')")
        wait_until(lambda: status_of(source, "v")[0] == "sink_error", "it is blocked")
        blocker.execute("ALTER TABLE v SET SCHEMA elsewhere")
        blocker.commit()
    wait_until(lambda: status_of(source, "v")[0] == "error", "it stops")
    settle(running, source)
    assert differs(source, "w", QUERY) == []


def test_a_look_that_fails_stops_nobody(running, source, database, monkeypatch):
    """The check whether changes concern a view is outside the per-view error handling."""
    two_views(running, source, database)

    def broken(self, table_oid, changes):
        raise ValueError("a look is no answer")

    source.execute("INSERT INTO items VALUES (2, 'two')")
    settle(running, source)  # their dataflows are made
    monkeypatch.setattr(Dataflow, "reached", broken)
    source.execute("INSERT INTO items VALUES (3, 'three')")
    settle(running, source)
    for name in ("v", "w"):
        assert differs(source, name, QUERY) == []


def test_a_message_that_no_text_can_hold(running, source, database, monkeypatch):
    two_views(running, source, database)
    victim = running.on(lambda: min(running.book.views))
    insert = SinkWriter._insert

    def broken(self, target, *args):
        if target.view_id == victim:
            raise BugError("a\0b \udcff")
        insert(self, target, *args)

    monkeypatch.setattr(SinkWriter, "_insert", broken)
    source.execute("INSERT INTO items VALUES (2, 'two')")
    settle(running, source)
    status, _, message = status_of(source, "v")
    assert status == "error" and "a\\0b \\udcff" in message
    assert differs(source, "w", QUERY) == []


def test_a_view_that_stops_before_it_is_adopted_says_so_and_how_to_go_on(running, source, database):
    physical = source_plan(source, "items")
    oid = next(f.oid for f in physical.sink.schema if f.name == "id")
    ratio = ir.Remote("(1 / ($1 - 13)) < 100", (ir.Column(0, oid),), BOOL, trusted=True)
    bad = "SELECT * FROM items WHERE 1 / (id - 13) < 100"
    with pytest.raises(DefiniteFailure) as caught:
        create_view(
            *(running, database, "a", source_plan(source, "items", filtered=ratio), bad),
            between=lambda: source.execute("INSERT INTO items VALUES (13, 'q')"),
        )
    status, sqlstate, message = status_of(source, "a")
    assert (status, sqlstate) == ("error", "22012")
    assert caught.value.message == 'view "public"."a" has stopped'
    assert "division by zero" in message
    assert "division by zero" in caught.value.detail
    assert caught.value.hint == "CALL headrace.resync_view('public.a') rebuilds it."
