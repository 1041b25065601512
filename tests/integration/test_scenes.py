"""Problem scenarios: list_views() and status() show the cause, on each kind of connection."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.compared import differs
from tests.integration.test_observed import facts, row
from tests.integration.test_sources import at
from tests.security.roles import connect, role
from tests.waiting import wait_until

BUDGET = 40_000_000
READY = re.compile(r"headrace ready on \S+$")
pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(
        HEADRACE_WAL_BUDGET_BYTES=str(BUDGET),
        HEADRACE_VIEW_TIME_MS_MAX="120000",
        # The WAL of a view that stands still is on the server.
        HEADRACE_WAL_RETENTION="source",
    ),
]

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, pad text);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
CREATE FUNCTION slow(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
 'BEGIN IF x < 0 THEN PERFORM pg_sleep(-x / 100.0); END IF; RETURN x; END';
"""
SUMS = "SELECT g, count(*) AS n, sum(id) AS total FROM items GROUP BY g"
SLOW = "SELECT id, slow(id) AS s FROM items"

Connections = list[psycopg.Connection]


@pytest.fixture
def places(commander, source) -> Connections:
    """Return connections to the port and to the database."""
    return [commander, source]


@pytest.fixture
def stranger(engine, source) -> Iterator[psycopg.Connection]:
    """Open a direct connection of another role."""
    with role(source, "stranger") as name, connect(engine.source, name) as conn:
        yield conn


def said(place: psycopg.Connection, name: str, words: str) -> dict[str, object]:
    """Wait until ``held_by`` of a view matches ``words``, and return its row."""

    def found() -> dict[str, object] | None:
        told = row(place, name)
        return told if re.search(words, str(told["held_by"])) else None

    return wait_until(found, lambda: f"{words}: {row(place, name)}, {facts(place)}")


def well(commander: psycopg.Connection, **views: str) -> None:
    """Check that the views equal their queries, and that nothing holds them up."""
    for name, query in views.items():
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert differs(commander, name, query) == []
        wait_until(lambda name=name: row(commander, name)["held_by"] is None, "nothing holds it")


def told_everywhere(
    places: Connections, name: str, words: str, then: Callable[[], object] = lambda: None
) -> None:
    for place in places:
        said(place, name, words)
    then()


def test_a_locked_result_table(engine, commander, source, places, stranger):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    with psycopg.connect(engine.source, application_name="report") as blocker:
        blocker.execute("LOCK TABLE sums IN SHARE MODE")
        source.execute("INSERT INTO items VALUES (100, 1)")
        pid, user = blocker.info.backend_pid, source.info.user
        words = rf"its table is locked by process {pid} \({user}\): LOCK TABLE sums IN SHARE MODE"
        told_everywhere(places, "sums", words)
        wait_until(lambda: row(source, "sums")["status"] == "sink_error", "it is told as stopped")
        told_everywhere(places, "sums", words)
        for place in places:
            value, ok, hint = facts(place)["views"]
            assert (value, ok) == ("1 sink_error", False)
            assert "held_by" in str(hint)
        # Other roles see the status, but not the statements of a session.
        other = row(stranger, "sums")
        assert other["status"] == "sink_error"
        assert "LOCK TABLE" not in str(other)
    well(commander, sums=SUMS)
    # In the log, each line is an event, from any thread, and a view has its name.
    lines = [json.loads(line) for line in engine.log.splitlines() if not READY.match(line)]
    assert {"event", "level", "process", "pid", "timestamp"} <= set.intersection(*map(set, lines))
    assert {type(line["view"]) for line in lines if "view" in line} == {str}
    [left] = [line for line in lines if line["event"] == "view left its commit group"]
    number = source.execute("SELECT id FROM headrace.views").fetchone()[0]
    assert (left["view"], left["view_id"], left["process"]) == (*("public.sums", number, "worker"),)


def test_a_slow_remote_function(commander, source, places, stranger):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('slowly', %s)", (SLOW,))
    source.execute("INSERT INTO items VALUES (-400, 1)")  # 4 s
    words = r"^Postgres evaluates (public\.)?slow\(…\) for it, for \d+ s$"
    told_everywhere(places, "slowly", words)
    told_everywhere(places, "sums", r"a batch under way for \d+ s, of public\.slowly")
    assert "of public.slowly" in facts(source)["batch under way"][0]
    assert "evaluates" not in str(row(stranger, "slowly"))
    for table in ("held", "facts"):
        count = f"SELECT count(*) FROM headrace.{table}"
        assert source.execute(count).fetchone()[0] > 0
        assert stranger.execute(count).fetchone() == (0,)
    source.execute("DELETE FROM items WHERE id < 0")
    well(commander, sums=SUMS, slowly=SLOW)
    left = "SELECT count(*) FROM headrace.held"
    wait_until(lambda: source.execute(left).fetchone() == (0,), "nothing holds anything")


@pytest.mark.slow
def test_a_slow_remote_function_elsewhere(commander, source, places):
    commander.execute("CALL headrace.add_worker('w1')")
    commander.execute(
        "CALL headrace.create_view('slowly', %s, options => '{\"placement\": \"w1\"}')", (SLOW,)
    )
    source.execute("INSERT INTO items VALUES (-800, 1)")  # 8 s
    words = r"^Postgres evaluates (public\.)?slow\(…\) for it, for \d+ s$"
    told_everywhere(places, "slowly", words)
    source.execute("DELETE FROM items WHERE id < 0")
    well(commander, slowly=SLOW)
    commander.execute("CALL headrace.drop_view('slowly')")
    commander.execute("CALL headrace.remove_worker('w1')")


def test_a_worker_that_restarts(engine, commander, source, places):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    for place in places:
        assert facts(place)["worker"] == ("running", True, None)

    def seen(place: psycopg.Connection) -> bool:
        pid = engine.child("headrace.runtime.worker")
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)
        for _ in range(20):
            told, fact = row(place, "sums"), facts(place)["worker"]
            if told["status"] == "starting" and fact[1] is False:
                assert told["held_by"] == "its worker is starting, or silent"
                assert fact[0] == "starting, or silent"
                assert "restarted automatically" in str(fact[2])
                return True
        return False

    # The worker may be back before the test looks.
    for place in places:
        wait_until(lambda place=place: seen(place), "it is told", every_s=1)
    source.execute("INSERT INTO items VALUES (101, 1)")
    wait_until(lambda: row(source, "sums")["status"] == "running", "it goes on")
    well(commander, sums=SUMS)


@pytest.mark.slow
def test_a_view_that_catches_up(commander, source, places):
    commander.execute("CALL headrace.create_view('slowly', %s)", (SLOW,))
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.pause_view('slowly')")
    told_everywhere(places, "slowly", rf"^paused by {source.info.user}, [\d:]+ ago: resume_view")
    # They are too large for one coalesced batch, and together they take 18 s.
    for key in range(60):
        source.execute(
            "INSERT INTO items SELECT -%s, %s, string_agg(md5((%s + i)::text), '')"
            " FROM generate_series(1, 8000) i",  # 256 kB that cannot be compressed
            (1 + key, key, key * 8000),
        )
    sampled = "SELECT count(*) FROM headrace.samples WHERE lag_bytes > 1000000"
    wait_until(lambda: source.execute(sampled).fetchone()[0] > 0, "how far it was behind")
    commander.execute("CALL headrace.resume_view('slowly')")
    for place in places:
        told = said(place, "slowly", r"it catches up: \d+ \w+ behind, about \d+ s to go")
        assert told["status"] == "running"
    well(commander, slowly=SLOW, sums=SUMS)


@pytest.mark.slow
def test_a_source_that_is_down(commander, source, places, databases, stranger):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as there:
        there.execute("CREATE TABLE items (id int PRIMARY KEY, g int, pad text)")
        there.execute("INSERT INTO items VALUES (1, 1)")
        commander.execute("CALL headrace.add_source('eu', %s)", (at(there),))
    theirs = "SELECT id, g FROM eu.items"
    commander.execute("CALL headrace.create_view('theirs', %s)", (theirs,))
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.wait_for('theirs')")
    assert row(source, "theirs")["held_by"] is None
    with psycopg.connect(databases.server, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        told_everywhere(places, "theirs", r'^source "eu" is down, for [\d:]+$')
        assert row(source, "sums")["held_by"] is None, "it reads nothing of that"
        assert row(stranger, "theirs")["held_by"] is None
        for place in places:
            wait_until(lambda place=place: facts(place)["sources"][1] is False, "for us, too")
            assert facts(place)["sources"][0] == "eu down"
        assert "sources" not in facts(stranger)
        server.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    wait_until(lambda: row(source, "theirs")["held_by"] is None, "it is back")
    with psycopg.connect(dsn, autocommit=True) as there:
        there.execute("INSERT INTO items VALUES (2, 2)")
    commander.execute("CALL headrace.wait_for('theirs')")
    assert source.execute("SELECT count(*) FROM theirs").fetchone() == (2,)
    commander.execute("CALL headrace.drop_view('theirs')")
    commander.execute("CALL headrace.drop_source('eu')")
    databases.give_back(name)


@pytest.mark.slow
def test_a_wal_budget_near_its_end(commander, source, places):
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    commander.execute("CALL headrace.create_view('slowly', %s)", (SLOW,))
    commander.execute("CALL headrace.pause_view('sums')")
    source.execute("INSERT INTO items VALUES (102, 1)")  # it lacks changes from here on
    commander.execute("CALL headrace.wait_for('slowly')")
    for _ in range(35):  # of a megabyte each
        source.execute("SELECT pg_logical_emit_message(false, 'ballast', repeat(md5('x'), 32768))")
    words = (
        r"paused by \S+, .*; about (8[0-9]|9[0-9]) % of wal_budget_bytes \(38 MB\) is kept for it"
    )
    told_everywhere(places, "sums", words)
    for place in places:
        wait_until(lambda place=place: "WAL held by" in facts(place), lambda: facts(source))
        told = facts(place)
        assert told["WAL held by"][0] == "view public.sums (paused)"
        value, ok, hint = told["WAL budget"]
        assert re.fullmatch(r"3\d MB of 38 MB, for view public\.sums \(paused\)", value)
        assert ok is False
        assert "resume it" in str(hint)
    commander.execute("CALL headrace.resume_view('sums')")
    well(commander, sums=SUMS, slowly=SLOW)
    wait_until(lambda: "WAL budget" not in facts(source), "nothing stands still")
