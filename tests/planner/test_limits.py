"""Planning is limited in time and size, ends with its job, and holds no xid in between."""

from __future__ import annotations

import contextlib
import random
import threading

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from headrace.errors import HeadraceError, QueryCancelled, UnsupportedError, UserError
from headrace.planner import Planned, PlanRequest, limits, plan
from headrace.planner.analyse import analysis
from headrace.planner.analyse.analysis import Analysis
from headrace.planner.limits import PlanLimits
from headrace.planner.logical import scalar
from tests.amounts import seeds
from tests.planner.test_named_plans import chain
from tests.waiting import PATIENCE_S, wait_until

OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {}"
QUERY = (
    "SELECT t.id, '[1,5)'::int4range AS r, round(n, k) AS n, count(*) OVER (ORDER BY s) AS c,"
    " (SELECT max(u.n) FROM u WHERE u.k < t.k) AS m FROM t FULL JOIN w ON w.a = t.id"
)
"""Postgres analyses texts for each of these columns."""


def unchanged(action):
    return contextlib.nullcontext()


def test_time(conn):
    with pytest.raises(UserError) as caught:
        plan(conn, PlanRequest(chain(20), limits=PlanLimits(time_ms=1)))
    assert caught.value.code == "54000"
    assert "planning_time_ms_max" in (caught.value.hint or "")
    assert conn.info.transaction_status == TransactionStatus.IDLE
    plan(conn, PlanRequest(chain(20), limits=PlanLimits(time_ms=0)))


def test_nodes(conn, monkeypatch):
    monkeypatch.setattr(limits, "NODES_MAX", 50)
    with pytest.raises(UnsupportedError, match="more than 50 nodes") as caught:
        plan(conn, PlanRequest(chain(20)))
    assert caught.value.hint
    plan(conn, PlanRequest(chain(2)))


def test_a_plan_that_must_be_copied_is_refused_before_it_is(conn):
    base = "SELECT id, k, now() - interval '1 day' AS early FROM t"
    queries = [f"c0 AS ({base})"]
    queries += [
        f"c{i} AS (SELECT a.id, b.k, b.early FROM c{i - 1} a JOIN c{i - 1} b ON a.id = b.id)"
        for i in range(1, 41)
    ]
    with pytest.raises(UnsupportedError, match="nodes"):
        plan(
            conn,
            PlanRequest(f"WITH {', '.join(queries)} SELECT id FROM c40 WHERE early < '2020-01-01'"),
        )


def doubled(call):
    return scalar.Call("f", (call, call), 23, -1, 0, "f(\0, \0)", "f(\0, \0)", None, False)


def test_parts_of_an_expression():
    call = scalar.Const("1", 23)
    while scalar.parts(call) < limits.PARTS_MAX / 2:
        call = doubled(call)
    with pytest.raises(UnsupportedError, match="parts"):
        doubled(call)


@pytest.mark.parametrize("seed", seeds(0, 12, 4))
def test_planning_ends_wherever_it_is_when_its_job_does(seed, conn):
    rng = random.Random(seed)
    calls = 0

    def count():
        nonlocal calls
        calls += 1

    with limits.interruptible(count, unchanged):
        plan(conn, PlanRequest(QUERY))
    last = rng.randint(1, calls)
    calls = 0

    def end():
        count()
        assert calls <= last, "planning goes on"
        if calls == last:
            raise QueryCancelled("canceling statement due to user request")

    with limits.interruptible(end, unchanged), pytest.raises(QueryCancelled):
        plan(conn, PlanRequest(QUERY))
    assert conn.info.transaction_status == TransactionStatus.IDLE
    wait_until(lambda: others(conn, "true") == 0, "the connection of the analysis is closed")


def others(conn, condition):
    """Count the database's other connections that meet the condition."""
    row = conn.execute(
        OURS.format(f"pid <> pg_backend_pid() AND backend_type = 'client backend' AND {condition}")
    ).fetchone()
    return row[0]


def test_no_transaction_with_an_xid_is_open_while_a_plan_is_computed(
    planner_dsn, conn, monkeypatch
):
    monkeypatch.setattr(analysis, "_IDLE_S", 0.0)
    seen = set()
    busy, inside = Analysis._busy, []

    @contextlib.contextmanager
    def counted(self):
        inside.append(self)
        try:
            with busy(self):
                yield
        finally:
            inside.pop()

    monkeypatch.setattr(Analysis, "_busy", counted)
    with psycopg.connect(planner_dsn, autocommit=True) as spy:

        def look():
            if not inside:  # else a text is being analysed
                seen.add(others(spy, "backend_xid IS NOT NULL"))

        with limits.interruptible(look, unchanged):
            plan(conn, PlanRequest(QUERY))
    assert seen == {0}


def in_thread(conn, query, interrupt, cancelling):
    """Plan a query on another thread; return the thread and its outcome."""
    outcome = []

    def work():
        try:
            with limits.interruptible(interrupt, cancelling):
                outcome.append(plan(conn, PlanRequest(query)))
        except HeadraceError as error:
            outcome.append(error.code)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_a_lock_is_waited_for_in_one_short_transaction_after_the_other(planner_dsn, conn):
    again = threading.Event()
    with (
        psycopg.connect(planner_dsn, autocommit=True) as spy,
        psycopg.connect(planner_dsn) as holder,
    ):
        holder.execute("LOCK TABLE bag IN ACCESS EXCLUSIVE MODE")
        xids = []

        def look():
            if not again.is_set():
                xids.append(others(spy, "backend_xid IS NOT NULL"))
                again.set()

        thread, outcome = in_thread(conn, "SELECT x FROM bag", look, unchanged)
        assert again.wait(PATIENCE_S)
        assert not outcome
        assert xids == [1], "the one that holds the lock"
    thread.join()
    assert isinstance(outcome[0], Planned)


def test_a_cancel_reaches_what_postgres_does_for_the_planner(planner_dsn, conn):
    actions = []

    @contextlib.contextmanager
    def cancelling(action):
        actions.append(action)
        yield

    with (
        psycopg.connect(planner_dsn, autocommit=True) as spy,
        psycopg.connect(planner_dsn) as holder,
    ):
        holder.execute("LOCK TABLE bag IN ACCESS EXCLUSIVE MODE")
        thread, outcome = in_thread(conn, "SELECT x FROM bag", lambda: None, cancelling)

        def canceled():
            if others(spy, "wait_event_type = 'Lock'"):
                actions[-1]()
            return not thread.is_alive()

        wait_until(canceled, "planning ends")
    assert outcome == ["57014"]
