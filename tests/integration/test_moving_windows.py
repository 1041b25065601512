"""Views of a moving window over a large table: rows from before it come and go, and are not read."""

from __future__ import annotations

import pytest

from tests.compared import check, commit
from tests.waiting import create_marker

pytestmark = pytest.mark.shared_engine

ROWS = 20_000
QUERIES = {
    "last_days": "SELECT id, v FROM readings WHERE at > now() - interval '2 days'",
    "counted": "SELECT v, count(*) AS n, max(at) AS last FROM readings"
    " WHERE at >= current_date - 3 GROUP BY v",
    "beside": "SELECT a.id, b.v FROM places a LEFT JOIN readings b"
    " ON b.id = a.id AND b.at > now() - interval '2 days'",
    "parts": "SELECT id, v FROM parted WHERE now() - at < interval '2 days'",
}
"""No row is near the end of a window, so the results do not depend on the second."""


def fill(source, table: str) -> None:
    """Fill a table of more than 8 MB, of which a hundredth is of yesterday."""
    source.execute(
        f"INSERT INTO {table} SELECT i, now() - interval '1 year' * (i % 100 > 0)::int"
        f" - interval '1 hour', i % 7, '' FROM generate_series(1, {ROWS}) i"
    )


def rows_kept(commander, name: str) -> int:
    """Return the number of rows that the sources of a view keep."""
    rows = commander.execute(
        "SELECT sum(state_rows) FROM headrace.view_stats(%s) WHERE node LIKE 'source%%'", (name,)
    )
    return rows.fetchone()[0]


def test_rows_from_before_the_window(source, commander):
    columns = (
        "(id int, at timestamptz, v int, filler char(500) NOT NULL DEFAULT '', PRIMARY KEY (id))"
    )
    source.execute(f"CREATE TABLE readings {columns}")
    source.execute(f"CREATE TABLE parted {columns} PARTITION BY RANGE (id)")
    source.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (9000)")
    source.execute("CREATE TABLE parted_2 PARTITION OF parted DEFAULT")
    source.execute("CREATE TABLE places (id int PRIMARY KEY)")
    source.execute("INSERT INTO places SELECT generate_series(90, 210)")
    for table in ("readings", "parted"):
        fill(source, table)
    create_marker(source, commander)
    for name, query in QUERIES.items():
        commander.execute("CALL headrace.create_view(%s, %s)", (name, query))
    check(source, QUERIES, "created")
    for name in QUERIES:
        assert 0 < rows_kept(commander, name) < ROWS / 50, name
    for number, statement in enumerate(
        (
            "UPDATE {0} SET v = v + 1 WHERE id BETWEEN 95 AND 205",  # old and new rows
            "UPDATE {0} SET at = now() - interval '1 hour' WHERE id BETWEEN 101 AND 110",
            "UPDATE {0} SET at = now() - interval '1 year' WHERE id BETWEEN 105 AND 200",
            "DELETE FROM {0} WHERE id % 50 < 3",
            "UPDATE {0} SET id = id + 100000 WHERE id BETWEEN 95 AND 105",
            "INSERT INTO {0} SELECT i, now() - interval '1 year', 1 FROM generate_series(50000, 50009) i",
            "UPDATE {0} SET at = now() - interval '1 minute' WHERE id >= 50000",
            "UPDATE {0} SET at = NULL WHERE id IN (50001, 100, 11)",
            "UPDATE {0} SET at = now() WHERE id IN (50001, 100, 11)",
        )
    ):
        commit(source, [statement.format(table) for table in ("readings", "parted")])
        check(source, QUERIES, f"{number}: {statement}")
    for name in QUERIES:
        rows = commander.execute(f"SELECT * FROM headrace.verify_view('{name}')").fetchall()
        assert rows == [], name
