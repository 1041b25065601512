"""Troubles of the standby that decodes: their effect on views, and their messages."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from tests.engines import Engine
from tests.failover.drill import connect
from tests.outside import pages
from tests.standby.reader import VERSION, Reading, note, reading
from tests.standby.reader import trio as trio
from tests.waiting import wait_until

BATCHES = 70
"""A view that lacks more batches than 64 catches up by itself after a restart."""
pytestmark = pytest.mark.timeout(300)


def insert(made: Reading, *ids: int) -> None:
    with made.pair.connect(made.name) as conn:
        for i in ids:
            conn.execute("INSERT INTO orders VALUES (%s, 1, 1, 390)", (i,))


def refused(trio, tmp_path, decode_from: str) -> str:
    """Return the log of an engine that does not start with this setting."""
    env = {"HEADRACE_DECODE_FROM": decode_from, "HEADRACE_SPARK_WARM": "false"}
    engine = Engine(trio.primary.dsn(), tmp_path / "engine", env=env)
    with pytest.raises(PrerequisiteError):
        engine.start()
    assert not engine.running
    return engine.log


# --- servers that cannot decode


def test_a_server_that_is_no_standby_is_refused(trio, tmp_path):
    log = refused(trio, tmp_path, trio.primary.dsn())
    assert "the server of decode_from is not a standby" in log
    assert "Name a standby of the source, or remove decode_from." in log


def test_a_standby_of_another_cluster_is_refused(trio, tmp_path):
    with EmbeddedPostgres(None, VERSION, durable=False) as other:
        log = refused(trio, tmp_path, other.dsn())
    assert "the server of decode_from belongs to another cluster than the source" in log


def test_a_server_that_is_too_old_is_refused(trio, tmp_path):
    try:
        other = EmbeddedPostgres(None, 15, durable=False)
    except PrerequisiteError:
        pytest.skip("there is no Postgres 15 here")
    with other:
        log = refused(trio, tmp_path, other.dsn())
    # An older server is also another cluster; the first thing that is missing is named.
    assert "belongs to another cluster" in log


def test_a_role_that_may_not_log_in_is_waited_for(trio, tmp_path):
    """As a standby that is away: it may be let in later, so the server starts."""
    wrong = make_conninfo(trio.reader.dsn("secret"), user="nobody_knows")
    with reading(trio, "secret", tmp_path, HEADRACE_DECODE_FROM=wrong) as made:
        made.engine.start()
        told = "the standby of decode_from does not send changes"
        wait_until(lambda: told in made.engine.log, "it is logged")
        assert 'role \\"nobody_knows\\" does not exist' in made.engine.log


# --- the slot is created


def test_the_slot_waits_for_the_publication(trio, tmp_path):
    """The standby is paused before the publication exists."""
    with reading(trio, "paused", tmp_path) as made:
        with connect(trio.reader.dsn()) as conn:
            conn.execute("SELECT pg_wal_replay_pause()")
            state = "SELECT pg_get_wal_replay_pause_state()"
            wait_until(lambda: conn.execute(state).fetchone() == ("paused",), "it is paused")
            try:
                made.engine.start()
                told = 'does not have publication \\"headrace\\" yet'
                wait_until(lambda: told in made.engine.log, "it is logged")
                assert trio.slots(reader=True) == []
            finally:
                conn.execute("SELECT pg_wal_replay_resume()")
        made.open()
        insert(made, 1000)
        made.equal()
        assert trio.slots(reader=False) == [], "the primary has no logical slot"


def test_a_standby_that_applies_late(trio, tmp_path):
    """Everything takes as long as the standby, and is exact."""
    trio.set_reader("recovery_min_apply_delay", "700ms")
    try:
        with reading(trio, "late", tmp_path) as made:
            made.open()
            insert(made, *range(1000, 1010))
            with connect(made.engine.dsn) as conn:
                conn.execute("CALL headrace.wait_for('totals')")
                count = "SELECT n - (SELECT count(*) FROM orders WHERE customer = 1) FROM totals"
                assert conn.execute(f"{count} WHERE customer = 1").fetchone() == (0,)
            made.equal()
    finally:
        trio.set_reader("recovery_min_apply_delay", "0")


def test_a_role_without_the_right_is_told_the_grant(trio, tmp_path):
    """The slot waits for a snapshot of the primary, which this role may not request."""
    name = "rights"
    with trio.connect() as conn:
        conn.execute("CREATE ROLE modest LOGIN REPLICATION")
    source = make_conninfo(trio.primary.dsn(name), user="modest")
    decode = make_conninfo(trio.reader.dsn(name), user="modest")
    with reading(trio, name, tmp_path, HEADRACE_DECODE_FROM=decode) as made:
        made.engine.source = source
        with trio.connect(name) as conn:
            conn.execute(f"GRANT CREATE ON DATABASE {name} TO modest")
            conn.execute("ALTER TABLE orders OWNER TO modest")
            conn.execute("ALTER TABLE customers OWNER TO modest")
            with conn.transaction():
                # Without the right it would be logged within 15 s, but this keeps the slot waiting.
                conn.execute("SELECT pg_current_xact_id()")
                made.engine.start()
                told = 'GRANT EXECUTE ON FUNCTION pg_catalog.pg_log_standby_snapshot() TO \\"modest'
                wait_until(lambda: told in made.engine.log, "it is logged")
            conn.execute("GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO modest")
        wait_until(lambda: trio.slots(reader=True) == [made.slot], "the slot is created")
    with trio.connect() as conn:
        conn.execute(
            "REVOKE EXECUTE ON FUNCTION pg_log_standby_snapshot() FROM modest; DROP ROLE modest"
        )


# --- the slot is lost


def test_a_vacuum_that_invalidates_the_slot_is_named(trio, tmp_path):
    with reading(trio, "vacuumed", tmp_path) as made:
        ids = made.open()
        trio.set_reader("hot_standby_feedback", "off")
        try:
            with trio.connect(made.name) as conn:

                def invalidated() -> bool:
                    conn.execute("CREATE TABLE gone (x int); DROP TABLE gone")
                    conn.execute("VACUUM pg_class")
                    conn.execute("VACUUM pg_attribute")
                    return "was invalidated by the server" in made.engine.log

                wait_until(invalidated, "the slot is invalidated", every_s=0.2)
        finally:
            trio.set_reader("hot_standby_feedback", "on")
        reason = "rows_removed" if VERSION >= 17 else "recovery_conflict"
        assert f"was invalidated by the server: {reason}" in made.engine.log
        assert "see hot_standby_feedback" in made.engine.log
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()


def test_a_primary_whose_wal_level_was_lowered(trio, tmp_path):
    with reading(trio, "lowered", tmp_path) as made:
        ids = made.open()
        made.engine.stop()

        def restart(wal_level: str) -> None:
            with trio.connect() as conn:
                conn.execute(f"ALTER SYSTEM SET wal_level = '{wal_level}'")
            trio.primary.stop()
            trio.primary.start()

        restart("replica")
        with pytest.raises(PrerequisiteError):
            made.engine.start()
        assert 'wal_level is "replica", but must be "logical"' in made.engine.log
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        with connect(trio.reader.dsn()) as conn:
            lost = lambda: conn.execute(status, (made.slot,)).fetchone() == ("lost",)  # noqa: E731
            wait_until(lost, "the slot is invalidated")
        restart("logical")
        made.engine.start()
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()
        assert "wal_level of the primary was below logical" in made.engine.log


# --- the standby is away


def test_views_wait_for_a_standby_that_is_away(trio, tmp_path):
    """They stay as they are and say why; the primary's writers notice nothing."""
    with reading(trio, "away", tmp_path) as made:
        ids = made.open()
        made.equal()
        with trio.without_reader():
            insert(made, *range(1000, 1100))
            told = "running: it waits to read the source again: the standby of decode_from"
            wait_until(lambda: note(made).count(told) == len(ids), lambda: note(made))
            with made.pair.connect(made.name) as conn:
                query = "SELECT count(*) FROM large WHERE id >= 1000"
                assert conn.execute(query).fetchone() == (0,)
        made.equal()
        assert made.ids() == ids
        assert "waits" not in note(made)


def test_a_server_starts_while_the_standby_is_away(trio, tmp_path):
    with reading(trio, "starts", tmp_path) as made:
        ids = made.open()
        made.engine.stop()
        with trio.without_reader():
            insert(made, 1000)
            made.engine.start()
            assert "standby not ready" in made.engine.log
            told = "running: it waits to read the source again: the standby of decode_from"
            wait_until(lambda: note(made).count(told) == len(ids), lambda: note(made))
        made.equal()
        assert made.ids() == ids


def test_a_view_that_lags_reads_a_copy_of_the_slot(trio, tmp_path):
    """The copy is on the standby, too."""
    with reading(trio, "copied", tmp_path, HEADRACE_WAL_RETENTION="source") as made:
        ids = made.open()
        with connect(made.engine.dsn) as conn:
            conn.execute("CALL headrace.pause_view('large')")
            for i in range(BATCHES):
                insert(made, 1000 + i)
                conn.execute("CALL headrace.wait_for('totals')")
        made.engine.kill9()
        made.engine.start()
        with connect(made.engine.dsn) as conn:
            conn.execute("CALL headrace.resume_view('large')")
        made.equal()
        assert made.ids() == ids
        assert "the slot is copied" in made.engine.log


# --- check, status, uninstall


def command(made: Reading, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", *words, "--source", made.engine.source],
        env=os.environ | made.engine.env | {"HEADRACE_DATA_DIR": str(made.engine.data_dir)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_check_says_what_the_standby_lacks(trio, tmp_path):
    with reading(trio, "checked", tmp_path) as made:
        where = f"127.0.0.1:{trio.reader.port}"
        found = command(made, "check")
        assert f"✓ standby: {where} decodes" in found
        assert f"✓ slot: {made.slot} will be created" in found
        trio.set_reader("hot_standby_feedback", "off")
        try:
            found = command(made, "check")
            assert f"! standby: {where} decodes" in found
            assert "Set hot_standby_feedback = on on it, or a vacuum" in found
        finally:
            trio.set_reader("hot_standby_feedback", "on")
        made.engine.env["HEADRACE_DECODE_FROM"] = trio.primary.dsn(made.name)
        assert "the server of decode_from is not a standby" in command(made, "check")


def test_metrics_and_uninstall_reach_the_standby(trio, tmp_path):
    with reading(trio, "measured", tmp_path) as made:
        made.engine.args = ("--http", "127.0.0.1:0")
        made.open()
        insert(made, 1000)
        made.equal()
        base = made.engine.console.split("/#")[0]

        def page(path: str) -> str:
            with urllib.request.urlopen(base + path) as answer:
                return answer.read().decode()

        assert page("/readyz").strip() == "ok"
        metrics = page("/metrics")
        assert "headrace_source_slot_active 1" in metrics
        assert "headrace_source_confirmed_flush_lsn" in metrics
        made.engine.stop()
        assert trio.slots(reader=True) == [made.slot]
        assert "headrace removed" in command(made, "uninstall")
        assert trio.slots(reader=True) == []


def test_a_slot_from_before_the_setting_is_dropped(trio, tmp_path):
    """It would hold the primary's WAL for ever; views are filled anew, once."""
    with reading(trio, "moved", tmp_path) as made:
        standby = made.engine.env.pop("HEADRACE_DECODE_FROM")
        ids = made.open()
        assert trio.slots(reader=False) == [made.slot]
        made.engine.stop()
        made.engine.env["HEADRACE_DECODE_FROM"] = standby
        made.engine.start()
        wait_until(lambda: set(made.ids().values()).isdisjoint(ids.values()), "all are filled anew")
        made.equal()
        assert (trio.slots(reader=False), trio.slots(reader=True)) == ([], [made.slot])


def test_the_statements_of_the_manual(trio, tmp_path):
    """Each is executed where the page says, and has the effect that it names."""
    on_primary, on_standby = pages.fences("high-availability", "sql")[3:]
    given = pages.fences("high-availability", "ini")[1]
    name, value = given.strip().split("=", 1)
    assert name == "HEADRACE_DECODE_FROM"
    assert conninfo_to_dict(value.strip('"'))["dbname"] == "app"
    with reading(trio, "manual", tmp_path) as made:
        with trio.connect() as conn:
            conn.execute("CREATE ROLE headrace")
            conn.execute(on_primary)
            granted = (
                "SELECT has_function_privilege('headrace', 'pg_log_standby_snapshot()', 'EXECUTE')"
            )
            assert conn.execute(granted).fetchone() == (True,)
        with connect(trio.reader.dsn()) as conn:
            for statement in on_standby.split(";")[:-1]:
                conn.execute(statement)
            used = "SELECT active FROM pg_replication_slots WHERE slot_name = 'reader'"
            with trio.connect() as primary:
                wait_until(lambda: primary.execute(used).fetchone() == (True,), "it is used")
        shown = pages.fences("high-availability", "text")[1].strip().splitlines()
        found = command(made, "check").replace(f"127.0.0.1:{trio.reader.port}", "db3:5432")
        for line in shown:
            assert line in found.replace(made.slot, "headrace")
