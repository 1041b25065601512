"""Views with subqueries equal their queries after every transaction."""

from __future__ import annotations

import os

import psycopg
import pytest

from tests.differential.subqueries import DDL, TABLES, Maker
from tests.differential.test_random import check
from tests.waiting import bump, create_marker, wait_for

SEEDS = int(os.environ.get("HEADRACE_SUBQUERY_SEEDS", "3"))
FIRST = int(os.environ.get("HEADRACE_DIFF_SEED", "1"))
VIEWS, TRANSACTIONS = 16, 12


@pytest.fixture
def engine(shared_engine):
    return shared_engine


@pytest.fixture
def source(engine):
    with psycopg.connect(
        engine.source, autocommit=True, prepare_threshold=None
    ) as conn:
        conn.execute("SET timezone = 'UTC'")
        yield conn


@pytest.fixture
def commander(engine):
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_views_equal_their_queries(seed, source, commander):
    maker = Maker(seed)
    for statement in DDL:
        source.execute(statement)
    for table in TABLES:
        source.execute(maker.rows(table, 6))
    create_marker(source, commander)
    views = {}
    for number in range(VIEWS):
        views[f"v{number}"] = query = maker.query()
        commander.execute(f"CALL headrace.create_view('v{number}', $q${query}$q$)")
    check(source, views, f"seed {seed}, population")
    for number in range(TRANSACTIONS):
        statements = [maker.change() for _ in range(maker.rng.randint(1, 4))]
        with source.transaction():
            for statement in statements:
                source.execute(statement)
            marker = bump(source)
        wait_for(source, marker)
        check(source, views, f"seed {seed}, transaction {number}: {statements}")


TWO_ROWS = "SELECT id, (SELECT x FROM db WHERE db.x = da.x) AS v FROM da"
GUARDED = (
    "SELECT id, CASE WHEN y > 1 THEN (SELECT x FROM db WHERE db.x = da.x) END AS v"
    " FROM da"
)


def test_two_rows_of_a_scalar_subquery_are_an_error_only_where_asked(source, commander):
    for statement in DDL:
        source.execute(statement)
    create_marker(source, commander)
    source.execute("INSERT INTO da VALUES (1, 1, 0), (2, 2, 2)")
    source.execute("INSERT INTO db VALUES (1, 1), (2, 2), (3, 7), (4, 7)")
    for name, query in (("v", TWO_ROWS), ("w", GUARDED)):
        commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
    check(source, {"v": TWO_ROWS, "w": GUARDED}, "population")
    with source.transaction():
        # Two rows for a row of da that does not want them: nobody asks.
        source.execute("INSERT INTO db VALUES (5, 1)")
        source.execute("DELETE FROM da WHERE x = 1")
        marker = bump(source)
    wait_for(source, marker)
    check(source, {"v": TWO_ROWS, "w": GUARDED}, "nobody asks")
    commander.execute("CALL headrace.drop_view('v')")
    with source.transaction():
        source.execute("INSERT INTO da VALUES (3, 1, 1)")
        marker = bump(source)
    wait_for(source, marker)
    check(source, {"w": GUARDED}, "guarded")
    with pytest.raises(psycopg.errors.CardinalityViolation):
        source.execute(TWO_ROWS)
    with pytest.raises(psycopg.errors.CardinalityViolation):
        commander.execute(f"CALL headrace.create_view('u', $q${TWO_ROWS}$q$)")
