"""A view is filled from another one while the builder or the worker is killed (A-25, A-45)."""

from __future__ import annotations

import random
import signal
import threading

import psycopg
import pytest

from headrace.process import faults
from tests.compared import differs, status_of
from tests.faults.helpers import signal_worker
from tests.faults.test_points import Writers
from tests.waiting import wait_until

ROWS = 2_000
POINT = "SELECT i.id, i.g, i.x FROM items i JOIN groups g ON i.g = g.g WHERE g.open"
SUMS = "SELECT s.g, n.open, s.n, s.s FROM (SELECT g, count(*) AS n, sum(x) AS s FROM v GROUP BY g) s JOIN groups n USING (g)"
FED = '{"from": "p"}'
STACKED = '{"first_rows": "views"}'
CREATE = "CALL headrace.create_view('w', %s, options => %s)"

BUILDER = (
    faults.ATTACHED, faults.POPULATION_BEGINS, faults.POPULATION_SEALED, faults.BEFORE_PUBLISH,
    faults.PUBLISHED, faults.ADOPTED,
)  # fmt: skip
WORKER = (faults.BEFORE_PART, faults.PARTED, faults.STATES_TAKEN)
QUICK = ((faults.PARTED, FED), (faults.PUBLISHED, STACKED))


@pytest.fixture
def traps(tmp_path):
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture
def engine(database, start_engine, traps):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE groups (g int PRIMARY KEY, open bool)")
        conn.execute("INSERT INTO groups SELECT i, i % 3 > 0 FROM generate_series(0, 9) i")
        conn.execute("CREATE TABLE items (id int PRIMARY KEY, g int, x numeric)")
        conn.execute(
            f"INSERT INTO items SELECT i, i % 10, i * 1.50 FROM generate_series(1, {ROWS}) i"
        )
    return start_engine(database, HEADRACE_FAULT_DIR=str(traps))


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True, prepare_threshold=None) as conn:
        yield conn


def call(engine, statement: str, *values: object) -> psycopg.Error | None:
    """Run a call; return its error."""
    try:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute(statement, values)
    except psycopg.Error as error:
        return error
    return None


def check(engine, source) -> None:
    """Check that both views exist, run, and equal their queries."""
    for name in ("v", "w"):
        wait_until(lambda n=name: status_of(source, n)[0] == "running", f"{name} runs", 60)
        wait = f"CALL headrace.wait_for('{name}')"
        wait_until(lambda w=wait: call(engine, w) is None, f"{name} is there", 60)
    assert differs(source, "v", POINT) == []
    assert differs(source, "w", f"WITH v AS ({POINT}) {SUMS}") == []


def rarely(point: str, options: str):
    marks = [pytest.mark.slow] * ((point, options) not in QUICK)
    return pytest.param(point, options, marks=marks)


BOTH = [rarely(point, options) for point in BUILDER + WORKER for options in (FED, STACKED)]


@pytest.mark.parametrize(("point", "options"), BOTH)
def test_a45_killed_at_a_point(engine, source, traps, point, options):
    """The view exists or it does not; nothing is left behind that makes a second call fail."""
    assert call(engine, "CALL headrace.create_view('v', %s)", POINT) is None
    assert call(engine, "CALL headrace.create_connection_point('p', 'v')") is None
    with Writers(engine.source):
        (traps / point).write_text("kill:1")
        call(engine, CREATE, SUMS, options)
        assert (traps / f"{point}.sprung").exists()
        if source.execute("SELECT to_regclass('w') IS NULL").fetchone()[0]:
            wait_until(lambda: call(engine, CREATE, SUMS, options) is None, "it is created", 60)
    check(engine, source)
    source.execute("UPDATE items SET x = x + 1 WHERE id % 3 = 0")
    source.execute("UPDATE groups SET open = NOT open WHERE g < 4")
    check(engine, source)
    assert call(engine, "CALL headrace.drop_view('w')") is None
    assert call(engine, "CALL headrace.drop_view('v')") is None


@pytest.mark.slow
@pytest.mark.parametrize("options", [FED, STACKED])
def test_a45_the_worker_is_killed_at_any_moment(engine, source, options):
    assert call(engine, "CALL headrace.create_view('v', %s)", POINT) is None
    assert call(engine, "CALL headrace.create_connection_point('p', 'v')") is None
    rng = random.Random(1)
    for _ in range(6):
        with Writers(engine.source):
            thread = threading.Thread(target=call, args=(engine, CREATE, SUMS, options))
            thread.start()
            thread.join(rng.uniform(0.05, 1.5))
            signal_worker(engine, signal.SIGKILL)
            thread.join()
            if source.execute("SELECT to_regclass('w') IS NULL").fetchone()[0]:
                wait_until(lambda: call(engine, CREATE, SUMS, options) is None, "it is made", 60)
        check(engine, source)
        assert call(engine, "CALL headrace.drop_view('w')") is None


@pytest.mark.slow
@pytest.mark.parametrize("options", [FED, STACKED])
def test_a25_lost_states_come_back(engine, source, options):
    """The view is repaired first, then the view that is fed from it."""
    assert call(engine, "CALL headrace.create_view('v', %s)", POINT) is None
    assert call(engine, "CALL headrace.create_connection_point('p', 'v')") is None
    assert call(engine, CREATE, SUMS, options) is None
    engine.stop()
    for path in (engine.data_dir / "state").rglob("*"):
        if path.is_file():
            path.unlink()
    source.execute("UPDATE items SET x = x + 1")
    engine.start()
    check(engine, source)


def test_a_view_below_that_cannot_be_attached_to(engine, source, traps):
    """The view is planned over the tables then, and says so."""
    assert call(engine, "CALL headrace.create_view('v', %s)", POINT) is None
    with Writers(engine.source):
        (traps / faults.ATTACHED).write_text("raise:1")
        assert call(engine, CREATE, SUMS, STACKED) is None
        assert (traps / f"{faults.ATTACHED}.sprung").exists()
    why = f"first rows: from the tables, because fault point {faults.ATTACHED}"
    told = (
        "SELECT explain ->> 'first_rows', plan ? 'filled' FROM headrace.views WHERE view_name = 'w'"
    )
    assert source.execute(told).fetchone() == (why, False)
    check(engine, source)
    # The next time it is filled it can be.
    assert call(engine, "CALL headrace.resync_view('w')") is None
    assert source.execute(told).fetchone() == ('first rows: from view "public"."v"', True)
    check(engine, source)
    (traps / f"{faults.ATTACHED}.sprung").unlink()
    (traps / faults.ATTACHED).write_text("raise:1")
    assert call(engine, "CALL headrace.resync_view('w')") is None
    assert source.execute(told).fetchone() == (why, False)
    source.execute("UPDATE items SET x = x + 1 WHERE id % 3 = 0")
    check(engine, source)


def told(source) -> str:
    [row] = source.execute(
        "SELECT explain ->> 'first_rows' FROM headrace.views WHERE view_name = 'w'"
    ).fetchall()
    return row[0]


def ids(source) -> dict[str, int]:
    rows = source.execute("SELECT view_name, id FROM headrace.views WHERE status = 'running'")
    return dict(rows.fetchall())


def test_a_resync_by_a_call_is_killed(engine, source, traps):
    """The engine finds the refilled view when it starts; the view above is refilled as well."""
    assert call(engine, "CALL headrace.create_view('v', %s)", POINT) is None
    assert call(engine, CREATE, SUMS, STACKED) is None
    before = ids(source)
    (traps / faults.PUBLISHED).write_text("hang:1")
    thread = threading.Thread(target=call, args=(engine, "CALL headrace.resync_view('v')"))
    thread.start()
    wait_until((traps / f"{faults.PUBLISHED}.sprung").exists, "it is published", 60)
    engine.kill9()
    thread.join()
    engine.start()
    wait_until(
        lambda: ids(source).keys() == before.keys() and not ids(source).items() & before.items(),
        "both are filled anew",
        60,
    )
    check(engine, source)


@pytest.mark.slow
def test_the_view_below_is_damaged_while_the_other_is_filled(engine, source, traps):
    """The worker learns of the damage before it knows the new view."""
    stop = '{"on_damage": "stop"}'
    assert call(engine, "CALL headrace.create_view('v', %s, %s)", POINT, stop) is None
    # The subplan has another reader, so it outlives the view below.
    assert call(engine, "CALL headrace.create_view('same', %s)", POINT) is None
    wait_until(lambda: "subplan joined" in engine.log, "they share")
    source.execute("UPDATE v SET x = 1e6 WHERE id = 4")
    (traps / faults.BEFORE_PUBLISH).write_text("hang:1")
    thread = threading.Thread(target=call, args=(engine, CREATE, SUMS, STACKED))
    thread.start()
    wait_until((traps / f"{faults.BEFORE_PUBLISH}.sprung").exists, "it is filled", 60)
    source.execute("UPDATE items SET x = x + 1 WHERE id = 4")
    wait_until(lambda: status_of(source, "v")[0] == "error", "the damage is noticed", 60)
    thread.join()
    assert status_of(source, "w")[0] == "error"
    assert call(engine, "CALL headrace.resync_view('v')") is None
    check(engine, source)


@pytest.mark.slow
def test_a_function_below_was_replaced_a_moment_ago(database, start_engine):
    """The view below has not noticed it yet, so its rows are those of the earlier function."""
    engine = start_engine(database, HEADRACE_CATALOG_POLL_MS="600000")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
        conn.execute("INSERT INTO t SELECT i, i FROM generate_series(1, 50) i")
        function = "CREATE OR REPLACE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        conn.execute(f"{function} 'BEGIN RETURN $1 % 5; END'")
        below = "SELECT f(x) AS g, count(*) AS n FROM t GROUP BY 1"
        query = "SELECT g, n FROM v WHERE n > 1"
        assert call(engine, "CALL headrace.create_view('v', %s)", below) is None
        assert call(engine, "CALL headrace.create_view('u', %s, %s)", query, STACKED) is None
        conn.execute(f"{function} 'BEGIN RETURN $1 % 7; END'")
        assert call(engine, CREATE, query, STACKED) is None
        assert told(conn).startswith("first rows: from the tables")
        assert differs(conn, "w", f"WITH v AS ({below}) {query}") == []
