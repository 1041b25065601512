"""Random schemas, queries and transactions: the result table equals the query at every txid.

``make test`` runs 16 schemas of 20 views, ``make test-all`` 40.  ``HEADRACE_DIFF_SCHEMAS`` and
``HEADRACE_DIFF_SEED`` change how many run and where the seeds start; a failure prints the seed, the
query and the rows that differ.
"""

from __future__ import annotations

import os
from collections import Counter

import psycopg
import pytest

from tests.differential.generate import Generator
from tests.waiting import bump, create_marker, wait_for

SCHEMAS = int(os.environ.get("HEADRACE_DIFF_SCHEMAS", "16"))
SEED = int(os.environ.get("HEADRACE_DIFF_SEED", "1"))
MORE_SCHEMAS = 24
VIEWS = 20
TRANSACTIONS = 10
FLOAT_OIDS = {700, 701}


def multiset(conn: psycopg.Connection, sql: str) -> Counter[tuple[str | None, ...]]:
    """Rows of ``sql`` as text; floats at 12 digits, since their sums depend on the order."""
    result = conn.execute(sql).pgresult
    assert result is not None
    out: Counter[tuple[str | None, ...]] = Counter()
    for i in range(result.ntuples):
        row: list[str | None] = []
        for j in range(result.nfields):
            value = result.get_value(i, j)
            text = None if value is None else value.decode()
            if text is not None and result.ftype(j) in FLOAT_OIDS:
                text = f"{float(text):.12g}"
            row.append(text)
        out[tuple(row)] += 1
    return out


def difference(want: Counter, got: Counter) -> str:
    missing, extra = list((want - got).items())[:5], list((got - want).items())[:5]
    return f"missing {missing}\nextra {extra}"


@pytest.fixture
def engine(shared_engine):
    return shared_engine


@pytest.fixture
def source(engine):
    with psycopg.connect(
        engine.source, autocommit=True, prepare_threshold=None
    ) as conn:
        conn.execute("SET timezone = 'UTC'")
        conn.execute("SET extra_float_digits = 1")
        yield conn


@pytest.fixture
def commander(engine):
    with psycopg.connect(engine.dsn, autocommit=True, prepare_threshold=None) as conn:
        yield conn


def create_views(commander, source, generator) -> dict[str, str]:
    """Create ``VIEWS`` views; everything the generator makes is in the supported subset."""
    views = {}
    while len(views) < VIEWS:
        query, name = generator.query(), f"v{len(views)}"
        try:
            source.execute(query)
        except psycopg.errors.DataError:
            continue  # Postgres itself cannot run it on this data
        commander.execute(f"CALL headrace.create_view('{name}', $q${query}$q$)")
        views[name] = query
    return views


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEMAS))
def test_view_equals_query_after_every_transaction(seed, source, commander):
    run(seed, source, commander)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED + SCHEMAS, SEED + SCHEMAS + MORE_SCHEMAS))
def test_more_views_equal_their_queries(seed, source, commander):
    run(seed, source, commander)


def run(seed, source, commander):
    generator = Generator(seed)
    for statement in generator.ddl():
        source.execute(statement)
    for table in generator.tables:
        if generator.rng.random() < 0.85:
            source.execute(generator.insert(table, 15))
    create_marker(source, commander)
    views = create_views(commander, source, generator)
    check(source, views, f"seed {seed}, population")
    for number in range(TRANSACTIONS):
        statements = generator.transaction()
        with source.transaction():
            for statement in statements:
                source.execute(statement)
            number_of_marker = bump(source)
        wait_for(source, number_of_marker)
        check(source, views, f"seed {seed}, transaction {number}: {statements}")


def check(source, views: dict[str, str], where: str) -> None:
    for name, query in views.items():
        want = multiset(source, query)
        got = multiset(source, f"SELECT * FROM {name}")
        assert want == got, f"{where}\n{name}: {query}\n{difference(want, got)}"
