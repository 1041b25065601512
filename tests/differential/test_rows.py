"""Whole rows, records and casts that read the clock, through joins and groups."""

from __future__ import annotations

import random

import pytest

from tests.amounts import seeds
from tests.compared import check, create_view, follow, numbered
from tests.waiting import create_marker, wait_until

DDL = """
CREATE TABLE a (id int PRIMARY KEY, k int, s text, n numeric);
CREATE TABLE b (id int PRIMARY KEY, dropped int, k int NOT NULL, j jsonb);
ALTER TABLE b DROP COLUMN dropped;
CREATE TYPE pair AS (k int, s text);
INSERT INTO a VALUES (1, 1, 'x', 1.0), (2, 1, 'y', 1.00), (3, NULL, NULL, NULL), (4, 7, '', 2);
INSERT INTO b VALUES (1, 1, '{"v": 1.0}'), (2, 1, '{"v": 1}'), (3, 5, NULL);
"""
VIEWS = {
    "whole": "SELECT a.id, to_jsonb(b) AS b, b IS NULL AS gone FROM a LEFT JOIN b ON a.k = b.k",
    "sub_outer": "SELECT a.id, to_jsonb(x) AS x FROM a LEFT JOIN (SELECT k + 1 AS k2, j FROM b) x"
    " ON x.k2 = a.k",
    "full_join": "SELECT to_jsonb(a) AS a, to_jsonb(b) AS b FROM a FULL JOIN b ON a.k = b.k",
    "sub": "SELECT row_to_json(x) AS r FROM (SELECT id AS \"An id\", s FROM a) x",
    "scalar": "SELECT id, (SELECT row_to_json(x) FROM (SELECT a.k, a.s) x) AS r FROM a",
    "rows_in": "SELECT id FROM a WHERE (k, id) IN (SELECT k, id FROM b)",
    "rows_less": "SELECT a.id, b.id AS other FROM a, b WHERE (a.k, a.id) < (b.k, b.id)",
    "rows_equal": "SELECT a.id, b.id AS other FROM a JOIN b ON (a.k, a.id) = (b.k, b.id)",
    "grouped": "SELECT ROW(k, s)::pair AS p, count(*) FROM a GROUP BY ROW(k, s)::pair",
    "agg": "SELECT k, jsonb_agg(a ORDER BY id) AS r FROM a GROUP BY k",
    "documents": "SELECT j -> 'v' = '1.00' AS same, count(*) FROM b GROUP BY 1",
    "by_json": "SELECT count(*) FROM b GROUP BY j",
    "days": "SELECT id, (s || '-01-01')::date AS d FROM a WHERE s ~ '^[0-9]{4}$'",
    "exists": "SELECT id FROM a WHERE EXISTS (SELECT FROM b WHERE b.k = a.k AND a.n = 1)",
}  # fmt: skip
TRANSACTIONS = (
    "INSERT INTO a VALUES (10, 5, '2020', 0), (11, 5, '1999', NULL)",
    "UPDATE b SET k = k + 6",
    "UPDATE a SET k = NULL WHERE id < 3",
    "DELETE FROM b WHERE id = 2",
    "UPDATE b SET k = 1, j = '{\"v\": 1.000}'",
    "TRUNCATE b",
    "DELETE FROM a",
)


def test_rows(source, commander):
    source.execute(DDL)
    for name, query in VIEWS.items():
        create_view(commander, f"v_{name}", query)
    views = {f"v_{name}": query for name, query in VIEWS.items()}
    create_marker(source, commander)
    follow(source, views, ([s] for s in TRANSACTIONS), "rows")


OUTPUTS = """
CREATE FUNCTION around(x int, OUT "Lo" int, OUT hi numeric) LANGUAGE sql IMMUTABLE
    AS 'SELECT x - 1, x + 1.0';
CREATE FUNCTION halves(x int, y int DEFAULT 2, OUT int, OUT rest int) STRICT IMMUTABLE
    LANGUAGE plpgsql AS 'BEGIN $3 := x / y; rest := x % y; END';
CREATE FUNCTION raised(INOUT k int, INOUT s text) IMMUTABLE
    LANGUAGE sql AS 'SELECT k + 1, s || k';
"""
OUTPUT_VIEWS = (
    'SELECT id, (around(k)).hi, (around(k))."Lo" FROM a',
    "SELECT id, (around(id)).*, (halves(k)).*, (halves(id, k + 0)).column1 AS h FROM a WHERE k <> 0",
    "SELECT (raised(k, s)).s, count(*), sum((around(k)).hi) FROM a GROUP BY 1",
    "SELECT a.id FROM a JOIN b ON (around(a.k)).hi > b.k AND (halves(b.id)).rest = 1",
    "SELECT id, (SELECT max((around(a.k)).hi + b.id) FROM b WHERE b.k = (raised(a.k, '')).k) FROM a",
    "SELECT id, lag((raised(k, s)).s) OVER (ORDER BY id) FROM a WHERE (around(k)) IS NOT NULL",
    "SELECT id, (halves(7)).* FROM a",
)


def test_fields_of_functions_with_out_parameters(source, commander):
    source.execute(DDL)
    source.execute(OUTPUTS)
    views = numbered(OUTPUT_VIEWS)
    for name, query in views.items():
        create_view(commander, name, query)
    create_marker(source, commander)
    follow(source, views, ([s] for s in TRANSACTIONS), "fields")


FIELDS = (("a.k", "b.k"), ("a.id", "b.id"), ("a.s", "b.j ->> 'v'"), ("a.n", "b.k::numeric"))
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")


def row_pair(rng: random.Random, depth: int) -> tuple[str, str]:
    """Return two row constructors of one shape, over the columns of either table."""
    lefts, rights = [], []
    for _ in range(rng.randrange(1, 3)):
        left, right = row_pair(rng, depth - 1) if depth else rng.choice(FIELDS)
        lefts.append(left)
        rights.append(right)
    sides = f"ROW({', '.join(lefts)})", f"ROW({', '.join(rights)})"
    if depth == 0 and rng.random() < 0.3:
        k, s = rng.choice(FIELDS[:2]), FIELDS[2]
        sides = f"ROW({k[0]}, {s[0]})::pair", f"ROW({k[1]}, {s[1]})::pair"
    elif rng.random() < 0.3:
        sides = f"{sides[0]}::record", f"{sides[1]}::record"
    return sides


def row_condition(rng: random.Random) -> str:
    """Return a comparison of rows, alone or with another condition."""
    left, right = row_pair(rng, rng.randrange(2))
    condition = f"{left} {rng.choice(OPERATORS)} {right}"
    if rng.random() < 0.2:
        condition = f"{left} IN ({right}, {right})"
    elif rng.random() < 0.2:
        condition = f"CASE {left} WHEN {right} THEN true ELSE a.id > 2 END"
    return f"{condition} {rng.choice(('', '', 'AND a.id > b.id', 'OR a.k = 7'))}"


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_comparisons_of_rows_follow_every_transaction(seed, source, commander):
    rng = random.Random(seed)
    source.execute(DDL)
    views = numbered(
        f"SELECT a.id, b.id AS other FROM a {rng.choice(('JOIN', 'LEFT JOIN'))} b"
        f" ON {row_condition(rng)}"
        for _ in range(12)
    )
    for name, query in views.items():
        create_view(commander, name, query)
    create_marker(source, commander)
    follow(source, views, ([s] for s in TRANSACTIONS), f"seed {seed}")


def test_a_text_that_stands_for_the_current_time_stops_the_view(source, commander):
    source.execute("CREATE TABLE words (id int PRIMARY KEY, s text)")
    source.execute("INSERT INTO words VALUES (1, '2020-01-01'), (2, 'infinity'), (3, NULL)")
    query = "SELECT id, s::date AS d FROM words"
    commander.execute(f"CALL headrace.create_view('v', '{query}')")
    check(source, {"v": query}, "population")
    source.execute("INSERT INTO words VALUES (4, ' ToDay ')")
    status = "SELECT headrace.view_message(id) FROM headrace.views WHERE status <> 'running'"
    row = wait_until(lambda: source.execute(status).fetchone(), "the view stops")
    assert "stands for the current time" in row[0]
