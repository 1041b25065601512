"""Rows whose expressions fail, in queries that Postgres answers because it never evaluates them."""

from __future__ import annotations

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import create_view, difference, follow, multiset, numbered, status_of
from tests.differential import failing
from tests.waiting import bump, create_marker, wait_until

DDL = """
    CREATE TABLE e (id int PRIMARY KEY, v float8, t text, n int, jb jsonb);
    CREATE TABLE j (id int PRIMARY KEY, g int, key text);
"""
ROOT = "SELECT id, sqrt(v) AS x FROM e"
CAST = "SELECT id, t::int AS x FROM e"
FAILED = (psycopg.DataError, psycopg.errors.CardinalityViolation)
QUERIES = (
    f"SELECT j.id, s.x FROM ({ROOT}) s JOIN j ON j.id = s.id",
    f"SELECT j.id, s.x FROM ({CAST}) s JOIN j ON j.id = s.id",
    f"SELECT j.id, s.x FROM j LEFT JOIN ({ROOT}) s ON j.id = s.id",
    f"SELECT j.id, s.x FROM j LEFT JOIN ({CAST}) s ON j.id = s.id",
    f"SELECT j.id, s.x FROM ({ROOT}) s RIGHT JOIN j ON j.id = s.id",
    f"SELECT j.g, sum(s.x) AS x FROM ({ROOT}) s JOIN j ON j.id = s.id GROUP BY j.g",
    f"SELECT s.x, count(*) AS c FROM ({CAST}) s JOIN j ON j.id = s.id GROUP BY s.x",
    f"WITH s AS ({ROOT}) SELECT j.id, s.x FROM s JOIN j ON j.id = s.id",
    "SELECT id, CASE WHEN v >= 0 THEN s.x END AS x FROM (SELECT id, v, sqrt(v) AS x FROM e) s",
    "SELECT id, CASE WHEN t ~ '^[0-9]+$' THEN s.x END AS x FROM"
    " (SELECT id, t, t::int AS x FROM e) s",
    "SELECT j.id, s.x FROM (SELECT id, 1 / n AS x FROM e) s JOIN j ON j.id = s.id",
    "SELECT j.id, s.x FROM (SELECT id, (jb ->> 'a')::int AS x FROM e) s JOIN j ON j.id = s.id",
    f"SELECT j.id, s.x FROM ({CAST}) s JOIN j ON j.id = s.id AND s.x > j.g",
    f"SELECT j.id, s.x, rank() OVER (ORDER BY s.x) AS r FROM ({ROOT}) s JOIN j ON j.id = s.id",
    f"SELECT j.id, s.y FROM (SELECT id, x + 1 AS y FROM ({ROOT}) i) s JOIN j ON j.id = s.id",
    f"SELECT j.id, (SELECT x FROM ({ROOT}) s WHERE s.id = j.id) AS x FROM j",
    "SELECT j.g, sum(s.x) FILTER (WHERE s.v >= 0) AS x FROM"
    " (SELECT id, v, sqrt(v) AS x FROM e) s LEFT JOIN j ON true GROUP BY j.g",
    "SELECT id, sum(s.x) FILTER (WHERE s.v >= 0) OVER () AS x FROM"
    " (SELECT id, v, sqrt(v) AS x FROM e) s",
    "SELECT id, sum(2 * s.x) FILTER (WHERE s.v >= 0) OVER () AS x FROM"
    " (SELECT id, v, sqrt(v) AS x FROM e) s",
    "SELECT s.id FROM (SELECT id, v, sqrt(v) AS x FROM e) s WHERE v < 0 OR s.x > 1",
    f"SELECT j.id, s.x FROM ({CAST}) s JOIN j ON j.id = s.id ORDER BY 1 LIMIT 2",
    f"SELECT id, x FROM ({ROOT}) s WHERE id < 5 ORDER BY id LIMIT 2",
    "SELECT id, n * 1000000000 + NULL::int AS x FROM e",
    "SELECT s.id, s.x + s.z AS x FROM (SELECT id, 1 / n AS x, NULL::int AS z FROM e) s",
    "SELECT s.id, CASE WHEN s.f THEN s.x ELSE 2 END AS x FROM"
    " (SELECT id, 1 / n AS x, false AS f FROM e) s LEFT JOIN j ON j.id = s.id",
    "SELECT s.id, i.y FROM (SELECT id, 1 / n AS x, NULL::int AS z FROM e) s JOIN"
    " (SELECT id, t::int AS y, true AS f FROM e) i ON i.id = s.id AND (i.f OR s.x > 1)"
    " JOIN j ON j.id = s.id",
)


def test_rows_that_are_not_evaluated(source, commander):
    source.execute(DDL)
    create_marker(source, commander)
    source.execute(
        "INSERT INTO e VALUES (1, 4, '4', 1, '{\"a\": 1}'), (2, 9, '9', 2, '{}'),"
        " (8, -1, 'bad', 0, '{\"a\": \"z\"}'), (9, NULL, NULL, NULL, NULL)"
    )
    source.execute("INSERT INTO j VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c'), (9, 2, 'd')")
    views = numbered(QUERIES)
    for name, query in views.items():
        create_view(commander, name, query)
    changes = [
        ["INSERT INTO e VALUES (7, -2, 'worse', 0, '{\"a\": []}')"],
        ["INSERT INTO e VALUES (3, 16, '16', 3, '{\"a\": 3}')", "UPDATE e SET v = -4 WHERE id = 8"],
        ["UPDATE e SET v = 1, t = '1', n = 1, jb = '{}' WHERE id = 7", "INSERT INTO j VALUES (7)"],
        [
            "DELETE FROM j WHERE id = 7",
            "UPDATE e SET v = -9, t = 'x', n = 0, jb = '{\"a\": 0.5}' WHERE id = 7",
        ],
        ["DELETE FROM e WHERE v < 0", "DELETE FROM j WHERE g = 2"],
    ]
    follow(source, views, changes, "failing rows")


@pytest.mark.parametrize("seed", seeds(0, 40))
def test_random_queries_answer_where_postgres_does(seed, source, commander):
    source.execute(failing.DDL)
    create_marker(source, commander)
    made = failing.Queries(seed)
    for _ in range(25):
        source.execute(made.statement())
    pairs = {f"v{i}": pair for i, pair in enumerate(made.pair() for _ in range(12))}
    shown = {}
    for name, pair in pairs.items():
        try:
            create_view(commander, name, pair.query)
        except FAILED:
            assert not answers(source, pair.query), f"seed {seed}: {pair.query}"
            continue
        shown[name] = pair
    assert shown
    for number in range(5):
        statements = [made.statement() for _ in range(3)]
        with source.transaction():
            for statement in statements:
                source.execute(statement)
            marker = bump(source)
        # A view may have stopped: ``wait_for`` would fail.
        wait_until(
            lambda m=marker: source.execute("TABLE marker_view").fetchone()[0] >= m,
            f"views cover marker {marker}",
        )
        for name, pair in list(shown.items()):
            where = f"seed {seed}, transaction {number}: {statements}\n{name}: {pair.query}"
            status, sqlstate, message = status_of(source, name)
            if status != "running":
                assert not answers(source, pair.query), f"{where}\n{sqlstate} {message}"
                del shown[name]
                continue
            want, got = multiset(source, pair.safe), multiset(source, f"SELECT * FROM {name}")
            assert want == got, f"{where}\n{difference(want, got)}"


PLANS = ((), ("hashjoin", "mergejoin", "seqscan"), ("hashjoin", "nestloop"))
"""Plan types that are disabled while Postgres plans a query."""


def answers(source, query):
    """Return whether Postgres answers the query on the current rows in one of several plans."""
    return any(answers_without(source, query, off) for off in PLANS)


def answers_without(source, query, off):
    with source.transaction(force_rollback=True):
        for name in off:
            source.execute(f"SET LOCAL enable_{name} = off")
        try:
            with source.transaction():
                source.execute(query)
        except FAILED:
            return False
    return True
