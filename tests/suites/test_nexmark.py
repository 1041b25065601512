"""NEXMark's 23 queries, over generated auctions and bids, under refresh streams."""

from __future__ import annotations

from typing import Final

import psycopg
import pytest

from bench.nexmark_data import AUCTIONS, BIDS, PEOPLE, TABLES, queries
from bench.tpch_data import DRAWS
from tests.compared import create_view, follow
from tests.waiting import create_marker

QUERIES: Final = queries()

REFRESH: Final = (
    [AUCTIONS.format(low=51, high=60), BIDS.format(low=301, high=360)],
    [PEOPLE.format(low=18, high=24), BIDS.format(low=361, high=380)],
    ["UPDATE bid SET price = price + 7 WHERE bidder % 3 = 0"],
    ["UPDATE auction SET category = 9 + category % 3, expires = expires + interval '5 s'"],
    ["UPDATE person SET state = 'OR', date_time = date_time + interval '10 s' WHERE id < 5"],
    ["DELETE FROM bid WHERE extra = 'abc'", "DELETE FROM auction WHERE id % 4 = 1"],
    ["UPDATE side_input SET key = key + 1, value = NULL WHERE key % 2 = 0"],
    ["UPDATE bid SET date_time = date_time + interval '1 day' WHERE auction % 5 = 2"],
    ["UPDATE bid SET auction = NULL WHERE bidder = 4", "UPDATE person SET id = id + 100"],
    ["DELETE FROM person", "DELETE FROM bid WHERE price > 100000"],
    ["DELETE FROM bid", PEOPLE.format(low=1, high=10)],
    [BIDS.format(low=100, high=200), AUCTIONS.format(low=61, high=63)],
    ["TRUNCATE auction"],
)  # fmt: skip


@pytest.fixture(scope="module")
def source(running_engine):
    with psycopg.connect(running_engine.source, autocommit=True) as conn:
        conn.execute(DRAWS.encode())
        conn.execute(TABLES)
        conn.execute(PEOPLE.format(low=1, high=17).encode())
        conn.execute(AUCTIONS.format(low=1, high=50).encode())
        conn.execute(BIDS.format(low=1, high=300).encode())
        with psycopg.connect(running_engine.dsn, autocommit=True) as commander:
            create_marker(conn, commander)
            for name, query in QUERIES.items():
                create_view(commander, name, query)
        yield conn


def test_the_queries_are_there():
    assert list(QUERIES) == [f"q{number}" for number in range(23)]


def test_the_data_shows_something(source):
    """Every query has rows, so that equality proves something."""
    for name in QUERIES:
        assert source.execute(f"SELECT count(*) FROM {name}").fetchone() > (0,), name


def test_every_query_stays_equal(source):
    follow(source, QUERIES, REFRESH, "NEXMark")
