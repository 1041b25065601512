"""Keys of result tables and their uses: publications, foreign keys, ON CONFLICT, ORMs."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine


def create(commander, name, query, options="{}"):
    commander.execute(
        psycopg.sql.SQL("CALL headrace.create_view({}, {}, {})").format(name, query, options)
    )


def assert_follows(commander, source, name, query):
    commander.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (name,))
    assert differs(source, name, query) == []


def test_a_publication_for_all_tables_does_not_hinder_writing(commander, source, engine):
    """Updates and deletes of any published table need a replica identity, also of result tables."""
    query = "SELECT g, count(*) AS n FROM p GROUP BY g"
    source.execute("CREATE TABLE p (id int PRIMARY KEY, g int)")
    source.execute("INSERT INTO p SELECT i, i % 3 FROM generate_series(1, 9) i")
    create(commander, "unkeyed", query)
    name = source.info.dbname
    source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    slot = f"reads_{name}"
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    try:
        source.execute("DELETE FROM p WHERE g = 1")
        assert_follows(commander, source, "unkeyed", query)
        deleted = source.execute(
            # Relation and kind of old row in the stream: O is the whole row.
            "SELECT count(*) FROM pg_logical_slot_get_binary_changes("
            "%s, NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')"
            " WHERE substr(data, 1, 6) = 'D'::bytea || int4send('unkeyed'::regclass::int)"
            " || 'O'::bytea",
            (slot,),
        ).fetchone()
    finally:
        source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        source.execute("DROP PUBLICATION everything")
    assert deleted == (1,)


QUERY = "SELECT a, g, n FROM k"
LONG = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 2000) i"


@pytest.fixture
def keyed(commander, source):
    source.execute("CREATE TABLE k (id int PRIMARY KEY, a int, g text, n numeric)")
    source.execute("INSERT INTO k SELECT i, i, 'g' || i, i FROM generate_series(1, 9) i")
    create(commander, "keyed", QUERY, '{"key": ["a"]}')
    yield
    source.execute("DROP TABLE IF EXISTS refers")
    commander.execute("CALL headrace.drop_view('keyed')")
    source.execute("DROP TABLE k")


def test_it_is_a_key_to_everybody(commander, source, keyed):
    """Foreign keys, ON CONFLICT and row locks work while keys move, swap and change their form."""
    assert source.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'keyed'::regclass AND contype = 'p'"
    ).fetchall() == [("PRIMARY KEY (a)",)]
    assert source.execute(
        "SELECT relreplident::text FROM pg_class WHERE oid = 'keyed'::regclass"
    ).fetchone() == ("d",)
    assert commander.execute("SELECT * FROM headrace.explain_view('keyed', 'key')").fetchall() == [
        ("key: (a), checked at each write",)
    ]
    source.execute("CREATE TABLE refers (id int PRIMARY KEY, a int REFERENCES keyed, n int)")
    source.execute("INSERT INTO refers VALUES (1, 1, 0), (2, 2, 0)")
    source.execute("UPDATE k SET a = 3 - a WHERE a < 3 AND id < 3")
    source.execute("UPDATE k SET n = n + 0.00")
    source.execute("UPDATE k SET a = CASE a WHEN 9 THEN 3 ELSE a + 1 END WHERE a > 2")
    assert_follows(commander, source, "keyed", QUERY)
    source.execute("INSERT INTO refers VALUES (1, 9, 1) ON CONFLICT (id) DO UPDATE SET a = 9")
    source.execute("SELECT a FROM keyed WHERE a = 9 FOR KEY SHARE")
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        source.execute("INSERT INTO refers VALUES (3, 77)")
    # A row that no foreign key refers to may go.
    source.execute("DELETE FROM k WHERE a = 5")
    assert_follows(commander, source, "keyed", QUERY)
    commander.execute("CALL headrace.resync_view('keyed')")
    source.execute("UPDATE k SET g = 'after'")
    assert_follows(commander, source, "keyed", QUERY)
    commander.execute("CALL headrace.alter_view('keyed', 'SELECT a, g, n * 2 AS n FROM k')")
    assert_follows(commander, source, "keyed", "SELECT a, g, n * 2 AS n FROM k")


@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"])
def test_a_row_that_a_foreign_key_refers_to_blocks_the_view(commander, source, keyed, deferred):
    """The view goes on by itself once nothing refers to the row; no other view notices."""
    create(commander, "other", "SELECT a FROM k")
    source.execute(f"CREATE TABLE refers (id int PRIMARY KEY, a int REFERENCES keyed {deferred})")
    source.execute("INSERT INTO refers VALUES (1, 1), (2, 2)")
    source.execute("DELETE FROM k WHERE a = 1")

    def told() -> tuple[str, str]:
        return source.execute(
            "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = 'keyed'"
        ).fetchone()

    wait_until(lambda: told()[0] == "sink_error", told)
    assert 'cannot be deleted because table "refers" refers to them' in told()[1]
    assert "refers_a_fkey" in told()[1]
    source.execute("UPDATE k SET n = n + 1")
    assert_follows(commander, source, "other", "SELECT a FROM k")
    source.execute("DELETE FROM refers WHERE a = 1")  # the remedy of the hint
    wait_until(lambda: told()[0] == "running", told)
    assert_follows(commander, source, "keyed", QUERY)
    commander.execute("CALL headrace.drop_view('other')")


def test_a_duplicate_stops_the_view_and_nothing_else(commander, source, keyed):
    create(commander, "other", "SELECT a FROM k")
    source.execute("INSERT INTO k VALUES (77, 1, 'secret', 0)")
    with pytest.raises(psycopg.Error):
        commander.execute("CALL headrace.wait_for('keyed', timeout => '90 s')")
    assert_follows(commander, source, "other", "SELECT a FROM k")
    status, told = source.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = 'keyed'"
    ).fetchone()
    assert status == "error"
    assert "would have the same key (a)" in told
    assert "resync_view('public.keyed')" in told
    assert "secret" not in told
    # While the duplicate exists, the view cannot be populated; its owner sees the value.
    with pytest.raises(psycopg.errors.UniqueViolation, match=r"\(a\)=\(1\)"):
        commander.execute("CALL headrace.resync_view('keyed')")
    with pytest.raises(psycopg.errors.UniqueViolation, match=r"\(a\)=\(1\)"):
        commander.execute("CALL headrace.alter_view('keyed', $$SELECT a, g, n FROM k$$)")
    source.execute("DELETE FROM k WHERE id = 77")
    commander.execute("CALL headrace.resync_view('keyed')")
    source.execute("UPDATE k SET n = n + 1")
    assert_follows(commander, source, "keyed", QUERY)
    commander.execute("CALL headrace.drop_view('other')")


def test_a_unique_index_of_a_user(commander, source, keyed):
    """Values that move between rows do not violate it; rows that do are not called the key's."""
    source.execute("CREATE UNIQUE INDEX by_user ON keyed (n)")
    source.execute("UPDATE k SET n = 10 - n")
    assert_follows(commander, source, "keyed", QUERY)
    source.execute("DELETE FROM keyed WHERE a > 4")
    source.execute("UPDATE keyed SET n = 100 + n; UPDATE keyed SET n = 5 - a")
    commander.execute("CALL headrace.resync_view('keyed')")
    assert_follows(commander, source, "keyed", QUERY)
    source.execute("UPDATE k SET n = 5")
    with pytest.raises(psycopg.Error, match='has a unique index "by_user"'):
        commander.execute("CALL headrace.wait_for('keyed', timeout => '90 s')")
    with pytest.raises(psycopg.Error, match='has a unique index "by_user"') as refused:
        commander.execute("CALL headrace.resync_view('keyed')")
    assert "Undo that" in refused.value.diag.message_hint
    source.execute("DROP INDEX by_user")
    commander.execute("CALL headrace.resync_view('keyed')")
    assert_follows(commander, source, "keyed", QUERY)


@pytest.mark.parametrize(
    ("index", "change"),
    [
        ("(a) WHERE 10 / (n - 70) > 0", "UPDATE k SET n = 70 WHERE id = 3"),
        ("((10 / (n - 70)))", "UPDATE k SET n = 70 WHERE id = 3"),
        ("(g)", f"UPDATE k SET g = ({LONG}) WHERE id = 3"),
    ],
    ids=["predicate", "expression", "too long"],
)
def test_an_index_of_a_user_that_cannot_hold_a_row(commander, source, keyed, index, change):
    """The message names it, since a resync alone does not help."""
    source.execute("CREATE INDEX harmless ON keyed USING hash (a)")
    source.execute(f"CREATE INDEX of_user ON keyed {index}")
    with pytest.raises(psycopg.Error) as refused:
        source.execute(
            change.replace("UPDATE k SET", "UPDATE keyed SET").replace("id = 3", "a = 3")
        )
    wanted = refused.value.diag.message_primary
    source.execute(change)
    with pytest.raises(psycopg.Error) as stopped:
        commander.execute("CALL headrace.wait_for('keyed', timeout => '90 s')")
    told = stopped.value.diag.message_detail
    assert str(wanted) in told
    assert '"of_user"' in told
    assert "Drop the index, then CALL headrace.resync_view('public.keyed')" in told
    with pytest.raises(psycopg.Error, match=re.escape(str(wanted))) as again:
        commander.execute("CALL headrace.resync_view('keyed')")
    assert '"of_user"' in again.value.diag.message_detail
    assert again.value.diag.message_hint == "Drop the index, and call again."
    source.execute("DROP INDEX of_user")
    commander.execute("CALL headrace.resync_view('keyed')")
    assert_follows(commander, source, "keyed", QUERY)


def test_what_is_no_key_is_refused(commander, source, keyed):
    source.execute("INSERT INTO k VALUES (100, NULL, 'x', 1), (101, 101, 'x', 1)")
    create(commander, "typed", "SELECT id, '{}'::json AS j, g FROM k", '{"key": ["id"]}')
    commander.execute("CALL headrace.drop_view('typed')")
    for options, code, told in (
        ('{"key": ["nope"]}', "42703", '^option "key": column "nope" is not in the query'),
        ('{"key": ["id", "id"]}', "42701", '"id"'),
        ('{"key": "id"}', "22023", "list of column names"),
        ('{"key": [1]}', "22023", "list of column names"),
        ('{"key": ["j"]}', "42704", "no default operator class"),
        ('{"key": ["g"]}', "23505", "have no key \\(g\\)"),
        ('{"key": ["a"]}', "23502", 'column "a" of key \\(a\\) has a NULL'),
    ):
        with pytest.raises(psycopg.Error, match=told) as refused:
            create(commander, "bad", "SELECT id, a, g, '{}'::json AS j FROM k", options)
        assert refused.value.sqlstate == code, options
        assert "probe" not in str(refused.value), "that is our name"
        if code == "42703":
            assert refused.value.diag.message_hint == "Its columns: id, a, g, j."
        assert source.execute("SELECT to_regclass('bad')").fetchone() == (None,)
    source.execute("DELETE FROM k WHERE id > 99")


def key_of(source, name):
    """Return the primary key of a table and its replica identity."""
    return source.execute(
        "SELECT (SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        "         WHERE conrelid = c.oid AND contype = 'p'), relreplident::text,"
        "       (SELECT count(*) FROM pg_index WHERE indrelid = c.oid)"
        "  FROM pg_class c WHERE oid = %s::regclass",
        (name,),
    ).fetchone()


UNKEYED = (None, "f", 1)


def test_a_key_that_is_proved_is_the_tables(commander, source, engine):
    source.execute(
        "CREATE TABLE pk (id int PRIMARY KEY, a int, b int);"
        "CREATE TABLE wide (a int, c varchar(9), d varchar(900), t text, n int,"
        " PRIMARY KEY (a, c, d, t));"
        "INSERT INTO pk SELECT i, i % 3, i % 2 FROM generate_series(1, 9) i;"
        "INSERT INTO wide SELECT i % 3, i % 2, i % 4, i, i FROM generate_series(1, 9) i"
    )
    for query, key in (
        ("SELECT b, id FROM pk", "PRIMARY KEY (id)"),
        ("SELECT id AS x, id AS y FROM pk", "PRIMARY KEY (x)"),
        ("SELECT a, c, sum(n) AS n FROM wide GROUP BY a, c", "PRIMARY KEY (a, c)"),
        ("SELECT DISTINCT c, a FROM wide", "PRIMARY KEY (c, a)"),
        ("SELECT p.id, q.b FROM pk p JOIN pk q ON q.id = p.a", "PRIMARY KEY (id)"),
        ("SELECT p.id FROM pk q LEFT JOIN pk p ON p.id = q.id + 5", None),
        ("SELECT b, count(*) AS n FROM pk GROUP BY b", None),
        ("SELECT t, count(*) AS n FROM wide GROUP BY t", "PRIMARY KEY (t)"),
        ("SELECT d, count(*) AS n FROM wide GROUP BY d", "PRIMARY KEY (d)"),
        ("SELECT a FROM wide UNION ALL SELECT id FROM pk", None),
        ("SELECT count(*) AS n FROM pk", None),
    ):
        create(commander, "proved", query)
        assert key_of(source, "proved") == ((key, "d", 1) if key else UNKEYED), query
        source.execute(
            "UPDATE pk SET a = (a + 1) % 3, b = 1 - b WHERE id > 2;"
            "UPDATE wide SET a = (a + 1) % 3, c = 7 - n, n = n + 1 WHERE n > 2;"
            "DELETE FROM pk WHERE id = 1; INSERT INTO pk VALUES (1, 5, 5)"
        )
        assert_follows(commander, source, "proved", query)
        commander.execute("CALL headrace.drop_view('proved')")
    create(commander, "proved", "SELECT id FROM pk", '{"key": []}')
    assert key_of(source, "proved") == UNKEYED
    commander.execute("CALL headrace.drop_view('proved')")
    source.execute("DROP TABLE pk, wide")


def test_a_key_goes_where_it_is_not_proved_any_more(commander, source, engine):
    """Because of another query, or of a change of the source's key; grants stay."""
    source.execute("CREATE TABLE pk (id int, a int, b int, PRIMARY KEY (id, a))")
    source.execute("INSERT INTO pk SELECT i, i % 3, i % 2 FROM generate_series(1, 9) i")
    create(commander, "proved", "SELECT id, a FROM pk")
    source.execute("GRANT SELECT ON proved TO PUBLIC")
    oid = source.execute("SELECT 'proved'::regclass::oid").fetchone()
    for query, key in (
        ("SELECT b AS id, a FROM pk", None),
        ("SELECT a AS id, count(*)::int AS a FROM pk GROUP BY 1", "PRIMARY KEY (id)"),
        ("SELECT count(*)::int AS id, a FROM pk GROUP BY 2", "PRIMARY KEY (a)"),
        ("SELECT id, a FROM pk", "PRIMARY KEY (id, a)"),
    ):
        commander.execute(f"CALL headrace.alter_view('proved', $${query}$$)")
        assert key_of(source, "proved") == ((key, "d", 1) if key else UNKEYED), query
        source.execute("UPDATE pk SET a = (a + 1) % 3, b = 1 - b WHERE id > 2")
        assert_follows(commander, source, "proved", query)
    source.execute("CREATE TABLE refers (id int, a int, FOREIGN KEY (id, a) REFERENCES proved)")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist) as refused:
        commander.execute("CALL headrace.alter_view('proved', 'SELECT b AS id, a FROM pk')")
    assert "on table public.refers refers to its key" in refused.value.diag.message_detail
    assert_follows(commander, source, "proved", "SELECT id, a FROM pk")
    source.execute("DROP TABLE refers")
    source.execute("ALTER TABLE pk REPLICA IDENTITY FULL; ALTER TABLE pk DROP CONSTRAINT pk_pkey")
    source.execute("INSERT INTO pk VALUES (1, 1, 1), (1, 1, 1)")
    commander.execute("CALL headrace.resync_view('proved')")
    assert key_of(source, "proved") == UNKEYED
    source.execute("INSERT INTO pk VALUES (1, 1, 1)")
    assert_follows(commander, source, "proved", "SELECT id, a FROM pk")
    assert source.execute("SELECT 'proved'::regclass::oid").fetchone() == oid
    granted = "SELECT has_table_privilege('pg_monitor', 'proved', 'SELECT')"
    assert source.execute(granted).fetchone() == (True,)
    commander.execute("CALL headrace.drop_view('proved')")
    source.execute("DROP TABLE pk")
