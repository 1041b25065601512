"""The main path on other versions of Postgres: create, change, restart, kill.

The rest of the suite runs on one version, ``HEADRACE_TEST_PG``.  15 is taken from the system's
packages and 17 from npm's, if installed.
"""

from __future__ import annotations

import psycopg
import pytest

from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import PrerequisiteError
from tests.compared import differs
from tests.waiting import bump, create_marker, wait_for

VIEWS = {
    "joined": "SELECT o.id, o.amount, c.region FROM orders o JOIN customers c ON c.id = o.customer",
    "grouped": (
        "SELECT c.region, count(*) AS n, sum(o.amount) AS total, max(o.note) AS last"
        " FROM orders o JOIN customers c ON c.id = o.customer"
        " WHERE o.amount > 1 GROUP BY c.region"
    ),
    "distinct_notes": "SELECT DISTINCT note FROM orders",
}
CHANGES = (
    "INSERT INTO orders SELECT i, i % 7, i / 3.0, 'n' || i % 4 FROM generate_series(101, 150) i",
    "UPDATE orders SET amount = amount + 1.50 WHERE id % 3 = 0",
    "DELETE FROM customers WHERE id = 2",
    "UPDATE customers SET region = 'moved' WHERE id < 3",
    "TRUNCATE orders",
    "INSERT INTO orders VALUES (1, 1, 1.0, NULL), (2, 3, 'NaN', '')",
)


@pytest.fixture(scope="module", params=[15, 17, 18])
def server(request):
    try:
        made = EmbeddedPostgres(None, request.param, durable=False)
    except PrerequisiteError as error:
        pytest.skip(error.message)
    with made:
        yield made


def test_create_change_restart_kill(server, start_engine):
    dsn = server.dsn()
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as source:
        assert source.info.server_version // 10_000 == server.version
        source.execute(
            "CREATE TABLE customers (id int PRIMARY KEY, region text);"
            "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric, note text);"
            "INSERT INTO customers SELECT i, 'r' || i % 3 FROM generate_series(0, 6) i;"
            "INSERT INTO orders SELECT i, i % 7, i, 'n' || i % 5 FROM generate_series(1, 100) i"
        )
        engine = start_engine(dsn)
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            create_marker(source, commander)
            for name, query in VIEWS.items():
                commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        for number, change in enumerate(CHANGES):
            if number == 2:
                engine.restart()
            if number == 4:
                engine.kill9()
                engine.start()
            with source.transaction():
                source.execute(change)
                marker = bump(source)
            wait_for(source, marker)
            for name, query in VIEWS.items():
                assert differs(source, name, query) == [], change
        engine.stop()
