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
