"""Calls about one name from several sessions at once: each succeeds or gets a clear error.

In the end there is one whole view of each name, or none, and no table without a view.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg

from tests.compared import differs
from tests.waiting import wait_until

TABLES = """
CREATE SCHEMA s;
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 10) i;
CREATE TABLE apart (id int PRIMARY KEY, n int);
INSERT INTO apart VALUES (1, 0);
"""
VIEWS = {"watched": "SELECT id, n FROM apart"}
NAMES = ("a", "a", "b", "s.a")
QUERIES = ("SELECT id, v FROM t", "SELECT id, v, 1 AS one FROM t", "SELECT id FROM t WHERE v > 1")
CALLS = (
    *("create_view('{name}', '{query}', replace => true)",) * 4,
    *("create_view('{name}', '{query}')",) * 2,
    *("drop_view('{name}')", "drop_view('{name}', true)", "resync_view('{name}')"),
    *("rename_view('{name}', 'a')", "rename_view('{name}', 'b')"),
    *("alter_view('{name}', '{query}')", "create_index('{name}', '(id)')"),
    *("pause_view('{name}')", "resume_view('{name}')", "set_latency('{name}', 100)"),
)
CLEAR = {
    "42P01": "there is no such view (any more)",
    "42P07": "the name is taken",
    "55006": "another call works on it, or has changed it",
    "57014": "a drop has cancelled it",
    "2BP01": "an index depends on a column",
    "55000": "it is paused",
}
SESSIONS, ROUNDS = 4, 25


def test_replacing_at_the_same_time_makes_one_view(engine, source, commander):
    def replace(number: int) -> None:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            for name in range(3):
                text = "CALL headrace.create_view(%s, %s, replace => true)"
                conn.execute(text, (f"r{name}", QUERIES[0] + f" WHERE id < {name + 5}"))

    with ThreadPoolExecutor(SESSIONS) as pool:
        list(pool.map(replace, range(SESSIONS)))
    for name in range(3):
        assert not differs(source, f"r{name}", QUERIES[0] + f" WHERE id < {name + 5}")
    found = source.execute("SELECT count(*) FROM headrace.views WHERE status = 'running'")
    assert found.fetchone() == (4,)


def test_every_call_ends_clearly(engine, source, commander):
    def work(number: int) -> list[tuple[str, str | None, str]]:
        chosen, unclear = random.Random(number), []
        with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
            for _ in range(ROUNDS):
                call = chosen.choice(CALLS).format(
                    name=chosen.choice(NAMES), query=chosen.choice(QUERIES)
                )
                try:
                    conn.execute(f"CALL headrace.{call}")
                except psycopg.Error as error:
                    skips = "drop_view" in call and error.sqlstate == "42P01"
                    if error.sqlstate not in CLEAR or (skips and call.endswith("true)")):
                        unclear.append((call, error.sqlstate, str(error)))
        return unclear

    with ThreadPoolExecutor(SESSIONS) as pool:
        running = [pool.submit(work, number) for number in range(SESSIONS)]
        assert [found for each in running for found in each.result()] == []
    source.execute("UPDATE apart SET n = n + 1; UPDATE t SET v = v + 1")
    commander.execute("CALL headrace.wait_for('watched')")
    assert not differs(source, "watched", VIEWS["watched"])
    views = source.execute(
        "SELECT format('%I.%I', schema_name, view_name), query, status FROM headrace.views"
    )
    for name, query, status in views.fetchall():
        assert status in ("running", "paused"), name
        if status == "paused":
            commander.execute(f"CALL headrace.resume_view('{name}')")
        commander.execute(f"CALL headrace.wait_for('{name}')")
        assert not differs(source, name, query), name
        commander.execute(f"CALL headrace.drop_view('{name}')")
    left = source.execute(
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE relkind = 'r' AND nspname IN ('public', 's') ORDER BY 1"
    )
    assert left.fetchall() == [("apart",), ("t",)]
    published = "SELECT tablename FROM pg_publication_tables"
    wait_until(lambda: source.execute(published).fetchall() == [], "nothing is published")
