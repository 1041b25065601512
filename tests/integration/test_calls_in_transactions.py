"""Calls inside of transactions: they are carried out after the COMMIT, in order, or not at all."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from headrace.embedded.binaries import account, install_dir
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.sql.verbs import VERBS
from tests.compared import differs
from tests.security.roles import connect, role
from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
"""
COUNT = "SELECT g, count(*) AS n FROM items GROUP BY g"
LARGEST = "SELECT g, max(id) AS id FROM items GROUP BY g"
CREATE = "CALL headrace.create_view(%s, %s)"

pytestmark = pytest.mark.shared_engine


@pytest.fixture(params=["port", "direct"])
def user(engine, source, request) -> Iterator[psycopg.Connection]:
    """Connect as programs do by default: each statement is in a transaction."""
    source.execute("DELETE FROM headrace.commands WHERE queued")
    dsn = engine.dsn if request.param == "port" else engine.source
    with psycopg.connect(dsn) as conn:
        yield conn


def calls(user: psycopg.Connection) -> list[tuple[str, str, str, str | None]]:
    """Return procedure, name, status and SQLSTATE of the role's calls."""
    query = "SELECT procedure, name, status, sqlstate FROM headrace.calls()"
    return user.execute(query).fetchall()


def views(source: psycopg.Connection) -> list[str]:
    rows = source.execute("SELECT view_name FROM headrace.views ORDER BY view_name")
    return [name for (name,) in rows]


def test_a_program_that_never_heard_of_autocommit(user, source):
    told = []
    user.add_notice_handler(lambda d: told.append(d.message_primary))
    user.execute(CREATE, ("v", COUNT))
    assert told == ["create_view is carried out after this transaction commits"]
    assert views(source) == []
    user.commit()
    user.execute("CALL headrace.wait_for('v')")
    assert user.execute("SELECT sum(n) FROM v").fetchone() == (50,)
    user.commit()
    user.execute("INSERT INTO items VALUES (51, 1)")
    user.commit()
    user.execute("CALL headrace.wait_for('v')")
    assert user.execute("SELECT sum(n) FROM v").fetchone() == (51,)
    assert calls(user) == [("create_view", "v", "done", None)]
    assert differs(source, "v", COUNT) == []


def test_a_transaction_that_is_rolled_back_calls_nothing(user, source):
    user.execute(CREATE, ("v", COUNT))
    user.rollback()
    user.execute("INSERT INTO items VALUES (52, 1)")
    user.execute("SAVEPOINT s")
    user.execute(CREATE, ("w", COUNT))
    user.execute("ROLLBACK TO SAVEPOINT s")
    user.execute(CREATE, ("x", COUNT))
    user.commit()
    user.execute("CALL headrace.wait_for('x')")
    assert views(source) == ["x"]
    assert calls(user) == [("create_view", "x", "done", None)]


def test_calls_are_carried_out_in_order_and_an_error_stops_none(user, source):
    """The second one alters the view of the first one, and the fifth reads a view."""
    made = [
        (CREATE, ("v", COUNT)),
        ("CALL headrace.alter_view('v', %s)", (LARGEST,)),
        (CREATE, ("wrong", "SELECT nothing FROM items")),
        ("CALL headrace.rename_view('v', 'named')", ()),
        (CREATE, ("over", "SELECT count(*) AS n FROM named")),
        ("CALL headrace.pause_view('named')", ()),
        ("CALL headrace.resume_view('named')", ()),
    ]
    for call in made:
        user.execute(*call)
    user.commit()
    user.execute("CALL headrace.wait_for('over')")
    # The last calls concern another view, so that wait does not wait for them.
    wait_until(lambda: all(c[2] in ("done", "failed") for c in calls(user)), "all have ended")
    found = calls(user)
    assert [status for _, _, status, _ in found] == [
        "failed" if i == 2 else "done" for i in range(7)
    ]
    assert found[2] == ("create_view", "wrong", "failed", "42703")
    assert differs(source, "named", LARGEST) == []
    # A wait for the view that was not created raises the reason.
    with pytest.raises(psycopg.errors.UndefinedColumn, match="nothing"):
        user.execute("CALL headrace.wait_for('wrong')")
    user.rollback()
    user.autocommit = True
    with pytest.raises(psycopg.errors.UndefinedColumn, match="nothing"):
        user.execute("CALL headrace.wait_for('wrong')")


def test_a_wait_outside_of_a_transaction_is_for_calls_as_well(user, source):
    user.execute(CREATE, ("v", COUNT))
    user.commit()
    user.autocommit = True
    user.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", COUNT) == []


def test_a_call_that_does_not_end_delays_no_wait_for_another_view(engine, source, user):
    """Sessions of one role wait for their own writes; a population of this role takes long."""
    source.execute(CREATE, ("other", COUNT))
    with psycopg.connect(engine.source) as writer:
        writer.execute("INSERT INTO items VALUES (70, 0)")  # the population waits for its end
        user.execute(CREATE, ("slow", LARGEST))
        user.execute("CALL headrace.pause_view('other')")
        user.commit()
        source.execute("INSERT INTO items VALUES (71, 0)")
        for autocommit in (False, True):
            user.autocommit = autocommit
            user.execute("CALL headrace.wait_for('other', timeout => '60 s')")
            with pytest.raises(psycopg.errors.QueryCanceled):
                user.execute("CALL headrace.wait_for('slow', timeout => '1 s')")
            user.rollback()
        assert [status for _, _, status, _ in calls(user)] == ["running", "pending"]
        assert differs(source, "other", COUNT) == []
        writer.rollback()
    user.execute("CALL headrace.wait_for('slow')")
    assert differs(source, "slow", LARGEST) == []


def test_each_role_has_its_calls(engine, source, user):
    with role(source, "maker") as name:
        source.execute(f"GRANT SELECT ON items TO {name}")
        with connect(engine.source, name) as other:
            other.autocommit = False
            other.execute(CREATE, ("theirs", COUNT))
            other.commit()
            assert calls(user) == []
            other.execute("CALL headrace.wait_for('theirs')")
            assert calls(other) == [("create_view", "theirs", "done", None)]
            owner = "SELECT owner::regrole::text FROM headrace.views WHERE view_name = 'theirs'"
            assert source.execute(owner).fetchone() == (name,)
        source.execute(f"CALL headrace.drop_view('{name}.theirs')")


@pytest.mark.parametrize(
    ("statement", "sqlstate"),
    [
        ("CALL headrace.create_worker_token('w')", "25001"),
        ("CALL headrace.show_rebalance()", "25001"),
        ("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; CALL headrace.show_memory()", "0A000"),
        ("CALL headrace.wait_for('v', timeout => '0 s')", "57014"),
        ("CALL headrace.wait_for('v', (pg_current_wal_insert_lsn() + 9999)::pg_lsn)", "0A000"),
        ("INSERT INTO items VALUES (77, 7); CALL headrace.wait_for('v')", "25001"),
        ("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; CALL headrace.wait_for('v')", "0A000"),
        ("SET TRANSACTION READ ONLY; CALL headrace.pause_view('v')", "25006"),
        ("CALL headrace.wait_for('nowhere')", "42P01"),
    ],
)
def test_what_cannot_be_done_in_a_transaction(user, source, statement, sqlstate):
    source.execute(CREATE, ("v", COUNT))
    with pytest.raises(psycopg.Error) as caught:
        user.execute(statement)
    assert caught.value.sqlstate == sqlstate
    assert sqlstate == "25006" or caught.value.diag.message_hint


def test_questions_are_answered_in_a_transaction(user, source):
    """Each call that only reads and has an answer; a driver has begun the transaction."""
    source.execute(CREATE, ("v", COUNT))
    given = {"name": "v", "name_or_query": "v", "query": COUNT, "key": '{"g": 1}'}
    asked = [verb for verb in VERBS.values() if verb.called and verb.answer and verb.reads]
    assert len(asked) > 15
    for verb in asked:
        arguments = {p.name: given[p.name] for p in verb.parameters if p.name in given}
        marks = ", ".join(f"{name} => %({name})s" for name in arguments)
        call = f"CALL headrace.{verb.called}({marks})"
        alone = source.execute(call, arguments).fetchall()
        inside = user.execute(call, arguments).fetchall()
        assert len(inside) == len(alone) == 1, verb.name
        assert (inside[0][0] is None) == (alone[0][0] is None), verb.name
        user.commit()


def test_a_function_calls_and_so_does_a_script_in_one_transaction(engine, source):
    source.execute(
        "CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS"
        f" $$ BEGIN CALL headrace.create_view('v', '{COUNT}'); END $$"
    )
    source.execute("SELECT f()")
    source.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", COUNT) == []
    script = f"CALL headrace.create_view('w', '{LARGEST}'); INSERT INTO items VALUES (60, 0);"
    psql = install_dir(18, account()) / "bin" / "psql"
    for dsn in (engine.source, engine.dsn):
        done = subprocess.run(
            [psql, "-X", "-1", "-v", "ON_ERROR_STOP=1", "-d", dsn],
            input=script + "CALL headrace.drop_view('v', if_exists => true);",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "create_view is carried out after this transaction commits" in done.stderr
        source.execute("CALL headrace.wait_for('w')")
        assert differs(source, "w", LARGEST) == []
        wait_until(lambda: views(source) == ["w"], "the last call of the script is carried out")
        source.execute("CALL headrace.drop_view('w'); ")
        source.execute("DELETE FROM items WHERE id = 60")


def test_calls_of_before_a_kill_are_carried_out_after_it(engine, source, user):
    """They are in the database; the server need not have seen them."""
    with psycopg.connect(engine.source) as conn:
        conn.execute(CREATE, ("v", COUNT))
        engine.kill9()
        conn.commit()
        with pytest.raises(psycopg.errors.CannotConnectNow, match="not running"):
            conn.execute("CALL headrace.wait_for('v')")
    engine.start()
    wait_until(lambda: views(source) == ["v"], "it is created")
    source.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", COUNT) == []


def test_a_prepared_transaction_may_contain_calls(start_engine):
    with EmbeddedPostgres(None, 18, {"max_prepared_transactions": "5"}, durable=False) as server:
        engine = start_engine(server.dsn())
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute(TABLES)
            for name in ("v", "w"):
                conn.execute("BEGIN")
                conn.execute(CREATE, (name, COUNT))
                conn.execute(f"PREPARE TRANSACTION '{name}'")
            conn.execute("ROLLBACK PREPARED 'w'")
            assert views(conn) == []
            conn.execute("COMMIT PREPARED 'v'")
            wait_until(lambda: views(conn) == ["v"], "it is created")
            conn.execute("CALL headrace.wait_for('v')")
            assert differs(conn, "v", COUNT) == []
            assert calls(conn) == [("create_view", "v", "done", None)]
        engine.stop()
