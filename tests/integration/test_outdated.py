"""Views with a plan of an earlier version: they go on, or are populated again without a call."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.compared import differs
from tests.waiting import bump, create_marker, wait_for, wait_until

TOGETHER = "SELECT g, array_agg(a) AS x, array_agg(b) AS y FROM t GROUP BY g"
JUDGE = (
    "SELECT g, array_agg(a ORDER BY a, b) AS x, array_agg(b ORDER BY a, b) AS y FROM t GROUP BY g"
)
ALONE = "SELECT g, array_agg(b) AS y, sum(a) AS s FROM t GROUP BY g"


@pytest.mark.slow
def test_aggregates_that_had_orders_of_their_own(engine):
    """As version 1 planned them: aggregates that order their rows separately."""
    with psycopg.connect(engine.source, autocommit=True) as source:
        source.execute(
            'CREATE TABLE t (id int PRIMARY KEY, g int, a int, b text COLLATE "C");'
            "INSERT INTO t VALUES (1, 1, 1, 'z'), (2, 1, 2, 'y'), (3, 1, 3, 'x')"
        )
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            create_marker(source, commander)
            commander.execute("CALL headrace.create_view('v', %s)", (TOGETHER,))
            commander.execute("CALL headrace.create_view('w', %s)", (ALONE,))
        engine.stop()
        ids = "SELECT view_name, id FROM headrace.views WHERE view_name IN ('v', 'w')"
        before = dict(source.execute(ids).fetchall())
        for view_id in before.values():
            make_old(source, view_id)
        source.execute("UPDATE v SET y = '{x,y,z}'")  # its contents under the old version
        source.execute("INSERT INTO t VALUES (4, 1, 0, 'a'), (5, 2, 0, 'b')")
        engine.start()
        renewed = (
            "SELECT FROM headrace.views WHERE view_name = 'v' AND status = 'running'"
            " AND plan ->> 'version' = '2'"
        )
        wait_until(lambda: source.execute(renewed).fetchone() is not None, "v is filled anew")
        wait_for(source, bump(source))
        after = dict(source.execute(ids).fetchall())
        assert after["v"] != before["v"]
        assert after["w"] == before["w"], "one alone has its order by itself"
        for name, query in (("v", JUDGE), ("w", ALONE.replace("(b)", "(b ORDER BY b)"))):
            assert differs(source, name, query) == []


def make_old(source: psycopg.Connection, view_id: int) -> None:
    (plan,) = source.execute("SELECT plan FROM headrace.views WHERE id = %s", (view_id,)).fetchone()
    plan["version"] = 1
    for node in plan["nodes"]:
        for aggregate in node.get("aggregates", ()):
            del aggregate["row"]
    source.execute("UPDATE headrace.views SET plan = %s WHERE id = %s", (Jsonb(plan), view_id))
