"""The embedded server: both versions, kill and restart, and death with its parent."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.embedded.binaries import account, install_dir
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from tests.waiting import wait_until


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(None, request.param, durable=False) as server:
        yield server


def value(dsn: str, query: str) -> object:
    with psycopg.connect(dsn) as conn:
        row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_serves_the_version_with_logical_wal_and_utf8(server: EmbeddedPostgres) -> None:
    assert str(value(server.dsn(), "SHOW server_version")).startswith(f"{server.version}.")
    assert value(server.dsn(), "SHOW wal_level") == "logical"
    assert value(server.dsn(), "SHOW server_encoding") == "UTF8"
    assert value(server.dsn(), "SHOW data_directory") == str(server.data_dir)


def test_committed_rows_survive_kill_on_the_same_port(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("CREATE TABLE t AS SELECT 42 AS a")
    port = server.port
    server.kill()
    assert not server.running
    server.start()
    assert server.port == port
    assert value(server.dsn(), "SELECT a FROM t") == 42
    server.restart("immediate")
    assert value(server.dsn(), "SELECT a FROM t") == 42


def test_settings_reach_the_server_and_alter_system_wins(tmp_path: Path) -> None:
    server = EmbeddedPostgres(
        tmp_path / "data", settings={"work_mem": "7MB", "application_name": "it's"}
    )
    try:
        server.start()
        assert value(server.dsn(), "SHOW work_mem") == "7MB"
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET work_mem = '9MB'")
        server.restart()
        assert value(server.dsn(), "SHOW work_mem") == "9MB"
    finally:
        server.destroy()
    assert not (tmp_path / "data").exists()


def test_bad_setting_is_reported_with_the_log() -> None:
    server = EmbeddedPostgres(None, settings={"wal_level": "sideways"})
    try:
        with pytest.raises(PrerequisiteError) as caught:
            server.start()
        assert "wal_level" in str(caught.value.detail)
    finally:
        server.destroy()


def test_unknown_version_is_refused() -> None:
    with pytest.raises(PrerequisiteError, match="no embedded Postgres 9"):
        EmbeddedPostgres(None, 9)


PARENT = """
import sys, time
from headrace.embedded.postgres import EmbeddedPostgres
server = EmbeddedPostgres(None, durable=False)
server.start()
print(server.pid, server.data_dir, flush=True)
time.sleep(600)
"""


def test_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, data_dir = parent.stdout.readline().split()
    assert alive(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not alive(int(pid)), "it ends with its parent")
    subprocess.run(["rm", "-rf", data_dir, f"{data_dir}.log"], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root switches the user")
def test_root_can_use_a_directory_the_server_cannot_reach(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    server = EmbeddedPostgres(private / "data", durable=False)
    with server:
        assert value(server.dsn(), "SELECT 1") == 1
        assert server.data_dir.stat().st_uid == account().uid
    real = server.data_dir
    server.destroy()
    assert not real.exists()
    assert not (private / "data").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root switches the user")
def test_root_copies_a_wheel_that_lies_in_a_private_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = install_dir(16, account()).parent
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    for folder in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        shutil.copytree(folder, private / folder.name, symlinks=True)
    monkeypatch.syspath_prepend(str(private))
    monkeypatch.setattr("headrace.embedded.binaries.WHEEL", "pytest")  # a separate cache
    copied = install_dir(16, account())
    try:
        assert not copied.is_relative_to(private)
        with EmbeddedPostgres(None, durable=False) as server:
            assert server.bin_dir == copied / "bin"
            assert value(server.dsn(), "SELECT 1") == 1
    finally:
        shutil.rmtree(copied.parent.parent)
