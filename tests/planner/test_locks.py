"""Planning never holds a lock that a user's statement waits for while it waits behind it."""

from __future__ import annotations

import threading

import psycopg

from headrace.planner import PlanRequest, plan

TABLES = """
CREATE TABLE busy (id int PRIMARY KEY, x int, y int GENERATED ALWAYS AS (x * 2) STORED);
CREATE TABLE watched_rows (id int PRIMARY KEY, x int);
ALTER TABLE watched_rows ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON watched_rows USING (x > 0);
CREATE ROLE e_locks;
GRANT SELECT ON watched_rows, busy TO e_locks;
"""
STATEMENTS = (
    "ALTER TABLE busy ALTER x SET DEFAULT 1",
    "ALTER POLICY p ON watched_rows USING (x > 1)",
    "LOCK TABLE busy, watched_rows IN ACCESS EXCLUSIVE MODE",
)


def test_statements_of_users_go_on_while_queries_are_planned(conn, planner_dsn):
    conn.execute(TABLES)
    query = "SELECT id, x, y FROM busy JOIN watched_rows USING (id, x)"
    request = PlanRequest(query, "e_locks")
    assert plan(conn, request).physical.sink.conditions
    ended = threading.Event()
    failed: list[BaseException] = []

    def alter() -> None:
        try:
            with psycopg.connect(planner_dsn, autocommit=True) as user:
                # Without the guard they would wait for ever.
                user.execute("SET statement_timeout = '20s'")
                for _ in range(60):
                    for statement in STATEMENTS:
                        with user.transaction():
                            user.execute(statement)
        except BaseException as error:  # noqa: BLE001  told to the test's thread
            failed.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        while not ended.is_set():
            assert plan(conn, request).physical.sink.conditions
    finally:
        thread.join()
    assert not failed, failed
    conn.execute("DROP TABLE busy, watched_rows; DROP OWNED BY e_locks; DROP ROLE e_locks")
