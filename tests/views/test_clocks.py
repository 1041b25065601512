"""A query as of a timestamp gives the rows that Postgres would return at that time."""

from __future__ import annotations

import psycopg

from headrace.views import clocks

QUERY = """
SELECT now() AS a, transaction_timestamp() AS b, current_timestamp AS c, current_date AS d,
       localtimestamp AS e, current_timestamp(2) AS f, localtimestamp(3) AS g,
       now.now AS h, "CURRENT_DATE" AS i, 'it''s now()' AS j, E'\\\\CURRENT_DATE' AS k,
       u.now(1) AS l, now() - interval '1 day' AS m, extract(year FROM current_date) AS n
  FROM (VALUES (1, 2)) now (now, "CURRENT_DATE")
"""
LEFT = ["CURRENT_TIMESTAMP(2)", "LOCALTIMESTAMP(3)", "it''s now()", "u.now(1)"]


def test_all_that_reads_the_clock_is_replaced_and_nothing_else(database):
    with psycopg.connect(database) as conn:
        conn.execute("SET TimeZone = 'America/New_York'")
        conn.execute("CREATE SCHEMA u")
        conn.execute("CREATE FUNCTION u.now(int) RETURNS int LANGUAGE sql AS 'SELECT $1'")
        conn.execute(f"CREATE VIEW v AS {QUERY}")
        [(printed, instant)] = conn.execute("SELECT pg_get_viewdef('v'), now()")
        replaced = clocks.at(printed, instant)
        assert conn.execute(replaced).fetchall() == conn.execute(printed).fetchall()
        assert all(text in replaced for text in LEFT)
        shorter = replaced
        for text in LEFT:
            shorter = shorter.replace(text, "")
        for word in ("now()", "transaction_timestamp", "CURRENT_TIMESTAMP", "LOCALTIMESTAMP"):
            assert word not in shorter
        assert "CURRENT_DATE AS" not in shorter
