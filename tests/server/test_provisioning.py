"""``headrace start --setup``: from a fresh server with its defaults to a view, without other steps."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headrace.embedded.postgres import EmbeddedPostgres
from tests.security.roles import PASSWORD

WAIT_S = 90.0


@pytest.fixture
def server() -> Iterator[EmbeddedPostgres]:
    """A server as Postgres makes it: ``wal_level`` is ``replica``."""
    settings = {"wal_level": "replica", "max_replication_slots": "1"}
    with EmbeddedPostgres(None, 16, {}, durable=False) as made:
        # ALTER SYSTEM overrides the settings of the server's file.
        made._settings |= settings
        made.restart()
        with psycopg.connect(made.dsn(), autocommit=True) as conn:
            conn.execute("CREATE ROLE app LOGIN")
            conn.execute("CREATE TABLE orders (id int PRIMARY KEY, x int)")
            conn.execute("ALTER TABLE orders OWNER TO app")
            conn.execute("CREATE TABLE theirs (id int PRIMARY KEY)")
            conn.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 10) i")
        yield made


class Terminal:
    """A command at a terminal."""

    def __init__(self, *words: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headrace.server.cli", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=os.environ | env,
        )
        os.close(slave)
        self.text = ""

    def read_until(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < deadline, self.text
            if select.select([self._master], [], [], 0.1)[0]:
                self.text += os.read(self._master, 4096).decode().replace("\r\n", "\n")
        return found

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        os.close(self._master)


def start(server: EmbeddedPostgres, folder: Path, *more: str) -> tuple[str, ...]:
    return (
        *("start", "--setup", server.dsn(), "--data-dir", str(folder / "data")),
        *("--listen", "127.0.0.1:0", *more),
    )


def environment(server: EmbeddedPostgres) -> dict[str, str]:
    source = make_conninfo(server.dsn(), user="headrace", password=PASSWORD)
    return {"HEADRACE_SOURCE": source, "HEADRACE_ALLOW_TRUST": "true", "HEADRACE_SPARK_WARM": "0"}


def test_a_fresh_server_is_prepared(server, tmp_path):
    terminal = Terminal(*start(server, tmp_path), **environment(server))
    try:
        terminal.read_until("Then press Enter: ")
        assert "CREATE ROLE \"headrace\" LOGIN REPLICATION PASSWORD '…';" in terminal.text
        assert "ALTER SYSTEM SET wal_level = 'logical';" in terminal.text
        assert 'GRANT "app" TO "headrace";' in terminal.text
        assert '1 tables of superuser "postgres" cannot be read' in terminal.text
        assert PASSWORD not in terminal.text
        server.restart()
        terminal.type("\n")
        port = terminal.read_until(r"headrace ready on 127\.0\.0\.1:(\d+)")[1]
        dsn = make_conninfo(server.dsn(), port=port, user="app")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            with psycopg.connect(server.dsn(), autocommit=True) as admin:
                admin.execute("GRANT CREATE ON SCHEMA public TO app")
            conn.execute("CALL headrace.create_view('big', 'SELECT id FROM orders WHERE x > 5')")
            assert conn.execute("SELECT count(*) FROM big").fetchone() == (5,)
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            query = "SELECT rolsuper, rolcreaterole, rolbypassrls FROM pg_roles WHERE rolname = %s"
            assert conn.execute(query, ("headrace",)).fetchone() == (False, False, False)
    finally:
        terminal.close()
    again = Terminal(*start(server, tmp_path), **environment(server))
    try:
        again.read_until("headrace ready on")
        assert "press Enter" not in again.text, "nothing is left to do"
        assert ";" not in again.text.split("headrace ready on")[0].split("cannot be read")[1]
    finally:
        again.close()


def run(*words: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", *words],
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_a_terminal_the_restart_is_named(server, tmp_path):
    status, text = run(*start(server, tmp_path), **environment(server))
    assert status == 1
    assert "Postgres must be restarted" in text


def test_what_is_refused(server, tmp_path):
    env = environment(server)
    secret = make_conninfo(server.dsn(), password="hidden")
    status, text = run("start", "--setup", secret, **env)
    assert (status, "hidden" in text) == (2, False)
    assert "PGPASSWORD" in text
    poor = make_conninfo(server.dsn(), user="app")
    status, text = run("start", "--setup", poor, "--data-dir", str(tmp_path), **env)
    assert status == 1
    assert 'role "app" is not a superuser' in text
    other = make_conninfo(server.dsn(), dbname="template1")
    status, text = run("start", "--setup", other, "--data-dir", str(tmp_path), **env)
    assert status == 2
    assert 'leads to database "template1"' in text
