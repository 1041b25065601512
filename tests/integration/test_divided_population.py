"""Views populated by parts, over skewed keys, are maintained from the states of all tasks."""

from __future__ import annotations

import pytest

from tests.integration.test_fed import check

pytestmark = [
    pytest.mark.engine_with(HEADRACE_POPULATION_MEMORY_BYTES="1000000"),
    pytest.mark.slow,
]

TABLES = """
CREATE TABLE big (id int PRIMARY KEY, k int, v int, n numeric);
INSERT INTO big SELECT i, CASE WHEN i % 10 < 7 THEN 7 WHEN i % 10 < 9 THEN i % 90 END, i % 20, i % 500 / 10.0
  FROM generate_series(1, 24000) i;
CREATE TABLE dim (id int PRIMARY KEY, k int, label text);
INSERT INTO dim SELECT i, i % 60, 'l' || i % 4 FROM generate_series(1, 120) i;
ANALYZE;
"""
QUERIES = {
    "totals": "SELECT k, v, count(*) AS c, sum(n) AS s, min(n) AS l, grouping(k, v) AS g FROM big"
    " GROUP BY ROLLUP (k, v)",
    "sums": "SELECT v, count(*) AS c, avg(n) AS a FROM big GROUP BY CUBE (v)",
    "joined": "SELECT b.id, d.id AS d, d.label FROM big b JOIN dim d ON d.k = b.k",
    "outer_joined": "SELECT b.id, d.id AS d FROM big b LEFT JOIN dim d ON d.k = b.k AND d.id > b.v * 6",
    "lone": "SELECT b.id, b.v FROM big b WHERE NOT EXISTS (SELECT FROM dim d WHERE d.k = b.k)",
    "least": "SELECT k, min(n) AS l, max(v) AS m, count(DISTINCT v) AS d FROM big GROUP BY k",
    "pairs": "SELECT DISTINCT k, v FROM big",
}
CHANGES = (
    "DELETE FROM dim WHERE k = 7",
    "INSERT INTO dim VALUES (1001, 7, 'again'), (1002, 7, 'and again'), (1003, NULL, 'none')",
    "UPDATE big SET k = 8 WHERE id % 300 = 1",
    "UPDATE big SET n = n - 1000, v = 99 WHERE id % 700 = 2",
    "DELETE FROM big WHERE v IN (0, 99) OR n < 3",
    "INSERT INTO big SELECT i, CASE i % 3 WHEN 0 THEN 7 WHEN 1 THEN 500 END, 7, -i FROM generate_series(30001, 30300) i",
    "TRUNCATE big",
    "INSERT INTO big VALUES (1, 7, 1, 1), (2, NULL, 2, 2)",
)
VERIFIED = (5, len(CHANGES) - 1)


def test_changes_after_a_population_by_parts(engine, commander, source):
    notices: list[str] = []
    commander.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    for name, query in QUERIES.items():
        commander.execute(
            "CALL headrace.create_view(%s, %s, options => %s)",
            (name, query, '{"population": "local"}'),
        )
        assert any("over files" in text for text in notices), notices
        notices.clear()
    check(commander, QUERIES)
    for number, change in enumerate(CHANGES):
        source.execute(change)
        check(commander, QUERIES)
        for name in QUERIES if number in VERIFIED else ():
            found = commander.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall()
            assert found == [], name
