"""The whole commander process: start, stop, deaths of its children, the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request

import psycopg
import pytest

from headrace.config import Settings
from headrace.server import janitor
from headrace.server.cli import main
from headrace.sql import install
from tests.proxy import Proxy
from tests.waiting import PATIENCE_S, wait_until


def test_life_of_an_engine(database, start_engine):
    """One engine for several checks, because it takes seconds to start."""
    with psycopg.connect(database, autocommit=True) as source:
        source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        engine = start_engine(database, "--http", "127.0.0.1:0")
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
            # A dead builder is started again, and serves the next call.
            builder = engine.child("headrace.views.builder")
            os.kill(builder, signal.SIGKILL)
            module = "headrace.views.builder"
            wait_until(lambda: engine.child(module) not in (None, builder), "a new builder")
            conn.execute("CALL headrace.create_view('w', 'SELECT id FROM t')")
            worker = engine.child("headrace.runtime.worker")
            os.kill(worker, signal.SIGKILL)
            source.execute("INSERT INTO t VALUES (1)")
            count = "SELECT count(*) FROM w"
            wait_until(lambda: source.execute(count).fetchone() == (1,), "the row")
        address = engine.log.split('"address": "')[1].split('"')[0]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
        assert 'headrace_view_state{state="running",view="public.v"} 1.0' in text
        assert 'headrace_process_restarts_total{process="worker"} 1' in text
        # The data directory is locked.
        done = subprocess.run(
            [sys.executable, "-m", "headrace.server.cli", "start", "--source", database,
             "--listen", "127.0.0.1:0", "--data-dir", str(engine.data_dir)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "another headrace uses data directory" in done.stderr
        # The data directory is private.
        assert engine.data_dir.stat().st_mode & 0o077 == 0
        children = [engine.child("headrace.runtime.worker"), engine.child("headrace.views.builder")]
        assert engine.stop() == 0
        for pid in children:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert source.execute("SELECT status FROM headrace.views").fetchall() == [("running",)] * 2


def test_children_die_with_a_killed_commander(database, start_engine):
    engine = start_engine(database)
    children = [engine.child("headrace.runtime.worker"), engine.child("headrace.views.builder")]
    os.kill(engine.pid, signal.SIGKILL)

    def gone(pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except FileNotFoundError:
            return True

    wait_until(lambda: all(gone(pid) for pid in children), "they end")


def test_janitor_removes_abandoned_populations(database, tmp_path):
    settings = Settings(source=database, data_dir=tmp_path)
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        conn.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
        conn.execute("CREATE PUBLICATION headrace FOR TABLE a, b")
        conn.execute(
            "INSERT INTO headrace.views (schema_name, view_name, query, status, block, owner)"
            " SELECT 'public', v.*, quote_ident(current_user)::regrole FROM (VALUES"
            " ('dead', 'q', 'populating', true), ('again', 'q', 'pending', false),"
            " ('alive', 'q', 'running', true)) v"
        )
        conn.execute(
            "INSERT INTO headrace.view_tables SELECT id, ('public.' ||"
            " CASE view_name WHEN 'alive' THEN 'b' ELSE 'a' END)::regclass, 'public', 'x'"
            " FROM headrace.views"
        )
        staged = tmp_path / "staging" / "1"
        staged.mkdir(parents=True)
        (staged / "run").write_text("x")
        again = janitor.clean(settings)
        assert [r.name for r in again] == ["again"]
        assert not staged.exists()
        left = conn.execute("SELECT view_name FROM headrace.views").fetchall()
        assert left == [("alive",)]
        published = conn.execute("SELECT tablename FROM pg_publication_tables").fetchall()
        assert published == [("b",)]
        assert janitor.clean(settings) == []


def test_check_and_uninstall(database, capsys):
    name = "headrace_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    assert main(["check", "--source", database, "--slot-name", name]) == 0
    assert "ready for headrace" in capsys.readouterr().out
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
        conn.execute("CREATE PUBLICATION headrace")
        assert main(["uninstall", "--source", database, "--slot-name", name]) == 0
        left = conn.execute(
            "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s),"
            " (SELECT count(*) FROM pg_publication),"
            " (SELECT count(*) FROM pg_namespace WHERE nspname = 'headrace')",
            (name,),
        ).fetchone()
        assert left == (0, 0, 0)


def test_uninstall_names_the_slots_of_sources(database, capsys):
    name = "headrace_" + psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with psycopg.connect(database, autocommit=True) as conn:
        install.install(conn)
        conn.execute(
            "INSERT INTO headrace.origins (name, dsn, slot, system_id, timeline, published, position,"
            " wanted) VALUES ('eu', 'host=eu password=secret', 'headrace_eu_1', '7', 1, '', '0/1', '0/1')"
        )
    assert main(["uninstall", "--source", database, "--slot-name", name]) == 0
    told = capsys.readouterr().out
    assert "pg_drop_replication_slot('headrace_eu_1'); DROP PUBLICATION headrace_eu_1;" in told
    assert "secret" not in told


def test_wrong_usage(capsys, monkeypatch):
    monkeypatch.delenv("HEADRACE_SOURCE", raising=False)
    assert main(["check"]) == 2
    assert "no source database given" in capsys.readouterr().err
    assert main(["check", "--source", "host=127.0.0.1 port=1 dbname=x"]) == 1
    assert "✗ source" in capsys.readouterr().out
    assert main(["status", "--source", "host=127.0.0.1 port=1 dbname=x"]) == 1
    assert main(["version"]) == 0
    with pytest.raises(SystemExit):
        main(["nonsense"])


@pytest.mark.slow
def test_source_that_hangs_does_not_keep_a_stop_up(database, start_engine):
    """SIGTERM during a call, while the source does not answer."""
    parts = psycopg.conninfo.conninfo_to_dict(database)
    proxy = Proxy(parts["host"], int(parts["port"]))
    try:
        with psycopg.connect(database, autocommit=True) as source:
            source.execute("CREATE TABLE t (id int PRIMARY KEY)")
        through = psycopg.conninfo.make_conninfo(database, port=proxy.port)
        engine = start_engine(through)
        conn = psycopg.connect(engine.dsn, autocommit=True)
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
        proxy.stall()
        conn.pgconn.send_query(b"CALL headrace.drop_view('v')")
        conn.pgconn.flush()
        os.kill(engine.pid, signal.SIGTERM)
        wait_until(lambda: not engine.running, "it ends")
        conn.close()
    finally:
        proxy.close()
