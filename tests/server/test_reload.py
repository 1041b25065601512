"""reload(): settings that change at once, later, or not at all if the file has an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.server.reload import CHANGEABLE
from tests.faults.helpers import WORKER
from tests.waiting import wait_until

BUILDER = "headrace.views.builder"
MANUAL = Path(__file__).parents[2] / "docs" / "manual"


def connect(dsn: str, **options: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **options), autocommit=True)


@pytest.fixture
def certificate(tmp_path):
    """A function that creates a certificate for a name and returns both paths."""

    def make(name: str) -> tuple[str, str]:
        files = str(tmp_path / f"{name}.crt"), str(tmp_path / f"{name}.key")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN={name}", "-out", files[0], "-keyout", files[1]),
            ],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        return files

    return make


def test_what_changes_at_once_and_what_does_not(start_engine, database, tmp_path):
    file = tmp_path / "headrace.toml"
    file.write_text("connections_max = 7\nbatch_interval_ms = 50\n")
    engine = start_engine(database, "--config", str(file))
    admin = connect(database)
    told: list[str] = []
    admin.add_notice_handler(lambda diag: told.append(diag.message_primary))

    def reload() -> str:
        told.clear()
        admin.execute("CALL headrace.reload()")
        return "\n".join(told)

    def setting(name: str) -> str:
        [(rows,)] = admin.execute("CALL headrace.show_settings()").fetchall()
        return {row["name"]: row["value"] for row in rows}[name]

    assert setting("connections_max") == "7"
    assert reload() == "no setting has changed"
    assert '"level": "debug"' not in engine.log

    file.write_text("connections_max = 1\nbatch_interval_ms = 60\nlog_level = 'debug'\n")
    assert reload() == (
        'setting "connections_max" is now "1"\nsetting "log_level" is now "debug"\n'
        'setting "batch_interval_ms" has changed; the change takes effect at the next start of'
        " Headrace"
    )
    assert (setting("connections_max"), setting("batch_interval_ms")) == ("1", "50")
    with connect(engine.dsn) as conn:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connect(engine.dsn)
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.check_view('SELECT id FROM t WHERE id > 1 AND true')")

    def debugged() -> bool:
        lines = [json.loads(x) for x in engine.log.splitlines() if x.startswith("{")]
        return any(x["event"] == "rule applied" for x in lines)

    wait_until(debugged, "the builder logs what it decides")

    # A wrong file: none of its settings changes.
    file.write_text("connections_max = 9\nlog_level = 'loud'\n")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="loud"):
        reload()
    file.write_text("connections_max = 9\ntls_cert = '/nowhere'\ntls_key = '/nowhere'\n")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="certificate"):
        reload()
    assert setting("connections_max") == "1"


def test_after_a_signal(start_engine, database, tmp_path):
    file = tmp_path / "headrace.toml"
    file.write_text("connections_max = 7\n")
    engine = start_engine(database, "--config", str(file))
    before = {engine.child(module) for module in (WORKER, BUILDER)}

    def hang_up(words: str, event: str) -> None:
        file.write_text(words)
        times = engine.log.count(event)
        # A terminal that is closed sends it to all processes.
        for pid in (engine.pid, *before):
            os.kill(pid, signal.SIGHUP)
        wait_until(lambda: engine.log.count(event) > times, event)

    hang_up("connections_max = 1\n", '"settings reloaded"')
    with connect(engine.dsn), pytest.raises(psycopg.OperationalError, match="too many clients"):
        connect(engine.dsn)
    hang_up("connections_max = 5\nlog_level = 'loud'\n", '"settings not reloaded"')
    hang_up("connections_max =\n", '"settings not reloaded"')
    hang_up("connections_max = 2\n", '"settings reloaded"')
    with connect(engine.dsn), connect(engine.dsn) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT id FROM t')")
    assert {engine.child(module) for module in (WORKER, BUILDER)} == before


@pytest.mark.slow
def test_another_certificate(start_engine, database, tmp_path, certificate):
    cert, key = certificate("one.example")
    file = tmp_path / "headrace.toml"
    words = f"tls_cert = '{cert}'\ntls_key = '{key}'\n"
    file.write_text(words)
    source = make_conninfo(database, sslmode="disable")
    engine = start_engine(source, "--config", str(file))
    # The commander still has its first certificate.
    other, other_key = certificate("two.example")
    dsn = make_conninfo(engine.dsn, host="two.example", hostaddr="127.0.0.1")
    proven = {"sslmode": "verify-full", "sslrootcert": other}
    with pytest.raises(psycopg.OperationalError, match="certificate"):
        connect(dsn, **proven)
    file.write_text(words.replace(cert, other).replace(key, other_key))
    with connect(engine.dsn, sslmode="require") as admin:
        admin.execute("CALL headrace.reload()")
        assert admin.execute("SELECT 1").fetchone(), "sessions stay"
    with connect(dsn, **proven) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)


def test_the_page_names_all_settings_that_are_reloaded():
    page = (MANUAL / "port.md").read_text()
    assert [name for name in sorted(CHANGEABLE) if f"`{name}`" not in page] == []
