"""Aggregates whose result is an array of a domain."""

from __future__ import annotations

import psycopg
import pytest

from tests.compared import differs

pytestmark = pytest.mark.shared_engine
TABLES = """
CREATE DOMAIN short AS varchar(5);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE DOMAIN small AS positive CHECK (VALUE < 1000);
CREATE DOMAIN filled AS int NOT NULL;
CREATE TABLE t (id int PRIMARY KEY, k int, s short, p positive, q small, f filled);
INSERT INTO t SELECT i, i % 3, 's' || i, i, NULLIF(i, 4), i FROM generate_series(1, 12) i;
"""
QUERIES = {
    "ordered": "SELECT k, array_agg(s ORDER BY s DESC) AS s, array_agg(p ORDER BY id) AS p FROM t GROUP BY k",
    "by_itself": "SELECT k, array_agg(q ORDER BY q) AS q, array_agg(DISTINCT p) AS p FROM t GROUP BY k",
    "filtered": "SELECT k, array_agg(q ORDER BY id) FILTER (WHERE p > 3) AS q FROM t GROUP BY k",
    "beside": "SELECT k, sum(p), max(s), array_agg(p + 1 ORDER BY id) AS n, array_agg(p ORDER BY id) AS p FROM t GROUP BY k",
    "within": "SELECT k, cardinality(array_agg(s)) AS n, (array_agg(q ORDER BY id))[1] AS f FROM t GROUP BY k",
}  # fmt: skip


def test_arrays_of_domains_follow(commander, source):
    for view, query in QUERIES.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (view, query))
        assert differs(source, view, query) == []
    source.execute("INSERT INTO t SELECT i, i % 4, 'n', i, NULL, 1 FROM generate_series(13, 20) i")
    source.execute("DELETE FROM t WHERE id % 5 = 0; UPDATE t SET s = NULL, q = 7 WHERE k = 1")
    for view, query in QUERIES.items():
        commander.execute("CALL headrace.wait_for(%s)", (view,))
        assert differs(source, view, query) == []


def test_a_domain_that_values_of_a_query_may_not_meet_is_refused(commander):
    """The domain would be checked again for each value, also for NULLs of an outer join."""
    query = "SELECT a.k, array_agg(b.f) AS f FROM t a LEFT JOIN t b ON b.id = a.id + 1 GROUP BY a.k"
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        commander.execute("CALL headrace.create_view('refused', %s)", (query,))
