"""advise: its estimates and the actual sizes, its advice, and the rows that each role sees."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.security.roles import PASSWORD, role
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

ORDERS, CUSTOMERS = 4_000, 400
TABLES = f"""
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL, tier int NOT NULL);
CREATE TABLE orders (id bigint PRIMARY KEY, customer int NOT NULL, product int NOT NULL,
    amount numeric(12,2) NOT NULL, placed timestamptz NOT NULL, note text NOT NULL);
CREATE TABLE bare (a int, b text);
ALTER TABLE bare REPLICA IDENTITY FULL;
INSERT INTO customers SELECT i, 'region ' || i % 20, i % 5 FROM generate_series(1, {CUSTOMERS}) i;
INSERT INTO orders SELECT i, 1 + i % {CUSTOMERS}, (hashint8(i) & 2147483647) % 50, i / 7.0, timestamptz '2026-01-01'
    + i * interval '17 min', 'note ' || i FROM generate_series(1, {ORDERS}) i;
INSERT INTO bare SELECT i, 'b' || i FROM generate_series(1, 100) i;
ANALYZE customers, orders, bare;
"""
SHAPES = {
    "mapped": "SELECT id, product, amount FROM orders",
    "grouped": "SELECT customer, sum(amount) AS s, count(*) AS n FROM orders GROUP BY 1",
    "extremes": "SELECT customer, min(amount) AS a, max(placed) AS b FROM orders GROUP BY 1",
    "listed": "SELECT customer, json_agg(note ORDER BY id) AS s FROM orders GROUP BY 1",
    "joined": "SELECT o.id, o.amount, c.region FROM orders o JOIN customers c ON c.id = o.customer",
    "unique_ones": "SELECT DISTINCT product, customer FROM orders",
    "numbered": """SELECT id, customer, row_number() OVER (PARTITION BY customer ORDER BY placed, id)
        AS n FROM orders""",
    "best": """SELECT c.id, t.id AS o, t.amount FROM customers c CROSS JOIN LATERAL (SELECT o.id,
        o.amount FROM orders o WHERE o.customer = c.id ORDER BY o.amount DESC, o.id LIMIT 3) t""",
    "buyers": "SELECT c.id FROM customers c WHERE EXISTS (SELECT FROM orders o WHERE o.customer = c.id)",
    "difference": "SELECT customer, product FROM orders EXCEPT SELECT id, tier FROM customers",
}
FACTOR = 3.0
"""Bound of the error of estimates.  Statistics do not tell how columns correlate; an entry is
counted as 56 bytes and its values, while its place in the map takes 40 to 90."""


def connect(dsn: str, **options: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **options), autocommit=True)


@pytest.fixture
def conn(engine):
    with connect(engine.dsn) as conn:
        conn.execute(TABLES)
        yield conn


def advice(conn: psycopg.Connection, query: str | None = None) -> list[dict[str, object]]:
    cursor = conn.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute("SELECT * FROM headrace.advise(%s)", (query,)).fetchall()


def one(rows: list[dict[str, object]], topic: str, subject: str | None = None) -> dict[str, object]:
    [found] = [r for r in rows if r["topic"] == topic and r["subject"] == subject]
    return found


def findings(rows: list[dict[str, object]], topic: str) -> str:
    return "\n".join(f"{r['subject']} | {r['finding']} | {r['advice']}" for r in rows
                     if r["topic"] == topic)  # fmt: skip


@pytest.mark.slow
def test_what_is_expected_is_what_comes(conn, record_property):
    """The numbers of rows and bytes of states are right within ``FACTOR``."""
    told = []
    for name, query in SHAPES.items():
        rows = advice(conn, query)
        assert one(rows, "accepted")["finding"] == "create_view would accept it"
        expected = one(rows, "state")["value"]
        parts = [r["value"] for r in rows if r["topic"] == "state" and r["subject"] is not None]
        assert sum(parts) == pytest.approx(expected, rel=0.02)
        conn.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, '{"sharing": false}'))

        def real(name: str = name) -> int:
            found = conn.execute("SELECT * FROM headrace.memory()").fetchall()
            return sum(r[2] for r in found if r[0] == "states" and r[1] == f"public.{name}")

        size = wait_until(real, "its states are in memory")
        count = conn.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name)))
        there = count.fetchone()[0]
        told.append(f"{name}: {expected / size:.2f} x bytes")
        assert size / FACTOR <= expected <= size * FACTOR, name
        guess = one(rows, "result")["value"]
        assert there / FACTOR <= guess <= there * FACTOR, name
    record_property("told", "advise: expected of what there is: " + ", ".join(told))


def test_what_a_change_costs(conn):
    """A customer has ten orders, an order one customer: as many rows of the result change."""
    rows = advice(conn, SHAPES["joined"])
    customer, order = one(rows, "change", "public.customers"), one(rows, "change", "public.orders")
    assert ", 10 of the result change" in customer["finding"]
    assert ", 1 of the result change" in order["finding"]
    assert customer["value"] > 5 * order["value"] > 0
    grouped = one(advice(conn, SHAPES["grouped"]), "change", "public.orders")
    assert ", 2 of the result change" in grouped["finding"], "a row goes, another comes"
    listed = one(advice(conn, SHAPES["listed"]), "change", "public.orders")
    assert listed["value"] > grouped["value"], "the group is evaluated anew"
    whole = advice(conn, "SELECT id, row_number() OVER (ORDER BY placed, id) AS n FROM orders")
    part = advice(conn, SHAPES["numbered"])
    # Half of all rows are behind a row; of ten in a partition, five.
    ratio = one(whole, "change", "public.orders")["value"] / one(
        part, "change", "public.orders"
    )["value"]  # fmt: skip
    assert ratio > 50


FIRING = {
    "only Postgres knows the order": (
        "SELECT id, to_jsonb(note) AS j FROM orders ORDER BY j LIMIT 3",
        'SELECT id, note FROM orders ORDER BY note COLLATE "C" LIMIT 3',
    ),
    "Postgres computes pg_catalog.initcap": (
        "SELECT id, initcap(note) AS n FROM orders",
        "SELECT id, product + 1 AS n FROM orders",
    ),
    "every row of one side meets every row": (
        "SELECT o.id, c.tier FROM orders o JOIN customers c ON c.id < o.customer",
        SHAPES["joined"],
    ),
    "the window has no PARTITION BY": (
        "SELECT id, row_number() OVER (ORDER BY placed, id) AS n FROM orders",
        SHAPES["numbered"],
    ),
    "over all rows of a group that has changed": (SHAPES["listed"], SHAPES["grouped"]),
    "table public.bare has no primary key": ("SELECT a FROM bare", "SELECT id FROM orders"),
    "the result has no key": ("SELECT region FROM customers", "SELECT id, region FROM customers"),
}


@pytest.mark.parametrize("finding", FIRING)
def test_what_would_make_it_cheaper(conn, finding):
    dear, cheap = FIRING[finding]
    found = [r for r in advice(conn, dear) if r["topic"] == "remedy" and finding in r["finding"]]
    assert found, findings(advice(conn, dear), "remedy")
    assert all(r["advice"] for r in found)
    assert finding not in findings(advice(conn, cheap), "remedy")


def test_the_costliest_is_named_with_its_remedy(conn):
    rows = advice(conn, SHAPES["listed"])
    [row] = [r for r in rows if r["topic"] == "costliest"]
    assert "by " in row["subject"]
    assert 50 < row["value"] <= 100
    assert row["advice"] in {r["advice"] for r in rows if r["topic"] == "remedy"}


def test_what_is_kept_already_costs_nothing(conn, engine):
    conn.execute("CALL headrace.create_view('joined', %s)", (SHAPES["joined"],))
    query = """SELECT c.region, count(*) AS n FROM orders o JOIN customers c ON c.id = o.customer
        GROUP BY 1"""
    with_more = "SELECT o.id, c.region FROM orders o JOIN customers c ON c.id = o.product"
    told = findings(advice(conn, SHAPES["joined"]), "sharing")
    assert "already maintained for view public.joined" in told
    assert findings(advice(conn, with_more), "sharing") == ""
    assert "error" not in findings(advice(conn, query), "sharing")
    # A role that may not see the view learns nothing about it.
    with connect(engine.source) as server, role(server, "other") as name:
        server.execute(sql.SQL("GRANT SELECT ON orders, customers TO {}").format(
            sql.Identifier(name)))  # fmt: skip
        with connect(engine.dsn, user=name, password=PASSWORD) as other:
            rows = advice(other, SHAPES["joined"])
            assert one(rows, "accepted")["finding"] == "create_view would accept it"
            assert "joined" not in str(rows)


def test_a_connection_point_is_told_of(conn):
    conn.execute("CALL headrace.create_view('joined', %s)", (SHAPES["joined"],))
    conn.execute("CALL headrace.create_connection_point('here', 'joined')")
    told = findings(advice(conn, "SELECT region, count(*) AS n FROM joined GROUP BY 1"), "point")
    assert """'{"from": "here"}'""" in told
    conn.execute("CALL headrace.drop_connection_point('here')")


def test_of_a_view_what_it_has_taken(conn):
    conn.execute("CALL headrace.create_view('grouped', %s)", (SHAPES["grouped"],))
    conn.execute("UPDATE orders SET amount = amount + 1 WHERE id <= 50")
    conn.execute("CALL headrace.wait_for('grouped')")
    rows = advice(conn, "grouped")
    measured = {r["subject"].split(":")[0]: r for r in rows if r["topic"] == "measured"}
    assert measured["reduce_1"]["finding"].startswith("100 rows came in and")
    assert measured["reduce_1"]["value"] > 0
    assert one(rows, "state")["value"] > 0


def test_what_would_be_refused_is_a_row_and_what_is_wrong_an_error(conn):
    [row] = advice(conn, "SELECT random() AS r FROM orders")
    assert row["topic"] == "accepted"
    assert row["finding"].startswith("create_view would refuse it: ")
    with pytest.raises(psycopg.errors.SyntaxError) as caught:
        advice(conn, "SELECT FROM WHERE")
    assert caught.value.sqlstate == "42601"
    with pytest.raises(psycopg.errors.UndefinedTable):
        advice(conn, "SELECT a FROM nowhere")


def test_what_nobody_knows_is_not_guessed(conn):
    conn.execute("CREATE TABLE fresh (id int PRIMARY KEY, x int)")
    rows = advice(conn, "SELECT x, count(*) AS n FROM fresh GROUP BY x")
    assert one(rows, "state")["value"] is None
    assert one(rows, "change", "public.fresh")["advice"].startswith("Run ANALYZE")
    assert [r for r in rows if r["topic"] == "costliest"] == []


def test_who_may_not_read_is_told_nothing(conn, engine):
    with connect(engine.source) as server, role(server, "poor") as name:
        poor = connect(engine.dsn, user=name, password=PASSWORD)
        with poor:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                advice(poor, "SELECT id FROM orders")
            conn.execute("CALL headrace.create_view('mine', 'SELECT id FROM orders')")
            conn.execute("GRANT SELECT ON mine TO PUBLIC")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                advice(poor, "public.mine")
            # The view has the query of another owner, so only totals are shown.
            rows = advice(poor, "SELECT id FROM public.mine")
            assert "private" in {r["topic"] for r in rows}
            assert "orders" not in str(rows)
            assert not {"remedy", "costliest", "sharing"} & {r["topic"] for r in rows}
            assert all(r["subject"] is None for r in rows if r["topic"] == "state")


def test_nothing_is_made(conn):
    def there() -> list[tuple[object, ...]]:
        return conn.execute(
            "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace),"
            " (SELECT count(*) FROM pg_publication_tables), (SELECT count(*) FROM pg_proc),"
            " (SELECT count(*) FROM headrace.views)"
        ).fetchall()

    before = there()
    advice(conn, SHAPES["best"])
    assert there() == before


def test_on_direct_connections_it_is_the_same(conn, engine):
    with connect(engine.source) as direct:
        advice = "SELECT topic, finding FROM headrace.advise(%s) WHERE topic = 'accepted'"
        found = direct.execute(advice, ("SELECT id FROM orders",)).fetchall()
        assert found == [("accepted", "create_view would accept it")]
        [rows] = direct.execute(
            "CALL headrace.show_advice(%s)", ("SELECT id FROM orders",)
        ).fetchone()
        assert rows[0] == {
            **dict.fromkeys(("subject", "value", "unit", "advice")),
            "topic": "accepted",
            "finding": "create_view would accept it",
        }


def test_in_binary_it_is_the_same(conn):
    text = conn.execute("SELECT * FROM headrace.advise(%s)", (SHAPES["best"],)).fetchall()
    query = "SELECT * FROM headrace.advise(%s)"
    binary = conn.execute(query, (SHAPES["best"],), binary=True).fetchall()
    still = [n for n, row in enumerate(text) if row[0] not in ("load", "costliest")]
    assert [text[n] for n in still] == [binary[n] for n in still]


def test_without_the_extension_it_says_what_to_do(conn):
    # A view with the extension's name is not read.
    conn.execute("CREATE VIEW pg_stat_statements AS SELECT 1 / 0 AS query")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught:
        advice(conn)
    assert "CREATE EXTENSION pg_stat_statements" in caught.value.diag.message_hint
