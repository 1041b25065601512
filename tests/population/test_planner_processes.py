"""Large queries, planned in a process of their own: with the same plans and errors, under limits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headrace.config import Settings
from headrace.errors import BugError, HeadraceError, QueryCancelled, TransientError, UserError
from headrace.planner import PlanRequest, limits, plan
from headrace.population import planner_child, planner_processes
from headrace.population.job import Job
from headrace.population.planner_processes import PlannerProcesses
from headrace.postgres import connect
from headrace.process.subprocess_pool import Subprocess
from tests.waiting import wait_until

LARGE = " " * limits.LARGE_CHARS
SCHEMA = """
CREATE TYPE pair AS (x int, y int);
CREATE TABLE t (id int PRIMARY KEY, k int, n numeric(10,2), s text, ts timestamptz);
CREATE TABLE u (id bigint PRIMARY KEY, k bigint, s text);
INSERT INTO t SELECT i, i % 7, i, i::text, now() FROM generate_series(1, 500) i;
INSERT INTO u SELECT i, i % 7, i::text FROM generate_series(1, 500) i;
ANALYZE t, u;
"""
CONSTANTS = ", ".join(map(str, range(2_000)))
MANY = ", ".join(map(str, range(10_000)))
DEEP = "(" * 150 + "k" + " + 1)" * 150
QUERIES = {
    "filter": "SELECT id, k + 1 AS k FROM t WHERE s LIKE 'a%' AND k IS NOT NULL",
    "join": "SELECT t.id, u.s FROM t LEFT JOIN u ON t.k = u.k AND u.s > t.s",
    "groups": "SELECT k, sum(n) AS n, max(s) AS s, count(DISTINCT s) AS c FROM t GROUP BY k",
    "windows": "SELECT id, rank() OVER (PARTITION BY k ORDER BY n DESC) AS r FROM t",
    "subqueries": "SELECT id FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k AND u.s = t.s)",
    "recursion": "WITH RECURSIVE r AS (SELECT id FROM t UNION SELECT r.id + 1 FROM r JOIN u"
    " ON u.id = r.id) SELECT id FROM r",
    "clock": "SELECT id FROM t WHERE ts > now() - interval '1 hour'",
    "constants": f"SELECT id FROM t WHERE k IN ({CONSTANTS})",
    "case": "SELECT CASE " + " ".join(f"WHEN k = {i} THEN {i * i}" for i in range(500))
    + " END AS c FROM t",
    "deep": f"SELECT {DEEP} AS x FROM t",
    "columns": "SELECT " + ", ".join(f"k + {i} AS c{i}" for i in range(300)) + " FROM t",
    "ctes": "WITH " + ", ".join(f"c{i} AS (SELECT k + {i} AS k FROM t)" for i in range(200))
    + " SELECT a.k FROM c1 a JOIN c2 b ON a.k = b.k",
    "unions": " UNION ALL ".join(f"SELECT id + {i} AS id FROM t" for i in range(100)),
}  # fmt: skip
WRONG = {
    "syntax": "SELECT id FRM t WHERE",
    "end": "SELECT id FROM t WHERE",
    "parentheses": "SELECT (((id FROM t",
    "string": "SELECT id, 'open FROM t",
    "umlaut": "SELECT id, 'äöü' AS ß, x FROM t",
    "column": "SELECT id, kk FROM t",
    "table": "SELECT id FROM tt",
    "function": "SELECT id, nothing(k) FROM t",
    "type": "SELECT id, 'a'::int AS i FROM t",
    "volatile": "SELECT id, random() AS r FROM t",
    "literal": "SELECT id, '(1,2' ::pair AS p FROM t",
    "statement": "DELETE FROM t",
    "two": "SELECT id FROM t; SELECT id FROM u",
    "ambiguous": "SELECT id FROM t JOIN u USING (k)",
    "deep": "SELECT " + "(" * 400 + "k" + " + 1)" * 400 + " AS x FROM t",
}


@pytest.fixture(scope="module")
def dsn(databases) -> Iterator[str]:
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(SCHEMA)
    yield dsn
    databases.give_back(name)


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    with contextlib.closing(connect.for_job(dsn, what="test")) as conn:
        yield conn


@pytest.fixture(scope="module")
def planners(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlannerProcesses]:
    made = PlannerProcesses(Settings(source=dsn, data_dir=tmp_path_factory.mktemp("data")))
    yield made
    made.close()


# --- functions that are called in the process


def pid(conn: psycopg.Connection) -> int:
    return os.getpid()


def planned_by(conn: psycopg.Connection, request: PlanRequest) -> int:
    plan(conn, request)
    return os.getpid()


def rows(conn: psycopg.Connection, table: str) -> list[tuple[Any, ...]]:
    return conn.execute(f"SELECT id FROM {table} ORDER BY 1").fetchall()


def fails(conn: psycopg.Connection) -> None:
    raise KeyError("no such thing")


def takes_memory(conn: psycopg.Connection) -> int:
    return len(bytearray(planner_child.MEMORY_BYTES))


def dies(conn: psycopg.Connection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def loops(conn: psycopg.Connection, seen: str) -> None:
    """Loop with the checks that planning makes."""
    Path(seen).write_text(str(os.getpid()))
    while True:
        limits.check()


def loops_unchecked(conn: psycopg.Connection) -> None:
    while True:
        pass


def sleeps(conn: psycopg.Connection, seen: str) -> None:
    """Wait for Postgres, as the analysis of a query may."""
    with limits.cancelling(conn.cancel):
        Path(seen).write_text(str(os.getpid()))
        conn.execute("SELECT pg_sleep(3600)")


def environment(conn: psycopg.Connection) -> dict[str, str]:
    return dict(os.environ)


def length(conn: psycopg.Connection, data: bytes) -> int:
    return len(data)


def hangs(conn: psycopg.Connection, seen: str) -> None:
    """Ignore a cancel."""
    Path(seen).write_text(str(os.getpid()))
    signal.pause()


# --- results


def padded(query: str) -> str:
    """Return the query with a comment behind it, which makes it large and moves no position."""
    return f"{query} --{LARGE}"


def both(
    conn: psycopg.Connection, planners: PlannerProcesses, query: str
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return two functions that plan the same text, here and in another process."""
    wanted = PlanRequest(padded(query), settings={"search_path": "public"})
    return (
        lambda: plan(conn, wanted),
        lambda: planners.call(conn, None, wanted.query, plan, wanted),
    )


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_plan_from_the_other_process_is_the_same(conn, planners, query):
    here, there = both(conn, planners, query)
    mine, other = here(), there()
    assert other == mine
    assert other.sizes == mine.sizes


@pytest.mark.parametrize("query", WRONG.values(), ids=WRONG)
def test_an_error_from_the_other_process_is_the_same(conn, planners, query):
    told = []
    for way in both(conn, planners, query):
        with pytest.raises(HeadraceError) as raised:
            way()
        told.append((type(raised.value), raised.value.fields(), raised.value.repair))
    assert told[0] == told[1]


def test_only_what_is_large_is_called_in_another_process(conn, planners):
    assert planners.call(conn, None, "", pid) == os.getpid()
    assert planners.call(conn, None, LARGE[1:], pid) == os.getpid()
    assert planners.call(conn, None, LARGE, pid) != os.getpid()


def test_a_short_query_of_a_large_view_is_planned_in_another_process(conn, planners):
    conn.execute(f"CREATE VIEW public.large AS SELECT id FROM public.t WHERE k IN ({MANY})")
    conn.execute("CREATE VIEW public.small AS SELECT id FROM public.t WHERE k IN (1, 2)")
    for view, here in (("small", True), ("large", False)):
        wanted = PlanRequest(f"SELECT id FROM {view}", settings={"search_path": "public"})
        found = planners.call(conn, None, wanted.query, planned_by, wanted)
        assert (found == os.getpid()) == here
    conn.execute("DROP VIEW public.small, public.large")


def test_the_other_process_reads_the_snapshot_of_the_open_transaction(conn, planners, dsn):
    conn.execute("CREATE TABLE public.seen (id int); INSERT INTO public.seen VALUES (1)")
    with psycopg.connect(dsn, autocommit=True) as other, conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert rows(conn, "public.seen") == [(1,)]
        other.execute("INSERT INTO public.seen VALUES (2)")
        assert planners.call(conn, None, LARGE, rows, "public.seen") == [(1,)]
        [xid] = conn.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
        assert xid is None, "a transaction with one would hold up new replication slots"
    assert planners.call(conn, None, LARGE, rows, "public.seen") == [(1,), (2,)]
    conn.execute("DROP TABLE public.seen")


# --- limits


def answers_much(conn: psycopg.Connection) -> bytes:
    return bytes(planner_child.ANSWER_BYTES)


def refused(conn: psycopg.Connection, planners: PlannerProcesses, function: Any) -> UserError:
    with pytest.raises(UserError) as raised:
        planners.call(conn, None, LARGE, function)
    assert raised.value.code == "54000"
    assert planners.call(conn, None, LARGE, pid) != os.getpid(), "another process serves"
    return raised.value


@pytest.mark.parametrize("function", [takes_memory, answers_much, dies])
def test_memory_is_limited(conn, planners, function):
    assert "takes too much memory" in refused(conn, planners, function).message


def test_processor_time_is_limited(conn, dsn, tmp_path):
    hasty = PlannerProcesses(Settings(source=dsn, data_dir=tmp_path, planning_time_ms_max=200))
    with contextlib.closing(hasty):
        first = hasty.call(conn, None, LARGE, pid)
        with pytest.raises(UserError, match="takes more than 200 ms") as raised:
            hasty.call(conn, None, LARGE, loops, str(tmp_path / "seen"))
        assert raised.value.code == "54000"
        assert hasty.call(conn, None, LARGE, pid) == first, "the kernel had not to end it"


@pytest.mark.slow
def test_processor_time_is_limited_where_nothing_checks_it(conn, dsn, tmp_path):
    """The kernel ends the process."""
    hasty = PlannerProcesses(Settings(source=dsn, data_dir=tmp_path, planning_time_ms_max=200))
    with contextlib.closing(hasty):
        assert "more than 200 ms" in refused(conn, hasty, loops_unchecked).message


@pytest.mark.parametrize("function", [sleeps, hangs])
def test_the_time_of_a_call_that_only_waits_is_limited(conn, dsn, tmp_path, monkeypatch, function):
    """Such a call would hold up those of other roles."""
    monkeypatch.setattr(planner_processes, "_WAIT_S", 1.0)
    hasty = PlannerProcesses(Settings(source=dsn, data_dir=tmp_path, planning_time_ms_max=1))
    with contextlib.closing(hasty):
        with pytest.raises(TransientError, match="has not ended within 1 s") as raised:
            hasty.call(conn, None, LARGE, function, str(tmp_path / "seen"))
        assert raised.value.code == "55000"
        monkeypatch.undo()
        assert hasty.call(conn, None, LARGE, pid) != os.getpid()
    wait_until(lambda: not asleep(conn), "Postgres stops, too")


def test_a_process_gets_no_secrets(conn, dsn, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_SETTINGS", "secret")
    monkeypatch.setenv("PGTZ", "UTC")
    with contextlib.closing(PlannerProcesses(Settings(source=dsn, data_dir=tmp_path))) as made:
        found = made.call(conn, None, LARGE, environment)
    assert "HEADRACE_SETTINGS" not in found
    assert found["PGTZ"] == "UTC", "variables of libpq may be part of how it connects"


def test_a_bug_is_reported_as_one(conn, planners):
    with pytest.raises(BugError, match="KeyError: 'no such thing'"):
        planners.call(conn, None, LARGE, fails)


def test_a_process_that_has_exited_is_replaced(conn, planners):
    first = planners.call(conn, None, LARGE, pid)
    assert planners.call(conn, None, LARGE, pid) == first
    os.kill(first, signal.SIGKILL)
    assert planners.call(conn, None, LARGE, pid) not in (first, os.getpid())


def test_a_process_that_is_killed_as_it_is_asked_is_replaced(conn, planners, monkeypatch):
    first = planners.call(conn, None, LARGE, pid)
    send = Subprocess.send

    def late(process: Subprocess, *args: Any) -> None:
        if process.pid == first:
            os.kill(first, signal.SIGKILL)
        send(process, *args)

    monkeypatch.setattr(Subprocess, "send", late)
    assert planners.call(conn, None, LARGE, pid) not in (first, os.getpid())


def test_the_memory_of_the_parent_does_not_count(conn, dsn, tmp_path):
    large = b"x" * planner_child.KEPT_BYTES
    with contextlib.closing(PlannerProcesses(Settings(source=dsn, data_dir=tmp_path))) as made:
        assert made.call(conn, None, LARGE, pid) == made.call(conn, None, LARGE, pid)
    assert large


def test_a_large_process_returns_its_memory(conn, planners):
    """It exits once it has used more than ``KEPT_BYTES``."""
    first = planners.call(conn, None, LARGE, grown)
    assert planners.call(conn, None, LARGE, pid) != first


def grown(conn: psycopg.Connection) -> int:
    assert len(b"x" * planner_child.KEPT_BYTES) > 0
    return os.getpid()


# --- cancelling, and turns


class Call:
    """A call in a thread, as a job of the builder makes it."""

    def __init__(
        self, planners: PlannerProcesses, dsn: str, caller: str, function: Any, *args: Any
    ) -> None:
        self.job = Job(lambda _: None)
        self.outcome: object = None
        self._made = (planners, dsn, caller, function, args)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        planners, dsn, caller, function, args = self._made
        with (
            psycopg.connect(dsn, autocommit=True) as conn,
            limits.interruptible(self.job.check, self.job.cancelling),
        ):
            try:
                self.outcome = planners.call(conn, caller, LARGE, function, *args)
            except HeadraceError as error:
                self.outcome = error

    def end(self) -> object:
        """Wait for the outcome, and return it."""
        self._thread.join()
        return self.outcome


def begun(seen: Path) -> int:
    """Wait until the function has written its process id."""
    return int(wait_until(lambda: seen.exists() and seen.read_text(), "the call begins"))


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("function", [loops, sleeps, hangs])
def test_a_cancel_ends_the_call(planners, dsn, tmp_path, function):
    call = Call(planners, dsn, "low", function, str(tmp_path / "seen"))
    process = begun(tmp_path / "seen")
    call.job.cancel()
    assert isinstance(call.end(), QueryCancelled)
    if function is not sleeps:
        wait_until(lambda: gone(process) or process in idle(planners), "it ends, or is idle")
    with psycopg.connect(dsn, autocommit=True) as conn:
        wait_until(lambda: not asleep(conn), "Postgres stops, too")


def test_a_cancel_ends_the_sending_of_a_large_text(conn, planners, dsn):
    """A process that is stopped reads no more than its pipe holds."""
    planners.call(conn, None, LARGE, pid)
    [(process, _)] = planners._pool._idle
    os.kill(process.pid, signal.SIGSTOP)
    call = Call(planners, dsn, "low", length, bytes(1 << 20))
    wait_until(lambda: not planners._pool._idle, "it is asked")
    call.job.cancel()
    assert isinstance(call.end(), QueryCancelled)
    assert process.has_exited
    assert planners.call(conn, None, LARGE, length, bytes(1 << 20)) == 1 << 20


def asleep(conn: psycopg.Connection) -> bool:
    """Return whether a statement of ``sleeps`` runs."""
    row = conn.execute(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE query LIKE '%pg_sleep(3600)%'"
        " AND state = 'active' AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row is not None
    return bool(row[0])


def idle(planners: PlannerProcesses) -> set[int]:
    return {process.pid for process, _ in planners._pool._idle}


def test_one_role_does_not_hold_up_another(planners, dsn, tmp_path):
    """While one call of a role works, its other calls wait, but those of other roles do not."""
    first = Call(planners, dsn, "low", loops, str(tmp_path / "first"))
    begun(tmp_path / "first")
    more = [Call(planners, dsn, "low", pid) for _ in range(5)]
    wait_until(lambda: len(planners._waiting) == 5, "the role's other calls wait")
    for _ in range(3):
        assert isinstance(Call(planners, dsn, "other", pid).end(), int)
    assert len(planners._waiting) == 5
    more[0].job.cancel()
    assert isinstance(more[0].end(), QueryCancelled)
    first.job.cancel()
    assert isinstance(first.end(), QueryCancelled)
    assert all(isinstance(call.end(), int) for call in more[1:])


def test_at_most_two_processes_run(planners, dsn, tmp_path):
    calls = [Call(planners, dsn, role, loops, str(tmp_path / role)) for role in ("a", "b")]
    for role in ("a", "b"):
        begun(tmp_path / role)
    third = Call(planners, dsn, "c", pid)
    wait_until(lambda: len(planners._waiting) == 1, "the third waits")
    for call in calls:
        call.job.cancel()
        call.end()
    assert isinstance(third.end(), int)
