"""Views for statements with parameters: the suggestion gives the same rows for any value."""

from __future__ import annotations

from collections import Counter

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.views.parameters import NotAView, suggested

SAME = [
    # (statement, view, condition)
    ("SELECT * FROM t WHERE k = $1", "SELECT * FROM t", "k = $1"),
    ("SELECT * FROM t x WHERE x.k = $1;", "SELECT * FROM t x", "k = $1"),
    ("SELECT a, b FROM t WHERE k = $1", "SELECT a, b, k AS k FROM t", "k = $1"),
    ("SELECT a FROM t WHERE $1 = k AND b > 1", "SELECT a, k AS k FROM t WHERE b > 1", "$1 = k"),
    ("SELECT k, b FROM t WHERE t.k = $1", "SELECT k, b, t.k AS k_key FROM t", 'k_key = $1'),
    ("SELECT t.k AS who, b FROM t WHERE t.k = $1", "SELECT t.k AS who, b FROM t", "who = $1"),
    ("SELECT b FROM t WHERE k < $1 AND a >= $2",
     "SELECT b, k AS k, a AS a FROM t", "k < $1 AND a >= $2"),
    ("SELECT b FROM t WHERE k BETWEEN $1 AND $2 AND a <> $3",
     "SELECT b, k AS k, a AS a FROM t", "k BETWEEN $1 AND $2 AND a <> $3"),
    ("SELECT b FROM t WHERE k IN ($1, $2)", "SELECT b, k AS k FROM t", "k IN ($1, $2)"),
    ("SELECT b FROM t WHERE k = ANY ($1)", "SELECT b, k AS k FROM t", "k = ANY ($1)"),
    ("SELECT x.a, y.b FROM t x JOIN t y ON x.k = y.k WHERE x.k = $1::int ORDER BY 2",
     "SELECT x.a, y.b, x.k AS k FROM t x JOIN t y ON x.k = y.k", "k = $1::int"),
    ("SELECT x.a, y.b FROM t x LEFT JOIN t y ON x.k = y.a WHERE y.b = $1",
     "SELECT x.a, y.b FROM t x LEFT JOIN t y ON x.k = y.a", "b = $1"),
    ("SELECT a, sum(b) FROM t WHERE k = $1 GROUP BY a",
     "SELECT a, sum(b), k AS k FROM t GROUP BY a, k", "k = $1"),
    ("SELECT a, count(*) AS n FROM t WHERE b > 0 AND k = $1 GROUP BY 1 HAVING count(*) > 1",
     "SELECT a, count(*) AS n, k AS k FROM t WHERE b > 0 GROUP BY 1, k HAVING count(*) > 1",
     "k = $1"),
    ("SELECT k, sum(b) FROM t WHERE k = $1 GROUP BY k", "SELECT k, sum(b) FROM t GROUP BY k",
     "k = $1"),
    ("SELECT DISTINCT a FROM t WHERE k = $1", "SELECT DISTINCT a, k AS k FROM t", "k = $1"),
    ("SELECT a, CASE WHEN b > 1 AND a > 2 THEN 'x' ELSE 'and' END AS c FROM t WHERE k = $1",
     "SELECT a, CASE WHEN b > 1 AND a > 2 THEN 'x' ELSE 'and' END AS c, k AS k FROM t", "k = $1"),
    ("SELECT a AS from_a FROM t -- WHERE x = $2\n WHERE k = $1 /* AND */ AND a IS DISTINCT FROM b",
     "SELECT a AS from_a, k AS k FROM t WHERE a IS DISTINCT FROM b", "k = $1"),
    ("SELECT a, (SELECT max(y.b) FROM t y WHERE y.k = t.k) AS m FROM t WHERE k = $1",
     "SELECT a, (SELECT max(y.b) FROM t y WHERE y.k = t.k) AS m, k AS k FROM t", "k = $1"),
    ('SELECT a FROM "T" WHERE "K k" = $1', 'SELECT a, "K k" AS "K k" FROM "T"', '"K k" = $1'),
    ("SELECT a FROM t", "SELECT a FROM t", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "query", "condition"), SAME)
def test_what_is_suggested(text, query, condition):
    found = suggested(text)
    assert found.query == query.replace("k_key", '"k_key"')
    assert found.condition == condition.replace("k_key", '"k_key"')


WHY_NOT = [
    ("SELECT a FROM t WHERE k = $1 LIMIT $2", "LIMIT"),
    ("SELECT a FROM t WHERE k = $1 LIMIT 5", "LIMIT"),
    ("SELECT a FROM t WHERE k = $1 OFFSET 5", "OFFSET"),
    ("SELECT a FROM t WHERE k = $1 FETCH FIRST ROW ONLY", "FETCH"),
    ("SELECT a FROM t WHERE k = $1 FOR UPDATE", "locks"),
    ("SELECT a FROM t WHERE k = $1 UNION SELECT 1", "UNION"),
    ("SELECT a FROM t WHERE k = $1 EXCEPT SELECT 1", "EXCEPT"),
    ("SELECT a INTO u FROM t WHERE k = $1", "makes a table"),
    ("SELECT a + $1 FROM t", "the select list"),
    ("SELECT a FROM t JOIN u ON u.b = $1", "FROM"),
    ("SELECT a FROM t GROUP BY a HAVING sum(b) > $1", "HAVING"),
    ("SELECT a FROM t WHERE k = $1 OR b = 1", "OR"),
    ("SELECT a FROM t WHERE k + 1 = $1", "k + 1 = $1"),
    ("SELECT a FROM t WHERE lower(k) = $1", "lower"),
    ("SELECT a FROM t WHERE k = $1 + 1", "k = $1 + 1"),
    ("SELECT a FROM t WHERE k = b", None),
    ("SELECT a FROM t WHERE NOT k = $1", "NOT k"),
    ("SELECT a FROM t WHERE k NOT IN ($1)", "k NOT IN"),
    ("SELECT a FROM t WHERE (k = $1 OR b = 2)", "(k = $1"),
    ("SELECT a FROM t WHERE EXISTS (SELECT FROM u WHERE u.x = $1)", "EXISTS"),
    ("SELECT a, sum(b) FROM t WHERE k > $1 GROUP BY a", "an equality"),
    ("SELECT DISTINCT a FROM t WHERE k > $1", "an equality"),
    ("SELECT DISTINCT ON (a) a FROM t WHERE k = $1", "DISTINCT ON"),
    ("SELECT sum(b) FROM t WHERE k = $1 HAVING count(*) > 1", "one row"),
    ("SELECT a, sum(b) FROM t WHERE k = $1 GROUP BY ROLLUP (a)", "GROUPING SETS"),
    ("SELECT sum(b) FROM t WHERE k = $1 GROUP BY ()", "GROUP BY ()"),
    ("SELECT row_number() OVER (ORDER BY b) FROM t WHERE k = $1", "window"),
    ("SELECT sum(b) OVER w FROM t WHERE k = $1 WINDOW w AS (ORDER BY b)", "window"),
    ("WITH x AS (SELECT 1) SELECT a FROM t WHERE k = $1", "more than one SELECT"),
    ("SELECT a FROM t WHERE k = $1; DROP TABLE t", "more than one statement"),
    ("SELECT a FROM t WHERE k = $1 )", "parentheses"),
    ("SELECT a, (SELECT 1 AS end) FROM t WHERE k = ($1", "parentheses"),
    ("SELECT a FROM t WHERE k = '", "read"),
    ("", "empty"),
]


@pytest.mark.parametrize(("text", "why"), WHY_NOT)
def test_what_is_not(text, why):
    if why is None:
        assert suggested(text).condition == ""
        return
    with pytest.raises(NotAView) as caught:
        suggested(text)
    assert why in caught.value.message


def test_labels_that_are_words():
    """After AS and a point, every word is a name."""
    found = suggested('SELECT a AS "select", t.b AS end, x.c AS case FROM t, x WHERE k = $1')
    assert found.query == ('SELECT a AS "select", t.b AS end, x.c AS case, k AS k FROM t, x')


WORDS = st.sampled_from(
    [
        *("SELECT", "FROM", "WHERE", "AND", "OR", "GROUP", "BY", "k", "a", "b", "t", ".", ",", "("),
        *(")", "=", "$1", "$2", "BETWEEN", "IN", "CASE", "END", "AS", "*", "'x'", ";", "DISTINCT"),
        *("ORDER", "LIMIT", "NOT", "::", "int", "ANY"),
    ]
)


@given(st.lists(WORDS, max_size=14))
def test_any_words_are_read_or_refused(words):
    try:
        found = suggested("SELECT " + " ".join(words))
    except NotAView:
        return
    assert "$" not in found.query, "no parameter is left in a view"


@pytest.fixture(scope="module")
def tables(databases):
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.RawCursor) as conn:
        conn.execute('CREATE TABLE t (k int, a int, b int); CREATE TABLE "T" ("K k" int, a int)')
        conn.execute(
            "INSERT INTO t SELECT NULLIF(i % 4, 3), NULLIF(i % 3, 2), i % 5"
            " FROM generate_series(1, 60) i"
        )
        conn.execute('INSERT INTO "T" SELECT k, a FROM t')
        yield conn
    databases.give_back(name)


@pytest.mark.parametrize("text", [text for text, _, _ in SAME])
def test_rows_are_the_same_for_any_value(tables, text):
    found = suggested(text)
    count = sum(f"${n}" in found.condition for n in (1, 2, 3))
    where = f" WHERE {found.condition}" if found.condition else ""
    seen = 0
    for first in (0, 1, 2, 3, None):
        values: list[object] = [first, 1, 2][:count]
        if "ANY" in text:
            values = [[0, first]]
        asked = tables.execute(text, values)
        width = len(asked.description)
        rows = Counter(asked.fetchall())
        read = tables.execute(f"SELECT * FROM ({found.query}) v{where}", values).fetchall()
        assert Counter(row[:width] for row in read) == rows
        seen += len(read)
    assert seen, "nothing was compared"
