"""verify_view: empty while writers run, and the exact differences after damage."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.integration.conftest import ITEMS
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

QUERY = "SELECT g, count(*) AS n, sum(x) AS total FROM items GROUP BY g"
# Without a key, so that copies of its rows can be inserted.
JOINED = "SELECT i.id + 0 AS id, i.x, k.name FROM items i JOIN kinds k ON k.g = i.g WHERE i.x > 1"
VERIFY = "SELECT * FROM headrace.verify_view(%s)"


TABLES = f"""
{ITEMS}
CREATE TABLE kinds (g int PRIMARY KEY, name text);
INSERT INTO kinds SELECT i, 'k' || i FROM generate_series(0, 9) i;
"""
VIEWS = {"v": QUERY, "j": JOINED}


def leftovers(conn):
    return conn.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE temporary"
        " AND database = current_database()"
    ).fetchall()


def test_proved_while_writers_go_on(commander, source, engine):
    stop = threading.Event()
    count = [0, 0, 0]

    def write(number):
        with psycopg.connect(engine.source, autocommit=True) as conn:
            n = 0
            while not stop.wait(0.005):
                n += 1
                key = 1000 + number * 1_000_000 + n
                # Several tables and rows a transaction, so that a partial one would show.
                with conn.transaction():
                    conn.execute("INSERT INTO items VALUES (%s, %s, 2.5)", (key, n % 9))
                    conn.execute(
                        "UPDATE kinds SET name = name || 'x' WHERE g = %s AND length(name) < 50",
                        (n % 10,),
                    )
                    conn.execute("DELETE FROM items WHERE id = %s", (key - 20,))
                count[number] += 1

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    before = list(count)

    def verify(name):
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            return conn.execute(VERIFY, (name,)).fetchall()

    try:
        with ThreadPoolExecutor(2) as pool:
            # Several at once, two of them for the same view.
            for found in pool.map(verify, ("v", "v", "j", "j")):
                assert found == []
        assert all(b > a for a, b in zip(before, count, strict=True)), "they have written"
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
    assert leftovers(source) == []
    # The worker removes its part without a call.
    folder = engine.data_dir / "tmp"
    wait_until(lambda: not list(folder.glob("tap-*")), "nothing is kept")


def test_a_view_that_the_server_fills_anew_meanwhile(commander, source, engine):
    """It has another ID then. The proof has begun, and so it begins once more."""
    rebuilt = "SELECT message LIKE 'rebuilt at%%' FROM headrace.list_views() WHERE name = %s"
    with (
        psycopg.connect(engine.source) as writer,
        psycopg.connect(engine.dsn, autocommit=True) as conn,
        ThreadPoolExecutor(1) as pool,
    ):
        writer.execute("INSERT INTO items VALUES (5000, 1, 1)")
        proof = pool.submit(lambda: conn.execute(VERIFY, ("v",)).fetchall())
        wait_until(lambda: leftovers(source), "the proof waits for its snapshot")
        source.execute("DELETE FROM v WHERE g = 2")
        source.execute("UPDATE items SET x = x + 1")  # the view misses the row, and stops
        wait_until(lambda: len(leftovers(source)) == 2, "the server begins to fill it anew")
        writer.rollback()
        assert proof.result(90) == []
    wait_until(lambda: source.execute(rebuilt, ("public.v",)).fetchone()[0], "it was filled anew")
    assert leftovers(source) == []


def test_what_differs_is_told(commander, source):
    source.execute("INSERT INTO items VALUES (200, 1, 1.5), (201, 1, 1.50)")
    commander.execute("CALL headrace.wait_for('j')")
    for conn in (commander, source):
        conn.execute("SET TimeZone = 'Asia/Tokyo'")
    source.execute("DELETE FROM j WHERE id = 7")
    source.execute("INSERT INTO j SELECT * FROM j WHERE id = 8")
    source.execute("INSERT INTO j SELECT * FROM j WHERE id = 8")
    source.execute("UPDATE j SET x = 15.0 WHERE id = 10")
    source.execute("UPDATE j SET name = NULL WHERE id = 11")
    expected = [
        (1, 0, "(10,15.0,k0)"),
        (0, 1, "(10,15.00,k0)"),
        (1, 0, "(11,16.50,)"),
        (0, 1, "(11,16.50,k1)"),
        (0, 1, "(7,10.50,k2)"),
        (3, 0, "(8,12.00,k3)"),
    ]
    assert commander.execute(VERIFY, ("public.j",)).fetchall() == expected
    assert commander.execute("SELECT * FROM headrace.verify_view('j')").fetchall() == expected
    with commander.cursor(binary=True) as cursor:
        assert cursor.execute(VERIFY, ("j",)).fetchall() == expected
        assert [c.name for c in cursor.description] == ["surplus", "missing", "contents"]
    # On a direct connection.
    # An earlier version had no argument before the answer.
    for conn in (source, commander):
        (found,) = conn.execute("CALL headrace.verify('j', NULL)").fetchone()
        assert [(r["surplus"], r["missing"], r["contents"]) for r in found] == expected
    assert source.execute("SELECT * FROM headrace.verify_view('j')").fetchall() == expected
    commander.execute("CALL headrace.resync_view('j')")
    assert commander.execute(VERIFY, ("j",)).fetchall() == []
    (found,) = source.execute("CALL headrace.verify('j')").fetchone()
    assert found == []


def test_values_that_the_query_leaves_open_do_not_differ(commander, source):
    source.execute("CREATE TABLE f (id int PRIMARY KEY, k numeric, y float8)")
    query = "SELECT k, sum(y) AS s, count(*) AS n FROM f GROUP BY k"
    source.execute(
        "INSERT INTO f SELECT i, CASE WHEN i % 2 = 0 THEN 1.0 ELSE 1.000 END,"
        " (i * 0.1) ^ (i % 7) * CASE WHEN i % 3 = 0 THEN -1 ELSE 1 END"
        " FROM generate_series(1, 500) i"
    )
    commander.execute(f"CALL headrace.create_view('w', '{query}')")
    source.execute("UPDATE f SET y = -y, k = CASE WHEN id < 100 THEN 1.00 ELSE k END")
    source.execute("INSERT INTO f VALUES (1001, 2.0, 'inf'), (1002, 3, 'nan'), (1003, 4, NULL)")
    commander.execute("CALL headrace.wait_for('w')")
    assert commander.execute(VERIFY, ("w",)).fetchall() == []
    source.execute("UPDATE w SET s = s * 1.000001 WHERE k = 1")
    source.execute("UPDATE w SET n = 2 WHERE k = 3")
    assert len(commander.execute(VERIFY, ("w",)).fetchall()) == 4


EQUAL = {
    "interval": ("1 mon", "30 days", "720:00"),
    "interval[]": ("{1 mon}", "{30 days}"),
    "jsonb": ("1", "1.0", '[{"a": 1}]', '[{"a": 1.00}]'),
    "bpchar": ("a", "a ", "a  "),
    "numeric[]": ("{1.0}", "{1}", "{1.00}"),
    "numrange": ("[1,2)", "[1.0,2.00)"),
    "nummultirange": ("{[1,2)}", "{[1.0,2)}"),
}
"""Types by which a query may group, and texts of equal values, alternately for each group."""


def test_any_of_equal_values_may_be_shown(commander, source):
    names = {kind: f"c{number}" for number, kind in enumerate(EQUAL)}
    columns = ", ".join(f"{name} {kind}" for kind, name in names.items())
    source.execute(f"CREATE TABLE equals (id int PRIMARY KEY, odd json, {columns})")
    for number in range(12):
        values = [texts[number % len(texts)] for texts in EQUAL.values()]
        marks = ", ".join(["%s"] * len(values))
        source.execute(f"INSERT INTO equals VALUES ({number}, '1', {marks})", values)
    queries = {
        f"by_{name}": f"SELECT {name}, count(*) AS n FROM equals GROUP BY {name}"
        for name in names.values()
    }
    queries["several"] = (
        f"SELECT DISTINCT ON ({', '.join(names.values())}) * FROM equals"
        f" ORDER BY {', '.join(names.values())}, id"
    )
    for name, query in queries.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    source.execute("DELETE FROM equals WHERE id < 5")
    for name in queries:
        commander.execute("CALL headrace.wait_for(%s)", (name,))
        assert commander.execute(VERIFY, (name,)).fetchall() == [], name
    source.execute("UPDATE by_c0 SET n = n + 1")
    source.execute("UPDATE by_c2 SET c2 = '2' WHERE c2 = '1'")
    for name in ("by_c0", "by_c2"):
        assert len(commander.execute(VERIFY, (name,)).fetchall()) == 2, name


ROWS = (
    # Queries that leave the order of some elements open.
    "SELECT g, array_agg(a) AS x, json_agg(b) AS y, count(*) AS n FROM t GROUP BY g",
    "SELECT g, string_agg(b, ', ') AS x, array_agg(a) FILTER (WHERE a > 3) AS y FROM t GROUP BY g",
    "SELECT g, jsonb_agg(a ORDER BY a % 2) AS x, array_agg(b ORDER BY a % 2) AS y FROM t"
    " GROUP BY g UNION ALL SELECT 0, jsonb_agg(a), array_agg(b) FROM t",
    "SELECT k.g, x, upper(y) AS y FROM kinds k JOIN (SELECT g, array_agg(a) AS x,"
    " string_agg(b, '-') AS y FROM t GROUP BY g) s ON s.g = k.g",
    "SELECT g, ARRAY(SELECT a FROM t u WHERE u.g = k.g) AS x, now() > '2000-01-01' AS y"
    " FROM kinds k",
)


def fill_backwards(source):
    """Insert rows whose order on disk is not the canonical one."""
    source.execute("CREATE TABLE t (id int PRIMARY KEY, g int, a int, b text)")
    source.execute("INSERT INTO t SELECT i, i % 3, 30 - i, 'b' || i FROM generate_series(1, 20) i")


@pytest.mark.parametrize("query", ROWS)
def test_an_order_that_the_query_leaves_open_does_not_differ(query, commander, source):
    fill_backwards(source)
    commander.execute(f"CALL headrace.create_view('w', $${query}$$)")
    source.execute("UPDATE t SET b = 'c' || id WHERE id % 4 = 0")
    commander.execute("CALL headrace.wait_for('w')")
    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    assert commander.execute(VERIFY, ("w",)).fetchall() == []
    assert any("only in an order that the query does not define" in n for n in notices), notices


def test_an_open_order_hides_nothing_else(commander, source):
    fill_backwards(source)
    query = "SELECT g, array_agg(a) AS x, array_agg(b) AS y, count(*) AS n FROM t GROUP BY g"
    commander.execute(f"CALL headrace.create_view('w', '{query}')")
    for damage in (
        "x = array_append(x, 1)",
        "x = x[2:]",
        "x = ARRAY[x[2], x[1]] || x[3:]",  # the elements of y keep their order
        "y[1] = 'b'",
        "y = NULL",
        "n = n + 1",
    ):
        source.execute(f"UPDATE w SET {damage} WHERE g = 1")
        rows = commander.execute(VERIFY, ("w",)).fetchall()
        assert [row[:2] for row in rows] == [(1, 0), (0, 1)] or [row[:2] for row in rows] == [
            (0, 1),
            (1, 0),
        ], (damage, rows)
        commander.execute("CALL headrace.resync_view('w')")
        assert commander.execute(VERIFY, ("w",)).fetchall() == []


DECIDING = (
    "SELECT g FROM (SELECT g, array_agg(a) AS x FROM t GROUP BY g) s WHERE x[1] < 12",
    # The comparison is that of a semi join, whose rows are kept in its order.
    "SELECT id FROM t WHERE b COLLATE \"C\" > (SELECT string_agg(u.b, ',') FROM t u WHERE u.g = t.g)",
)


@pytest.mark.parametrize("query", DECIDING)
def test_an_open_order_that_decides_about_rows(query, commander, source):
    fill_backwards(source)
    commander.execute(f"CALL headrace.create_view('w', $${query}$$)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be compared"):
        commander.execute(VERIFY, ("w",))


def test_settings_of_the_view_apply(commander, source):
    source.execute("CREATE TABLE times (id int PRIMARY KEY, t timestamptz)")
    source.execute(
        "INSERT INTO times SELECT i, '2024-01-01 00:00Z'::timestamptz + i * interval '1 h'"
        " FROM generate_series(1, 48) i"
    )
    commander.execute("SET TimeZone = 'Asia/Tokyo'")
    commander.execute(
        "CALL headrace.create_view('d', 'SELECT id, t, t::date AS d, t::text AS s FROM times')"
    )
    commander.execute("SET TimeZone = 'America/Lima'")
    assert commander.execute(VERIFY, ("d",)).fetchall() == []
    source.execute("SET TimeZone = 'UTC'")
    assert source.execute("CALL headrace.verify('d')").fetchone() == ([],)


def test_rights_of_the_caller(commander, source, engine):
    source.execute("DROP ROLE IF EXISTS e_verify; CREATE ROLE e_verify LOGIN")
    try:
        commander.execute("SET ROLE e_verify")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table v"):
            commander.execute(VERIFY, ("v",))
        source.execute("GRANT SELECT ON v TO e_verify")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="that view"):
            commander.execute(VERIFY, ("v",))
        source.execute("GRANT SELECT ON items TO e_verify")
        assert commander.execute(VERIFY, ("v",)).fetchall() == []
        commander.execute("RESET ROLE")
    finally:
        source.execute("DROP OWNED BY e_verify; DROP ROLE e_verify")


def test_what_cannot_be_verified_says_why(commander, source):
    with pytest.raises(psycopg.errors.UndefinedTable):
        commander.execute(VERIFY, ("nope",))
    source.execute(
        "CREATE FUNCTION twice(x numeric) RETURNS numeric IMMUTABLE LANGUAGE sql AS 'SELECT x * 2'"
    )
    commander.execute("CALL headrace.create_view('u', 'SELECT id, twice(x) AS t FROM items')")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="twice"):
        commander.execute(VERIFY, ("u",))
    commander.execute("CALL headrace.pause_view('v')")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="paused"):
        commander.execute(VERIFY, ("v",))


def test_an_open_transaction_holds_up_the_proof_and_nothing_else(commander, source, engine):
    with (
        psycopg.connect(engine.source) as writer,
        psycopg.connect(engine.dsn, autocommit=True) as other,
    ):
        writer.execute("INSERT INTO items VALUES (5000, 1, 1)")
        seen = []

        def follow():
            for i in range(10):
                other.execute("INSERT INTO items VALUES (%s, 2, 2.5)", (6000 + i,))
                other.execute("CALL headrace.wait_for('v', timeout => '90 s')")
                seen.append(i)
            wait_until(lambda: leftovers(source), "the proof waits for its snapshot")
            commander.cancel_safe()

        thread = threading.Thread(target=follow)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            commander.execute(VERIFY, ("v",))
        thread.join(90)
        assert len(seen) == 10, "the view goes on meanwhile"
    wait_until(lambda: not leftovers(source), "nothing is left")
    assert commander.execute(VERIFY, ("v",)).fetchall() == []


LARGER = {
    "count": ("SELECT count(*) FROM headrace.verify_view('v')", None),
    "filter": ("SELECT * FROM headrace.verify_view('v') WHERE surplus > 0", None),
    "parameter": ("SELECT * FROM headrace.verify_view(%s) d WHERE d.missing > 0", ("v",)),
    "nested": ("SELECT EXISTS (SELECT FROM headrace.verify_view('v'))", None),
    "several": ("SELECT 1; SELECT * FROM headrace.verify_view('v')", None),
}


def test_it_can_be_part_of_a_larger_query(engine, commander, source):
    with psycopg.connect(engine.dsn) as begun:
        for conn in (commander, source, begun):
            for name, (query, params) in LARGER.items():
                cursor = conn.execute(query, params)
                while cursor.nextset():
                    pass
                found = {"count": [(0,)], "nested": [(False,)]}.get(name, [])
                assert cursor.fetchall() == found, name


def test_a_query_is_explained_in_any_query(commander, source):
    query = "SELECT count(*) > 1 FROM headrace.explain_view('SELECT 1 AS a')"
    for conn in (commander, source):
        assert conn.execute(query).fetchone() == (True,)
        assert conn.execute("SELECT count(*) > 0 FROM headrace.explain_view('v')").fetchone() == (
            True,
        )
