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
# By the version that brought it: tables, views, and changes that come before the others.
NEW_TABLES = {
    18: (
        "CREATE TABLE made (id int PRIMARY KEY, v int, doubled int GENERATED ALWAYS AS (v * 2) VIRTUAL,"
        " third numeric GENERATED ALWAYS AS (v / 3.0) STORED);"
        "INSERT INTO made (id, v) SELECT i, i % 9 FROM generate_series(1, 40) i;"
        "CREATE TABLE spans (room int4range, during int4range, v int,"
        " PRIMARY KEY (room, during WITHOUT OVERLAPS));"
        "INSERT INTO spans SELECT int4range(i % 5, i % 5 + 1), int4range(i, i + 5), i"
        " FROM generate_series(1, 25) i"
    ),
}
NEW_VIEWS = {
    17: {
        "parsed": "SELECT id, JSON_VALUE('{\"k\": ' || customer || '}', '$.k' RETURNING int) AS k"
        " FROM orders",
    },
    18: {
        "doubles": "SELECT doubled, count(*) AS n, sum(third) AS thirds FROM made GROUP BY doubled",
        "rooms": "SELECT room, range_agg(during) AS held, sum(v) AS v FROM spans GROUP BY room",
        "stays": "SELECT m.id, s.v, s.during FROM made m JOIN spans s ON s.during @> m.doubled",
        "sorted": "SELECT id, array_sort(ARRAY[v, id, doubled], true) AS a, casefold(third::text) AS t"
        " FROM made",
    },
}
NEW_CHANGES = {
    17: (
        "MERGE INTO orders o USING customers c ON o.id = c.id"
        " WHEN MATCHED THEN UPDATE SET note = c.region"
        " WHEN NOT MATCHED BY SOURCE AND o.id > 90 THEN DELETE"
        " WHEN NOT MATCHED THEN INSERT VALUES (c.id, c.id, 5, 'merged')"
        " RETURNING merge_action(), o.id",
    ),
    18: (
        "UPDATE made SET v = v + 1 WHERE id % 2 = 0 RETURNING OLD.doubled, NEW.doubled",
        "WITH gone AS (DELETE FROM spans WHERE v % 6 = 5 RETURNING OLD.*)"
        " INSERT INTO made (id, v) SELECT 1000 + v, v FROM gone",
        "UPDATE spans SET during = int4range(lower(during), upper(during) - 1) WHERE v > 7",
    ),
}


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
        views, changes = VIEWS, CHANGES
        for since in sorted({*NEW_TABLES, *NEW_VIEWS, *NEW_CHANGES}):
            if since <= server.version:
                source.execute(NEW_TABLES.get(since, ""))
                views = views | NEW_VIEWS[since]
                changes = NEW_CHANGES[since] + changes
        engine = start_engine(dsn)
        with psycopg.connect(engine.dsn, autocommit=True) as commander:
            create_marker(source, commander)
            for name, query in views.items():
                commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
        for number, change in enumerate(changes):
            if number == 2:
                engine.restart()
            if number == 4:
                engine.kill9()
                engine.start()
            with source.transaction():
                source.execute(change)
                marker = bump(source)
            wait_for(source, marker)
            for name, query in views.items():
                assert differs(source, name, query) == [], change
        engine.stop()
