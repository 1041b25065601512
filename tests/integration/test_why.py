"""``why`` and ``why_not``: source rows of a result row, and where missing rows are dropped."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.types.json import Jsonb

from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric, note text);
CREATE TABLE blocked (customer int, reason text);
ALTER TABLE blocked REPLICA IDENTITY FULL;
CREATE TABLE staff (id int PRIMARY KEY, boss int, name text);
INSERT INTO customers SELECT i, 'c' || i, CASE i % 3 WHEN 0 THEN 'NO' WHEN 1 THEN 'SE' END
  FROM generate_series(1, 9) i;
INSERT INTO orders SELECT i, i % 10, i * 1.50, 'n' || i % 4 FROM generate_series(1, 60) i;
INSERT INTO blocked VALUES (3, 'x'), (3, 'x'), (4, 'y');
INSERT INTO staff VALUES (1, NULL, 'top'), (2, 1, 'a'), (3, 2, 'b'), (4, 3, 'c'), (5, 2, 'd');
"""
VIEWS = {
    "joined": "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON c.id = o.customer"
    " WHERE o.amount > 10",
    "sums": "SELECT c.country, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " JOIN customers c ON c.id = o.customer GROUP BY c.country",
    "large": "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING sum(amount) > 240",
}
Row = tuple[Any, ...]


def call(conn: psycopg.Connection, name: str, *arguments: object) -> list[Row]:
    marks = ", ".join(["%s"] * len(arguments))
    return conn.execute(f"SELECT * FROM headrace.{name}({marks})", arguments).fetchall()


def create(commander: psycopg.Connection, **views: str) -> None:
    for name, query in views.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))


def sources(found: list[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the source rows by table, without schema."""
    out: dict[str, list[dict[str, Any]]] = {}
    for _, source, contents, often, note in found:
        if note == "source":
            out.setdefault(source.removeprefix("public."), []).extend([contents] * often)
    return out


def ids(found: list[Row]) -> dict[str, list[int]]:
    return {name: sorted(row["id"] for row in rows) for name, rows in sources(found).items()}


def reasons(found: list[Row]) -> list[tuple[str, int, str]]:
    return [(str(row[1]).rpartition("_")[0], row[3], row[4]) for row in found]


def refused(conn: psycopg.Connection, name: str, *arguments: object) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as found:
        call(conn, name, *arguments)
    return found.value


@pytest.fixture
def reader(engine, source) -> Iterator[psycopg.Connection]:
    """Open a connection to the port as a role that may read nothing yet."""
    name = "why_reader"
    source.execute(f"DROP ROLE IF EXISTS {name}")
    source.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
    dsn = make_conninfo(engine.dsn, user=name, password="x")
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn
    source.execute(f"DROP OWNED BY {name}")
    source.execute(f"DROP ROLE {name}")


def test_a_join_and_a_group(commander):
    found = call(commander, "why", "joined", '{"id": 14}')
    assert [row[1:] for row in found] == [
        ("public.joined", {"id": 14, "name": "c4", "amount": 21.00}, 1, "result"),
        ("public.orders", {"id": 14, "customer": 4, "amount": 21.00}, 1, "source"),
        ("public.customers", {"id": 4, "name": "c4"}, 1, "source"),
    ]
    wanted = [i for i in range(1, 61) if i % 10 in (3, 6, 9)]
    found = call(commander, "why", "sums", '{"country": "NO"}')
    assert ids(found) == {"orders": wanted, "customers": [3, 6, 9]}
    # NULL is a value: the group of the customers without a country.
    found = call(commander, "why", "sums", '{"country": null}')
    assert ids(found)["customers"] == [2, 5, 8]


def test_most_bounds_the_rows_and_the_rest_is_counted(commander):
    found = call(commander, "why", "sums", '{"country": "NO"}', 2)
    notes = [(row[1], row[3]) for row in found if row[4] == "more rows of the table"]
    assert notes == [("public.orders", 16), ("public.customers", 1)]
    assert [len(rows) for rows in sources(found).values()] == [2, 2]
    found = call(commander, "why", "sums", '{"country": "NO"}', 0)
    assert [row[3] for row in found] == [1, 18, 3]
    for most in (-1, 10_001):
        assert refused(commander, "why", "sums", '{"country": "NO"}', most).sqlstate == "22023"


def test_the_spellings_of_a_call(source, commander):
    key = {"id": 14}
    wanted = call(commander, "why", "joined", '{"id": 14}', 5)
    statement = "SELECT * FROM headrace.why"
    for conn, (text, values) in itertools.product(
        (source, commander),
        (
            ("""('joined', '{"id": 14}', 5)""", ()),
            ("""('joined', '{"id": 14}'::jsonb, most => 5)""", ()),
            ("""(name => 'public.joined', most => 5, key => '{"id": 14}')""", ()),
            ("(%s, %s, %s)", ("joined", Jsonb(key), 5)),
            ("(%b, %b, %b)", ("joined", Jsonb(key), 5)),
        ),
    ):
        assert conn.execute(statement + text, values).fetchall() == wanted, text
    with commander.cursor(binary=True) as cursor:
        assert cursor.execute(f"{statement}('joined', '{{\"id\": 14}}')").fetchall() == wanted
    columns = ("txid", "source", "contents", "rows", "note")
    for conn in (source, commander):
        answer = conn.execute("CALL headrace.show_why('joined', %s)", (Jsonb(key),)).fetchone()
        assert [tuple(row[c] for c in columns) for row in answer[0]] == wanted
        answer = conn.execute("CALL headrace.show_why_not('joined', %s)", (Jsonb(key),)).fetchone()
        assert [row["reason"] for row in answer[0]] == ["the view has such a row"]


def test_as_a_part_of_a_query(source, commander):
    """On any connection, in a transaction, once for each row of a table."""
    for conn in (source, commander):
        wanted = {n: call(conn, "why", "joined", json.dumps({"id": n})) for n in (13, 14, 15)}
        assert all(wanted.values())
        with conn.transaction():
            conn.execute("SET LOCAL search_path = pg_catalog")
            found = conn.execute(
                "SELECT n, w.* FROM generate_series(13, 15) n, LATERAL headrace.why("
                "'public.joined', jsonb_build_object('id', n)) w ORDER BY n"
            ).fetchall()
        assert found == [(n, *row) for n, rows in wanted.items() for row in rows]


def test_a_transaction_that_has_written_or_locked(source):
    """The answer would wait for this transaction."""
    with source.transaction(force_rollback=True):
        source.execute("CREATE TABLE written (id int)")
        error = refused(source, "why", "joined", '{"id": 14}')
    assert (error.sqlstate, error.diag.message_hint[:12]) == ("0A000", "Commit first")
    query = "SELECT id FROM orders"
    for asks in ("CALL headrace.check_view(%s)", "SELECT * FROM headrace.advise(%s)"):
        with source.transaction(force_rollback=True):
            source.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(psycopg.errors.DeadlockDetected) as caught:
                source.execute(asks, (query,))
        assert "(orders)" in caught.value.diag.message_detail.replace("public.", "")
        with source.transaction():
            source.execute("LOCK TABLE orders IN ROW EXCLUSIVE MODE")
            assert source.execute(asks, (query,)).fetchone()


def test_wrong_keys_are_refused(commander):
    for key, code in (
        ("{}", "22023"),
        ("[1]", "22023"),
        ('{"nothing": 1}', "42703"),
        ('{"id": "x"}', "22P02"),
        ('{"id": 99999999999}', "22003"),
    ):
        for name in ("why", "why_not"):
            assert refused(commander, name, "joined", key).sqlstate == code, key
    assert refused(commander, "why", "nowhere", '{"id": 1}').sqlstate == "42P01"
    assert "headrace.why_not('v'" in refused(commander, "why_not", "sums", "{}").diag.message_hint


def test_a_row_that_does_not_exist(commander):
    notices: list[str] = []
    commander.add_notice_handler(lambda diag: notices.append(diag.message_primary))
    assert call(commander, "why", "joined", '{"id": 61}') == []
    assert any("has no such row" in text for text in notices)
    for key, wanted in (
        ({"id": 61}, ("source", 0, "no row of public.orders has the values of id")),
        ({"id": 2}, ("filter", 1, "no such row passes the filter")),
        ({"id": 20}, ("source", 0, "no row of public.customers matches in id")),
        (
            {"id": 14, "amount": 3},
            ("source", 0, "no row of public.orders has the values of id, amount"),
        ),
    ):
        assert reasons(call(commander, "why_not", "joined", json.dumps(key))) == [wanted], key
    wanted = ("fused", 1, "no such row passes its filters")
    assert reasons(call(commander, "why_not", "large", '{"customer": 1}')) == [wanted]
    found = call(commander, "why_not", "sums", '{"country": "NO", "n": 7}')
    assert reasons(found) == [("reduce", 1, "such rows have other values of count(*)")]
    assert found[0][2].startswith("Reduce [count(*), sum(")


def test_where_rows_of_every_kind_of_node_are_dropped(commander):
    create(
        commander,
        free="SELECT id FROM customers c WHERE NOT EXISTS"
        " (SELECT FROM blocked b WHERE b.customer = c.id)",
        busy="SELECT id FROM customers c WHERE EXISTS"
        " (SELECT FROM orders o WHERE o.customer = c.id AND o.amount > 89)",
        first="SELECT id, amount FROM orders ORDER BY amount DESC LIMIT 3",
        both="SELECT id FROM customers WHERE id < 5 UNION ALL SELECT id FROM orders WHERE id < 3",
        minus="SELECT customer FROM orders EXCEPT SELECT customer FROM blocked",
        shared="SELECT customer FROM orders INTERSECT SELECT customer FROM blocked",
        parts="SELECT c.id, p FROM customers c, regexp_split_to_table(c.name, '7') p",
        boss="SELECT c.id, b.reason FROM customers c LEFT JOIN blocked b ON b.customer = c.id",
    )
    for view, key, wanted in (
        ("free", {"id": 3}, [("join", 1, "such rows have a match, and must have none")]),
        ("busy", {"id": 1}, [("fused", 6, "no such row passes its filters")]),
        ("first", {"id": 3}, [("topk", 1, "such rows are outside of LIMIT and OFFSET")]),
        ("both", {"id": 7}, [("source", 1, "no such"), ("source", 1, "no such")]),
        ("minus", {"customer": 3}, [("setop", 6, "the right side of EXCEPT has such a row")]),
        ("shared", {"customer": 5}, [("setop", 6, "the right side of INTERSECT has no such row")]),
        ("boss", {"id": 3, "reason": "z"}, [("source", 0, "no row of public.blocked")]),
        ("boss", {"id": 3, "reason": None}, [("join", 2, "such rows have other values of reason")]),
    ):
        found = reasons(call(commander, "why_not", view, json.dumps(key)))
        assert len(found) == len(wanted), (view, found)
        for (node, rows, text), (kind, number, begin) in zip(found, wanted, strict=True):
            assert (node, rows) == (kind, number) and text.startswith(begin), (view, found)


def test_rows_of_every_kind_of_node(commander):
    create(
        commander,
        outer_join="SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o"
        " ON o.customer = c.id AND o.amount > 85",
        free="SELECT id FROM customers c WHERE NOT EXISTS"
        " (SELECT FROM blocked b WHERE b.customer = c.id)",
        busy="SELECT id FROM customers c WHERE EXISTS"
        " (SELECT FROM orders o WHERE o.customer = c.id AND o.amount > 80)",
        over="SELECT id FROM orders o WHERE EXISTS"
        " (SELECT FROM orders p WHERE p.customer = o.customer AND p.amount > o.amount)",
        ranked="SELECT id, customer, rank() OVER (PARTITION BY customer ORDER BY amount) AS r"
        " FROM orders",
        first="SELECT id, amount FROM orders ORDER BY amount DESC LIMIT 3",
        latest="SELECT DISTINCT ON (customer) customer, id FROM orders ORDER BY customer, id DESC",
        names="SELECT DISTINCT note FROM orders",
        both="SELECT id FROM customers UNION SELECT id FROM orders",
        shared="SELECT id FROM customers INTERSECT SELECT customer FROM orders",
        whole="SELECT count(*) AS n FROM customers WHERE country = 'NO'",
        rolled="SELECT country, count(*) AS n FROM customers GROUP BY ROLLUP (country)",
        letters="SELECT c.id, s FROM customers c, string_to_table(c.name, 'c') s WHERE s <> ''",
        pairs="SELECT a.name AS a, b.name AS b FROM staff a JOIN staff b ON b.boss = a.id",
        keyless="SELECT reason, customer FROM blocked",
        chain="WITH RECURSIVE t AS (SELECT id, boss, name FROM staff WHERE boss IS NULL"
        " UNION ALL SELECT s.id, s.boss, s.name FROM t JOIN staff s ON s.boss = t.id)"
        " SELECT name FROM t",
        above="WITH RECURSIVE t AS (SELECT id, boss FROM staff"
        " UNION SELECT t.id, s.boss FROM t JOIN staff s ON s.id = t.boss) SELECT * FROM t",
        fixed="SELECT c.name, v.label FROM customers c JOIN (VALUES ('NO', 'north')) v (code, label)"
        " ON v.code = c.country",
        composed="SELECT country, max(total) AS m FROM sums GROUP BY country",
    )
    thirds = [i for i in range(1, 61) if i % 10 == 3]
    for view, key, wanted in (
        ("outer_join", {"id": 6}, {"customers": [6]}),
        ("outer_join", {"id": 8}, {"customers": [8], "orders": [58]}),
        ("free", {"id": 1}, {"customers": [1]}),
        ("busy", {"id": 8}, {"customers": [8], "orders": [58]}),
        ("over", {"id": 43}, {"orders": [43, 53]}),
        ("ranked", {"id": 13}, {"orders": [13]}),
        ("first", {"id": 59}, {"orders": [59]}),
        ("latest", {"customer": 3}, {"orders": [53]}),
        ("names", {"note": "n1"}, {"orders": [*range(1, 61, 4)]}),
        ("both", {"id": 3}, {"customers": [3], "orders": [3]}),
        ("shared", {"id": 3}, {"customers": [3], "orders": thirds}),
        ("whole", {"n": 3}, {"customers": [3, 6, 9]}),
        ("rolled", {"country": "NO"}, {"customers": [3, 6, 9]}),
        ("rolled", {"n": 9}, {"customers": [*range(1, 10)]}),
        # NULL: the customers without a country, and all together.
        ("rolled", {"country": None}, {"customers": [*range(1, 10)]}),
        ("letters", {"id": 4}, {"customers": [4]}),
        ("pairs", {"b": "b"}, {"staff": [2, 3]}),
        ("chain", {"name": "c"}, {"staff": [1, 2, 3, 4]}),
        ("above", {"id": 4, "boss": 1}, {"staff": [2, 3, 4]}),
        ("fixed", {"name": "c3"}, {"customers": [3]}),
        (
            "composed",
            {"country": "NO"},
            {
                "customers": [3, 6, 9],
                "orders": sorted([i for i in range(1, 61) if i % 10 in (3, 6, 9)]),
            },
        ),
    ):
        found = call(commander, "why", view, json.dumps(key))
        assert ids(found) == wanted, (view, key, found)
    peers = [row[3:] for row in call(commander, "why", "ranked", '{"id": 13}')][-1]
    assert peers == (6, "rows of the window partitions")
    constants = [row[3:] for row in call(commander, "why", "fixed", '{"name": "c3"}')][-1]
    assert constants == (1, "constant rows of the query")
    found = call(commander, "why", "keyless", '{"customer": 3}')
    assert [row[2:] for row in found] == [
        ({"reason": "x", "customer": 3}, 2, "result"),
        ({"reason": "x", "customer": 3}, 2, "source"),
    ]


@pytest.mark.parametrize("first_rows", ["views", "tables"])
def test_a_view_over_views_is_explained_by_tables(source, commander, first_rows):
    options = json.dumps({"first_rows": first_rows})
    query = "SELECT country, total FROM sums WHERE total > 400"
    commander.execute("CALL headrace.create_view('above', %s, %s)", (query, options))
    stacked = source.execute("SELECT plan ? 'filled' FROM headrace.views WHERE view_name = 'above'")
    assert stacked.fetchone() == (first_rows == "views",)
    wanted = [i for i in range(1, 61) if i % 10 in (3, 6, 9)]
    found = call(commander, "why", "above", '{"country": "NO"}')
    assert ids(found) == {"orders": wanted, "customers": [3, 6, 9]}
    [(_, node, operator, rows, reason)] = call(commander, "why_not", "above", '{"country": "XX"}')
    assert (node.partition("_")[0], rows) == ("source", 0)
    assert "customers" in operator
    assert "country" in reason


def test_the_answer_is_as_of_the_views_txid(source, commander):
    before = call(commander, "why", "joined", '{"id": 14}')[0][0]
    source.execute("UPDATE orders SET amount = 100 WHERE id = 14")
    found = call(commander, "why", "joined", '{"id": 14}')
    assert found[0][0] > before
    assert {row[2]["amount"] for row in found[:2]} == {100}
    source.execute("DELETE FROM customers WHERE id = 4")
    assert call(commander, "why", "joined", '{"id": 14}') == []
    wanted = [("source", 0, "no row of public.customers matches in id")]
    assert reasons(call(commander, "why_not", "joined", '{"id": 14}')) == wanted


def test_long_numbers_in_keys_keep_their_digits(source, commander):
    source.execute("INSERT INTO orders VALUES (100, 1, 12345678901234567890.123456789, 'n')")
    create(commander, exact="SELECT id, amount FROM orders WHERE id >= 100")
    for conn, name in ((commander, "why"), (source, "show_why")):
        text = '{"amount": 12345678901234567890.123456789}'
        found = (
            call(conn, name, "exact", text)
            if name == "why"
            else conn.execute("CALL headrace.show_why('exact', %s)", (text,)).fetchone()[0]
        )
        assert len(found) == 2
    near = '{"amount": 12345678901234567890.123456788}'
    assert call(commander, "why", "exact", near) == []


def test_rights(engine, source, commander, reader):
    key = '{"id": 14}'
    assert refused(reader, "why", "joined", key).sqlstate == "42501"
    source.execute("GRANT SELECT ON joined TO why_reader")
    hidden = "rows of a table that the caller may not read"
    found = call(reader, "why", "joined", key)
    assert [row[1:] for row in found[1:]] == [
        ("public.orders", None, 1, hidden), ("public.customers", None, 1, hidden),
    ]  # fmt: skip
    assert refused(reader, "why_not", "joined", key).sqlstate == "42501"
    # The right to a part of the columns is none to the row.
    source.execute("GRANT SELECT (id, name) ON customers TO why_reader")
    source.execute("GRANT SELECT (id) ON orders TO why_reader")
    assert ids(call(reader, "why", "joined", key)) == {"customers": [4]}
    source.execute("GRANT SELECT ON orders TO why_reader")
    assert ids(call(reader, "why", "joined", key)) == {"orders": [14], "customers": [4]}
    error = refused(reader, "why_not", "joined", key)
    assert error.sqlstate == "42501" and "must be owner" in str(error)
    source.execute("ALTER TABLE customers ENABLE ROW LEVEL SECURITY")
    source.execute("CREATE POLICY p ON customers USING (true)")

    def shown() -> bool:
        return ids(call(reader, "why", "joined", key)) == {"orders": [14]}

    wait_until(shown, "the rows are hidden, whatever the policy is")
    assert refused(reader, "why_not", "joined", key).sqlstate == "42501"


def test_an_owner_without_the_right_to_a_table_learns_nothing(source, commander, reader):
    source.execute("GRANT ALL ON SCHEMA public TO why_reader")
    source.execute("GRANT SELECT ON orders, customers TO why_reader")
    create(reader, mine="SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer")
    wanted = [("source", 0, "no row of public.orders has the values of id")]
    assert reasons(call(reader, "why_not", "mine", '{"id": 61}')) == wanted
    source.execute("REVOKE SELECT ON customers FROM why_reader")
    error = refused(reader, "why_not", "mine", '{"id": 61}')
    assert error.sqlstate in ("42501", "55000")
    commander.execute("CALL headrace.drop_view('mine')")


@pytest.mark.parametrize("first_rows", ["views", "tables"])
def test_the_query_of_another_owner_stays_hidden(engine, source, commander, reader, first_rows):
    """As for explain_view and lineage: not even the names of its tables are shown."""
    source.execute(
        "GRANT SELECT ON sums TO why_reader; GRANT CREATE ON SCHEMA public TO why_reader"
    )
    query, options = "SELECT country, n FROM sums WHERE n > 1", {"first_rows": first_rows}
    call_ = "CALL headrace.create_view('mine', %s, %s)"
    reader.execute(call_, (query, json.dumps(options)))
    try:
        for name in ("why", "why_not"):
            for conn in (reader, commander):
                error = refused(conn, name, "mine", '{"country": "NO"}')
                assert error.sqlstate == "55000"
                said = f"{error} {error.diag.message_detail} {error.diag.message_hint}"
                assert "orders" not in said and "customers" not in said
        assert len(call(commander, "why", "sums", '{"country": "NO"}')) > 1, "its owner sees it"
    finally:
        reader.execute("CALL headrace.drop_view('mine')")


def test_hostile_keys_are_values(source, commander, reader):
    source.execute("GRANT SELECT ON joined TO why_reader")
    for value in ("'; DROP TABLE orders; --", "$$", "\\.", "a\tb\nc", "\u2028", "x" * 1000):
        key = json.dumps({"name": value})
        assert call(reader, "why", "joined", key) == []
    assert refused(reader, "why", "joined", '{"name": "\\u0000"}').sqlstate == "22P05"
    assert source.execute("SELECT count(*) FROM orders").fetchone() == (60,)


def test_a_view_that_does_not_run_is_refused(commander):
    commander.execute("CALL headrace.pause_view('joined')")
    assert refused(commander, "why", "joined", '{"id": 14}').sqlstate == "55000"
    commander.execute("CALL headrace.resume_view('joined')")


@pytest.mark.slow
def test_a_large_table(source, commander):
    source.execute("CREATE TABLE events (id int PRIMARY KEY, kind int, n int, more text)")
    source.execute(
        "INSERT INTO events SELECT i, i % 3, i % 1000, repeat('x', 40)"
        " FROM generate_series(1, 1000000) i"
    )
    source.execute("CREATE INDEX ON events (n)")
    create(
        commander,
        kinds="SELECT kind, count(*) AS n, sum(n) AS total FROM events GROUP BY kind",
        named="SELECT e.n, c.name, count(*) AS often FROM events e JOIN customers c ON c.id = e.n"
        " GROUP BY e.n, c.name",
    )
    found = call(commander, "why", "kinds", '{"kind": 1}', 5)
    assert [row[3] for row in found] == [1, 1, 1, 1, 1, 1, 333_334 - 5]
    found = call(commander, "why", "named", '{"name": "c7"}', 5)
    assert sum(row[3] for row in found if row[1] == "public.events") == 1000
    assert ids(found)["customers"] == [7]
