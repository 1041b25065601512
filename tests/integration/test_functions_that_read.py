"""SQL and PL/pgSQL functions that read tables: their views follow those tables."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests import bodies, statements
from tests.amounts import seeds
from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine
TABLES = f"""
{bodies.TABLES}
{statements.SCHEMA}
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
RENEWING = (
    "TRUNCATE sale; INSERT INTO sale SELECT i, i % 9, i * 0.75, date '2024-03-01' + i % 5 FROM generate_series(1, 20) i",
    "UPDATE sale SET amount = amount * 2, client = client - 1 WHERE id % 3 = 0",
    "UPDATE client SET name = NULL, region = id - 3 WHERE id % 2 = 0; INSERT INTO client VALUES (0, 'nil', 1), (-2, 'ab', NULL)",
    "DELETE FROM sale WHERE client = 4; DELETE FROM client WHERE id < 1",
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


def test_rows_of_functions_are_values(commander, source):
    query = " UNION ALL ".join(
        f"SELECT '{name}' AS n, ROW(q.*)::text AS r FROM ({query}) q"
        for name, query in bodies.ROWS.items()
    )
    commander.execute("CALL headrace.create_view('rows', %s)", (query,))
    for change in ("SELECT", *RENEWING):
        source.execute(change)
        commander.execute("CALL headrace.wait_for('rows')")
        assert differs(source, "rows", query) == [], change


def test_views_follow_the_tables_that_statements_read(commander, source):
    """One view calls every function whose statements become an expression."""
    queries = []
    for name, body in statements.ACCEPTED.items():
        source.execute(statements.define(f"f_{name}", *body))
        queries.append((name, statements.call(f"f_{name}", *body[:2])))
    query = " UNION ALL ".join(f"SELECT '{name}' AS n, * FROM ({q}) q" for name, q in queries)
    commander.execute("CALL headrace.create_view('statements', %s)", (query,))
    assert differs(source, "statements", query) == []
    for change in (*reversed(CHANGES), *CHANGES):
        if "INSERT" not in change:
            source.execute(change)
        commander.execute("CALL headrace.wait_for('statements')")
        assert differs(source, "statements", query) == [], change


@pytest.mark.parametrize("seed", seeds(1, 6))
def test_generated_statements(commander, source, seed):
    """Generated bodies of a small grammar; none is refused."""
    generator = statements.Generator(random.Random(seed))
    queries = []
    for n in range(6):
        body, name = generator.body(), f"g{seed}_{n}"
        source.execute(statements.define(name, *body))
        queries.append(statements.call(name, *body[:2]))
    query = " UNION ALL ".join(f"SELECT {n} AS n, * FROM ({q}) q" for n, q in enumerate(queries))
    commander.execute("CALL headrace.create_view(%s, %s)", (f"generated_{seed}", query))
    for change in ("SELECT", *RENEWING):
        source.execute(change)
        commander.execute("CALL headrace.wait_for(%s)", (f"generated_{seed}",))
        assert differs(source, f"generated_{seed}", query) == [], change


def test_an_assignment_that_fails_fails_the_view(commander, source):
    """PL/pgSQL evaluates each assignment that it reaches, even if the result does not use it."""
    source.execute(
        statements.define(
            "eager", "c int", "bigint",
            "DECLARE x int := 1 / (c - 1); BEGIN IF c = 1 THEN RETURN 0; END IF;"
            " RETURN (SELECT count(*) FROM sale WHERE client = c); END",
        )
    )  # fmt: skip
    query = "SELECT id, eager(id) AS n FROM client WHERE id {} 1"
    with pytest.raises(psycopg.errors.DivisionByZero):
        commander.execute("CALL headrace.create_view('eager', %s)", (query.format(">="),))
    commander.execute("CALL headrace.create_view('eager', %s)", (query.format(">"),))
    assert differs(source, "eager", query.format(">")) == []


@pytest.mark.parametrize("name", statements.REFUSED)
def test_statements_that_no_expression_stands_for_are_refused(commander, source, name):
    """The error gives the reason, and its hint a remedy."""
    source.execute("SET check_function_bodies = off")
    source.execute("CREATE SCHEMA IF NOT EXISTS apart")
    source.execute("CREATE TABLE IF NOT EXISTS apart.held (s text)")
    *body, reason = statements.REFUSED[name]
    source.execute(statements.define(f"r_{name}", *body))
    query = statements.call(f"r_{name}", *body[:2])
    with pytest.raises(psycopg.errors.FeatureNotSupported) as raised:
        commander.execute("CALL headrace.create_view('refused', %s)", (query,))
    assert reason in raised.value.diag.message_detail
    assert "SQL function" in raised.value.diag.message_hint


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


def test_the_name_of_a_type_is_followed(commander, source):
    source.execute("CREATE TYPE named AS ENUM ('x')")
    query = "SELECT id, pg_typeof('x'::named)::text AS n FROM client"
    commander.execute("CALL headrace.create_view('named_types', %s)", (query,))
    assert differs(source, "named_types", query) == []
    source.execute("ALTER TYPE named RENAME TO renamed")
    source.execute("UPDATE client SET region = 7")
    wait_until(
        lambda: differs(source, "named_types", query.replace("::named", "::renamed")) == [],
        "the view has the new name",
    )


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
        ("counted(c bigint) RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM client WHERE id = c'", "counted(sum(id))"),
        ("narrow_read(c int) RETURNS SETOF narrowed LANGUAGE sql AS 'SELECT n.* FROM narrowed n, client WHERE id = c'", "(SELECT max(e) FROM narrow_read(id))"),
        ("as_one(c int) RETURNS SETOF worth LANGUAGE sql AS 'SELECT s FROM (SELECT id, amount FROM sale) s WHERE id = c'", "(SELECT max(sale) FROM as_one(id))"),
        ("rounded_rows(c int) RETURNS SETOF setting LANGUAGE sql AS 'SELECT k, region, v / 3 FROM setting WHERE region = c'", "(SELECT max(v) FROM rounded_rows(id))"),
        ("cased(c text) RETURNS bool LANGUAGE sql AS 'SELECT c < max(name) FROM client'", """cased('a' COLLATE "C")"""),
        ("doubled_rows(c int) RETURNS SETOF worth LANGUAGE sql IMMUTABLE AS 'SELECT c, 1.0'", "doubled_rows(id), generate_series(1, 3)"),
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


def test_a_constraint_that_was_not_validated_orders_no_rows(commander, source):
    """Several rows with NULL are equal in the order, so Postgres may return any of them."""
    if source.info.server_version < 180000:
        pytest.skip("NOT NULL … NOT VALID came with Postgres 18")
    source.execute(
        "CREATE TABLE parts (k int UNIQUE, v int); ALTER TABLE parts REPLICA IDENTITY FULL;"
        "INSERT INTO parts VALUES (1, 1), (NULL, 5), (NULL, 3);"
        "ALTER TABLE parts ADD CONSTRAINT later NOT NULL k NOT VALID;"
        "CREATE FUNCTION newest_part(c int) RETURNS int LANGUAGE plpgsql STABLE AS"
        " 'DECLARE r int; BEGIN SELECT v INTO r FROM parts ORDER BY k DESC LIMIT 1; RETURN r; END'"
    )
    query = "SELECT id, newest_part(id) FROM client"
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        commander.execute("CALL headrace.create_view('newest', %s)", (query,))
    source.execute("DELETE FROM parts WHERE k IS NULL")
    source.execute("ALTER TABLE parts VALIDATE CONSTRAINT later")
    commander.execute("CALL headrace.create_view('newest', %s)", (query,))
    source.execute("INSERT INTO parts VALUES (7, 8)")
    commander.execute("CALL headrace.wait_for('newest')")
    assert differs(source, "newest", query) == []
