"""Reused connections: no session state and no cancel passes to the next user."""

from __future__ import annotations

import psycopg
import pytest

from headrace.planner import PlanRequest, limits, plan
from headrace.population.job import Job
from headrace.postgres import connect, reuse
from tests.waiting import wait_until

LEFT = (
    "SET search_path = pg_temp",
    "SET ROLE pg_read_all_data",
    "SELECT set_config('my.secret', 'x', false)",
    "SELECT pg_advisory_lock(77)",
    "CREATE TEMPORARY TABLE left_behind (id int)",
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "PREPARE left_statement AS SELECT 1",
    "LISTEN left_channel",
    "DECLARE left_cursor CURSOR WITH HOLD FOR SELECT 1",
    "SET SESSION AUTHORIZATION pg_read_all_data",
)
STATE = (
    "SELECT current_user, session_user, current_setting('search_path'),"
    " coalesce(current_setting('my.secret', true), '') <> '', current_setting('transaction_timeout', true),"
    " (SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'),"
    " (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),"
    " (SELECT count(*) FROM pg_proc WHERE pronamespace = pg_my_temp_schema()),"
    " (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),"
    " (SELECT count(*) FROM pg_listening_channels()),"
    " (SELECT array_agg((name, setting) ORDER BY name) FROM pg_settings WHERE source = 'session')"
)


def pid(conn: psycopg.Connection) -> int:
    return conn.info.backend_pid


def test_nothing_of_a_session_passes_on(database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(f"ALTER DATABASE {conn.info.dbname} SET statement_timeout = '7min'")
        fresh = connect.for_job(database, what="builder")
        expected = fresh.execute(STATE).fetchone()
        fresh.close()
    for statement in LEFT:
        with reuse.lent(database) as conn:
            before = pid(conn)
            conn.execute(statement)
        with reuse.lent(database) as conn:
            assert pid(conn) == before, f"kept after {statement}"
            assert conn.execute(STATE).fetchone() == expected, statement


def test_two_at_once_are_two(database):
    with reuse.lent(database) as one, reuse.lent(database) as other:
        assert pid(one) != pid(other)
    with (
        reuse.lent(database) as conn,
        reuse.beside(conn, lambda: True) as other,
        reuse.beside(conn, lambda: True) as third,
    ):
        assert len({pid(conn), pid(other), pid(third)}) == 3


def test_an_error_closes_it(database):
    with pytest.raises(psycopg.errors.DivisionByZero), reuse.lent(database) as conn:
        conn.execute("SELECT 1 / 0")
    assert conn.closed


@pytest.mark.parametrize("left", ["BEGIN", "BEGIN; SELECT 1; SAVEPOINT s"])
def test_an_open_transaction_closes_it(database, left):
    with reuse.lent(database) as conn:
        conn.execute(left)
    assert conn.closed


def test_who_was_canceled_keeps_nothing(database):
    job = Job(lambda _: None)
    with job.connection(database, what="builder") as conn:
        job.cancel()
    assert conn.closed


def test_a_planner_that_was_canceled_keeps_nothing(database):
    job = Job(lambda _: None)
    with psycopg.connect(database, autocommit=True) as conn, conn.transaction():
        with limits.interruptible(job.check, job.cancelling):
            assert limits.wanted()
            job.cancel()
            assert not limits.wanted()
            with reuse.beside(conn, limits.wanted) as other:
                pass
        assert other.closed
        assert limits.wanted()


def test_one_that_was_lost_is_replaced(database):
    with reuse.lent(database) as conn:
        lost = pid(conn)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", (lost,))
    with reuse.lent(database) as conn:
        assert pid(conn) != lost
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_other_parameters_make_another(database):
    with reuse.lent(database) as conn:
        before = pid(conn)
    with reuse.lent(f"{database} options='-c work_mem=1MB'") as conn:
        assert pid(conn) != before
        assert conn.execute("SHOW work_mem").fetchone() == ("1MB",)


def test_who_is_not_used_is_closed(database, monkeypatch):
    monkeypatch.setattr(reuse, "KEPT_S", 0.05)
    with reuse.lent(database) as conn:
        pass
    wait_until(lambda: conn.closed, "it is closed")


def test_old_ones_are_not_lent_again(database, monkeypatch):
    monkeypatch.setattr(reuse, "_AGE_S", 0.0)
    with reuse.lent(database) as conn:
        before = pid(conn)
    with reuse.lent(database) as conn:
        assert pid(conn) != before


def test_few_are_kept(database):
    import contextlib

    with contextlib.ExitStack() as many:
        conns = [many.enter_context(reuse.lent(database)) for _ in range(10)]
    assert sum(not conn.closed for conn in conns) == 4


def test_planning_uses_two_connections_for_many_plans(database):
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        pids = set()
        for _ in range(5):
            with reuse.lent(database) as conn, conn.transaction(force_rollback=True):
                plan(conn, PlanRequest("SELECT id FROM t", settings={"search_path": "public"}))
            pids |= {
                row[0]
                for row in admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'headrace builder'"
                    " AND datname = current_database()"
                )
            }
        assert len(pids) == 2
