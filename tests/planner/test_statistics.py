"""Column statistics for the planner, at a cost that does not grow with other tables."""

from __future__ import annotations

import psycopg

from headrace.planner.analyse import tables


def test_statistics_of_one_table_are_found_by_its_name(database):
    with psycopg.connect(database) as conn:
        conn.execute('CREATE SCHEMA "S"')
        for name in ('public."T"', '"S"."T"'):
            conn.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, k int)".encode())
        conn.execute('INSERT INTO "S"."T" SELECT i, i %% 5 FROM generate_series(1, 100) i', ())
        conn.execute('ANALYZE public."T", "S"."T"')
        [empty, oid] = [
            conn.execute("SELECT %s::regclass::oid::int", (name,)).fetchone()[0]
            for name in ('public."T"', '"S"."T"')
        ]
        assert tables.load_statistics(conn, empty) is None
        found = tables.load_statistics(conn, oid)
        assert found == tables.Statistics(100.0, {1: 100.0, 2: 5.0}, {1: 4, 2: 4})
        conn.execute("SET LOCAL enable_seqscan = off")
        plan = conn.execute(f"EXPLAIN {tables._STATISTICS}".encode(), {"oid": oid}).fetchall()
    # Otherwise all classes are read, and those with another name are discarded.
    named = [line for (line,) in plan if "Index Cond" in line and "relname =" in line]
    assert named, "\n".join(line for (line,) in plan)
