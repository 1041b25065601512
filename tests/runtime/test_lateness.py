"""Views that make other views late, and the notes and logs that report it."""

from __future__ import annotations

import time

import pytest
from structlog.testing import capture_logs

from headrace.collections.dataflow import Dataflow
from headrace.forwarder import policy
from headrace.runtime import activity, lateness, writing
from headrace.runtime.jobs import ViewPart
from headrace.runtime.pipelined_commit import PipelinedCommit
from tests.compared import differs
from tests.runtime.harness import create_view, settle, source_plan
from tests.waiting import time_passes, wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE TABLE few (id int PRIMARY KEY, name text);
"""
LATE = "it was late: it waited for public.slow, which took long"
NOTES = "SELECT view_name::text, note FROM headrace.views"
LATE_S = 0.5
LONG_S = 0.6
QUERIES = {"slow": "SELECT id, name FROM items", "quick": "SELECT id, name FROM few"}


@pytest.fixture(autouse=True)
def soon(monkeypatch) -> None:
    """Lower the time after which views are late."""
    monkeypatch.setattr(lateness, "LATE_S", LATE_S)


@pytest.fixture
def running(source, database, start):
    """Yield an engine with a view of each table, both in one commit group."""
    made = start()
    for name, table in (("slow", "items"), ("quick", "few")):
        create_view(made, database, name, source_plan(source, table), QUERIES[name])
    settle(made, source)
    return made


def notes(source) -> dict[str, str | None]:
    return dict(source.execute(NOTES).fetchall())


def events(logs) -> list[dict]:
    return [entry for entry in logs if entry["event"] == "view makes others late"]


def check_said_and_over(running, source, logs, what: str) -> None:
    """Check that both views have a note beside other notes, and the log names the slow one once."""
    found = wait_until(lambda: all(notes(source).values()) and notes(source), "both have a note")
    assert found["quick"] == LATE
    assert found["slow"].startswith(f"it makes other views late: {what} took ")
    assert found["slow"].endswith(" s; in a commit_group of its own it would not")
    wait_until(lambda: events(logs), "it is logged")
    [event] = events(logs)
    ids = dict(source.execute("SELECT view_name::text, id FROM headrace.views").fetchall())
    assert (event["view"], event["views"], event["late"]) == (ids["slow"], [ids["quick"]], 1)
    source.execute("UPDATE headrace.views SET note = 'before; ' || note || '; after'")
    running.on(lambda: setattr(running.engine._lateness, "_until", 0.0))
    wait_until(lambda: set(notes(source).values()) == {"before; after"}, lambda: str(notes(source)))
    wait_until(
        lambda: any(entry["event"] == "views are not held up any more" for entry in logs),
        "that is logged",
    )


def test_a_view_whose_part_of_a_batch_takes_long(source, running, monkeypatch):
    end = Dataflow.end

    def slowly(flow: Dataflow, txid: int):
        # CPU time counts: another program may have the processor.
        until = time.thread_time() + LONG_S
        while flow._plan.sources[0].table_name == "items" and time.thread_time() < until:
            pass
        return end(flow, txid)

    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(Dataflow, "end", slowly)
            source.execute("INSERT INTO items VALUES (1, 'a')")
            wait_until(lambda: all(notes(source).values()), "both have a note")
            settle(running, source)
        check_said_and_over(running, source, logs, "its part of a batch of 1 changes")
    assert [differs(source, name, query) for name, query in QUERIES.items()] == [[], []]


def test_a_large_transaction_that_is_written_for_long(source, running, monkeypatch):
    write = writing._Group._write_view
    seen = []

    def slowly(group: writing._Group, part: ViewPart) -> int:
        time_passes(LONG_S)
        seen.extend(activity.describe(running.book, [], running.engine.writes))
        return write(group, part)

    monkeypatch.setattr(activity, "LONG_S", LONG_S / 2)
    monkeypatch.setattr(PipelinedCommit, "write", lambda *_: False)
    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(writing._Group, "_write_view", slowly)
            with source.transaction():
                source.execute("INSERT INTO items SELECT i, 'a' FROM generate_series(1, 200) i")
                source.execute("INSERT INTO few VALUES (1, 'a')")
            settle(running, source)
        check_said_and_over(running, source, logs, "writing its 200 changed rows")
    # Meanwhile list_views() reports it for the view that is written, and names that view to others.
    whats = ["its 200 changed rows are written", "its 1 changed rows are written"]
    assert [(told["view_id"], told["what"]) for told in seen] == list(enumerate(whats, 1))
    assert [differs(source, name, query) for name, query in QUERIES.items()] == [[], []]


def test_nobody_is_late_for_a_view_alone_or_within_the_latency(source, running, monkeypatch):
    """No view needs its rows earlier, so the slow view makes none late."""
    monkeypatch.setattr(policy, "_GATHER", 0.0)
    running.on(lambda: [v.allow(600_000) for v in running.book.views.values()])
    write = writing._Group.write

    def slowly(group: writing._Group) -> None:
        time_passes(LONG_S)
        write(group)

    with capture_logs() as logs:
        with monkeypatch.context() as patched:
            patched.setattr(writing._Group, "write", slowly)
            source.execute("INSERT INTO items VALUES (1, 'a')")
            settle(running, source)
        assert events(logs) == []
    assert notes(source) == {"slow": None, "quick": None}


def test_what_an_earlier_process_said_is_said_no_more(source, running, start):
    running.stop()
    source.execute("UPDATE headrace.views SET note = %s", (LATE,))
    start()
    wait_until(lambda: set(notes(source).values()) == {None}, lambda: str(notes(source)))
