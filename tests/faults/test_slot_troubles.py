"""Troubles with the slot, the walsender and the login: their effect on views, and their messages.

Each has a server of Postgres 18 for itself, with the defaults of a user's server.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from headrace.postgres import slot
from tests.compared import differs
from tests.conftest import drop_database
from tests.faults.helpers import WORKER
from tests.runtime.harness import settings_for
from tests.security.roles import PASSWORD
from tests.waiting import time_passes, wait_until

QUERY = "SELECT n % 3 AS g, count(*) AS n, sum(n) AS s FROM t GROUP BY n % 3"
ROW = "INSERT INTO t (n) VALUES (%s)"
MORE_WAL = "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB", "max_replication_slots": "4"}
    with EmbeddedPostgres(None, 18, settings, durable=False) as made:
        yield made


@pytest.fixture
def source(server) -> Iterator[psycopg.Connection]:
    """A fresh database with a table."""
    name = f"s_{uuid.uuid4().hex[:12]}"
    with connect(server.dsn()) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with connect(server.dsn(name)) as conn:
        conn.execute("CREATE TABLE t (id bigserial PRIMARY KEY, n int)")
        conn.execute("INSERT INTO t (n) SELECT i FROM generate_series(1, 100) i")
        yield conn
        conn.execute("ALTER SYSTEM RESET ALL")
        conn.execute("SELECT pg_reload_conf()")
    drop_database(server.dsn(), name)


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def begin(start_engine, source: psycopg.Connection, dsn: str = "", **env: str) -> EmbeddedEngine:
    engine = start_engine(dsn or source.info.dsn, **env)
    with connect(engine.dsn) as commander:
        commander.execute(f"CALL headrace.create_view('sums', $q${QUERY}$q$)")
    return engine


def view(source: psycopg.Connection) -> tuple[int, str, str]:
    [row] = source.execute(
        "SELECT id, status, coalesce(headrace.view_message(id), '') FROM headrace.views"
    ).fetchall()
    return row


def follows(source: psycopg.Connection, n: int) -> None:
    """Check that the view shows a new row soon, and is exact."""
    source.execute(ROW, (n,))
    wait_until(
        lambda: view(source)[1] == "running" and not differs(source, "sums", QUERY),
        lambda: (view(source), differs(source, "sums", QUERY)),
        every_s=0.05,
    )


def set_system(source: psycopg.Connection, name: str, value: str) -> None:
    source.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    source.execute("SELECT pg_reload_conf()")
    wait_until(lambda: source.execute(f"SHOW {name}").fetchone() == (value,), f"{name} is set")


def invalidated(source: psycopg.Connection, engine: EmbeddedEngine) -> str | None:
    row = source.execute(
        "SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = %s",
        (engine.env["HEADRACE_SLOT_NAME"],),
    ).fetchone()
    return row[0] if row else None


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("max_slot_wal_keep_size", "16MB", "wal_removed"),
        ("idle_replication_slot_timeout", "1s", "idle_timeout"),
    ],
)
def test_an_invalidated_slot_is_named_and_replaced(start_engine, source, setting, value, reason):
    """The engine was down for longer than the server keeps WAL for it."""
    engine = begin(start_engine, source)
    before, *_ = view(source)
    engine.stop()
    set_system(source, setting, value)

    def lost() -> bool:
        for _ in range(3):
            source.execute(MORE_WAL)
        source.execute("CHECKPOINT")
        return invalidated(source, engine) == reason

    wait_until(lost, "the slot is invalidated", every_s=0.2)
    source.execute("DELETE FROM t WHERE n < 20")
    engine.start()
    wait_until(lambda: view(source)[0] != before, lambda: view(source))
    follows(source, 1)
    assert f"was invalidated by the server: {reason}" in engine.log
    assert setting in engine.log, "the detail names the setting"
    assert invalidated(source, engine) is None


def test_a_refusal_of_property_failover_names_the_setting(source, tmp_path):
    """Some services allow slots, but not slots that standbys copy."""
    role = f"engine_{uuid.uuid4().hex[:6]}"
    create = "pg_create_logical_replication_slot(name, name, bool, bool, bool)"
    source.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    source.execute(f'GRANT CREATE ON DATABASE "{source.info.dbname}" TO {role}')
    source.execute(f"REVOKE EXECUTE ON FUNCTION {create} FROM PUBLIC")
    try:
        dsn = make_conninfo(source.info.dsn, user=role)
        with connect(dsn) as conn, pytest.raises(PrerequisiteError) as refused:
            slot.ensure(conn, settings_for(dsn, tmp_path), lambda *_: False)
        assert refused.value.code == "42501"
        assert "set slot_failover = false" in refused.value.hint
        without = settings_for(dsn, tmp_path, slot_failover=False)
        with connect(dsn) as conn, pytest.raises(PrerequisiteError) as other:
            slot.ensure(conn, without, lambda *_: False)
        assert "slot_failover" not in (other.value.hint or "")
    finally:
        source.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_an_invalidated_slot_that_cannot_get_property_failover(start_engine, source):
    """The server refuses to alter it; it is replaced like any other that was invalidated."""
    engine = begin(start_engine, source, HEADRACE_SLOT_FAILOVER="false")
    engine.stop()
    set_system(source, "max_slot_wal_keep_size", "16MB")

    def lost() -> bool:
        for _ in range(3):
            source.execute(MORE_WAL)
        source.execute("CHECKPOINT")
        return invalidated(source, engine) == "wal_removed"

    wait_until(lost, "the slot is invalidated", every_s=0.2)
    engine.env["HEADRACE_SLOT_FAILOVER"] = "true"
    engine.start()
    follows(source, 1)
    assert "slot is not copied to standbys" in engine.log
    name = engine.env["HEADRACE_SLOT_NAME"]
    new = source.execute(
        "SELECT failover FROM pg_replication_slots WHERE slot_name = %s", (name,)
    ).fetchone()
    assert new == (True,)


def test_a_slot_that_is_dropped_under_a_running_engine(start_engine, source):
    engine = begin(start_engine, source)
    before, *_ = view(source)
    name = engine.env["HEADRACE_SLOT_NAME"]

    def dropped() -> bool:
        try:
            source.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s AND active_pid IS NOT NULL",
                (name,),
            )
            source.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(dropped, "it is dropped", every_s=0.001)
    source.execute("DELETE FROM t WHERE n < 20")
    wait_until(lambda: view(source)[0] != before, lambda: (view(source), engine.log[-2000:]))
    follows(source, 1)


def test_walsenders_that_are_killed_again_and_again(start_engine, source):
    engine = begin(start_engine, source)
    before, *_ = view(source)
    for i in range(10):
        source.execute(ROW, (i,))
        source.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE slot_name = %s AND active_pid IS NOT NULL",
            (engine.env["HEADRACE_SLOT_NAME"],),
        )
        time_passes(0.05)
    follows(source, 11)
    assert view(source)[0] == before, "nothing was filled anew"


def test_an_engine_that_is_silent_for_longer_than_wal_sender_timeout(start_engine, source):
    engine = begin(start_engine, source)
    before, *_ = view(source)
    set_system(source, "wal_sender_timeout", "1s")
    pid = wait_until(lambda: engine.child(WORKER), "a worker")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(
            lambda: (
                source.execute(
                    "SELECT active_pid IS NULL FROM pg_replication_slots WHERE slot_name = %s",
                    (engine.env["HEADRACE_SLOT_NAME"],),
                ).fetchone()
                == (True,)
            ),
            "the server gives the walsender up",
        )
        source.execute(ROW, (7,))
    finally:
        os.kill(pid, signal.SIGCONT)
    follows(source, 8)
    assert view(source)[0] == before, "nothing was filled anew"


def test_slots_that_are_all_taken_are_named(start_engine, source):
    engine = begin(start_engine, source)
    for i in range(3):
        source.execute("SELECT pg_create_physical_replication_slot(%s)", (f"theirs_{i}",))
    try:
        with connect(engine.dsn) as commander:
            with pytest.raises(psycopg.Error) as refused:
                commander.execute("CALL headrace.create_view('other', 'SELECT id FROM t')")
            assert "max_replication_slots" in str(refused.value), refused.value
            follows(source, 1)
            source.execute("SELECT pg_drop_replication_slot('theirs_0')")
            commander.execute("CALL headrace.create_view('other', 'SELECT id FROM t')")
    finally:
        source.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name LIKE 'theirs%'"
        )


@pytest.mark.parametrize("how", ["password", "pg_hba"])
def test_a_login_that_the_server_refuses_for_a_while(start_engine, server, source, how):
    """Views stand still and the server lives on; once it may log in again, they go on."""
    hba = server.data_dir / "pg_hba.conf"
    kept = hba.read_text()
    role = f"engine_{uuid.uuid4().hex[:6]}"
    source.execute(f"CREATE ROLE {role} LOGIN REPLICATION SUPERUSER PASSWORD '{PASSWORD}'")

    def ruled(method: str) -> None:
        rule = f"host all,replication {role} 127.0.0.1/32 {method}\n"
        hba.write_text(rule + kept)
        source.execute("SELECT pg_reload_conf()")

    def refused() -> bool:
        try:
            psycopg.connect(dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            return True
        return False

    dsn = make_conninfo(source.info.dsn, user=role, password=PASSWORD)
    ruled("scram-sha-256")
    wait_until(lambda: not refused(), "the rule holds")
    try:
        engine = begin(start_engine, source, dsn)
        before, *_ = view(source)
        if how == "password":
            source.execute(f"ALTER ROLE {role} PASSWORD 'another'")
        else:
            ruled("reject")
        wait_until(refused, "it is refused")
        source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (role,)
        )
        source.execute(ROW, (7,))
        time_passes(2.0)
        assert engine.running, "the server lives on"
        assert differs(source, "sums", QUERY) != []
        if how == "password":
            source.execute(f"ALTER ROLE {role} PASSWORD '{PASSWORD}'")
        else:
            ruled("scram-sha-256")
        follows(source, 8)
        assert view(source)[0] == before, "nothing was filled anew"
        engine.stop()
    finally:
        hba.write_text(kept)
        source.execute("SELECT pg_reload_conf()")
        source.execute(f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}")
        source.execute(f"DROP ROLE {role}")
