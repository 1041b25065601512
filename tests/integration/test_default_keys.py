"""Primary keys of result tables that rely on NOT NULL constraints, which may be dropped."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int NOT NULL, h int, c varchar(20) NOT NULL,
                    t text NOT NULL, x numeric);
INSERT INTO items SELECT i, i % 5, i % 3, 'c' || i % 4, 't', i * 1.5 FROM generate_series(1, 100) i;
"""
GROUPS = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
KEYS = {
    GROUPS: ["g"],
    "SELECT DISTINCT c, g FROM items WHERE x > 3": ["c", "g"],
    "SELECT g AS a, c AS b, max(x) AS m FROM items GROUP BY g, c": ["a", "b"],
    "SELECT DISTINCT ON (g) g, x FROM items ORDER BY g, x, id": ["g"],
    "SELECT a.g, n, m FROM (SELECT g, count(*) AS n FROM items GROUP BY g) a"
    " JOIN (SELECT g, max(x) AS m FROM items GROUP BY g) b ON b.g = a.g": ["g"],
    # A NULL, or a value that is too long for an index, may come at any time.
    "SELECT h, count(*) AS n FROM items GROUP BY h": [],
    "SELECT t, count(*) AS n FROM items GROUP BY t": [],
    "SELECT b.g, count(*) AS n FROM items a LEFT JOIN items b ON b.id = a.h GROUP BY b.g": [],
    "SELECT g + 1 AS g, count(*) AS n FROM items GROUP BY g + 1": [],
}


def key(conn, name="v"):
    return [
        row[0]
        for row in conn.execute(
            "SELECT a.attname FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (n, place)"
            " JOIN pg_attribute a ON a.attnum = k.n WHERE i.indrelid = %s::regclass"
            " AND i.indisprimary AND a.attrelid = i.indrelid ORDER BY place",
            (name,),
        )
    ]


def message(conn):
    return conn.execute(
        "SELECT status || ' ' || coalesce(message, '') FROM headrace.list_views()"
    ).fetchone()[0]


@pytest.mark.parametrize("query", KEYS)
def test_what_constraints_prove_is_the_key(query, commander, source):
    commander.execute("CALL headrace.create_view('v', %s)", (query,))
    assert sorted(key(source)) == KEYS[query]
    source.execute("UPDATE items SET x = x + 1, g = (g + 1) % 6, c = 'd' || id % 3")
    source.execute("DELETE FROM items WHERE id % 4 = 1")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", query) == []


def test_a_constraint_that_is_dropped(commander, source):
    """The view is filled anew without a key, and gets one again later."""
    commander.execute("CALL headrace.create_view('v', %s)", (GROUPS,))
    commander.execute("CALL headrace.create_view('w', 'SELECT id, g FROM items')")
    source.execute("ALTER TABLE items ALTER g DROP NOT NULL")
    source.execute("INSERT INTO items VALUES (200, 1, 1, '', '', 1)")
    commander.execute("CALL headrace.wait_for('v')")
    assert key(source) == ["g"], "no NULL has come"
    source.execute("INSERT INTO items VALUES (201, NULL, 1, '', '', 1), (202, 7, 1, '', '', 1)")
    commander.execute("CALL headrace.wait_for('w')")
    wait_until(lambda: key(source) == [], "it has no key")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", GROUPS) == []
    assert "would be NULL" in message(source)
    source.execute("DELETE FROM items WHERE g IS NULL; ALTER TABLE items ALTER g SET NOT NULL")
    commander.execute("CALL headrace.resync_view('v')")
    assert key(source) == ["g"]
    source.execute("UPDATE items SET x = 0 WHERE g = 3")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", GROUPS) == []


def test_a_key_that_was_asked_for_still_stops_the_view(commander, source):
    commander.execute("CALL headrace.create_view('v', %s, '{\"key\": [\"g\"]}')", (GROUPS,))
    source.execute("ALTER TABLE items ALTER g DROP NOT NULL")
    source.execute("INSERT INTO items VALUES (201, NULL, 1, '', '', 1)")
    wait_until(lambda: message(source).startswith("error"), "it has stopped")
    assert 'column "g" of key (g)' in message(source)
    assert key(source) == ["g"]


def test_a_constraint_that_was_not_validated_proves_nothing(commander, source):
    if source.info.server_version < 180000:
        pytest.skip("NOT NULL … NOT VALID came with Postgres 18")
    source.execute("INSERT INTO items VALUES (300, 1, NULL, '', '', 1)")
    source.execute("ALTER TABLE items ADD CONSTRAINT later NOT NULL h NOT VALID")
    query = "SELECT h, count(*) AS n FROM items GROUP BY h"
    commander.execute("CALL headrace.create_view('v', %s)", (query,))
    assert key(source) == []
    assert differs(source, "v", query) == []


def test_tools_find_the_key(commander, source):
    """Upserts from the view, foreign keys to it, and its replica identity need no option."""
    commander.execute("CALL headrace.create_view('v', %s)", (GROUPS,))
    source.execute("CREATE TABLE notes (g int REFERENCES v)")
    source.execute("INSERT INTO notes VALUES (3)")
    source.execute("UPDATE items SET x = x + 1")
    commander.execute("CALL headrace.wait_for('v')")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        source.execute("INSERT INTO notes VALUES (99)")
    identity = "SELECT relreplident::text FROM pg_class WHERE oid = 'v'::regclass"
    assert source.execute(identity).fetchone() == ("d",)
    source.execute("DROP TABLE notes")
