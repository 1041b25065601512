"""Views with subqueries equal their queries after every transaction."""

from __future__ import annotations

import os

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import check, commit, create_view, follow, numbered
from tests.differential.subqueries import DDL, TABLES, Maker
from tests.waiting import create_marker

SEEDS = int(os.environ.get("HEADRACE_SUBQUERY_SEEDS", "1"))
FIRST = int(os.environ.get("HEADRACE_DIFF_SEED", "1"))
VIEWS, TRANSACTIONS = 16, 12


@pytest.mark.parametrize("seed", seeds(FIRST, SEEDS + 2, SEEDS))
def test_views_equal_their_queries(seed, source, commander):
    maker = Maker(seed)
    for statement in DDL:
        source.execute(statement)
    for table in TABLES:
        source.execute(maker.rows(table, 6))
    create_marker(source, commander)
    makers = (maker.query, maker.placed)
    views = numbered(makers[n % 2]() for n in range(VIEWS))
    for name, query in views.items():
        create_view(commander, name, query)
    transactions = (
        [maker.change() for _ in range(maker.rng.randint(1, 4))] for _ in range(TRANSACTIONS)
    )
    follow(source, views, transactions, f"seed {seed}")


TWO_ROWS = "SELECT id, (SELECT x FROM db WHERE db.x = da.x) AS v FROM da"
GUARDED = "SELECT id, CASE WHEN y > 1 THEN (SELECT x FROM db WHERE db.x = da.x) END AS v FROM da"


def test_two_rows_of_a_scalar_subquery_are_an_error_only_where_asked(source, commander):
    for statement in DDL:
        source.execute(statement)
    create_marker(source, commander)
    source.execute("INSERT INTO da VALUES (1, 1, 0), (2, 2, 2)")
    source.execute("INSERT INTO db VALUES (1, 1), (2, 2), (3, 7), (4, 7)")
    for name, query in (("v", TWO_ROWS), ("w", GUARDED)):
        create_view(commander, name, query)
    check(source, {"v": TWO_ROWS, "w": GUARDED}, "population")
    # Two rows for a row of da that does not need them: no error.
    commit(source, ["INSERT INTO db VALUES (5, 1)", "DELETE FROM da WHERE x = 1"])
    check(source, {"v": TWO_ROWS, "w": GUARDED}, "nobody asks")
    commander.execute("CALL headrace.drop_view('v')")
    commit(source, ["INSERT INTO da VALUES (3, 1, 1)"])
    check(source, {"w": GUARDED}, "guarded")
    with pytest.raises(psycopg.errors.CardinalityViolation):
        source.execute(TWO_ROWS)
    with pytest.raises(psycopg.errors.CardinalityViolation):
        create_view(commander, "u", TWO_ROWS)
