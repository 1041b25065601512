"""Intervals as keys: groups, joins, DISTINCT, ranks and extremes, under random transactions.

Intervals of different text may be equal (``31 days``, ``1 mon 1 day``). Queries therefore show
which rows are grouped, and never the chosen text.
"""

from __future__ import annotations

import random

import pytest

from tests.amounts import seeds
from tests.compared import create_view, follow
from tests.waiting import create_marker

SPANS = (
    "1 day", "-1 days", "2 days", "1 mon", "1 mon 1 day", "31 days", "2 mons 1 day", "61 days",
    "1 year 1 day", "361 days", "-1 mons +1 day", "-29 days", "1 year", "12 mons", "360 days", "30 days",
    "24:00:00", "-24:00:00", "1 day -24:00:00", "00:00:00", "-1 mons -1 days", "-2 years +1 day",
    "-719 days", "1 year 2 mons 3 days 04:05:06.789", "00:00:00.000001", "-00:00:00.000001",
    "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807", "-178956970 years -8 mons",
)  # fmt: skip
INFINITE = ("infinity", "-infinity")
"""Since Postgres 17."""
VIEWS = {
    "grouped": "SELECT count(*), min(id) FROM spans GROUP BY i",
    "several": "SELECT k, count(DISTINCT i) FROM spans GROUP BY k",
    "joined": "SELECT a.id, b.id AS other FROM spans a JOIN spans b ON a.i = b.i AND a.k <= b.k",
    "missing": "SELECT id FROM spans a WHERE NOT EXISTS"
    " (SELECT FROM spans b WHERE b.i = a.i AND b.id <> a.id)",
    "distinct_": "SELECT count(*) FROM (SELECT DISTINCT i, k FROM spans) d",
    "first_": "SELECT id, k FROM spans ORDER BY i, id LIMIT 9",
    "ranked": "SELECT id, rank() OVER (ORDER BY i), dense_rank() OVER (PARTITION BY k ORDER BY i DESC)"
    " FROM spans",
    "numbered_": "SELECT id, row_number() OVER (PARTITION BY i ORDER BY id) FROM spans",
    "least_": "SELECT s.id FROM spans s JOIN"
    " (SELECT k, min(i) AS low, max(i) AS high FROM spans GROUP BY k) e"
    " ON s.k = e.k AND (s.i = e.low OR s.i = e.high)",
    "common": "SELECT count(*) FROM (SELECT i FROM spans WHERE k = 1 INTERSECT"
    " SELECT i FROM spans WHERE k = 2) c",
}  # fmt: skip


@pytest.mark.parametrize("seed", seeds(1, 100))
def test_views_of_intervals_follow_every_transaction(seed, source, commander):
    rng = random.Random(seed)
    infinite = INFINITE if source.info.server_version >= 170000 else ()

    def span() -> str:
        return rng.choice(("NULL", *(f"'{s}'" for s in (*SPANS, *infinite))))

    def statement() -> str:
        key = rng.randrange(60)
        return rng.choice(
            (
                f"INSERT INTO spans VALUES ({key}, {rng.randrange(4)}, {span()})"
                f" ON CONFLICT (id) DO UPDATE SET i = {span()}",
                f"UPDATE spans SET i = {span()} WHERE id % 7 = {key % 7}",
                f"DELETE FROM spans WHERE id = {key}",
            )
        )

    source.execute("CREATE TABLE spans (id int PRIMARY KEY, k int, i interval)")
    for key in range(40):
        source.execute(f"INSERT INTO spans VALUES ({key}, {key % 4}, {span()})")
    create_marker(source, commander)
    for name, query in VIEWS.items():
        create_view(commander, name, query)
    transactions = ([statement() for _ in range(rng.randint(1, 4))] for _ in range(12))
    follow(source, VIEWS, transactions, f"seed {seed}")
