"""Every expression of ``expressions.py`` over rows of odd values, compared with Postgres.

Each view shows a few expressions; it must equal its query after every transaction.
"""

from __future__ import annotations

import random

import psycopg
import pytest

from tests.compared import check
from tests.differential.expressions import CASES, DDL, change, insert
from tests.waiting import bump, create_marker, wait_for

PER_VIEW = 10
TRANSACTIONS = 5
SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_expressions_equal_postgres(shard, source, commander):
    rng = random.Random(shard)
    source.execute(DDL)
    source.execute(insert(rng, range(1, 25)))
    views = create_views(source, commander, CASES[shard::SHARDS])
    create_marker(source, commander)
    check(source, views, "population")
    statements = [
        insert(rng, range(30, 45)),
        change(rng),
        "DELETE FROM t WHERE id % 3 = 0",
        "UPDATE t SET k = NULL, s = NULL, cc = NULL, jb = NULL, tags = NULL WHERE id % 2 = 0",
        "DELETE FROM t",
    ]
    for statement in statements:
        try:
            with source.transaction():
                source.execute(statement)
                for query in views.values():
                    source.execute(query)  # Postgres itself must accept it
                number = bump(source)
        except psycopg.errors.DataError:
            continue
        wait_for(source, number)
        check(source, views, statement)


def create_views(source, commander, cases) -> dict[str, str]:
    """Create views of the expressions that Postgres can evaluate on the current rows."""
    expressions = [e for _, e in cases if evaluates(source, e)]
    assert len(expressions) > len(cases) * 0.7
    views = {}
    for start in range(0, len(expressions), PER_VIEW):
        chunk = expressions[start : start + PER_VIEW]
        columns = ", ".join(f"{e} AS x{i}" for i, e in enumerate(chunk))
        name = f"v{start}"
        views[name] = f"SELECT t.id, {columns} FROM t"
        commander.execute(
            psycopg.sql.SQL("CALL headrace.create_view({}, {})").format(name, views[name])
        )
    return views


def evaluates(source, expression: str) -> bool:
    try:
        source.execute(f"SELECT {expression} FROM t")
    except (
        psycopg.errors.DataError,
        psycopg.errors.IntegrityError,
        psycopg.errors.SyntaxError,
        psycopg.errors.UndefinedFunction,
        psycopg.errors.FeatureNotSupported,
    ):
        return False
    return True
