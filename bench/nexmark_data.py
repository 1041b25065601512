"""NEXMark's 23 queries and tables; people, auctions and bids of numbers ``low`` to ``high``.

Bids have no key, and some are duplicates, as after a retry. Otherwise their times differ, so that
queries for a first row have one answer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

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
"""Tables; they need ``DRAWS`` of `tpch_data.py`."""

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


def queries() -> dict[str, str]:
    """Return the queries by name, in order."""
    text = Path(__file__).with_name("nexmark.sql").read_text()
    return dict(re.findall(r"^-- (q\d+):.*\n((?:(?!^--).*\n?)+)", text, re.MULTILINE))
