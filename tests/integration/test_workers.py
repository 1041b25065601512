"""Views on other workers: add_worker, option ``placement``, kills and restarts."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading

import psycopg
import pytest

from tests.compared import differs
from tests.integration.test_fed import change
from tests.security.roles import connect, role
from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int, x numeric);
INSERT INTO items SELECT i, i % 50, i * 1.50 FROM generate_series(1, 1000) i;
"""
SUMS = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
# Equal numbers may differ in trailing zeros; max() may return any of them.
MOST = "SELECT g, round(max(x), 2) AS most FROM items GROUP BY g"


def refused(conn: psycopg.Connection, call: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(call)
    return caught.value.diag


def listed(conn: psycopg.Connection) -> dict[str, tuple]:
    """Return the workers by name: state, pid, number of views."""
    rows = conn.execute("SELECT * FROM headrace.workers()")
    return {name: (state, pid, count) for name, state, pid, count, *_ in rows.fetchall()}


def place(
    conn: psycopg.Connection, name: str, query: str, worker: object, **options: object
) -> None:
    conn.execute(
        "CALL headrace.create_view(%s, %s, options => %s)",
        (name, query, json.dumps({"placement": worker} | options)),
    )


def check(conn: psycopg.Connection, **queries: str) -> None:
    for name, query in queries.items():
        conn.execute("CALL headrace.wait_for(%s)", (name,))
        assert differs(conn, name, query) == [], name


def running(conn: psycopg.Connection, name: str) -> bool:
    [(status,)] = conn.execute(
        "SELECT status FROM headrace.list_views() WHERE name = 'public.' || %s::text", (name,)
    ).fetchall()
    return status == "running"


def test_a_view_lives_on_another_worker(engine, commander, source):
    assert listed(commander).keys() == {"main"}
    commander.execute("CALL headrace.add_worker('w1')")
    state, pid, count = listed(commander)["w1"]
    assert (state, count) == ("running", 0)
    place(commander, "sums", SUMS, "w1")
    commander.execute("CALL headrace.create_view('most', %s)", (MOST,))
    assert {name: row[2] for name, row in listed(commander).items()} == {"main": 1, "w1": 1}
    plan = "SELECT * FROM headrace.explain_view(%s)"
    assert 'on worker "w1"' in str(commander.execute(plan, ("sums",)).fetchall())
    assert "on worker" not in str(commander.execute(plan, ("most",)).fetchall())
    rng = random.Random(1)
    for _ in range(20):
        change(source, rng)
    check(commander, sums=SUMS, most=MOST)
    assert commander.execute("SELECT * FROM headrace.verify_view('sums')").fetchall() == []
    stats = commander.execute("SELECT * FROM headrace.view_stats('sums')").fetchall()
    assert {row[3] for row in stats} == {"w1"}
    assert all(rows_in > 0 for _, _, _, _, rows_in, *_ in stats)
    # The rows of its states are counted, too.
    groups = len(source.execute(f"SELECT FROM ({SUMS}) q").fetchall())
    assert [row[9] for row in stats if row[1] == "reduce"] == [groups]
    told = commander.execute("SELECT * FROM headrace.explain_view('sums', 'analyze')").fetchall()
    assert all("; on w1" in line for (line,) in told[:-1])
    assert told[-1] == ('on worker "w1"',)
    # After a kill it restarts and resumes; the other views are not affected.
    os.kill(pid, signal.SIGKILL)
    change(source, rng)
    check(commander, most=MOST)
    wait_until(lambda: listed(commander)["w1"][0] == "running", "it is started again")
    assert listed(commander)["w1"][1] != pid
    wait_until(lambda: running(commander, "sums"), "the view goes on")
    change(source, rng)
    check(commander, sums=SUMS, most=MOST)
    # So does the main worker.
    os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
    change(source, rng)
    check(commander, most=MOST)
    wait_until(lambda: running(commander, "sums"), "the view goes on")
    check(commander, sums=SUMS)
    why = refused(commander, "CALL headrace.remove_worker('w1')")
    assert (why.sqlstate, "public.sums" in why.message_detail) == ("55006", True)
    commander.execute("CALL headrace.resync_view('sums')")
    change(source, rng)
    check(commander, sums=SUMS)
    for verb in ("pause_view", "resume_view"):
        commander.execute(f"CALL headrace.{verb}('sums')")
        change(source, rng)
    check(commander, sums=SUMS)
    commander.execute("CALL headrace.set_placement('sums', 'main')")
    change(source, rng)
    check(commander, sums=SUMS)
    commander.execute("CALL headrace.remove_worker('w1')")
    assert listed(commander).keys() == {"main"}
    assert not list((engine.data_dir / "workers").glob("*"))
    check(commander, most=MOST)


def test_all_of_it_is_killed_and_comes_back(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1')")
    place(commander, "sums", SUMS, "w1")
    rng = random.Random(2)
    for _ in range(5):
        change(source, rng)
    check(commander, sums=SUMS)
    engine.kill9()
    change(source, rng)
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        assert listed(conn)["w1"][0] == "running"
        wait_until(lambda: running(conn, "sums"), "the view goes on")
        change(source, rng)
        check(conn, sums=SUMS)


def test_states_that_a_worker_has_lost_are_filled_anew(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1')")
    place(commander, "sums", SUMS, "w1")
    check(commander, sums=SUMS)
    engine.kill9()
    state = engine.data_dir / "workers" / "w1" / "state"
    for path in state.glob("*"):
        path.unlink()
    engine.start()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        change(source, random.Random(3))
        wait_until(lambda: running(conn, "sums"), "it is filled anew")
        check(conn, sums=SUMS)


@pytest.mark.engine_with(HEADRACE_VIEW_TIME_MS_MAX="0")
def test_a_view_that_is_long_at_a_batch_is_dropped(engine, commander, source):
    """DROP does not wait for the batch on the other worker, nor do later calls."""
    source.execute(
        "CREATE FUNCTION slow(x int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN IF x < 0 THEN PERFORM pg_advisory_lock(77); END IF; RETURN x; END'"
    )
    commander.execute("CALL headrace.add_worker('w1')")
    place(commander, "slow", "SELECT id, slow(id) AS s FROM items", "w1")
    commander.execute("CALL headrace.create_view('sums', %s)", (SUMS,))
    with psycopg.connect(engine.source, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(77)")
        source.execute("INSERT INTO items VALUES (-1, 1, 1)")
        waiting = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 77 AND NOT granted"
        wait_until(lambda: source.execute(waiting).fetchone() is not None, "it is at it")
        commander.execute("CALL headrace.drop_view('slow')")
        source.execute("INSERT INTO items VALUES (5000, 1, 1)")
        check(commander, sums=SUMS)
    check(commander, sums=SUMS)


def test_a_view_is_made_while_its_worker_is_away(engine, commander, source):
    """The view exists, with its first rows, and waits."""
    commander.execute("CALL headrace.add_worker('w1')")
    pid = listed(commander)["w1"][1]
    os.kill(pid, signal.SIGSTOP)
    with psycopg.connect(engine.dsn, autocommit=True) as caller:
        made = threading.Thread(target=place, args=(caller, "sums", SUMS, "w1"))
        made.start()
        table = "SELECT to_regclass('public.sums') IS NOT NULL"
        wait_until(lambda: source.execute(table).fetchone() == (True,), "it is there")
        change(source, random.Random(1))
        os.kill(pid, signal.SIGCONT)
        made.join()
    wait_until(lambda: running(commander, "sums"), "the view goes on")
    check(commander, sums=SUMS)


@pytest.mark.shared_engine
def test_a_view_that_runs_is_moved(commander, source, engine):
    """Under writers, there and back, with its history; readers do not notice."""
    commander.execute("CALL headrace.add_worker('w1')")
    commander.execute(
        "CALL headrace.create_view('sums', %s, options => %s)", (SUMS, '{"history": "1 hour"}')
    )
    source.execute("CREATE INDEX ON sums (total); GRANT SELECT ON sums TO PUBLIC")
    of_table = (
        "SELECT 'sums'::regclass::oid, relacl, relhasindex FROM pg_class WHERE relname = 'sums'"
    )
    before = source.execute(of_table).fetchall()
    stop, wrong = threading.Event(), []

    def write() -> None:
        rng = random.Random(4)
        with psycopg.connect(engine.source, autocommit=True) as conn:
            while not stop.is_set():
                change(conn, rng)

    def read() -> None:
        with psycopg.connect(engine.source, autocommit=True) as conn:
            while not stop.is_set():
                # Every read sees all groups.
                if conn.execute("SELECT count(*) FROM sums").fetchone() < (40,):
                    wrong.append("rows are missing")

    threads = [threading.Thread(target=work) for work in (write, read)]
    for thread in threads:
        thread.start()
    try:
        for worker in ("w1", "main", "w1"):
            commander.execute("CALL headrace.set_placement('sums', %s)", (worker,))
            assert listed(commander)[worker][2] == 1
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    check(commander, sums=SUMS)
    assert source.execute(of_table).fetchall() == before
    changes = (
        "SELECT (data::sums).g, sum(weight) FROM headrace.view_changes('sums') GROUP BY 1 HAVING"
        " sum(weight) NOT IN (0, 1, -1)"
    )
    assert source.execute(changes).fetchall() == []
    commander.execute("CALL headrace.create_connection_point('p', 'sums')")
    why = refused(commander, "CALL headrace.set_placement('sums', 'w2')")
    assert why.sqlstate == "42704"
    commander.execute("CALL headrace.set_placement('sums', 'main')")
    commander.execute(
        "CALL headrace.create_view('f', 'SELECT g FROM sums', options => '{\"from\": \"p\"}')"
    )
    assert refused(commander, "CALL headrace.set_placement('sums', 'w1')").sqlstate == "0A000"
    assert refused(commander, "CALL headrace.set_placement('f', 'w1')").sqlstate == "0A000"
    commander.execute("CALL headrace.drop_view('f')")
    commander.execute("CALL headrace.drop_view('sums')")
    commander.execute("CALL headrace.remove_worker('w1')")


@pytest.mark.shared_engine
def test_what_is_refused(engine, commander, source):
    commander.execute("CALL headrace.add_worker('w1')")
    try:
        codes = {
            "CALL headrace.add_worker('w1')": "42710",
            "CALL headrace.add_worker('main')": "42710",
            "CALL headrace.add_worker('W')": "42602",
            "CALL headrace.add_worker('')": "42602",
            "CALL headrace.add_worker('../x')": "42602",
            "CALL headrace.remove_worker('main')": "42704",
            "CALL headrace.remove_worker('w2')": "42704",
            "CALL headrace.create_view('v', 'SELECT id FROM items',"
            """ options => '{"placement": "w2"}')""": "42704",
            "CALL headrace.create_view('v', 'SELECT id FROM items',"
            """ options => '{"placement": 1}')""": "22023",
            "CALL headrace.create_view('v', 'SELECT id FROM items',"
            """ options => '{"placement": "w1", "from": "p"}')""": "0A000",
        }
        assert {call: refused(commander, call).sqlstate for call in codes} == codes
        place(commander, "sums", SUMS, "w1")
        commander.execute("CALL headrace.create_connection_point('p', 'sums')")
        fed = """CALL headrace.create_view('f', 'SELECT g FROM sums', options => '{"from": "p"}')"""
        assert refused(commander, fed).sqlstate == "0A000"
        check(commander, sums=SUMS)
        commander.execute("CALL headrace.drop_view('sums')")
        with role(source, "some") as name, connect(engine.dsn, name) as somebody:
            assert listed(somebody) == {}
            for call in ("add_worker('w3')", "remove_worker('w1')"):
                why = refused(somebody, f"CALL headrace.{call}")
                assert why.sqlstate == "42501"
    finally:
        commander.execute("CALL headrace.remove_worker('w1')")


@pytest.mark.shared_engine
def test_also_on_direct_connections(commander, source):
    source.execute("CALL headrace.add_worker('w1')")
    [(rows,)] = source.execute("CALL headrace.show_workers()").fetchall()
    assert [row["worker"] if isinstance(row, dict) else row[0] for row in rows] == ["main", "w1"]
    source.execute("CALL headrace.remove_worker('w1')")
    assert listed(commander).keys() == {"main"}
    assert listed(source) == listed(commander)


def test_views_are_spread_and_a_worker_is_drained(engine, commander, source):
    for name in ("a", "b", "c", "d"):
        place(commander, name, SUMS if name < "c" else MOST, "main", sharing=False)
    commander.execute("CALL headrace.add_worker('w1')")
    rng = random.Random(6)
    for _ in range(20):
        change(source, rng)
    check(commander, a=SUMS, d=MOST)
    shown = commander.execute("SELECT * FROM headrace.rebalance()").fetchall()
    assert shown
    assert {row[1:3] for row in shown} == {("main", "w1")}
    assert {row[4:] for row in shown} == {(False, None)}
    assert listed(commander)["w1"][2] == 0  # it was only a dry run
    done = commander.execute("SELECT * FROM headrace.rebalance(true)").fetchall()
    assert {row[4:] for row in done} == {(True, None)}
    assert listed(commander)["w1"][2] == len(done)
    for _ in range(5):
        change(source, rng)
    check(commander, a=SUMS, b=SUMS, c=MOST, d=MOST)
    commander.execute("CALL headrace.drain_worker('w1')")
    assert listed(commander)["w1"][2] == 0
    for _ in range(5):
        change(source, rng)
    check(commander, a=SUMS, b=SUMS, c=MOST, d=MOST)
    commander.execute("CALL headrace.remove_worker('w1')")
    assert commander.execute("SELECT * FROM headrace.rebalance()").fetchall() == []
    assert refused(commander, "CALL headrace.drain_worker('w1')").sqlstate == "42704"
    assert refused(commander, "CALL headrace.drain_worker('main')").sqlstate == "55000"
    with role(source, "nobody") as name, connect(engine.dsn, name) as stranger:
        for call in ("CALL headrace.drain_worker('w1')", "SELECT * FROM headrace.rebalance(true)"):
            assert refused(stranger, call).sqlstate == "42501"


@pytest.mark.parametrize(
    "fault",
    [
        None,
        pytest.param(("cp08d", "kill"), marks=pytest.mark.slow),
        ("cp08e", "kill"),
        pytest.param(("cp08e", "hang"), marks=pytest.mark.slow),
        pytest.param(("cp08d", "raise"), marks=pytest.mark.slow),
    ],
)
def test_a_view_moves_with_its_states(trapped, fault):
    """Its changes go on in sequence: nothing is rebuilt, even if a process dies meanwhile."""
    engine, traps, source = trapped
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        commander.execute("CALL headrace.add_worker('w1')")
        place(commander, "sums", SUMS, "main", sharing=False, history="1 hour")
        place(commander, "most", MOST, "main", sharing=False)
        rng = random.Random(7)
        for worker in ("w1", "main", "w1"):
            for _ in range(5):
                change(source, rng)
            [(before,)] = source.execute(OLDEST).fetchall()
            if fault:
                (traps / f"{fault[0]}.sprung").unlink(missing_ok=True)
                (traps / fault[0]).write_text(f"{fault[1]}:1")
            moved = threading.Thread(target=moves, args=(engine.dsn, "sums", worker))
            moved.start()
            if fault and fault[1] == "hang":
                wait_until(
                    lambda m=moved: not m.is_alive() or (traps / f"{fault[0]}.sprung").exists(),
                    "it is amid the move",
                )
                os.kill(engine.child("headrace.runtime.worker"), signal.SIGKILL)
                os.kill(engine.child("headrace.views.builder"), signal.SIGKILL)
            for _ in range(10):
                change(source, rng)
            moved.join()
            wait_until(lambda: running(commander, "sums"), "the view goes on")
            for _ in range(5):
                change(source, rng)
            check(commander, sums=SUMS, most=MOST)
            assert source.execute(OLDEST).fetchall() == [(before,)]
            if not fault:
                assert placed_on(commander, "sums") == worker
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as commander:
        wait_until(lambda: running(commander, "sums"), "the view goes on")
        change(source, rng)
        check(commander, sums=SUMS, most=MOST)
        assert commander.execute("SELECT * FROM headrace.verify_view('sums')").fetchall() == []
    left = engine.data_dir / "staging"
    wait_until(lambda: not list(left.glob("[0-9]*")), "what is staged no more is removed")


OLDEST = "SELECT id FROM headrace.views WHERE view_name = 'sums'"


def moves(dsn: str, view: str, worker: str) -> None:
    with contextlib.suppress(psycopg.Error), psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.set_placement(%s, %s)", (view, worker))


def placed_on(conn: psycopg.Connection, view: str) -> str:
    rows = conn.execute("SELECT * FROM headrace.view_stats(%s)", (view,)).fetchall()
    return rows[0][3]


@pytest.fixture
def trapped(start_engine, database, tmp_path):
    traps = tmp_path / "traps"
    traps.mkdir()
    engine = start_engine(database, HEADRACE_FAULT_DIR=str(traps))
    with psycopg.connect(database, autocommit=True, prepare_threshold=None) as source:
        source.execute(TABLES)
        yield engine, traps, source
