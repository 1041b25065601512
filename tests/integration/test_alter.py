"""alter_view: another query into the same table, at once and only where rows differ."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 50) i;
CREATE TABLE kinds (g int PRIMARY KEY, ok bool);
INSERT INTO kinds SELECT i, i <> 3 FROM generate_series(0, 9) i;
"""

OLD = "SELECT g, count(*) AS n FROM items GROUP BY g"
NEW = "SELECT i.g, count(*) AS n FROM items i JOIN kinds k ON k.g = i.g WHERE k.ok GROUP BY i.g"
VIEWS = {"v": OLD}


def follows(conn, query):
    conn.execute("UPDATE items SET g = g + 1 WHERE id % 3 = 0")
    conn.execute("CALL headrace.wait_for('v', timeout => '90 s')")
    return differs(conn, "v", query) == []


def published(conn):
    return conn.execute(
        "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
    ).fetchall()


def test_the_table_stays_with_all_that_belongs_to_it(commander, source):
    commander.execute("CALL headrace.create_index('v', '(n)')")
    source.execute("GRANT SELECT ON v TO PUBLIC")
    source.execute("CREATE VIEW reader AS SELECT * FROM v")
    before = source.execute("SELECT ctid, * FROM v WHERE g <> 3 ORDER BY g").fetchall()
    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    commander.execute("CALL headrace.alter_view('v', %s)", (NEW,))
    assert source.execute("SELECT count(*) FROM reader").fetchone() == (4,)
    assert source.execute("SELECT ctid, * FROM v ORDER BY g").fetchall() == before
    assert any("1 rows were removed, 0 added" in n for n in notices), notices
    assert follows(commander, NEW)
    assert source.execute("SELECT query FROM headrace.views").fetchone() == (NEW,)
    assert published(source) == [("items",), ("kinds",)]
    source.execute("UPDATE kinds SET ok = NOT ok WHERE g < 3")
    assert follows(source, NEW)
    source.execute(f"CALL headrace.alter_view('v', '{OLD}')")
    assert follows(source, OLD)
    assert published(source) == [("items",)]
    source.execute("DROP VIEW reader")


def test_what_is_refused_changes_nothing(commander, source):
    for query, error in (
        ("SELECT g, count(*) AS many FROM items GROUP BY g", "changing the columns"),
        ("SELECT g, max(id) AS n FROM items GROUP BY g", "is of type integer now"),
        ("SELECT g, nope AS n FROM items", "nope"),
        ("SELECT g, random() AS n FROM items", "random"),
    ):
        with pytest.raises(psycopg.Error, match=error):
            commander.execute("CALL headrace.alter_view('v', %s)", (query,))
        assert follows(commander, OLD)
    assert published(source) == [("items",)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute("CALL headrace.alter_view('nope', 'SELECT 1')")
