"""/readyz is about processes, slot and source; views are in the metrics."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
import urllib.request

import psycopg

from tests.waiting import wait_until


def get(port: str, path: str) -> tuple[int, str]:
    """Return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_stopped_view_takes_no_server_out_of_service(database, start_engine):
    engine = start_engine(database, HEADRACE_HTTP="127.0.0.1:0")
    found = re.search(r'"address": ?"127.0.0.1:(\d+)"', engine.log)
    assert found, engine.log
    port = found[1]
    with (
        psycopg.connect(database, autocommit=True) as source,
        psycopg.connect(engine.dsn, autocommit=True) as conn,
    ):
        source.execute("CREATE TABLE t (a int PRIMARY KEY)")
        conn.execute("CALL headrace.create_view('v', 'SELECT 1 / a AS b FROM t')")
        source.execute("INSERT INTO t VALUES (0)")
        stopped = "SELECT status = 'error' FROM headrace.list_views()"
        wait_until(lambda: source.execute(stopped).fetchone() == (True,), "it stops")
        wait_until(lambda: get(port, "/readyz") == (200, "ok\n"), "it is ready")
        assert re.search(
            r'headrace_view_state{state="error",view="public.v"} 1.0', get(port, "/metrics")[1]
        )
        source.execute("DROP TABLE t CASCADE")
    pid = engine.child("headrace.runtime.worker")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert get(port, "/livez") == (200, "ok\n")
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: get(port, "/readyz")[0] == 200, "it is ready again")
