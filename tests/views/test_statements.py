"""advise without a query, on a server of the system's packages with pg_stat_statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from headrace.embedded.engine import EmbeddedEngine
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.views.statements import STATEMENTS_MAX
from tests.engines import Engine
from tests.security.roles import PASSWORD, role

VERSION = 15
CONTROL = Path(f"/usr/share/postgresql/{VERSION}/extension/pg_stat_statements.control")

pytestmark = [
    pytest.mark.slow,  # it starts a server of its own
    pytest.mark.skipif(
        not CONTROL.exists(), reason=f"there is no Postgres {VERSION} with pg_stat_statements"
    ),
]


def connect(dsn: str, **options: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, **options), autocommit=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[EmbeddedEngine]:
    settings = {"shared_preload_libraries": "pg_stat_statements"}
    with EmbeddedPostgres(None, VERSION, settings, durable=False) as server:
        with connect(server.dsn()) as conn:
            conn.execute("CREATE DATABASE counted")
        source = server.dsn("counted")
        with connect(source) as conn:
            # The extension is in an unusual schema.
            conn.execute('CREATE SCHEMA "Odd one"')
            conn.execute('CREATE EXTENSION pg_stat_statements SCHEMA "Odd one"')
            conn.execute(
                "CREATE TABLE sales (id int PRIMARY KEY, shop int NOT NULL, kind text NOT NULL,"
                " price int NOT NULL);"
                "INSERT INTO sales SELECT i, i % 50, 'kind ' || i % 7, i % 1000"
                " FROM generate_series(1, 20000) i; ANALYZE sales"
            )
        one = Engine(source, tmp_path_factory.mktemp("engine") / "data")
        one.start()
        yield one
        one.kill9()


@pytest.fixture
def conn(engine) -> Iterator[psycopg.Connection]:
    with connect(engine.dsn) as conn:
        conn.execute('SELECT "Odd one".pg_stat_statements_reset(), pg_stat_reset()')
        yield conn
        for (name,) in conn.execute("SELECT name FROM headrace.list_views()").fetchall():
            conn.execute("CALL headrace.drop_view(%s)", (name,))


def advice(conn: psycopg.Connection) -> list[dict[str, object]]:
    cursor = conn.cursor(row_factory=psycopg.rows.dict_row)
    return cursor.execute("SELECT * FROM headrace.advise()").fetchall()


def about(rows: list[dict[str, object]], text: str) -> dict[str, dict[str, object]]:
    """Return the rows about the statement that contains ``text``, by topic."""
    [subject] = [r["subject"] for r in rows if r["topic"] == "statement" and text in r["finding"]]
    return {str(r["topic"]): r for r in rows if r["subject"] == subject}


GROUPED = "SELECT kind, count(*), sum(price) FROM sales GROUP BY kind"
KEYED = "SELECT kind, max(price) FROM sales WHERE shop = {} GROUP BY kind"
FIRST = "SELECT id FROM sales WHERE shop = 3 ORDER BY price LIMIT 3"


def test_what_would_profit_and_what_to_run(conn):
    for _ in range(20):
        conn.execute(GROUPED)
        conn.execute(KEYED.format(7))
        conn.execute(FIRST)
    rows = advice(conn)
    grouped, keyed = about(rows, "sum(price)"), about(rows, "max(price)")
    for found in (grouped, keyed):
        assert found["statement"]["value"] == 20
        assert found["now"]["value"] > found["as a view"]["value"] >= 0
        # Each number has three digits.
        exact = found["now"]["value"] - found["as a view"]["value"]
        assert found["saving"]["value"] == pytest.approx(exact, rel=0.02)
    savings = [r["value"] for r in rows if r["topic"] == "saving"]
    assert savings == sorted(savings, reverse=True)
    assert "LIMIT" in about(rows, "ORDER BY price")["why not"]["finding"]
    assert "create" not in about(rows, "ORDER BY price")
    # The advised statements run, and reading the view gives the statement's rows.
    for found in (grouped, keyed):
        conn.execute(str(found["create"]["advice"]))
    conn.execute(str(keyed["index"]["advice"]))
    read = str(grouped["read"]["advice"])
    assert Counter(conn.execute(read).fetchall()) == Counter(conn.execute(GROUPED).fetchall())
    read = str(keyed["read"]["advice"])
    assert "$1" in read
    for shop in (7, 12, 99):
        there = conn.execute(read.replace("$1", str(shop))).fetchall()
        asked = conn.execute(KEYED.format(shop)).fetchall()
        assert Counter(row[:2] for row in there) == Counter(asked)


def test_what_changes_more_often_than_it_is_asked_for(conn):
    conn.execute(GROUPED)
    for _ in range(5):
        conn.execute("UPDATE sales SET price = price + 1")
    conn.execute("SELECT pg_stat_force_next_flush()")
    found = about(advice(conn), "sum(price)")
    assert found["saving"]["value"] < 0
    assert "change more often" in found["why not"]["finding"]


def test_each_is_told_of_his_own_and_planned_with_his_rights(conn, engine):
    with connect(engine.source) as server, role(server, "clerk") as clerk:
        name = sql.Identifier(clerk)
        server.execute(sql.SQL("GRANT SELECT ON sales TO {}").format(name))
        server.execute(sql.SQL('GRANT USAGE ON SCHEMA "Odd one" TO {}').format(name))
        server.execute("CREATE TABLE secret (code int PRIMARY KEY)")
        server.execute("SELECT code FROM secret")
        with connect(engine.dsn, user=clerk, password=PASSWORD) as own:
            own.execute("SELECT shop, min(price) FROM sales GROUP BY shop")
            told = str(advice(own))
            assert "min(price)" in told
            assert "secret" not in told
            assert "secret" in str(advice(conn))
            # A role that may see the text may still not read the table.
            server.execute(sql.SQL("GRANT pg_read_all_stats TO {}").format(name))
            found = about(advice(own), "secret")
            assert "permission denied" in found["why not"]["finding"]
            server.execute(sql.SQL('REVOKE USAGE ON SCHEMA "Odd one" FROM {}').format(name))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                advice(own)


def test_so_many_are_looked_at(conn):
    for number in range(STATEMENTS_MAX + 7):
        tests = " AND ".join(["id > 19990"] * (number + 1))
        conn.execute(f"SELECT price FROM sales WHERE {tests}")
    rows = advice(conn)
    assert len({r["subject"] for r in rows if r["topic"] == "statement"}) == STATEMENTS_MAX
    [last] = [r for r in rows if r["topic"] == "looked at"]
    assert last["value"] == STATEMENTS_MAX
    assert last["finding"].endswith("; 7 were not")


def test_names_and_texts_are_quoted(conn):
    conn.execute('CREATE TABLE "o\'dd ""one""" ("k\'ey" int PRIMARY KEY, n int NOT NULL)')
    conn.execute('INSERT INTO "o\'dd ""one""" SELECT i, i % 9 FROM generate_series(1, 5000) i')
    conn.execute('ANALYZE "o\'dd ""one"""')
    conn.execute("SELECT pg_stat_force_next_flush()")
    conn.execute("SELECT pg_stat_reset()")
    query = 'SELECT max("k\'ey") AS "n\'n" FROM "o\'dd ""one""" WHERE n = 3 GROUP BY n'
    for _ in range(30):
        conn.execute(query)
    found = about(advice(conn), "n'n")
    conn.execute(str(found["create"]["advice"]))
    read = str(found["read"]["advice"]).replace("$1", "3")
    assert conn.execute(read).fetchall() == [(4998, 3)]


def test_views_that_are_not_a_superusers_are_not_read(conn, engine):
    with connect(engine.source) as server, role(server, "planter") as planter:
        view = sql.SQL('ALTER VIEW "Odd one".pg_stat_statements OWNER TO {}')
        [[owner]] = server.execute("SELECT current_user").fetchall()
        server.execute(view.format(sql.Identifier(planter)))
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="superuser"):
            advice(conn)
        server.execute(view.format(sql.Identifier(owner)))
    assert advice(conn)
