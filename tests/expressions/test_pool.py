"""The pool of connections that evaluate: their number, and the state of a session."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psycopg
import pyarrow as pa
import pytest

from headrace.errors import (
    HeadraceError,
    Interrupted,
    LimitExceeded,
    OutOfReach,
    SessionsTerminated,
)
from headrace.expressions import link
from headrace.expressions.pool import LOST_MAX, Pool
from headrace.expressions.remote import RemoteEvaluator
from headrace.expressions.terminations import TERMINATIONS_MAX, Terminations
from headrace.expressions.turns import EvaluationTurns
from headrace.kernels import text
from headrace.process.bounds import Bound, Limits
from headrace.types import Field
from tests.waiting import wait_until

TEXT, INT4 = 25, 23
_asked = itertools.count()
IGNORES = """
CREATE FUNCTION deaf(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    LOOP
        BEGIN
            PERFORM pg_sleep(60);
        EXCEPTION WHEN query_canceled THEN NULL;
        END;
    END LOOP;
END $$
"""


WRITTEN = "(SELECT count(*) FROM public.written)::text"


@pytest.fixture
def pool() -> Iterator[Pool]:
    with closing(Pool(2)) as made:
        yield made


def evaluator(dsn: str, pool: Pool, owner: str = "", **settings: str) -> RemoteEvaluator:
    return RemoteEvaluator(dsn, settings, dsn, pool=pool, owner=owner)


def ask(remote: RemoteEvaluator, sql: str, *, trusted: bool = False) -> str | None:
    """Return the value of an expression over the number 0, without cached results."""
    sql = f"{sql} /* {next(_asked)} */"
    fields = [Field("", INT4)]
    column = [pa.array([0], pa.int32())]
    (out,) = remote.evaluate([sql], fields, column, [Field("", TEXT)], trusted)
    return text.render(out, TEXT)[0].as_py()


def connections(conn: psycopg.Connection) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'headrace eval'"
    ).fetchone()
    assert row is not None
    return row[0]


def test_many_evaluators_share_few_connections(database, pool):
    with psycopg.connect(database, autocommit=True) as conn:
        many = [evaluator(database, pool, owner=f"o{i}") for i in range(25)]
        for remote in many:
            for trusted in (True, False):
                assert ask(remote, "$1::text", trusted=trusted) == "0"
        wait_until(lambda: connections(conn) <= 2, "no more than the pool has")
        pool.close()
        wait_until(lambda: connections(conn) == 0, "they are closed")


def test_more_threads_than_connections(database, pool):
    found: list[str | None] = []

    def work(number: int) -> None:
        remote = evaluator(database, pool, owner=f"o{number % 3}")
        found.append(ask(remote, "pg_sleep(0.01)::text || $1"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["0"] * 12


def test_an_owner_finds_nothing_of_anothers(database):
    """An owner finds no settings or objects of an earlier statement, and has another backend."""
    keep = "pg_advisory_lock(7)::text || pg_backend_pid() || $1"
    kept = (
        "(SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE"
        " l.locktype = 'advisory' AND d.datname = current_database())::text || $1"
    )
    with closing(Pool(1)) as pool:
        one, two = (evaluator(database, pool, owner=o) for o in ("one", "two"))
        ask(one, keep)
        assert ask(one, kept) == "10", "else no test here could fail"
        first = ask(one, "pg_backend_pid()::text || left($1::text, 0)")
        again = ask(one, "pg_backend_pid()::text || left($1::text, 0)")
        assert first == again, "an owner keeps his session"
        assert ask(two, kept) == "00"
        assert ask(two, "pg_backend_pid()::text || left($1::text, 0)") != first


LEAVES = {
    "a setting": (
        "PERFORM set_config('some.secret', 'mine', false)",
        "coalesce(current_setting('some.secret', true), '')",
        "",
    ),
    "a search path": (
        "PERFORM set_config('search_path', 'elsewhere', false)",
        "current_setting('search_path')",
        "pg_catalog, pg_temp",
    ),
    "a role": ("SET ROLE pg_monitor", "(current_user = session_user)::text", "true"),
    "a limit of time": (
        "SET statement_timeout = '1h'",
        "current_setting('statement_timeout')",
        "0",
    ),
    "transactions that write": (
        "SET default_transaction_read_only = off;"
        " SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
        "current_setting('transaction_read_only')",
        "on",
    ),
    "a row": ("INSERT INTO public.written VALUES ('x')", WRITTEN, "0"),
    "a temporary table": (
        "CREATE TEMP TABLE large AS SELECT generate_series(1, 1000)",
        "coalesce(to_regclass('pg_temp.large')::text, '')",
        "",
    ),
    "a large object": (
        "PERFORM lo_from_bytea(0, 'x')",
        "(SELECT count(*) FROM pg_largeobject_metadata)::text",
        "0",
    ),
    "a role's setting": (
        "ALTER ROLE CURRENT_USER SET work_mem = '1GB'",
        "(SELECT count(*) FROM pg_db_role_setting)::text",
        "0",
    ),
    "a channel": ("LISTEN somewhere", "(SELECT count(*) FROM pg_listening_channels())::text", "0"),
    "a cursor": (
        "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT generate_series(1, 1000)'",
        "(SELECT count(*) FROM pg_cursors WHERE is_holdable)::text",
        "0",
    ),
}


@pytest.mark.parametrize(("leave", "look", "found"), LEAVES.values(), ids=LEAVES)
def test_a_statement_leaves_nothing_for_the_next(database, leave, look, found):
    """Nothing stays where transactions were set to write before, nor for a superuser."""
    off = "SET default_transaction_read_only = off"
    with closing(Pool(1)) as pool, psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE written (what text)")
        for name, body in (("off", off), ("leave", leave)):
            conn.execute(
                f"CREATE FUNCTION {name}() RETURNS text LANGUAGE plpgsql AS $f$ BEGIN BEGIN"
                f" {body}; EXCEPTION WHEN read_only_sql_transaction THEN NULL; END;"
                " RETURN pg_backend_pid(); END $f$"
            )
        remote = evaluator(database, pool)
        pids = {ask(remote, f"public.{name}()") for name in ("off", "leave", "leave")}
        assert len(pids) == 1
        assert ask(remote, look) == found


def test_a_function_that_cancels_its_own_statement(database, pool):
    remote = evaluator(database, pool)
    before = ask(remote, "pg_backend_pid()::text || left($1::text, 0)")
    with pytest.raises(Interrupted):
        ask(remote, "pg_cancel_backend(pg_backend_pid())::text || pg_sleep(60) || $1")
    assert ask(remote, "pg_backend_pid()::text || left($1::text, 0)") == before


def test_built_in_functions_share_a_backend_and_not_their_settings(database):
    with closing(Pool(1)) as pool:
        one = evaluator(database, pool, TimeZone="Asia/Tokyo")
        two = evaluator(database, pool, TimeZone="America/New_York")
        zone = "current_setting('TimeZone') || ' ' || pg_backend_pid() || $1"
        for _ in range(7):  # more often than the threshold of automatic preparation
            first = ask(one, zone, trusted=True)
            second = ask(two, zone, trusted=True)
            assert first is not None and second is not None
            assert first.split()[0] == "Asia/Tokyo"
            assert second.split()[0] == "America/New_York"
            assert first.split()[1] == second.split()[1]


def test_a_server_that_has_ended_all_connections(database, pool):
    """Each idle one is dead: none of them is tried after the first."""
    remotes = [evaluator(database, pool, owner=o) for o in ("one", "two")]
    for remote in remotes:
        ask(remote, "$1::text")
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'headrace eval' AND datname = current_database()"
        )
    for remote in remotes:
        assert ask(remote, "$1 || 'x'") == "0x"


def test_an_endless_statement_ends_within_the_limit(database, pool):
    remote = evaluator(database, pool)
    with (
        Bound(Limits(time_ms=300)).applied(),
        pytest.raises(LimitExceeded, match="view_time_ms_max") as caught,
    ):
        ask(remote, "pg_sleep(1000)::text || $1")
    assert caught.value.code == "54H01"
    assert '{"commit_group": "slow", "view_time_ms_max": 3000}' in (caught.value.hint or "")
    assert ask(remote, "$1 || 'x'") == "0x"
    assert pool.lost == 0


def test_somebody_else_ends_a_statement(database, pool):
    remote, bound = evaluator(database, pool), Bound(Limits())
    errors: list[Exception] = []

    def work() -> None:
        with bound.applied():
            try:
                ask(remote, "pg_sleep(1000)::text || $1")
            except Interrupted as error:
                errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with psycopg.connect(database, autocommit=True) as conn:
        wait_until(lambda: connections(conn) == 1, "it runs")
    bound.cancel(Interrupted("enough", sqlstate="57014"))
    thread.join()
    assert [str(error) for error in errors] == ["enough"]


def test_a_function_that_ignores_its_cancel(database, pool):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(IGNORES)
        remote = evaluator(database, pool)
        with Bound(Limits(time_ms=100)).applied(), pytest.raises(LimitExceeded):
            ask(remote, "public.deaf($1)::text")
        assert ask(remote, "$1 || 'x'") == "0x"
        wait_until(lambda: connections(conn) == 1, "its backend ends")
        wait_until(lambda: pool.lost == 0, "and that is noticed")


def test_a_backend_that_does_not_end_is_abandoned(database, pool):
    """As in a C function it ignores interrupts; its owner gets no evaluation until it ends."""
    remote = evaluator(database, pool, owner="one")
    other = evaluator(database, pool, owner="two")
    stopped: list[int] = []
    with psycopg.connect(database, autocommit=True) as conn:
        try:
            for _ in range(LOST_MAX):
                stopped.append(int(ask(remote, "pg_backend_pid()::text || ''") or 0))
                os.kill(stopped[-1], signal.SIGSTOP)
                with Bound(Limits(time_ms=100)).applied(), pytest.raises(LimitExceeded):
                    ask(remote, "$1 || 'x'")
            assert pool.lost == LOST_MAX
            with pytest.raises(
                LimitExceeded, match="expressions of the view's owner cannot be evaluated"
            ):
                ask(remote, "$1 || 'x'")
            assert ask(other, "$1 || 'x'") == "0x"
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: pool.lost == 0, "they are terminated")
        assert ask(remote, "$1 || 'x'") == "0x"
        wait_until(lambda: connections(conn) == 2, "they are gone")


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_large_value_is_not_sent(database, zone, trusted):
    remote = RemoteEvaluator(database, {"TimeZone": zone}, database, value_bytes_max=1_000_000)
    with (
        closing(remote),
        Bound(Limits(memory_bytes=4_000_000)).applied(),
        pytest.raises(LimitExceeded, match="view_memory_bytes_max") as caught,
    ):
        ask(remote, "repeat('x', 200000000 + $1)", trusted=trusted)
    assert "A value has 200000004 bytes; the limit is 1000000" in str(caught.value.detail)


def test_many_values_are_not_kept(database, pool):
    """Each value fits, but not all together."""
    remote = RemoteEvaluator(database, {}, pool=pool, value_bytes_max=1_000_000)
    numbers = pa.array(range(40), pa.int32())
    with (
        Bound(Limits(memory_bytes=4_000_000)).applied(),
        pytest.raises(LimitExceeded, match="view_memory_bytes_max"),
    ):
        remote.evaluate(
            ["repeat('x', 500000 + $1)"], [Field("", INT4)], [numbers], [Field("", TEXT)], True
        )
    assert ask(remote, "$1 || 'x'", trusted=True) == "0x"


def test_a_statement_that_fails_leaves_its_connection_as_it_was(database):
    with closing(Pool(1)) as pool:
        remote = evaluator(database, pool)
        pid = ask(remote, "pg_backend_pid()::text || left($1::text, 0)")
        for broken in ("no_such_function($1)", "($1 / 0)::text", "1 +"):
            with pytest.raises(HeadraceError):
                ask(remote, broken)
        assert ask(remote, "pg_backend_pid()::text || left($1::text, 0)") == pid


@pytest.mark.parametrize("trusted", [True, False])
def test_another_type_of_the_same_name_is_another(database, pool, trusted):
    """One view is dropped with its type; the next one has the same text over the next type."""
    sql, fields = "'a'::public.mood::text", [Field("", INT4)]
    column = [pa.array([0], pa.int32())]
    with psycopg.connect(database, autocommit=True) as conn:
        for labels in ("'a', 'b'", "'c', 'a'"):
            conn.execute(f"CREATE TYPE mood AS ENUM ({labels})")
            remote = evaluator(database, pool)
            (out,) = remote.evaluate([sql], fields, column, [Field("", TEXT)], trusted)
            assert text.render(out, TEXT)[0].as_py() == "a"
            conn.execute("DROP TYPE mood")


KILLS = """
CREATE FUNCTION public.kills(int, itself boolean) RETURNS text STABLE LANGUAGE sql AS $$
    SELECT count(pg_terminate_backend(pid))::text || $1 FROM pg_stat_activity
     WHERE usename = current_user AND application_name LIKE 'headrace eval%'
       AND (itself OR pid <> pg_backend_pid())
$$
"""


@pytest.mark.parametrize("itself", [False, True])
def test_only_the_owner_who_terminates_sessions_is_refused(database, itself):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
    pool = Pool(4)
    innocent = [evaluator(database, pool, owner=name) for name in ("a", "b")]
    culprit = evaluator(database, pool, owner="culprit")
    refused = 0
    for _ in range(10):
        for one in innocent:
            assert ask(one, "$1::text") == "0"
        try:
            ask(culprit, f"public.kills($1, {itself})")
        except Interrupted:
            assert itself
        except LimitExceeded as error:
            refused += "terminates sessions" in error.message
    assert refused >= 4
    assert ask(innocent[0], "$1::text") == "0"
    pool.close()


def test_statements_that_run_while_sessions_are_terminated_have_their_results(database):
    with psycopg.connect(database, autocommit=True) as conn, closing(Pool(4)) as pool:
        conn.execute(KILLS)
        ended = threading.Event()
        ends: list[HeadraceError] = []

        def attack() -> None:
            culprit = evaluator(database, pool, owner="culprit")
            try:
                while not ended.is_set():
                    ask(culprit, "public.kills($1, false)")
            except HeadraceError as error:
                ends.append(error)

        attacker = threading.Thread(target=attack)
        attacker.start()
        try:
            victim = evaluator(database, pool, owner="victim")
            while not ends:
                assert ask(victim, "$1::text || pg_sleep(0.01)::text") == "0"
        finally:
            ended.set()
            attacker.join()
        assert isinstance(ends[0], LimitExceeded)
        assert ask(victim, "$1::text") == "0"


def test_the_first_proof_of_a_search_ends_the_statement(database, pool):
    """The search for a row uses it to find the rows for which a function terminates sessions."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
    culprit = evaluator(database, pool, owner="culprit")
    for itself in (False, True):
        for _ in range(TERMINATIONS_MAX):
            with pool.search(), pytest.raises(SessionsTerminated):
                ask(culprit, f"public.kills($1, {itself})")
    with pool.search():
        assert ask(culprit, "$1::text") == "0", "who is refused may be searched"
    with pytest.raises(LimitExceeded, match="terminates sessions") as caught:
        ask(culprit, "$1::text")
    assert not isinstance(caught.value, SessionsTerminated), "it has done nothing"


def test_statements_of_owners_who_are_not_suspected_run_beside_each_other(database, pool):
    """A termination that their statements cannot have caused does not delay them."""
    culprit, one, other = (evaluator(database, pool, owner=n) for n in ("culprit", "one", "other"))
    found: list[str | None] = []

    def slow() -> None:
        found.append(ask(one, "coalesce(pg_advisory_lock(7)::text, '') || $1"))

    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
        assert ask(one, "$1::text") == "0"  # before the culprit's session is opened
        for _ in range(TERMINATIONS_MAX):
            with contextlib.suppress(Interrupted, LimitExceeded):
                ask(culprit, "pg_terminate_backend(pg_backend_pid())::text || $1")
        conn.execute("SELECT pg_advisory_lock(7)")
        thread = threading.Thread(target=slow)
        thread.start()
        try:
            wait_until(
                lambda: (
                    conn.execute(
                        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                    ).fetchone()
                    == (1,)
                ),
                "the slow statement runs",
            )
            assert ask(other, "$1::text") == "0"
            assert not found
        finally:
            conn.execute("SELECT pg_advisory_unlock(7)")
            thread.join()
    assert found == ["0"]


def test_sessions_that_another_role_terminates_are_no_owners_fault(database, pool):
    one = evaluator(database, pool, owner="a")
    with psycopg.connect(database, autocommit=True) as conn:
        for _ in range(10):
            assert ask(one, "$1::text") == "0"
            conn.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'headrace eval%'"
            )


_ATTACKS = """
import sys
import pyarrow as pa
from pathlib import Path
from headrace.errors import HeadraceError, LimitExceeded
from headrace.expressions.pool import Pool
from tests.expressions.test_pool import ask, evaluator

pool = Pool(2, Path(sys.argv[2]))
culprit = evaluator(sys.argv[1], pool, owner="culprit")
print("ready", flush=True)
for line in sys.stdin:
    try:
        ask(culprit, "public.kills($1, false)")
    except LimitExceeded as error:
        print("refused", error.message, flush=True)
    except HeadraceError as error:
        print("failed", error.message, flush=True)
    else:
        print("done", flush=True)
"""


@dataclass(frozen=True)
class Attacks:
    """Another process, which attacks once for each line of its orders, and reports the outcome."""

    process: subprocess.Popen[str]
    orders: IO[str]
    told: IO[str]


@contextlib.contextmanager
def attacking(database: str, folder: Path) -> Iterator[Attacks]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
    process = subprocess.Popen(
        [sys.executable, "-c", _ATTACKS, database, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Attacks(process, process.stdin, process.stdout)


def test_an_owner_is_found_out_whichever_process_runs_its_code(database, tmp_path):
    """The culprit's statements run in another process; this one has the terminated sessions."""
    with closing(Pool(2, tmp_path)) as pool, attacking(database, tmp_path) as attacks:
        assert attacks.told.readline() == "ready\n"
        victim = evaluator(database, pool, owner="victim")
        outcomes = []
        for _ in range(2 * TERMINATIONS_MAX + 2):
            # A session is open as a target, between two statements.
            assert ask(victim, "$1::text") == "0"
            attacks.orders.write("go\n")
            attacks.orders.flush()
            outcomes.append(attacks.told.readline().split()[0])
            if outcomes[-1] == "refused":
                break
        assert ask(victim, "$1::text") == "0"
        assert outcomes[-1] == "refused", outcomes
        assert pool.proofs == {"culprit": TERMINATIONS_MAX}
        # All processes know a culprit that one has proven, and so does a new process.
        with pytest.raises(LimitExceeded, match="terminates sessions"):
            ask(evaluator(database, pool, owner="culprit"), "$1::text")
        attacks.orders.close()


def test_a_victim_is_not_blamed_for_another_process(database, tmp_path):
    """The victim's statements run alone, and the other process attacks without a pause."""
    with closing(Pool(2, tmp_path)) as pool, attacking(database, tmp_path) as attacks:
        attacks.orders.write("go\n" * 40)
        attacks.orders.close()
        victim = evaluator(database, pool, owner="victim")
        while attacks.process.poll() is None:
            assert ask(victim, "$1::text || pg_sleep(0.02)::text") == "0"
        assert "refused" in attacks.told.read()
        assert set(pool.proofs) == {"culprit"}


def test_a_backend_that_goes_on_voids_proofs(database, tmp_path):
    """No owner is proven guilty while one backend runs an owner's code without the engine."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
    turns = EvaluationTurns(tmp_path)
    turns.lose_backend()
    with closing(Pool(2, tmp_path)) as pool:
        one = evaluator(database, pool, owner="one")
        for _ in range(TERMINATIONS_MAX + 1):
            ask(one, "public.kills($1, false)")
            ask(evaluator(database, pool, owner="other"), "$1::text")
        assert pool.proofs == {}
        turns.find_backend()
        for _ in range(TERMINATIONS_MAX):
            with contextlib.suppress(LimitExceeded):
                ask(one, "public.kills($1, false)")
        assert set(pool.proofs) == {"one"}


@pytest.mark.parametrize("alone", [False, True])
def test_a_statement_of_another_process_that_does_not_end_holds_up_nobody(
    database, tmp_path, alone
):
    """A statement that has waited for it runs all the same, and proves nothing."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(KILLS)
    other = EvaluationTurns(tmp_path)
    assert other.enter(alone=alone)
    with closing(Pool(2, tmp_path)) as pool:
        one, two = (evaluator(database, pool, owner=owner) for owner in ("one", "two"))
        for _ in range(TERMINATIONS_MAX + 1):
            assert ask(two, "$1::text") == "0"
            ask(one, "public.kills($1, false)")
        assert pool.proofs == {}
        other.leave(alone=alone)
        for _ in range(TERMINATIONS_MAX + 1):
            assert ask(two, "$1::text") == "0"
            with contextlib.suppress(LimitExceeded):
                ask(one, "public.kills($1, false)")
        assert set(pool.proofs) == {"one"}


@pytest.mark.parametrize("beside", [False, True])
def test_a_statement_without_a_turn_voids_the_proofs_of_others(database, tmp_path, beside):
    """The statement's code may have terminated the probe of the statement that ran alone."""
    here, other = Terminations(tmp_path), EvaluationTurns(tmp_path)
    guilty = contextlib.nullcontext() if beside else pytest.raises(SessionsTerminated)
    with (
        closing(here),
        psycopg.connect(database, autocommit=True) as conn,
        guilty,
        here.search(),
        here.statement(database, "one"),
    ):
        if beside:
            other.enter_anyway(time.monotonic())
            other.leave_anyway(time.monotonic())
        conn.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE application_name = 'headrace eval probe' AND datname = current_database()"
        )
    assert here.proofs == ({} if beside else {"one": 1})


def test_a_damaged_record_does_not_begin_anew(tmp_path):
    """A process that has learned of an event learns of events after the damage, too."""
    first, second = EvaluationTurns(tmp_path), EvaluationTurns(tmp_path)
    for _ in range(5):
        first.add_loss(0.0, 1.0)
    known = second.read().number
    (record,) = tmp_path.glob("*.json")
    record.write_bytes(b"{" + record.read_bytes())
    first.add_loss(0.0, 2.0)
    assert second.read().number > known


def test_a_session_that_is_terminated_as_it_is_opened(database, monkeypatch):
    """Another one is opened: only a server that terminates all of them is unreachable."""
    opened: list[int] = []
    connect = link.for_values

    def opening(dsn: str, *, name: str) -> psycopg.Connection:
        made = connect(dsn, name=name)
        opened.append(made.info.backend_pid)
        if len(opened) < hits:
            with psycopg.connect(database, autocommit=True) as conn:
                conn.execute("SELECT pg_terminate_backend(%s, 60000)", (opened[-1],))
        return made

    monkeypatch.setattr(link, "for_values", opening)
    with closing(Pool(2)) as pool:
        hits = 3
        assert ask(evaluator(database, pool, owner="victim"), "$1::text") == "0"
        assert len(opened) == 3
    opened.clear()
    hits = 9
    with closing(Pool(2)) as pool:
        victim = evaluator(database, pool, owner="victim")
        with pytest.raises(OutOfReach):
            ask(victim, "$1::text")
        assert pool.proofs == {}
