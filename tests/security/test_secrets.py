"""Passwords are in no argument, log, message or statement that another user can see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.errors import UserError
from headrace.server.cli import without_source
from headrace.sql import install
from tests.waiting import PATIENCE_S, wait_until

SECRET = "sesame-4711"


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, according to the operating system."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def arguments(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_no_process_shows_it(database, start_engine):
    engine = start_engine(make_conninfo(database, password=SECRET))
    shown = {pid: arguments(pid) for pid in family(engine.pid)}
    assert len(shown) >= 3, "commander, worker and builder"
    assert not [text for text in shown.values() if SECRET in text]
    assert "--source contained a password" in engine.log
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("CALL headrace.create_view('w', 'SELECT nothing FROM t')")
        activity = conn.execute("SELECT * FROM pg_stat_activity").fetchall()
    assert SECRET not in str(caught.value)
    assert SECRET not in str(activity)
    assert SECRET not in engine.log


@pytest.mark.parametrize("form", ["pairs", "uri", "equals", "short"])
@pytest.mark.parametrize("command", ["check", "uninstall"])
def test_commands_say_nothing_of_it(database, command, form):
    parts = psycopg.conninfo.conninfo_to_dict(database)
    words = {
        "pairs": ["--source", make_conninfo(database, password=SECRET)],
        "uri": [
            "--source",
            f"postgresql://{parts['user']}:{SECRET}@{parts['host']}:{parts['port']}"
            f"/{parts['dbname']}",
        ],
        "equals": ["--source=" + make_conninfo(database, password=SECRET)],
        "short": ["--sou", make_conninfo(database, password=SECRET)],
    }[form]
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", command, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--source contained a password" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_without_a_password_nothing_is_taken_out(database):
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", "check", "--source", database],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_only_the_source_is_taken_out():
    words = ["-m", "x", "start", "--source", "a", "--slot-name", "s", "--source=b", "-v"]
    assert without_source(words) == ["-m", "x", "start", "--slot-name", "s", "-v"]


@pytest.mark.parametrize(
    "source",
    [
        f"host=localhost password={SECRET} {SECRET}",
        f"host=localhost password='{SECRET}",
        f"postgresql://u:{SECRET}%zz@localhost/d",
        f"postgresql://u:x@localhost/d?{SECRET}=1",
    ],
)
@pytest.mark.parametrize("name", ["source", "decode_from", "eval_dsn"])
def test_what_cannot_be_read_is_not_repeated(name, source):
    with pytest.raises(UserError) as caught:
        Settings.of({name: source})
    error: BaseException | None = caught.value
    assert SECRET not in str(error.fields())
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", "check"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"HEADRACE_SOURCE": source},
    )  # fmt: skip
    assert done.returncode != 0
    assert SECRET not in done.stdout + done.stderr


def test_settings_hide_all_of_them():
    settings = Settings(
        source=f"host=h password={SECRET} sslpassword={SECRET}",
        eval_dsn=f"postgresql://u:{SECRET}@h/d",
    )
    assert SECRET not in repr(settings)


def test_the_password_of_the_powerless_role_never_crosses_the_wire(database, tmp_path):
    """Statements are logged and visible while they run; a verifier does not allow a login."""
    with psycopg.connect(database, autocommit=True) as conn, tempfile.TemporaryFile() as trace:
        # Each database has its own role.
        oid = conn.execute(
            "SELECT oid FROM pg_database WHERE datname = current_database()"
        ).fetchone()[0]
        role = f"{install.EVAL_ROLE}_{oid}"
        made = conn.execute("SELECT FROM pg_roles WHERE rolname = 'headrace_eval'").fetchall()
        if not made:
            conn.execute("CREATE ROLE headrace_eval NOLOGIN")
        conn.pgconn.trace(trace.fileno())
        try:
            dsn = install.ensure_eval_role(conn, tmp_path, database)
        finally:
            conn.pgconn.untrace()
            if not made:
                conn.execute("DROP ROLE headrace_eval")
            conn.execute(f"DROP ROLE IF EXISTS {role}")
        password = psycopg.conninfo.conninfo_to_dict(dsn or "").get("password")
        trace.seek(0)
        sent = trace.read().decode(errors="replace")
    if not made:
        assert password
        assert "SCRAM-SHA-256$" in sent
        assert str(password) not in sent


@pytest.mark.slow
def test_spark_shows_none_either(database, start_engine):
    engine = start_engine(make_conninfo(database, password=SECRET), HEADRACE_SPARK_WARM="true")
    wait_until(lambda: "spark is warm" in engine.log, "Spark is there", 4 * PATIENCE_S)
    shown = [arguments(pid) for pid in family(engine.pid)]
    assert [text for text in shown if "java" in text.split("\0")[0]]
    assert not [text for text in shown if SECRET in text]
    assert not [text for text in shown if "spark.authenticate.secret" in text]
    assert [text for text in shown if "spark.authenticate=true" in text]
    # Output of the JVM is logged line by line.
    lines = [line for line in engine.log.splitlines() if line[:8] not in ("headrace", "  Hint: ")]
    assert "spark" in {json.loads(line)["event"] for line in lines}
