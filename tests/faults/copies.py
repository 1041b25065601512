"""Copies of a database and of its server, and the original with a view that must not notice them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.embedded.binaries import account
from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres, _children
from tests.compared import differs
from tests.faults.helpers import slot, wal_end
from tests.waiting import wait_until

VIEWS = {
    "sums": "SELECT n % 3 AS g, count(*) AS n, sum(n) AS s FROM t GROUP BY n % 3",
    "copied": "SELECT id, x FROM u",
}
TABLES = """
CREATE TABLE t (id bigserial PRIMARY KEY, n int);
CREATE TABLE u (id int PRIMARY KEY, x int);
CREATE TABLE unread (x text);
INSERT INTO t (n) SELECT i FROM generate_series(1, 100) i;
INSERT INTO u SELECT i, i FROM generate_series(1, 10) i;
"""


def connect(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def new_database(server: EmbeddedPostgres, name: str) -> str:
    """Create a database and return its DSN."""
    with connect(server.dsn()) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return server.dsn(name)


def new_database_at(dsn: str, name: str) -> None:
    """Create a database on the server of a DSN."""
    with connect(make_conninfo(dsn, dbname="postgres")) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def create_views(engine: EmbeddedEngine) -> None:
    """Create the views, which are committed apart: one says nothing about the other."""
    with connect(make_conninfo(engine.dsn, sslmode="prefer")) as commander:
        for name, query in VIEWS.items():
            group = f'{{"commit_group": "{name}"}}'
            commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$, '{group}')")


def ids(dsn: str) -> dict[str, int]:
    """Return the IDs of the views; a view that was filled anew has another one."""
    with connect(dsn) as conn:
        return dict(conn.execute("SELECT view_name, id FROM headrace.views").fetchall())


def epoch(dsn: str) -> str:
    with connect(dsn) as conn:
        row = conn.execute("SELECT value FROM headrace.meta WHERE key = 'epoch'").fetchone()
        assert row is not None, "an engine has run"
        return str(row[0])


def exact(dsn: str) -> None:
    """Check that the views show a change of each table soon, and are equal to their queries."""
    with connect(dsn) as conn:
        conn.execute("INSERT INTO t (n) SELECT 1 + max(n) FROM t")
        conn.execute("INSERT INTO u SELECT 1 + max(id), 0 FROM u")

        def state() -> list[Any]:
            found = conn.execute(
                "SELECT view_name, status, headrace.view_message(id) FROM headrace.views"
                " WHERE status <> 'running'"
            ).fetchall()
            return found + [d for name, query in VIEWS.items() for d in differs(conn, name, query)]

        wait_until(lambda: state() == [], state, every_s=0.05)


def write_unread(dsn: str, slot_name: str, megabytes: int) -> None:
    """Write rows that no view reads, and wait until the engine has confirmed them."""
    with connect(dsn) as conn:
        write = "INSERT INTO unread SELECT repeat('x', 1000) FROM generate_series(1, %s)"
        conn.execute(write, (megabytes * 1000,))
        end = wal_end(conn)
        wait_until(lambda: slot(conn, slot_name)[0] >= end, "it is confirmed", every_s=0.05)


def go_on(dsn: str) -> None:
    """Write rows that views read, and more WAL than the original has written since the copy."""
    with connect(dsn) as conn:
        conn.execute("INSERT INTO t (n) SELECT 9 FROM generate_series(1, 10)")
        conn.execute("INSERT INTO unread SELECT repeat('x', 1000) FROM generate_series(1, 5000)")


def copy_states(engine: EmbeddedEngine, to: Path) -> None:
    """Copy the data directory of an engine that is stopped."""
    assert not engine.running
    subprocess.run(["cp", "-a", engine.data_dir, to], check=True)


def copy_files(server: EmbeddedPostgres, to: Path) -> EmbeddedPostgres:
    """Copy the data directory, as a snapshot of the disk does while the server runs."""
    stopped = []
    if server.running:
        os.kill(server.pid, signal.SIGSTOP)
        stopped = [server.pid, *_children(server.pid)]
        for pid in stopped[1:]:
            _send(pid, signal.SIGSTOP)
    try:
        subprocess.run(["cp", "-a", server.data_dir, to], check=True)
    finally:
        for pid in stopped:
            _send(pid, signal.SIGCONT)
    (to / "postmaster.pid").unlink(missing_ok=True)
    return EmbeddedPostgres(to, server.version, durable=False)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it had just ended
        os.kill(pid, number)


def base_backup(server: EmbeddedPostgres, to: Path) -> EmbeddedPostgres:
    """Take a backup of a running server; it has no slots."""
    subprocess.run(
        [
            *(server.bin_dir / "pg_basebackup", "-D", to, "-d", server.dsn()),
            *("-X", "stream", "--checkpoint=fast", "--no-sync"),
        ],
        check=True,
        cwd="/",
        capture_output=True,
        **account().popen_args(),
    )
    return EmbeddedPostgres(to, server.version, durable=False)


def restore(
    server: EmbeddedPostgres, dsn: str, to: str, *options: str, without: str | None = None
) -> None:
    """Restore a dump of ``dsn`` in ``to``; any message is an error.

    ``without``: leaves out the entries of the dump's table of contents that contain this text.
    """
    dump = [str(server.bin_dir / "pg_dump"), "-Fc", "-d", dsn, *options]
    into = [str(server.bin_dir / "pg_restore")]
    dumped = subprocess.run(dump, check=True, capture_output=True).stdout
    with tempfile.NamedTemporaryFile() as chosen:
        if without is not None:
            listed = subprocess.run([*into, "-l"], input=dumped, check=True, capture_output=True)
            lines = listed.stdout.splitlines(keepends=True)
            kept = [line for line in lines if without.encode() not in line]
            assert len(kept) < len(lines), f"no {without} in the dump"
            chosen.write(b"".join(kept))
            chosen.flush()
            into += ["-L", str(chosen.name)]
        into += ["-d", to, "--exit-on-error"]
        done = subprocess.run(into, input=dumped, capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def uninstall(dsn: str, slot_name: str) -> str:
    """Run ``headrace uninstall`` and return what it prints."""
    command = [sys.executable, "-m", "headrace.server.cli", "uninstall", "--source", dsn]
    done = subprocess.run(
        [*command, "--slot-name", slot_name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
