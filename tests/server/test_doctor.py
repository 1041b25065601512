"""``headrace check`` and ``status`` report all that is missing at once, with remedies."""

from __future__ import annotations

import fcntl
import json
import re
import socket
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.server import doctor
from headrace.server.cli import main
from headrace.server.doctor import Finding
from headrace.sql import install
from tests.security.roles import PASSWORD, role
from tests.waiting import wait_until


def found(settings: Settings) -> dict[str, Finding]:
    return {finding.name: finding for finding in doctor.look(settings)}


@pytest.fixture
def settings(database: str, tmp_path: Path) -> Settings:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    return Settings(
        source=database,
        data_dir=tmp_path / "d",
        slot_name=f"headrace_{name}",
        listen="127.0.0.1:0",
        allow_trust=True,
    )


def test_all_is_well(settings):
    told = found(settings)
    assert [f.mark for f in told.values()] == ["✓"] * len(told), told
    assert set(told) >= {"source", "server", "rights", "slot", "walsenders", "tables", "clocks"}
    assert not settings.data_dir.exists(), "it makes nothing"


def test_a_source_that_trusts_this_computer_is_named(settings):
    told = found(settings.replace(allow_trust=False))["logins"]
    assert told.mark == "!"
    assert "HEADRACE_ALLOW_TRUST=true" in told.warning


def test_what_a_role_lacks(settings, database):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE theirs (id int)")
        with role(conn, "poor") as poor:
            conn.execute("REVOKE CREATE ON DATABASE " + conn.info.dbname + " FROM PUBLIC")
            source = make_conninfo(database, user=poor, password=PASSWORD)
            told = found(settings.replace(source=source))
            assert "REPLICATION" in str(told["server"].problem.hint)
            mend = told["rights"].problem
            assert mend.hint == f'GRANT CREATE ON DATABASE "{conn.info.dbname}" TO "{poor}";'
            assert "public.theirs" in str(told["tables"].warning)
            # The hint solves the problem.
            conn.execute(mend.hint)
            assert found(settings.replace(source=source))["rights"].problem is None
            conn.execute(f"REVOKE CREATE ON DATABASE {conn.info.dbname} FROM {poor}")


REVOKED = {
    "DATABASE": "REVOKE ALL ON DATABASE {database} FROM PUBLIC;"
    " GRANT CONNECT ON DATABASE {database} TO {engine}, {caller}",
    "LANGUAGE": "REVOKE USAGE ON LANGUAGE plpgsql, sql FROM PUBLIC",
    "SCHEMA": "REVOKE ALL ON SCHEMA public FROM PUBLIC",
}
"""Statements of hosts that harden a server, by the kind of the object."""
GRANTS = re.compile(r"GRANT [^;]+;")


@pytest.mark.parametrize("kind", REVOKED)
def test_what_a_hardened_server_lacks_is_found_and_the_statements_help(settings, database, kind):
    with psycopg.connect(database, autocommit=True) as conn, role(conn, "caller") as caller:
        conn.execute(f"CREATE TABLE theirs (id int); ALTER TABLE theirs OWNER TO {caller}")
        with role(conn, "engine", "REPLICATION") as engine:
            name = conn.info.dbname
            conn.execute(f"GRANT {caller} TO {engine}; GRANT CREATE ON DATABASE {name} TO {engine}")
            source = settings.replace(
                source=make_conninfo(database, user=engine, password=PASSWORD)
            )

            def lacks() -> list[str]:
                """Return all statements that are proposed."""
                return [
                    grant
                    for finding in doctor.look(source)
                    for line in finding.lines()
                    for grant in GRANTS.findall(line)
                ]

            assert [g for g in lacks() if "headrace_eval" not in g] == []
            conn.execute(REVOKED[kind].format(database=name, engine=engine, caller=caller))
            proposed = lacks()
            assert any(f'TO "{caller}"' in grant for grant in proposed), proposed
            assert all(f" ON {kind} " in grant for grant in proposed)
            # Postgres says what is lacking, in the words of the error that a user would get.
            asked = {
                "DATABASE": "has_database_privilege(%s, current_database(), 'TEMPORARY')",
                "LANGUAGE": "has_language_privilege(%s, 'plpgsql', 'USAGE')",
                "SCHEMA": "has_schema_privilege(%s, 'public', 'USAGE')",
            }
            for right in (False, True):
                for who in (caller, engine):
                    assert conn.execute(f"SELECT {asked[kind]}", (who,)).fetchone() == (right,)
                if not right:
                    conn.execute("".join(proposed))
            assert lacks() == []


def test_an_installed_server_starts_without_what_only_some_calls_need(settings, database):
    """A right that is revoked later must not keep the server from a restart."""
    with (
        psycopg.connect(database, autocommit=True) as conn,
        role(conn, "engine", "REPLICATION") as engine,
    ):
        name = conn.info.dbname
        conn.execute(f"GRANT CREATE ON DATABASE {name} TO {engine}")
        source = settings.replace(source=make_conninfo(database, user=engine, password=PASSWORD))
        conn.execute(f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
        conn.execute("REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC")
        findings = [f for f in doctor.look(source) if f.name == "rights"]
        assert [f.mark for f in findings] == ["!", "✗"]
        conn.execute(f"GRANT USAGE ON LANGUAGE plpgsql TO {engine}")
        with psycopg.connect(source.source, autocommit=True) as installing:
            install.install(installing)
        conn.execute(f"REVOKE USAGE ON LANGUAGE plpgsql FROM {engine}")
        findings = [f for f in doctor.look(source) if f.name == "rights"]
        assert [f.mark for f in findings] == ["!", "!"]


def test_what_a_later_version_has_made_is_not_begun_with(settings, capsys):
    """A later version's catalog is not touched, and its states are not set aside."""
    for path in (settings.state_dir, settings.of_worker("w1").state_dir):
        path.mkdir(parents=True)
        (path / "FORMAT").write_text("4\n")
    assert found(settings)["data directory"].problem is None
    (settings.of_worker("w1").state_dir / "FORMAT").write_text("99\n")
    assert found(settings)["state"].problem.code == "55000"
    with psycopg.connect(settings.source, autocommit=True) as conn:
        conn.execute(
            "CREATE SCHEMA headrace; CREATE TABLE headrace.meta (key text PRIMARY KEY, value text);"
            "INSERT INTO headrace.meta VALUES ('version', '99'); CREATE TABLE headrace.new ()"
        )
        assert found(settings)["schema headrace"].problem.code == "55000"
        for command in (["start", "--data-dir", str(settings.data_dir)], ["uninstall"]):
            assert main([*command, "--source", settings.source]) == 1
            assert "later version" in capsys.readouterr().err
        kept = conn.execute("SELECT to_regclass('headrace.new')::text").fetchone()
    assert kept == ("headrace.new",)
    assert (settings.of_worker("w1").state_dir / "FORMAT").read_text() == "99\n"


def test_what_is_in_use(settings, database, tmp_path):
    settings.data_dir.mkdir()
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        (settings.data_dir / "lock").open("w") as lock,
        psycopg.connect(make_conninfo(database, dbname="postgres"), autocommit=True) as other,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        other.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (settings.slot_name,)
        )
        try:
            told = found(settings.replace(listen=f"127.0.0.1:{taken.getsockname()[1]}"))
        finally:
            other.execute("SELECT pg_drop_replication_slot(%s)", (settings.slot_name,))
    assert told["data directory"].problem.code == "55006"
    assert "cannot listen" in told["port"].problem.message
    assert 'belongs to database "postgres"' in told["slot"].problem.message
    long = settings.replace(data_dir=tmp_path / ("x" * 100))
    assert "too long" in found(long)["sockets"].problem.message


def said(capsys, *words: str) -> tuple[int, dict]:
    """Return the exit status of a report and its JSON."""
    status = main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_reports_as_json(engine, commander_less, capsys):
    source = ["--source", engine.source]
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.create_view('w', 'SELECT 10 / id AS x FROM t')")
        conn.execute("CALL headrace.wait_for('v')")
    status, found = said(capsys, "views", *source)
    assert status == 0
    assert [(v["name"], v["status"]) for v in found["views"]] == [
        ("public.v", "running"),
        ("public.w", "running"),
    ]
    assert "password" not in found["source"]
    assert main(["views", *source]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "status", "rows", "lag_ms", "held_by", "message"]
    assert [row.split()[:2] for row in rows] == [["public.v", "running"], ["public.w", "running"]]
    status, found = said(capsys, "status", *source)
    assert status == 0
    assert {"fact": "engine", "value": "running", "ok": True, "hint": None} in found["facts"]
    status, found = said(capsys, "check", "--source", "host=127.0.0.1 port=1 dbname=x")
    assert (status, found["ready"]) == (1, False)
    [failed] = [f for f in found["findings"] if not f["ok"]]
    assert failed["name"] == "source"
    assert "refused" in failed["problem"]["message"]
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("INSERT INTO t VALUES (0)")
    wait_until(lambda: main(["views", *source]) == 1, "a view that has failed is reported")


def test_help_and_version(capsys):
    assert main([]) == 0
    assert "headrace COMMAND --help" in capsys.readouterr().out
    assert main(["--version"]) == 0
    version = capsys.readouterr().out
    assert main(["version"]) == 0
    assert capsys.readouterr().out == version


def test_check_and_status_in_words(engine, commander_less, capsys):
    assert main(["status", "--source", engine.source]) == 0
    out = capsys.readouterr().out
    assert "✓ engine: running" in out
    engine.stop()
    assert main(["status", "--source", engine.source]) == 1
    assert "✗ engine: stopped  (headrace start)" in capsys.readouterr().out
    with psycopg.connect(engine.source, autocommit=True) as conn:
        conn.execute("INSERT INTO t VALUES (77)")
        row = conn.execute("SELECT lag_ms > 0 FROM headrace.list_views()").fetchone()
        assert row == (True,), "the contents are older than the change"
    assert main(["views", "--source", engine.source]) == 0
    assert re.search(
        r"stopped +[0-9]* +≤ [1-9][0-9]* +no engine is connected", capsys.readouterr().out
    )


@pytest.fixture
def commander_less(engine):
    """A view, with no client connected."""
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")


def test_who_has_little_room_may_start(settings, monkeypatch):
    """An engine whose disk is full must be able to restart."""
    assert found(settings)["disk"].mark == "✓"
    monkeypatch.setattr(doctor, "_DISK_BYTES_MIN", 1 << 60)
    [mark, *_] = [(f.mark, f.problem, f.warning) for f in [found(settings)["disk"]]]
    assert mark[:2] == ("!", None)
    assert "some gigabytes" in mark[2]
