"""Views with a subplan in common, through the server: resynced, altered, dropped, killed."""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.integration.test_resync import assert_equal, status, wait
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

JOINED = "FROM items i JOIN sold s ON s.item = i.id"
QUERIES = {
    "rows": f"SELECT i.g, s.x {JOINED}",
    "sums": f"SELECT i.g, sum(s.x) AS total {JOINED} GROUP BY i.g",
    "most": f"SELECT i.g, max(s.x) AS most {JOINED} GROUP BY i.g",
}
OTHER = f"SELECT i.g, sum(s.x) + 1 AS total {JOINED} GROUP BY i.g"


TABLES = """
CREATE TABLE items (id int PRIMARY KEY, g int);
CREATE TABLE sold (id int PRIMARY KEY, item int, x numeric);
INSERT INTO items SELECT i, i % 5 FROM generate_series(1, 30) i;
INSERT INTO sold SELECT i, i % 40, i * 1.50 FROM generate_series(1, 100) i;
"""


def change(conn, rng):
    for _ in range(10):
        number, item = rng.randint(1, 120), rng.randint(1, 40)
        conn.execute(
            "INSERT INTO sold VALUES (%s, %s, %s) ON CONFLICT (id)"
            " DO UPDATE SET x = sold.x + 0.25, item = excluded.item",
            (number, item, rng.randint(1, 9)),
        )
        conn.execute("DELETE FROM sold WHERE id = %s", (rng.randint(1, 120),))
        conn.execute("UPDATE items SET g = %s WHERE id = %s", (number % 7, item))


def check(conn, queries):
    for name, query in queries.items():
        wait(conn, name)
        assert_equal(conn, name, query)


def shared(conn, name):
    """Return the views that share something with ``name``, as ``explain_view`` shows it."""
    rows = conn.execute("SELECT * FROM headrace.explain_view(%s, 'physical')", (name,)).fetchall()
    lines = [str(row) for row in rows if "kept once" in str(row)]
    return {other for other in QUERIES if any(f'"{other}"' in line for line in lines)}


def test_views_that_share(engine, source, commander):
    rng = random.Random(1)
    for name, query in QUERIES.items():
        commander.execute(
            f"CALL headrace.create_view('{name}', $q${query}$q$, '{{\"on_change\": \"stop\"}}')"
        )
        change(source, rng)
    everybody = set(QUERIES)
    wait_until(lambda: all(shared(commander, n) == everybody - {n} for n in QUERIES), "all share")
    check(commander, QUERIES)
    for name in QUERIES:
        assert commander.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall() == []
    # Populated again, and sharing again.
    commander.execute("CALL headrace.resync_view('sums')")
    change(source, rng)
    wait_until(lambda: shared(commander, "sums") == {"rows", "most"}, "it shares")
    check(commander, QUERIES)
    # Another query.
    commander.execute(f"CALL headrace.alter_view('sums', $q${OTHER}$q$)")
    queries = {**QUERIES, "sums": OTHER}
    change(source, rng)
    check(commander, queries)
    # The server is killed while one view is paused.
    commander.execute("CALL headrace.pause_view('rows')")
    change(source, rng)
    engine.kill9()
    change(source, rng)
    engine.restart()
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        check(conn, {n: q for n, q in queries.items() if n != "rows"})
        conn.execute("CALL headrace.resume_view('rows')")
        check(conn, queries)
        # Renaming a column affects no view.
        source.execute("ALTER TABLE items RENAME g TO h")
        source.execute("UPDATE items SET h = h + 1 WHERE id < 9")
        source.execute("ALTER TABLE items RENAME h TO g")
        change(source, rng)
        check(conn, queries)
        assert shared(conn, "most") == {"rows", "sums"}
        # A change of a column stops all; each is populated again separately.
        source.execute("ALTER TABLE sold ALTER x TYPE text")
        source.execute("ALTER TABLE sold ALTER x TYPE numeric USING x::numeric")
        for name in queries:
            wait_until(lambda n=name: status(conn, n)[0] == "error", "it has stopped")
        for name in queries:
            conn.execute(f"CALL headrace.resync_view('{name}')")
            change(source, rng)
        check(conn, queries)
        for name in list(queries):
            conn.execute(f"CALL headrace.drop_view('{name}')")
            del queries[name]
            change(source, rng)
            check(conn, queries)


def test_the_option_keeps_a_view_apart(engine, source, commander):
    for name, query in QUERIES.items():
        commander.execute(
            f"CALL headrace.create_view('{name}', $q${query}$q$, '{{\"sharing\": false}}')"
        )
    assert all(shared(commander, name) == set() for name in QUERIES)
    change(source, random.Random(2))
    check(commander, QUERIES)
