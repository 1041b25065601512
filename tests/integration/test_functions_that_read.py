"""SQL functions that read tables: their views follow those tables."""

from __future__ import annotations

import psycopg
import pytest

from tests import bodies
from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine
TABLES = f"""
{bodies.TABLES}
CREATE VIEW reading_view AS SELECT id, total(id) AS t, paired(id) AS b FROM client;
INSERT INTO client SELECT i, 'c' || i % 5, i % 4 FROM generate_series(1, 8) i;
INSERT INTO sale SELECT i, i % 10, i * 1.5, date '2024-01-01' + i % 7 FROM generate_series(1, 30) i;
"""
CHANGES = (
    "INSERT INTO sale SELECT i, i % 9, i * 2.25, date '2024-02-01' FROM generate_series(31, 40) i",
    "UPDATE client SET name = 'other ' || id, region = region + 1 WHERE id IN (2, 5)",
    "DELETE FROM sale WHERE client = 3; DELETE FROM client WHERE id = 7",
    "INSERT INTO client VALUES (9, NULL, NULL), (3000, 'x', 2); UPDATE sale SET client = NULL WHERE id < 4",
    "TRUNCATE sale",
)


def test_views_follow_the_tables_that_functions_read(commander, source):
    views = {f"v{n}": query for n, query in enumerate(bodies.READING.values())}
    for view, query in views.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (view, query))
        assert differs(source, view, query) == []
    for change in CHANGES:
        source.execute(change)
        commander.execute("CALL headrace.wait_for('v0')")
        for view, query in views.items():
            commander.execute("CALL headrace.wait_for(%s)", (view,))
            assert differs(source, view, query) == [], (change, query)


def test_a_view_notices_that_such_a_function_is_replaced(commander, source):
    options = '{"on_change": "stop"}'
    query = "SELECT id, paired(id) AS n FROM client"
    commander.execute("CALL headrace.create_view('noticing', %s, %s)", (query, options))
    source.execute(
        "CREATE OR REPLACE FUNCTION client_name(c int) RETURNS text LANGUAGE sql AS"
        " 'SELECT upper(name) FROM client WHERE client.id = c'"
    )
    source.execute("UPDATE client SET name = name || '!'")

    def stopped() -> bool:
        row = source.execute(
            "SELECT headrace.view_message(id) FROM headrace.views WHERE view_name = 'noticing'"
        ).fetchone()
        return "client_name(integer) was replaced" in (row[0] or "")

    wait_until(stopped, "the view has stopped")


@pytest.mark.parametrize(
    ("function", "call"),
    [
        ("definer(c int) RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT count(*) FROM client'", "definer(id)"),
        ("hidden(c int) RETURNS text LANGUAGE sql AS 'SELECT h.s FROM held h WHERE c > 0'", "hidden(id)"),
        ("cast_(c int) RETURNS numeric LANGUAGE sql AS 'SELECT count(*) FROM client'", "cast_(id)"),
        ("chosen(c int) RETURNS int LANGUAGE sql AS 'SELECT id FROM client ORDER BY id LIMIT 1 OFFSET c'", "chosen(id)"),
        ("sampled(c int) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM client TABLESAMPLE SYSTEM (50)'", "sampled(id)"),
        ("luck(c int) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM client WHERE random() > 0.5'", "luck(id)"),
        ("writing(c int) RETURNS int LANGUAGE sql AS 'UPDATE client SET name = name WHERE id = c RETURNING id'", "writing(id)"),
        ("locking(c int) RETURNS int LANGUAGE sql AS 'SELECT id FROM client WHERE id = c FOR UPDATE'", "locking(id)"),
        ("again(c int) RETURNS bigint LANGUAGE sql AS 'SELECT count(again(c - 1)) FROM client WHERE c > 0'", "again(id)"),
        ("looked_up(c int) RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT name FROM client k WHERE k.id = c); END'", "looked_up(id)"),
        ("counted(c bigint) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM client WHERE id = c'", "counted(sum(id))"),
        ("strict_rows(c int) RETURNS SETOF client STRICT LANGUAGE sql AS 'SELECT * FROM client'", "(SELECT count(*) FROM strict_rows(id))"),
        ("other_path(c int) RETURNS bigint LANGUAGE sql SET search_path = apart, public AS 'SELECT count(*) FROM client'", "other_path(id)"),
    ],
)  # fmt: skip
def test_what_cannot_be_put_in_place_is_refused(commander, source, function, call):
    source.execute("SET check_function_bodies = off")
    source.execute(
        "CREATE SCHEMA IF NOT EXISTS apart; CREATE TABLE IF NOT EXISTS apart.held (s text)"
    )
    source.execute(f"CREATE OR REPLACE FUNCTION {function}")
    grouped = " GROUP BY id" if "sum(" in call else ""
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        commander.execute(
            "CALL headrace.create_view('refused', %s)",
            (f"SELECT {call} AS x FROM client{grouped}",),
        )
