"""Nondeterministic collations: texts that are equal although their bytes differ.

Such a collation comes from the column or from COLLATE, and must arrive wherever values are
compared. Queries whose answer depends on which of several equal texts is shown are left out.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.compared import create_view, follow, numbered
from tests.waiting import create_marker

TEXTS = ("a", "A", "á", "b", "B", "ab", "AB", "Ab", "")
DDL = """
CREATE COLLATION blurred (provider = icu, locale = 'und-u-ks-level1', deterministic = false);
CREATE TABLE t (id int PRIMARY KEY, k int, s text, c text COLLATE blurred,
  v varchar(9) COLLATE blurred, a text[] COLLATE blurred);
"""
CALLS = (
    "min({c}) = max({c})",
    "count(DISTINCT {c})",
    "array_length(array_agg(DISTINCT {c}), 1)",
    "array_agg(id ORDER BY {c} DESC NULLS LAST, id)",
    "rank('B') WITHIN GROUP (ORDER BY {c})",
    "string_agg({c}, ',' ORDER BY id)",
    "count(*) FILTER (WHERE {c} = 'a')",
    "count(DISTINCT nullif({c}, 'a'))",
)
ROWS = (
    "SELECT k, {c} AS x FROM t",
    "SELECT k, {c} AS x, a FROM t",
    "SELECT v, {c} = v AS x FROM t",
    "SELECT id, {c} AS x FROM t WHERE {c} IN ('a', 'B')",
    "SELECT t.k, u.id FROM t LEFT JOIN t u ON {c} = u.s",
    "SELECT id, rank() OVER (ORDER BY {c}) AS x FROM t",
    "SELECT id, s FROM t ORDER BY {c} DESC, id LIMIT 3",
    "SELECT {c} AS x FROM t UNION ALL SELECT s COLLATE blurred FROM t",
)
COLUMNS = ("t.c", "(t.s COLLATE blurred)")


def queries() -> list[str]:
    """Return every position with every column; aggregates over one group and over several."""
    out = [query.format(c=c) for c in COLUMNS for query in ROWS]
    for c in COLUMNS:
        for form in CALLS:
            call = form.format(c=c)
            out.append(f"SELECT {call} AS x FROM t")
            out.append(f"SELECT k, {call} AS x FROM t GROUP BY k")
    return out


def text(rng: random.Random) -> str:
    return "NULL" if rng.random() < 0.1 else f"'{rng.choice(TEXTS)}'"


def statement(rng: random.Random) -> str:
    changed = rng.randint(0, 3)
    listed = f"ARRAY[{text(rng)}, {text(rng)}]"
    return rng.choice(
        (
            f"UPDATE t SET c = {text(rng)}, a = {listed} WHERE id % 4 = {changed}",
            f"UPDATE t SET s = upper(s), c = upper(c), v = {text(rng)} WHERE id % 4 = {changed}",
            f"UPDATE t SET k = k + 1 WHERE id % 4 = {changed}",
            f"DELETE FROM t WHERE id % 5 = {changed}",
        )
    )


@pytest.mark.parametrize("seed", [1])
def test_texts_that_are_equal_but_differ(seed, source, commander):
    rng = random.Random(seed)
    try:
        source.execute(DDL)
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server was built without ICU")
    rows = ", ".join(
        f"({i}, {i % 2}, {text(rng)}, {text(rng)}, {text(rng)}, ARRAY[{text(rng)}])"
        for i in range(1, 21)
    )
    source.execute(f"INSERT INTO t VALUES {rows}")
    views = numbered(queries())
    for name, query in views.items():
        create_view(commander, name, query)
    create_marker(source, commander)
    follow(source, views, ([statement(rng)] for _ in range(8)), f"seed {seed}")


FUNCTIONS = """
CREATE TABLE calls (id int PRIMARY KEY, k int);
CREATE TABLE named (id int PRIMARY KEY, s text COLLATE {collation});
INSERT INTO calls SELECT i, i % 5 FROM generate_series(1, 9) i;
INSERT INTO named VALUES (0, 'ä'), (1, 'a'), (2, 'A'), (3, 'b'), (4, 'B');
CREATE FUNCTION name_of(x int) RETURNS text LANGUAGE sql STABLE
    AS 'SELECT s FROM named WHERE id = x';
CREATE FUNCTION strict_name(x int) RETURNS text LANGUAGE sql STABLE STRICT
    AS 'SELECT max(s COLLATE "C") COLLATE {collation} FROM named WHERE id <= x';
"""
OF_FUNCTIONS = (
    "SELECT count(*), min(id) FROM calls GROUP BY {f}",
    "SELECT count(DISTINCT {f}) FROM calls",
    "SELECT id FROM calls ORDER BY {f}, id LIMIT 3",
    "SELECT id, upper({f}) FROM calls WHERE {f} <> 'a'",
    "SELECT id, rank() OVER (ORDER BY {f}) AS r FROM calls",
    "SELECT count(*) FROM (SELECT DISTINCT {f} FROM calls) q",
)


@pytest.mark.parametrize("collation", ['"default"', '"C"', "blurred"])
def test_results_of_functions_have_the_declared_collation(collation, source, commander):
    if collation == "blurred":
        try:
            source.execute(DDL)
        except psycopg.errors.FeatureNotSupported:
            pytest.skip("this server was built without ICU")
    source.execute(FUNCTIONS.format(collation=collation))
    create_marker(source, commander)
    queries = [q.format(f=f) for q in OF_FUNCTIONS for f in ("name_of(k)", "strict_name(k)")]
    views = numbered(queries)
    for name, query in views.items():
        create_view(commander, name, query)
    changes = ("UPDATE calls SET k = 4 - k", "UPDATE named SET s = upper(s) WHERE id > 0")
    follow(source, views, ([c] for c in changes), collation)
