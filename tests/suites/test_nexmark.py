"""NEXMark's 23 queries, over generated auctions and bids, under refresh streams.

Bids have no key and some are there twice, as after a retry; otherwise their times differ, so that
the queries that take a first row know which.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import psycopg
import pytest

from bench.tpch_data import DRAWS
from tests.compared import create_view, follow
from tests.waiting import create_marker

QUERIES: Final = dict(
    re.findall(
        r"^-- (q\d+):.*\n((?:(?!^--).*\n?)+)",
        Path(__file__).with_name("nexmark.sql").read_text(),
        re.MULTILINE,
    )
)

TABLES: Final = """
CREATE TABLE person (id bigint PRIMARY KEY, name text, email text, city text, state text,
    date_time timestamp, extra text);
CREATE TABLE auction (id bigint PRIMARY KEY, item_name text, description text,
    initial_bid bigint, reserve bigint, date_time timestamp, expires timestamp, seller bigint,
    category bigint, extra text);
CREATE TABLE bid (auction bigint, bidder bigint, price bigint, channel text, url text,
    date_time timestamp, extra text);
ALTER TABLE bid REPLICA IDENTITY FULL;
CREATE TABLE side_input (key bigint, value text);
ALTER TABLE side_input REPLICA IDENTITY FULL;
INSERT INTO side_input SELECT i, 'v' || i FROM generate_series(0, 8) i;
CREATE FUNCTION pg_temp.at(i bigint) RETURNS timestamp IMMUTABLE LANGUAGE sql AS
    $$ SELECT timestamp '2015-07-15 19:59:30' + i * interval '137 ms' $$;
"""

PEOPLE: Final = """
INSERT INTO person SELECT i, pg_temp.pick(i, 1, '{{ann,bob,eve,kim}}') || i,
    i || '@example.org', pg_temp.pick(i, 2, '{{boise,kent,bend}}'),
    pg_temp.pick(i, 3, '{{OR,ID,CA,WA}}'), pg_temp.at(i * 18), repeat('x', i::int % 7)
    FROM generate_series({low}, {high}) i
"""
AUCTIONS: Final = """
INSERT INTO auction SELECT i, 'item ' || i, 'text', pg_temp.r(i, 4, 900),
    CASE WHEN i % 5 > 0 THEN pg_temp.r(i, 5, 90000) END, pg_temp.at(i * 6),
    pg_temp.at(i * 6) + (2 + pg_temp.r(i, 6, 30)) * interval '1 s',
    (i / 3) - pg_temp.r(i, 7, 4), 9 + pg_temp.r(i, 8, 3), 'x'
    FROM generate_series({low}, {high}) i
"""
BIDS: Final = """
INSERT INTO bid SELECT (i / 6) - pg_temp.r(i, 9, 6), 1 + pg_temp.r(i, 10, 9),
    (10 ^ pg_temp.r(i, 11, 6))::bigint * (1 + pg_temp.r(i, 12, 3)),
    pg_temp.pick(i, 13, '{{Apple,Google,Facebook,Baidu,channel-1,channel-2}}'),
    'https://www.example.org/' || pg_temp.pick(i, 14, '{{a/b/c,d,e/f}}') || '/item.htm?query=1'
        || CASE WHEN i % 2 = 0 THEN '&channel_id=' || i % 11 ELSE '' END,
    pg_temp.at(i), pg_temp.pick(i, 15, '{{cc,abc,xyz}}')
    FROM generate_series({low}, {high}) i CROSS JOIN generate_series(0, (i % 29 = 0)::int)
"""

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
    """Every query has rows, so that equality says something."""
    for name in QUERIES:
        assert source.execute(f"SELECT count(*) FROM {name}").fetchone() > (0,), name


def test_every_query_stays_equal(source):
    follow(source, QUERIES, REFRESH, "NEXMark")
