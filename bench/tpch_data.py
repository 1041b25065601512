"""Tables, rows and refresh streams for the TPC-H queries, generated in SQL.

The distributions follow clause 4.2 of the TPC-H specification as far as its queries depend on them
(keys, dates, prices, categories, searched words); texts are shorter. Everything is a function of
row numbers, so the same scale gives the same rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

_ORDERS: Final = 1_500_000
"""Orders at scale 1."""

DRAWS: Final = """
CREATE FUNCTION pg_temp.r(i bigint, salt int, n bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT (hashint8extended(i, salt) & 9223372036854775807) % n $$;
CREATE FUNCTION pg_temp.pick(i bigint, salt int, words text[]) RETURNS text IMMUTABLE LANGUAGE sql
    AS $$ SELECT words[1 + pg_temp.r(i, salt, cardinality(words))] $$;
"""
"""Random draws of a row: a number below ``n``, or one of ``words``; they differ by ``salt``."""
_HELPERS: Final = """
CREATE FUNCTION pg_temp.phone(i bigint, nation bigint) RETURNS text IMMUTABLE LANGUAGE sql AS
    $$ SELECT format('%s-%s-%s-%s', 10 + nation, 100 + pg_temp.r(i, 1, 900),
        100 + pg_temp.r(i, 2, 900), 1000 + pg_temp.r(i, 3, 9000)) $$;
CREATE FUNCTION pg_temp.words(i bigint, salt int) RETURNS text IMMUTABLE LANGUAGE sql AS
    $$ SELECT concat_ws(' ', pg_temp.pick(i, salt, '{quick,final,special,pending,ironic,bold}'),
        pg_temp.pick(i, salt + 1, '{deposits,accounts,foxes,packages,Customer,theodolites}'),
        pg_temp.pick(i, salt + 2, '{sleep,wake,haggle,nag,are,detect}'),
        pg_temp.pick(i, salt + 3, '{requests,Complaints,instructions,ideas,dolphins}')) $$;
CREATE FUNCTION pg_temp.orderkey(i bigint, stream int) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT i / 8 * 32 + i % 8 + 8 * stream + 1 $$;
CREATE FUNCTION pg_temp.price(part bigint) RETURNS numeric IMMUTABLE LANGUAGE sql AS
    $$ SELECT (90000 + part / 10 % 20001 + 100 * (part % 1000)) / 100.00 $$;
"""

_SCHEMA: Final = """
CREATE TABLE region (r_regionkey int PRIMARY KEY, r_name char(25) NOT NULL,
    r_comment varchar(152));
CREATE TABLE nation (n_nationkey int PRIMARY KEY, n_name char(25) NOT NULL,
    n_regionkey int NOT NULL, n_comment varchar(152));
CREATE TABLE supplier (s_suppkey int PRIMARY KEY, s_name char(25) NOT NULL,
    s_address varchar(40) NOT NULL, s_nationkey int NOT NULL, s_phone char(15) NOT NULL,
    s_acctbal numeric(15,2) NOT NULL, s_comment varchar(101) NOT NULL);
CREATE TABLE part (p_partkey int PRIMARY KEY, p_name varchar(55) NOT NULL,
    p_mfgr char(25) NOT NULL, p_brand char(10) NOT NULL, p_type varchar(25) NOT NULL,
    p_size int NOT NULL, p_container char(10) NOT NULL, p_retailprice numeric(15,2) NOT NULL,
    p_comment varchar(23) NOT NULL);
CREATE TABLE partsupp (ps_partkey int NOT NULL, ps_suppkey int NOT NULL,
    ps_availqty int NOT NULL, ps_supplycost numeric(15,2) NOT NULL,
    ps_comment varchar(199) NOT NULL, PRIMARY KEY (ps_partkey, ps_suppkey));
CREATE TABLE customer (c_custkey int PRIMARY KEY, c_name varchar(25) NOT NULL,
    c_address varchar(40) NOT NULL, c_nationkey int NOT NULL, c_phone char(15) NOT NULL,
    c_acctbal numeric(15,2) NOT NULL, c_mktsegment char(10) NOT NULL,
    c_comment varchar(117) NOT NULL);
CREATE TABLE orders (o_orderkey bigint PRIMARY KEY, o_custkey int NOT NULL,
    o_orderstatus char(1) NOT NULL, o_totalprice numeric(15,2) NOT NULL,
    o_orderdate date NOT NULL, o_orderpriority char(15) NOT NULL, o_clerk char(15) NOT NULL,
    o_shippriority int NOT NULL, o_comment varchar(79) NOT NULL);
CREATE TABLE lineitem (l_orderkey bigint NOT NULL, l_partkey int NOT NULL,
    l_suppkey int NOT NULL, l_linenumber int NOT NULL, l_quantity numeric(15,2) NOT NULL,
    l_extendedprice numeric(15,2) NOT NULL, l_discount numeric(15,2) NOT NULL,
    l_tax numeric(15,2) NOT NULL, l_returnflag char(1) NOT NULL, l_linestatus char(1) NOT NULL,
    l_shipdate date NOT NULL, l_commitdate date NOT NULL, l_receiptdate date NOT NULL,
    l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL,
    l_comment varchar(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber));
"""

_FIXED: Final = """
INSERT INTO region SELECT n - 1, name, 'c' FROM unnest(
    '{AFRICA,AMERICA,ASIA,EUROPE,MIDDLE EAST}'::text[]) WITH ORDINALITY AS u (name, n);
INSERT INTO nation SELECT n - 1, split_part(name, ':', 1), split_part(name, ':', 2)::int, 'c'
    FROM unnest('{ALGERIA:0,ARGENTINA:1,BRAZIL:1,CANADA:1,EGYPT:4,ETHIOPIA:0,FRANCE:3,GERMANY:3,
    INDIA:2,INDONESIA:2,IRAN:4,IRAQ:4,JAPAN:2,JORDAN:4,KENYA:0,MOROCCO:0,MOZAMBIQUE:0,PERU:1,
    CHINA:2,ROMANIA:3,SAUDI ARABIA:4,VIETNAM:2,RUSSIA:3,UNITED KINGDOM:3,UNITED STATES:1}'
    ::text[]) WITH ORDINALITY AS u (name, n);
"""

_SUPPLIERS: Final = """
INSERT INTO supplier SELECT i, 'Supplier#' || lpad(i::text, 9, '0'), 'address ' || i,
    pg_temp.r(i, 11, 25), pg_temp.phone(i, pg_temp.r(i, 11, 25)),
    (pg_temp.r(i, 12, 1099999) - 99999) / 100.00,
    CASE WHEN i %% 40 = 7 THEN 'quick Customer ironic Complaints' ELSE pg_temp.words(i, 13) END
    FROM generate_series(1, %(suppliers)s) i
"""

_PARTS: Final = """
INSERT INTO part SELECT i,
    concat_ws(' ', pg_temp.pick(i, 21, '{almond,forest,green,lemon,navy,plum,rose,sky,tan}'),
        pg_temp.pick(i, 22, '{azure,beige,blush,cream,green,ivory,khaki,linen,misty,peru}')),
    'Manufacturer#' || 1 + pg_temp.r(i, 23, 5),
    'Brand#' || 1 + pg_temp.r(i, 23, 5) || 1 + pg_temp.r(i, 24, 5),
    concat_ws(' ',
        pg_temp.pick(i, 25, '{STANDARD,SMALL,MEDIUM,LARGE,ECONOMY,PROMO}'),
        pg_temp.pick(i, 26, '{ANODIZED,BURNISHED,PLATED,POLISHED,BRUSHED}'),
        pg_temp.pick(i, 27, '{TIN,NICKEL,BRASS,STEEL,COPPER}')),
    1 + pg_temp.r(i, 28, 50),
    concat_ws(' ', pg_temp.pick(i, 29, '{SM,LG,MED,JUMBO,WRAP}'),
        pg_temp.pick(i, 30, '{CASE,BOX,BAG,JAR,PKG,PACK,CAN,DRUM}')),
    pg_temp.price(i), 'c'
    FROM generate_series(1, %(parts)s) i;
INSERT INTO partsupp SELECT p, 1 + (p + j * (%(suppliers)s / 4 + 1)) %% %(suppliers)s,
    1 + pg_temp.r(p * 4 + j, 31, 9999), (100 + pg_temp.r(p * 4 + j, 32, 99901)) / 100.00, 'c'
    FROM generate_series(1, %(parts)s) p, generate_series(0, 3) j
    ON CONFLICT DO NOTHING
"""

_CUSTOMERS: Final = """
INSERT INTO customer SELECT i, 'Customer#' || lpad(i::text, 9, '0'), 'address ' || i,
    pg_temp.r(i, 41, 25), pg_temp.phone(i, pg_temp.r(i, 41, 25)),
    (pg_temp.r(i, 42, 1099999) - 99999) / 100.00,
    pg_temp.pick(i, 43, '{AUTOMOBILE,BUILDING,FURNITURE,MACHINERY,HOUSEHOLD}'),
    pg_temp.words(i, 44)
    FROM generate_series(1, %(customers)s) i
"""

_LINES: Final = """
INSERT INTO lineitem SELECT key, part,
    1 + (part + pg_temp.r(i * 8 + n, 55, 4) * (%(suppliers)s / 4 + 1)) %% %(suppliers)s,
    n, quantity, quantity * pg_temp.price(part), pg_temp.r(i * 8 + n, 56, 11) / 100.00,
    pg_temp.r(i * 8 + n, 57, 9) / 100.00,
    CASE WHEN receipt <= date '1995-06-17' THEN pg_temp.pick(i * 8 + n, 58, '{R,A}') ELSE 'N' END,
    CASE WHEN ship > date '1995-06-17' THEN 'O' ELSE 'F' END,
    ship, ordered + 30 + pg_temp.r(i * 8 + n, 59, 61)::int, receipt,
    pg_temp.pick(i * 8 + n, 60, '{DELIVER IN PERSON,COLLECT COD,NONE,TAKE BACK RETURN}'),
    pg_temp.pick(i * 8 + n, 61, '{REG AIR,AIR,RAIL,SHIP,TRUCK,MAIL,FOB,AIR REG}'), 'c'
    FROM (SELECT i, pg_temp.orderkey(i, %(stream)s) AS key,
            date '1992-01-01' + pg_temp.r(i, 62, 2406)::int AS ordered
        FROM generate_series(%(low)s::bigint, %(high)s) i) o
    CROSS JOIN LATERAL generate_series(1, 1 + pg_temp.r(i, 63, 7)) n
    CROSS JOIN LATERAL (SELECT 1 + pg_temp.r(i * 8 + n, 51, %(parts)s) AS part,
        1 + pg_temp.r(i * 8 + n, 52, 50) AS quantity,
        ordered + 1 + pg_temp.r(i * 8 + n, 53, 121)::int AS ship) a
    CROSS JOIN LATERAL (SELECT ship + 1 + pg_temp.r(i * 8 + n, 54, 30)::int AS receipt) b;
INSERT INTO orders SELECT key, 1 + pg_temp.r(i, 71, %(customers)s / 3) * 3,
    CASE WHEN l.open = 0 THEN 'F' WHEN l.open = l.lines THEN 'O' ELSE 'P' END, l.total,
    date '1992-01-01' + pg_temp.r(i, 62, 2406)::int,
    pg_temp.pick(i, 72, '{1-URGENT,2-HIGH,3-MEDIUM,4-NOT SPECIFIED,5-LOW}'),
    'Clerk#' || lpad((1 + pg_temp.r(i, 73, 1000))::text, 9, '0'), 0, pg_temp.words(i, 74)
    FROM (SELECT i, pg_temp.orderkey(i, %(stream)s) AS key
        FROM generate_series(%(low)s::bigint, %(high)s) i) o
    CROSS JOIN LATERAL (SELECT count(*) AS lines, count(*) FILTER (WHERE l_linestatus = 'O') AS open,
            sum(round(l_extendedprice * (1 + l_tax) * (1 - l_discount), 2)) AS total
        FROM lineitem WHERE l_orderkey = key) l
"""

_DELETE: Final = """
DELETE FROM lineitem USING generate_series(%(low)s::bigint, %(high)s) i
    WHERE l_orderkey = pg_temp.orderkey(i, %(stream)s);
DELETE FROM orders USING generate_series(%(low)s::bigint, %(high)s) i
    WHERE o_orderkey = pg_temp.orderkey(i, %(stream)s)
"""

_UPDATE: Final = """
UPDATE lineitem SET l_quantity = 1 + l_quantity::int %% 50, l_shipdate = l_shipdate + 1,
    l_discount = (l_discount * 100 + 1)::int %% 11 / 100.00
    FROM generate_series(%(low)s::bigint, %(high)s) i
    WHERE l_orderkey = pg_temp.orderkey(i, 0);
UPDATE orders SET o_orderpriority = '1-URGENT', o_comment = 'special requests'
    FROM generate_series(%(low)s::bigint, %(high)s) i
    WHERE o_orderkey = pg_temp.orderkey(i, 0);
UPDATE customer SET c_acctbal = -c_acctbal,
    c_mktsegment = CASE c_mktsegment WHEN 'BUILDING' THEN 'MACHINERY' ELSE 'BUILDING' END
    WHERE c_custkey %% 97 = %(number)s %% 97;
UPDATE supplier SET s_nationkey = (s_nationkey + 1) %% 25, s_comment = 'a Customer: Complaints'
    WHERE s_suppkey %% 31 = %(number)s %% 31;
UPDATE part SET p_size = 1 + p_size %% 50, p_name = 'forest green' || p_partkey
    WHERE p_partkey %% 61 = %(number)s %% 61;
UPDATE partsupp SET ps_availqty = ps_availqty / 2, ps_supplycost = ps_supplycost + 0.01
    WHERE ps_partkey %% 53 = %(number)s %% 53
"""

_AMEND: Final = """
UPDATE lineitem SET l_quantity = 1 + l_quantity::int %% 50, l_receiptdate = l_receiptdate + 1
    WHERE l_orderkey = pg_temp.orderkey(%(order)s, 0);
UPDATE orders SET o_totalprice = o_totalprice + 1
    WHERE o_orderkey = pg_temp.orderkey(%(order)s, 0)
"""


def queries() -> dict[str, str]:
    """Return the 22 queries by name, in order."""
    text = Path(__file__).with_name("tpch.sql").read_text()
    parts = re.split(r"^-- (Q\d+)$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


class Tpch:
    """The tables at a scale, and their changes; the connection stays the caller's."""

    def __init__(self, conn: psycopg.Connection[tuple[object, ...]], scale: float) -> None:
        self._conn = conn
        self._orders = max(int(_ORDERS * scale), 8)
        self._values = {
            "suppliers": max(int(10_000 * scale), 8),
            "parts": max(int(200_000 * scale), 20),
            "customers": max(int(150_000 * scale), 15),
        }
        self._run(DRAWS + _HELPERS)

    def load(self) -> None:
        """Create the tables and fill them."""
        self._run(_SCHEMA)
        self._run(_FIXED)
        for text in (_SUPPLIERS, _PARTS, _CUSTOMERS):
            self._run(text, **self._values)
        self._run(_LINES, low=0, high=self._orders - 1, stream=0, **self._values)
        self._run("ANALYZE")

    def refresh(self, number: int, part: float = 0.001) -> Iterator[int]:
        """Run one refresh stream, a transaction a step: inserts, updates, deletes.

        Each step concerns ``part`` of the orders and yields the number of rows that it changed. At
        the end there are as many orders as before, some of them new.
        """
        count = max(int(self._orders * part), 2)
        low = number * count % max(self._orders - count, 1)
        span = {"low": low, "high": low + count - 1}
        stream = 1 + number % 3
        for text, values in (
            (_LINES, {**span, "stream": stream}),
            (_UPDATE, {**span, "number": number}),
            (_DELETE, {**span, "stream": 0}),
            (_DELETE, {**span, "stream": stream}),
            (_LINES, {**span, "stream": 0}),
        ):
            with self._conn.transaction():
                changed = self._run(text, **values, **self._values)
            yield changed

    def amend(self, number: int) -> int:
        """Change one order and its lines in a transaction; return the number of changed rows."""
        with self._conn.transaction():
            return self._run(_AMEND, order=number % self._orders)

    def _run(self, text: str, **values: object) -> int:
        """Run statements; returns the rows they changed."""
        cursor = psycopg.ClientCursor(self._conn)
        cursor.execute(text.encode(), values or None)
        changed = 0
        while True:
            changed += max(cursor.rowcount, 0)
            if not cursor.nextset():
                return changed
