"""Views over functions that are VOLATILE only by default."""

from __future__ import annotations

import psycopg
import pytest

from tests.bodies import ACCEPTED, SCHEMA, define
from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, name text);
INSERT INTO t SELECT i, 'Name ' || i FROM generate_series(1, 20) i;
CREATE FUNCTION slug(x text) RETURNS text LANGUAGE plpgsql AS
  'BEGIN PERFORM set_config(''a.b'', x, true); RETURN replace(lower(x), '' '', ''-''); END';
CREATE FUNCTION twice(x int) RETURNS int LANGUAGE sql RETURN x * 2;
"""
DEFINED = {name: define(f"f_{name}", body) for name, body in ACCEPTED.items()}
TABLES += SCHEMA + ";".join(statement for statement, _ in DEFINED.values())
ROWS = """
INSERT INTO one SELECT i, 'Text ' || i, '2024-01-01'::timestamptz + i * interval '1 h', i / 3.0,
  array_fill('t' || i, ARRAY[i %% 3])
  FROM generate_series(%s, %s) i
"""
QUERY = "SELECT twice(id) AS twice, slug(name) AS slug FROM t WHERE slug(name) <> 'name-3'"


def test_a_view_over_a_trusted_function_is_kept(commander, source):
    with pytest.raises(psycopg.errors.FeatureNotSupported) as raised:
        commander.execute("CALL headrace.create_view('v', %s)", (QUERY,))
    assert "trust_stable" in raised.value.diag.message_hint
    options = '{"trust_stable": ["public.slug"]}'
    commander.execute("CALL headrace.create_view('v', %s, %s)", (QUERY, options))
    source.execute("INSERT INTO t VALUES (100, 'A New One'); DELETE FROM t WHERE id < 3")
    source.execute("UPDATE t SET name = 'Name 3' WHERE id = 5")
    commander.execute("CALL headrace.wait_for('v')")
    assert differs(source, "v", QUERY) == []
    # The option is kept with the view.
    commander.execute("CALL headrace.resync_view('v')")
    assert differs(source, "v", QUERY) == []


def test_bodies_kept_as_text_are_followed(commander, source):
    """Every form of a body that is analysed gives the result of Postgres."""
    source.execute(ROWS % (1, 9))
    queries = [query for _, query in DEFINED.values()]
    query = " UNION ALL ".join(f"SELECT {n} AS n, * FROM ({q}) q" for n, q in enumerate(queries))
    commander.execute("CALL headrace.create_view('every_form', %s)", (query,))
    source.execute(ROWS % (10, 14))
    source.execute("UPDATE one SET s = NULL, tags = ARRAY['a', 'b'], at = NULL WHERE id % 4 = 0")
    source.execute("DELETE FROM one WHERE id < 3; UPDATE one SET id = id + 100 WHERE id = 7")
    commander.execute("CALL headrace.wait_for('every_form')")
    assert differs(source, "every_form", query) == []


def test_a_view_notices_another_body(commander, source):
    """A function that a body calls is replaced: the view does not go on with its old values."""
    query = "SELECT id, f_nested(id) AS x FROM one"
    commander.execute(
        """CALL headrace.create_view('nested', %s, '{"on_change": "stop"}')""", (query,)
    )
    source.execute(
        "CREATE OR REPLACE FUNCTION doubled(x int) RETURNS int LANGUAGE sql AS 'SELECT x * 3'"
    )

    def stopped() -> bool:
        row = source.execute(
            "SELECT headrace.view_message(id) FROM headrace.views WHERE view_name = 'nested'"
        ).fetchone()
        return "doubled(integer) was replaced" in (row[0] or "")

    source.execute(ROWS % (50, 51))
    wait_until(stopped, "the view has stopped")
