"""A view for a worker on another machine that has registered, but cannot be reached yet."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.compared import differs
from tests.far import FarWorker, token
from tests.waiting import PATIENCE_S, wait_until

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int);
INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 9) i;
"""
QUERY = "SELECT g, count(*) AS n FROM t GROUP BY g"


@pytest.mark.slow  # it is found silent after some seconds
def test_the_call_ends_when_the_worker_has_it_though_nobody_writes(
    engine, commander, source, tmp_path
):
    far = FarWorker(engine.source, tmp_path / "far", token(commander, "w2"))
    try:
        far.start()
        far.ready()
        far.network.stall()  # no process has had a reason to dial it

        def create() -> None:
            with psycopg.connect(engine.dsn, autocommit=True) as conn:
                conn.execute(
                    "CALL headrace.create_view('v', %s, options => %s)",
                    (QUERY, '{"placement": "w2"}'),
                )

        creating = threading.Thread(target=create)
        creating.start()
        status = "SELECT status FROM headrace.views"
        wait_until(lambda: source.execute(status).fetchall() == [("sink_error",)], "it waits")
        number = source.execute("SELECT id FROM headrace.views").fetchall()
        assert creating.is_alive(), "what is staged is still needed"
        far.network.resume()
        creating.join(PATIENCE_S)
        assert not creating.is_alive(), "it has ended"
        source.execute("INSERT INTO t VALUES (10, 1)")
        commander.execute("CALL headrace.wait_for('v')")
        assert differs(commander, "v", QUERY) == []
        assert source.execute("SELECT id FROM headrace.views").fetchall() == number
    finally:
        far.close()
