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
    "SELECT t, count(*) AS n FROM items GROUP BY t": ["t"],
    "SELECT DISTINCT t, c FROM items": ["c", "t"],
    "SELECT t, g, id FROM items": ["id"],
    # A NULL may come at any time.
    "SELECT h, count(*) AS n FROM items GROUP BY h": [],
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


LONG = "SELECT string_agg(md5((i * %s)::text), '') FROM generate_series(1, 400) i"
TEXTS = "SELECT t, count(*) AS n FROM items GROUP BY t"


def option(conn) -> object:
    return conn.execute("SELECT options -> 'key' FROM headrace.views").fetchone()[0]


def test_a_text_that_is_too_long_for_an_index_comes_later(commander, source):
    """The view is filled anew without a key, for good."""
    commander.execute("CALL headrace.create_view('v', %s)", (TEXTS,))
    source.execute("UPDATE items SET t = 't' || id %% 7 WHERE id > %s", (0,))
    commander.execute("CALL headrace.wait_for('v')")
    assert (key(source), option(source)) == (["t"], None)
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id < 4", (7,))
    wait_until(lambda: key(source) == [], lambda: message(source))
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", TEXTS) == []
    assert option(source) == []
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id %% 2 = 1", (9,))
    source.execute("DELETE FROM items WHERE id % 5 = 1")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", TEXTS) == []
    commander.execute("CALL headrace.resync_view('v')")
    assert (key(source), option(source)) == ([], [])


def test_a_text_that_is_too_long_is_there_already(commander, source):
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id = 3", (7,))
    notices: list[str] = []
    commander.add_notice_handler(lambda told: notices.append(told.message_primary))
    commander.execute("CALL headrace.create_view('v', %s)", (TEXTS,))
    assert any("the view has no key: a value is too long" in text for text in notices), notices
    assert (key(source), option(source)) == ([], [])
    source.execute("UPDATE items SET t = 'u' WHERE id % 2 = 0")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", TEXTS) == []


def test_an_altered_query_has_a_text_that_is_too_long(commander, source):
    commander.execute(
        "CALL headrace.create_view('v', 'SELECT g, count(*) AS n FROM items GROUP BY g')"
    )
    assert (key(source), option(source)) == (["g"], None)
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id = 3", (7,))
    notices: list[str] = []
    commander.add_notice_handler(lambda told: notices.append(told.message_primary))
    commander.execute("CALL headrace.alter_view('v', %s)", (TEXTS,))
    assert any("the view has no key: a value is too long" in text for text in notices), notices
    assert (key(source), option(source)) == ([], [])
    source.execute("UPDATE items SET t = 'u' WHERE id % 2 = 0")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", TEXTS) == []
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id = 5", (7,))
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        commander.execute("""CALL headrace.alter_view('v', %s, '{"key": ["t"]}')""", (TEXTS,))
    assert differs(source, "v", TEXTS) == []


def test_the_owner_s_choice_of_a_key_is_not_overruled(commander, source):
    source.execute(f"UPDATE items SET t = ({LONG}) WHERE id = 3", (7,))
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as refused:
        commander.execute("""CALL headrace.create_view('v', %s, '{"key": ["t"]}')""", (TEXTS,))
    assert '"key": []' in str(refused.value.diag.message_hint)
    commander.execute("""CALL headrace.create_view('v', %s, '{"key": []}')""", (TEXTS,))
    assert key(source) == []
