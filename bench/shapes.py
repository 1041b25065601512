"""The query shapes of the engine's benchmarks, their tables, and a stream of changes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from bench.scenario import Bed, Options, bed

CUSTOMERS_PART: Final = 10
"""Orders per customer."""

TABLES: Final = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL, tier int NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, product int NOT NULL,
    quantity int NOT NULL, amount numeric(12,2) NOT NULL, placed timestamptz NOT NULL,
    note text NOT NULL);
CREATE FUNCTION drawn(i bigint, salt int, n bigint) RETURNS bigint IMMUTABLE LANGUAGE sql AS
    $$ SELECT (hashint8extended(i, salt) & 9223372036854775807) % n $$;
CREATE FUNCTION made(i bigint, id bigint, customers bigint) RETURNS orders IMMUTABLE LANGUAGE sql
AS $$ SELECT (id, 1 + drawn(i, 1, customers), drawn(i, 2, 500), 1 + drawn(i, 3, 50),
    drawn(i, 4, 1000000) / 100.0, timestamptz '2026-01-01' + drawn(i, 5, 90 * 86400) * interval '1 s',
    (ARRAY['express', 'gift for you', 'return', 'plain'])[1 + drawn(i, 6, 4)] || ' ' || i)::orders $$;
"""
_FILL: Final = """
INSERT INTO customers SELECT i, 'region ' || drawn(i, 7, 20), drawn(i, 8, 5)
    FROM generate_series(1, {customers}) i;
INSERT INTO orders SELECT (o).* FROM
    (SELECT made(i, i, {customers}) AS o FROM generate_series(1, {rows}) i OFFSET 0) x;
"""
# Without OFFSET, each column of a row would be computed by a call of its own.
# Of 50 changed rows 29 are updated orders, 10 new, 10 deleted, and one is a customer. An order
# lives for five times as many changes as there are orders.
_CHANGE: Final = """DO $do$ BEGIN
    FOR low IN {first} .. {last} BY {step} LOOP
        UPDATE orders o SET (customer, product, quantity, amount, placed, note)
            = (n.customer, n.product, n.quantity, n.amount, n.placed, n.note)
            FROM (SELECT (made({rows} * 10 + i,
                    1 + i / 5 + {rows} / 10 + drawn(i, 9, {rows} * 8 / 10), {customers})).*
                FROM generate_series(low, least(low + {step} - 1, {last})) i WHERE i % 5 < 3 AND i % 50 <> 25) n
            WHERE o.id = n.id;
        INSERT INTO orders SELECT (made({rows} * 10 + i, {rows} + 1 + i / 5, {customers})).*
            FROM generate_series(low, least(low + {step} - 1, {last})) i WHERE i % 5 = 3;
        DELETE FROM orders WHERE id IN (SELECT 1 + i / 5
            FROM generate_series(low, least(low + {step} - 1, {last})) i WHERE i % 5 = 4);
        UPDATE customers c SET region = 'region ' || drawn(i, 10, 20), tier = drawn(i, 11, 5)
            FROM generate_series(low, least(low + {step} - 1, {last})) i
            WHERE i % 50 = 25 AND c.id = 1 + drawn(i, 12, {customers});
        COMMIT;
    END LOOP;
END $do$"""

SHAPES: Final[dict[str, str]] = {
    "filter": "SELECT id, amount FROM orders WHERE quantity > 25",
    "map": "SELECT id, quantity * 2 + product AS a, amount * 1.19 AS gross FROM orders",
    "remote_text": "SELECT id, to_char(placed, 'YYYY-MM') AS m, initcap(note) AS n FROM orders",
    "date_trunc": "SELECT date_trunc('day', placed) AS d, count(*) AS n FROM orders GROUP BY 1",
    "like_count": "SELECT product, count(*) AS n FROM orders WHERE note LIKE '%gift%' GROUP BY 1",
    "group_sum": "SELECT customer, sum(amount) AS s, count(*) AS n FROM orders GROUP BY 1",
    "min_max": "SELECT customer, min(amount) AS a, max(placed) AS b FROM orders GROUP BY 1",
    "stddev": "SELECT product, stddev(amount) AS s FROM orders GROUP BY 1",
    "string_agg": "SELECT customer, string_agg(note, ',' ORDER BY id) AS s FROM orders GROUP BY 1",
    "distinct": "SELECT DISTINCT product, quantity FROM orders",
    "count_distinct_join": """SELECT c.region, count(DISTINCT o.product) AS n
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1""",
    "join": """SELECT o.id, o.amount, c.region FROM orders o JOIN customers c
        ON c.id = o.customer""",
    "join_group": """SELECT c.region, c.tier, sum(o.amount) AS s, count(*) AS n
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1, 2""",
    "left_join": """SELECT c.id, c.region, o.amount FROM customers c LEFT JOIN orders o
        ON o.customer = c.id AND o.quantity > 45""",
    "exists": """SELECT c.id, c.tier FROM customers c WHERE EXISTS (
        SELECT FROM orders o WHERE o.customer = c.id AND o.quantity > 48)""",
    "correlated": """SELECT o.id, o.amount FROM orders o WHERE o.amount > (
        SELECT avg(p.amount) FROM orders p WHERE p.product = o.product)""",
    "row_number": """SELECT id, customer, row_number() OVER (
        PARTITION BY customer ORDER BY placed, id) AS n FROM orders""",
    "running_sum": """SELECT id, customer, sum(amount) OVER (
        PARTITION BY customer ORDER BY placed, id) AS s FROM orders""",
    "moving_avg": """SELECT id, customer, avg(amount) OVER (
        PARTITION BY customer ORDER BY placed, id ROWS 6 PRECEDING) AS a FROM orders""",
    "top_100": "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 100",
    "top_3_lateral": """SELECT c.id, t.id AS o, t.amount FROM customers c CROSS JOIN LATERAL (
        SELECT o.id, o.amount FROM orders o WHERE o.customer = c.id
        ORDER BY o.amount DESC, o.id LIMIT 3) t""",
    "except": """SELECT customer, product FROM orders WHERE quantity > 25
        EXCEPT SELECT customer, product FROM orders WHERE quantity < 10""",
}


@dataclass(slots=True)
class Stream:
    """Changes of the tables, each of another row; there are ``rows`` orders at any time."""

    conn: psycopg.Connection[tuple[object, ...]]
    rows: int
    changed: int = 0

    def fill(self) -> None:
        """Create the tables and their first rows."""
        self.conn.execute(TABLES)
        self._execute(_FILL)

    def change(self, rows: int, rows_per_transaction: int) -> None:
        """Change ``rows`` rows; an update without a match, or of a row again, is one less."""
        if rows // 5 > self.rows // 20:
            raise ValueError(f"{rows} changes are too many for {self.rows} orders")
        first, self.changed = self.changed, self.changed + rows
        self._execute(_CHANGE, first=first, last=first + rows - 1, step=rows_per_transaction)

    def _execute(self, text: str, **values: int) -> None:
        known = {"rows": self.rows, "customers": self.rows // CUSTOMERS_PART} | values
        self.conn.execute(sql.SQL(text).format(**known))


@contextlib.contextmanager
def streaming(options: Options, rows: int, **env: str) -> Iterator[tuple[Bed, Stream]]:
    """Yield a bed with ``rows`` orders and a running engine; new views follow the stream.

    ``env``: settings of the engine.
    """
    with (
        bed(options, HEADRACE_SPARK_WARM="false", **env) as on,
        psycopg.connect(on.source, autocommit=True) as conn,
    ):
        stream = Stream(conn, rows)
        stream.fill()
        on.engine.start()
        yield on, stream


def queries(names: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Return all shapes by name, or the requested ones."""
    return ((n, q) for n, q in SHAPES.items() if not names or n in names)
