"""``headrace top``: one page of it, and a terminal that shows it again and again."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys

import psycopg
import pytest

from headrace.server import top
from headrace.server.cli import main
from tests.waiting import PATIENCE_S

VIEW = {
    "name": "public.v", "status": "running", "lag_ms": 3, "p50_ms": 10.24, "p99_ms": None,
    "rows_per_s": 0.04, "rows": 7, "state": "12 kB", "held_by": None,
}  # fmt: skip


@pytest.fixture
def connected(engine):
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("first", "second"):
            conn.execute("CALL headrace.create_view(%s, 'SELECT id FROM t')", (name,))
        yield conn


def test_a_page_has_the_size_of_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "10")
    views = [VIEW | {"name": f"v{i}", "held_by": "its table is locked " * 9} for i in range(30)]
    lines = top.page("host=db", views).splitlines()
    assert len(lines) == 9
    assert max(map(len, lines)) == 60
    assert lines[-1] == "… and 25 more"
    assert lines[0].startswith("host=db: 30 views, 30 not up to date, largest lag 3 ms")


def test_cells(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    row = top.page("host=db", [VIEW]).splitlines()[-1]
    assert row.split() == ["public.v", "running", "3", "10", "0.0", "7", "12", "kB"]
    assert len(top.page("host=db", []).splitlines()) == 3


def test_a_lag_is_shown_as_far_as_it_is_known(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    known = [
        ("running", 3, "3"),
        ("running", None, "unknown"),
        ("starting", None, "unknown"),
        ("stopped", 0, "0"),
        ("stopped", 4200, "≤ 4200"),
        ("error", 70, "≤ 70"),
        ("paused", 70, "70"),
    ]
    views = [VIEW | {"status": status, "lag_ms": lag_ms} for status, lag_ms, _ in known]
    head, _, _, *lines = top.page("host=db", views).splitlines()
    assert "largest lag 4200 ms (2 unknown)," in head
    for (status, _, shown), line in zip(known, lines, strict=True):
        assert line.split(" 10 ")[0].rstrip().split(maxsplit=2)[1:] == [status, shown], line
    assert top.page("host=db", views[:1]).startswith("host=db: 1 view, ")


@pytest.mark.shared_engine
def test_one_page(engine, connected, capsys):
    connected.execute("CALL headrace.pause_view('second')")
    assert main(["top", "--once", "--source", engine.source]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[:2] for line in lines[3:]]
    assert names == [["public.second", "paused"], ["public.first", "running"]]
    assert "paused by" in lines[3]


@contextlib.contextmanager
def terminal(engine):
    """Run ``headrace top`` in a terminal; yield a function that reads until a condition holds."""
    main_end, other_end = pty.openpty()
    command = [sys.executable, "-m", "headrace.server.cli", "top", "--every", "0.1"]
    shown = subprocess.Popen(
        command, stdout=other_end, env=os.environ | {"HEADRACE_SOURCE": engine.source}
    )

    def read_until(holds) -> bytes:
        said = b""
        while not holds(said):
            assert select.select([main_end], [], [], PATIENCE_S)[0], said
            said += os.read(main_end, 65536)
        return said

    try:
        yield read_until
    finally:
        shown.send_signal(signal.SIGINT)
        assert shown.wait(PATIENCE_S) == 0
        os.close(main_end)
        os.close(other_end)


@pytest.mark.shared_engine
def test_a_terminal_shows_the_next_page_and_ctrl_c_ends_it(engine, connected):
    with terminal(engine) as read_until:
        said = read_until(lambda said: said.count(top._HOME.encode()) >= 3)
        assert b"public.first" in said


@pytest.mark.shared_engine
def test_one_connection_serves_all_pages_and_a_lost_one_is_replaced(engine, connected):
    pages = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'headrace' AND query LIKE '%rows_per_s DESC NULLS LAST%'"
    )
    with terminal(engine) as read_until, psycopg.connect(engine.source, autocommit=True) as conn:
        pids = set()
        for _ in range(3):
            read_until(lambda said: said.count(b"public.first") >= 2)
            pids |= {pid for (pid,) in conn.execute(pages)}
        assert len(pids) == 1
        conn.execute(f"SELECT pg_terminate_backend(pid) FROM ({pages}) p")
        read_until(lambda said: b"terminat" in said)
        read_until(lambda said: b"public.first" in said)
        assert not pids & {pid for (pid,) in conn.execute(pages)}
