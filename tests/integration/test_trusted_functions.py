"""Views over functions that are VOLATILE only because nobody declared them otherwise."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs

pytestmark = pytest.mark.shared_engine
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, name text);
INSERT INTO t SELECT i, 'Name ' || i FROM generate_series(1, 20) i;
CREATE FUNCTION slug(x text) RETURNS text LANGUAGE plpgsql AS
  'BEGIN RETURN replace(lower(x), '' '', ''-''); END';
CREATE FUNCTION doubled(x int) RETURNS int LANGUAGE sql RETURN x * 2;
"""
QUERY = "SELECT doubled(id) AS twice, slug(name) AS slug FROM t WHERE slug(name) <> 'name-3'"


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
