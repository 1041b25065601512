"""Random schemas, queries and transactions: the result table equals the query at every txid.

``make test`` runs one schema of 20 views, ``make test-all`` 40. ``HEADRACE_DIFF_SCHEMAS`` and
``HEADRACE_DIFF_SEED`` change the number of schemas and the first seed. A failure prints the seed,
the query and the rows that differ.
"""

from __future__ import annotations

import os

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import create_view, follow
from tests.differential.generate import Generator
from tests.waiting import create_marker

SCHEMAS = int(os.environ.get("HEADRACE_DIFF_SCHEMAS", "1"))
SEED = int(os.environ.get("HEADRACE_DIFF_SEED", "1"))
MORE_SCHEMAS = 39
VIEWS = 20
TRANSACTIONS = 10


def create_views(commander, source, generator) -> dict[str, str]:
    """Create ``VIEWS`` views; everything the generator makes is in the supported subset."""
    views = {}
    while len(views) < VIEWS:
        query, name = generator.query(), f"v{len(views)}"
        try:
            source.execute(query)
        except psycopg.errors.DataError:
            continue  # Postgres itself cannot run it on this data
        create_view(commander, name, query)
        views[name] = query
    return views


@pytest.mark.parametrize("seed", seeds(SEED, SCHEMAS + MORE_SCHEMAS, SCHEMAS))
def test_view_equals_query_after_every_transaction(seed, source, commander):
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
    transactions = (generator.transaction() for _ in range(TRANSACTIONS))
    follow(source, views, transactions, f"seed {seed}")
