"""Views over views of Headrace: planned by definition; a view that is read cannot be dropped."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import bump, wait_for, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v int, at timestamptz);
INSERT INTO t SELECT i, i % 3, '2024-01-01 00:00Z' FROM generate_series(1, 9) i;
"""
MARKER = True


def status(source, name: str) -> tuple:
    return source.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()


def refused(commander, call: str) -> psycopg.errors.Diagnostic:
    with pytest.raises(psycopg.Error) as caught:
        commander.execute(call)
    return caught.value.diag


def test_a_view_that_is_read_cannot_be_dropped(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$)"
    commander.execute(create.format("low", "SELECT v, count(*) AS n FROM t GROUP BY v"))
    commander.execute(create.format("mid", "SELECT v FROM low WHERE n > 2"))
    commander.execute("CREATE VIEW theirs AS SELECT v FROM mid")
    commander.execute(create.format("top", "SELECT count(*) AS c FROM theirs"))
    for name in ("low", "mid"):
        why = refused(commander, f"CALL headrace.drop_view('{name}')")
        assert why.sqlstate == "2BP01", why.message_primary
        assert "public.top" in why.message_detail
        assert "CALL headrace.drop_view('public.top');" in why.message_hint
    why = refused(
        commander, "CALL headrace.alter_view('low', 'SELECT c::int AS v, c AS n FROM top')"
    )
    assert why.sqlstate == "42P17", why.message_primary
    commander.execute("CALL headrace.rename_view('low', 'lower')")
    source.execute("DELETE FROM t WHERE id = 9")
    wait_for(source, bump(source))
    assert source.execute("SELECT c FROM top").fetchone() == (2,)
    commander.execute("CALL headrace.drop_view('top')")
    commander.execute("DROP VIEW theirs")
    commander.execute("CALL headrace.drop_view('mid')")
    commander.execute("CALL headrace.drop_view('lower')")
    assert source.execute("SELECT count(*) FROM headrace.view_uses").fetchone() == (0,)


@pytest.mark.parametrize("columns", ["id", "id, j::text AS j"])
def test_a_literal_in_a_view_that_is_read_is_analysed_once_more(commander, source, columns):
    """A literal of a type with code of its own, below the query that is being bound."""
    create = "CALL headrace.create_view('{}', $q${}$q$)"
    commander.execute(create.format("low", """SELECT id, '{"a": 1}'::json AS j FROM t"""))
    commander.execute(create.format("mid", "SELECT id, j, '[2]'::json AS k FROM low"))
    for below in ("low", "mid"):
        query = f"SELECT {columns} FROM {below}"
        commander.execute(create.format(f"on_{below}", query))
        source.execute("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
        wait_for(source, bump(source))
        assert differs(source, f"on_{below}", query) == []


def test_an_altered_view_stops_those_that_read_it(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$)"
    commander.execute(create.format("low", "SELECT id FROM t WHERE v = 0"))
    commander.execute(
        "CALL headrace.create_view('top', 'SELECT count(*) AS c FROM low',"
        """ '{"on_change": "stop"}')"""
    )
    commander.execute("CALL headrace.resync_view('low')")
    source.execute("INSERT INTO t VALUES (30, 0)")
    wait_for(source, bump(source))
    assert source.execute("SELECT c FROM top").fetchone() == (4,)
    commander.execute("CALL headrace.alter_view('low', 'SELECT id FROM t WHERE v > 0')")
    wait_until(lambda: status(source, "top")[0] == "error", "top stops")
    assert "was altered" in status(source, "top")[1]
    assert source.execute("SELECT c FROM top").fetchone() == (4,)
    commander.execute("CALL headrace.resync_view('top')")
    assert source.execute("SELECT c FROM top").fetchone() == (6,)


def test_settings_of_a_view_that_matter_must_be_those_of_its_reader(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$)"
    commander.execute("SET TimeZone = 'Asia/Tokyo'")
    commander.execute(create.format("days", "SELECT id, at::date AS d FROM t"))
    commander.execute(create.format("plain", "SELECT id, v FROM t"))
    commander.execute("SET TimeZone = 'UTC'")
    why = refused(commander, create.format("top", "SELECT d FROM days"))
    assert (why.sqlstate, "TimeZone" in why.message_hint) == ("0A000", True)
    commander.execute(create.format("top", "SELECT v FROM plain"))
    commander.execute("SET TimeZone = 'Asia/Tokyo'")
    commander.execute(create.format("top2", "SELECT d FROM days"))


MOVED = {
    "single": "SELECT b FROM moved",
    "plain": "SELECT b, c FROM moved",
    "one": "SELECT c FROM moved WHERE b < 8",
    "whole": "SELECT m, to_jsonb(m) AS j, (m).c AS c FROM moved m",
    "star": "SELECT * FROM moved AS m (x, y)",
    "joined": "SELECT m, n.b FROM moved n LEFT JOIN moved m ON m.b = n.c",
    "merged": "SELECT b, n.c FROM moved JOIN moved n USING (b)",
    "correlated": "SELECT id FROM t WHERE EXISTS (SELECT FROM moved WHERE c = t.id AND b > t.v)",
    "lateral": "SELECT n.b, l.y FROM moved n, LATERAL (SELECT max(m.c) - n.c AS y FROM moved m"
    " WHERE m.b <= n.b AND (SELECT n.c) > 2) l",
    "named": "WITH w AS (SELECT c, b FROM moved) SELECT w.b, t.v FROM w JOIN t ON t.id = w.c",
    "sets": "SELECT b FROM moved EXCEPT SELECT c + 2 FROM moved",
    "groups": "SELECT b % 2 AS r, sum(c) AS s FROM moved GROUP BY ROLLUP (b % 2)",
    "stored": "SELECT c FROM stored",
}


def test_columns_of_a_view_below_that_has_lost_or_moved_some(commander, source):
    """The places of columns in the query differ from their numbers in the table."""
    create = "CALL headrace.create_view(%s, %s)"
    low = "SELECT {} FROM (SELECT id AS a, id * 2 AS b, id + 10 AS c FROM t) s"
    commander.execute(create, ("moved", low.format("a, b, c")))
    source.execute("CREATE VIEW stored AS SELECT b, c FROM moved")
    commander.execute(create, ("early", MOVED["plain"]))
    for columns in ("b, c", "c, b"):
        if columns == "c, b":
            commander.execute("CALL headrace.drop_view('early')")
            source.execute("DROP VIEW stored")
        commander.execute("CALL headrace.alter_view('moved', %s)", (low.format(columns),))
        if columns == "c, b":
            source.execute("CREATE VIEW stored AS SELECT b, c FROM moved")
        for name, query in MOVED.items():
            commander.execute(create, (f"over_{name}", query))
            source.execute("INSERT INTO t SELECT max(id) + 1, 1 FROM t")
            commander.execute(f"CALL headrace.wait_for('over_{name}')")
            assert differs(source, f"over_{name}", query) == [], name
            commander.execute(f"CALL headrace.drop_view('over_{name}')")
        if columns == "b, c":
            commander.execute("CALL headrace.wait_for('early')")
            assert differs(source, "early", MOVED["plain"]) == []
    source.execute("DROP VIEW stored")


def test_views_that_an_earlier_version_planned_over_moved_columns_are_filled_anew(
    engine, commander, source
):
    create = "CALL headrace.create_view(%s, %s)"
    low = "SELECT {} FROM (SELECT id AS a, id * 2 AS b FROM t) s"
    for name, columns in (("gaps", "a, b"), ("whole", "b")):
        commander.execute(create, (name, low.format(columns)))
    commander.execute("CALL headrace.alter_view('gaps', %s)", (low.format("b"),))
    queries = {"over_gaps": "SELECT b + 1 AS b FROM gaps", "over_whole": "SELECT b FROM whole"}
    for name, query in queries.items():
        commander.execute(create, (name, query))

    def id_of(name: str) -> int | None:
        row = source.execute(
            "SELECT id FROM headrace.views WHERE view_name = %s AND status = 'running'", (name,)
        ).fetchone()
        return row and row[0]

    ids = {name: id_of(name) for name in queries}
    engine.kill9()
    source.execute("""UPDATE headrace.views SET plan = plan || '{"version": 2}'""")
    engine.restart()
    wait_until(lambda: id_of("over_gaps") not in (None, ids["over_gaps"]), "it is filled anew")
    assert id_of("over_whole") == ids["over_whole"]
    ids["over_gaps"] = id_of("over_gaps")
    engine.kill9()
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        for name, query in queries.items():
            conn.execute("CALL headrace.wait_for(%s)", (name,))
            assert differs(source, name, query) == [], name
    assert id_of("over_gaps") == ids["over_gaps"], "its plan is of this version now"
