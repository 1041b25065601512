"""Changes of structure under a view: it goes on, or stops and recovers by a resync."""

from __future__ import annotations

import psycopg
import pytest

from tests.waiting import bump, wait_for, wait_until

TABLES = """
CREATE TABLE p (id int, k int, v varchar(10), PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
CREATE TABLE p3 (v varchar(10), id int NOT NULL, k int NOT NULL CHECK (k = 3), PRIMARY KEY (id, k));
INSERT INTO p SELECT i, i % 2 + 1, 'v' || i FROM generate_series(1, 8) i;
INSERT INTO p3 VALUES ('x', 1, 3), ('y', 2, 3);
CREATE TABLE a (id int PRIMARY KEY, v int);
INSERT INTO a SELECT i, i FROM generate_series(1, 5) i;
CREATE VIEW doubled AS SELECT id, v * 2 AS w FROM a;
"""
# DDL; the view that it stops, and the reason; both None if all views go on.
STEPS = (
    (
        "CREATE TABLE p4 PARTITION OF p FOR VALUES IN (4); INSERT INTO p VALUES (8, 4, 'first')",
        "parts",
        "has more partitions",
    ),
    ("INSERT INTO p VALUES (9, 4, 'new')", None, None),
    ("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)", "parts", "has more partitions"),
    ("ALTER TABLE p DETACH PARTITION p1", "parts", "has fewer partitions"),
    ("ALTER TABLE p RENAME TO q", None, None),
    ("INSERT INTO q VALUES (10, 3, 'ten'), (11, 2, 'eleven')", None, None),
    ("ALTER TABLE q RENAME v TO w", None, None),
    ("ALTER TABLE q RENAME id TO v; ALTER TABLE q RENAME w TO id", None, None),
    ("INSERT INTO q VALUES (13, 3, 'z')", None, None),
    ("ALTER TABLE q RENAME id TO w; ALTER TABLE q RENAME v TO id", None, None),
    # Seen together, a rename and a rewrite could be an ALTER TYPE with USING.
    ("INSERT INTO q VALUES (14, 3, 'zz')", None, None),
    ("TRUNCATE q", None, None),
    ("INSERT INTO q VALUES (12, 3, 'twelve')", None, None),
    ("ALTER TABLE a RENAME TO b", None, None),
    ("ALTER TABLE b ADD extra int DEFAULT 7", None, None),
    ("INSERT INTO b VALUES (6, 6)", None, None),
    ("CREATE OR REPLACE VIEW doubled AS SELECT id, v * 3 AS w FROM b", "views", "was replaced"),
    ("ALTER VIEW doubled RENAME TO tripled", None, None),
    ("ALTER VIEW tripled RENAME w TO x", None, None),
    ("UPDATE b SET v = v + 1 WHERE id > 4", None, None),
    ("ALTER TABLE b RENAME v TO amount", None, None),
    ("UPDATE b SET amount = 0 WHERE id = 1", None, None),
)


MARKER = True


def rows(source, query: str) -> list[str]:
    return sorted(str(row) for row in source.execute(query).fetchall())


def status(source, name: str) -> tuple:
    found = source.execute(
        "SELECT status, headrace.view_message(id) FROM headrace.views WHERE view_name = %s", (name,)
    ).fetchone()
    assert found is not None
    return found


def queries(source) -> dict[str, str]:
    """Return the queries that the views must match, with the current names."""
    names = dict(
        source.execute(
            "SELECT c.oid::regclass::text, (SELECT attname FROM pg_attribute a"
            " WHERE a.attrelid = c.oid AND attnum = CASE relkind WHEN 'v' THEN 2 ELSE 3 END)"
            " FROM pg_class c WHERE relname IN ('p', 'q', 'doubled', 'tripled')"
        ).fetchall()
    )
    table = "p" if "p" in names else "q"
    view = "doubled" if "doubled" in names else "tripled"
    return {
        "parts": f"SELECT k, count(*), max({names[table]}) FROM {table} GROUP BY k",
        "views": f"SELECT id, {names[view]} FROM {view}",
        "stacked": f"SELECT id FROM {view} WHERE {names[view]} > 6",
    }


def test_views_stop_or_go_on(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$, '{{\"on_change\": \"stop\"}}')"
    commander.execute(
        create.format("parts", "SELECT k, count(*) AS n, max(v::text) AS m FROM p GROUP BY k")
    )
    commander.execute(create.format("views", "SELECT id, w FROM doubled"))
    commander.execute(create.format("stacked", "SELECT id FROM views WHERE w > 6"))
    for ddl, name, why in STEPS:
        before = rows(source, f"SELECT * FROM {name}") if name else []
        source.execute(ddl)
        if name is not None:
            wait_until(lambda name=name: status(source, name)[0] == "error", ddl)
            message = status(source, name)[1]
            assert why in message, message
            assert "CALL headrace.resync_view(" in message
            assert rows(source, f"SELECT * FROM {name}") == before
            commander.execute(f"CALL headrace.resync_view('{name}')")
            if name == "views":
                wait_until(lambda: status(source, "stacked")[0] == "error", ddl)
                commander.execute("CALL headrace.resync_view('stacked')")
        wait_for(source, bump(source))
        for view, query in queries(source).items():
            assert status(source, view) == ("running", None), (ddl, view)
            assert rows(source, f"SELECT * FROM {view}") == rows(source, query), (ddl, view)
    for view in ("parts", "views", "stacked"):
        assert commander.execute(f"SELECT * FROM headrace.verify_view('{view}')").fetchall() == []


def test_a_stacked_view_is_verified_by_definitions(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$)"
    commander.execute(create.format("low", "SELECT id, v FROM a WHERE v > 1"))
    commander.execute("CREATE VIEW between AS SELECT id, v + 1 AS v FROM low")
    commander.execute(
        create.format(
            "top", "SELECT count(*) AS n, sum(b.v) AS s FROM between b JOIN low l USING (id)"
        )
    )
    commander.execute("CALL headrace.rename_view('low', 'lower')")
    verify = "SELECT * FROM headrace.verify_view('top')"
    assert commander.execute(verify).fetchall() == []
    source.execute("INSERT INTO a SELECT i, i FROM generate_series(20, 50) i")
    assert commander.execute(verify).fetchall() == []
    wait_for(source, bump(source))
    query = "SELECT count(*), sum(b.v) FROM between b JOIN lower l USING (id)"
    assert rows(source, "SELECT * FROM top") == rows(source, query)


def test_a_view_resyncs_by_itself_where_asked_for(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$, '{{\"on_change\": \"{}\"}}')"
    commander.execute(create.format("mine", "SELECT id, k FROM p", "resync"))
    commander.execute(create.format("wide", "SELECT id, v FROM a", "resync"))
    commander.execute(create.format("kept", "SELECT id, k FROM p", "stop"))
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        commander.execute(create.format("no", "SELECT id, k FROM p", "hope"))
    before = rows(source, "SELECT * FROM kept")
    source.execute("CREATE TABLE p4 PARTITION OF p FOR VALUES IN (4, 5)")
    source.execute("INSERT INTO p VALUES (70, 4), (71, 5)")
    source.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)")
    source.execute("ALTER TABLE a DROP v CASCADE")
    query = "SELECT id, k FROM p"

    def settled() -> bool:
        running = status(source, "mine") == ("running", None)
        return running and rows(source, "SELECT * FROM mine") == rows(source, query)

    wait_until(settled, "mine is filled anew")
    source.execute("UPDATE p SET id = id + 100 WHERE k > 2")
    wait_until(settled, "mine goes on")
    assert status(source, "kept")[0] == "error"
    assert rows(source, "SELECT * FROM kept") == before
    state, message = status(source, "wide")
    assert state == "error"
    assert 'column "v"' in message


def test_other_types_of_columns_are_those_of_the_table_after_a_resync(commander, source):
    create = "CALL headrace.create_view('{}', $q${}$q$, '{{\"on_change\": \"resync\"}}')"
    commander.execute(create.format("texts", "SELECT id, v, k FROM p"))
    commander.execute("CALL headrace.create_index('texts', '(v, k)')")
    commander.execute(create.format("kept", "SELECT v FROM p"))
    commander.execute("CREATE VIEW of_kept AS SELECT v FROM kept")
    source.execute("ALTER TABLE p ALTER v TYPE varchar(20), ALTER id TYPE bigint")
    source.execute("INSERT INTO p VALUES (5000000000, 1, 'longer than ten')")
    query = "SELECT id, v, k FROM p"

    def settled() -> bool:
        running = status(source, "texts") == ("running", None)
        return running and rows(source, "SELECT * FROM texts") == rows(source, query)

    wait_until(settled, "texts has the new types")
    kinds = source.execute(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'texts'::regclass AND attnum > 0 ORDER BY attnum"
    ).fetchall()
    assert kinds == [("bigint",), ("character varying(20)",), ("integer",)]
    source.execute("UPDATE p SET v = 'now longer than ten', id = id + 6000000000")
    wait_until(settled, "texts goes on")
    assert status(source, "kept")[0] == "error"

    def refused() -> str | None:
        try:
            commander.execute("CALL headrace.resync_view('kept')")
        except psycopg.errors.ObjectNotInPrerequisiteState as error:
            return error.diag.message_detail
        except psycopg.errors.ObjectInUse:
            return None  # an automatic retry is under way
        raise AssertionError("something depends on the table")

    assert "of_kept" in wait_until(refused, "a resync is refused")
    commander.execute("DROP VIEW of_kept")

    def resynced() -> bool:
        try:
            commander.execute("CALL headrace.resync_view('kept')")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(resynced, "it may be filled anew by hand")
    assert rows(source, "SELECT * FROM kept") == rows(source, "SELECT v FROM p")
