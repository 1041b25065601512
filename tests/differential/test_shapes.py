"""Random shapes of queries: the result table equals the query after every transaction.

``make test`` runs 2 schemas of 25 queries, ``make test-all`` 800. ``HEADRACE_SHAPES`` and
``HEADRACE_SHAPES_SEED`` change the number of schemas and the first seed. A failure prints the seed,
the query's number and text, the statements that ran, and the rows that differ. Queries that
create_view refuses are counted by reason; more than 3 % are a failure.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import create_view, difference, multiset
from tests.differential.shapes import Shapes
from tests.waiting import bump, create_marker, wait_until

SCHEMAS = int(os.environ.get("HEADRACE_SHAPES", "1"))
SEED = int(os.environ.get("HEADRACE_SHAPES_SEED", "1"))
MORE_SCHEMAS = 799
QUERIES = 25
TRANSACTIONS = 5
ROWS_MAX = 2000
REFUSED_MAX = 0.03

REFUSED: Counter[str] = Counter()
MADE: Counter[str] = Counter()


@dataclass
class Outcome:
    """The outcome of one schema."""

    made: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Refused queries by reason."""
    examples: dict[str, str] = field(default_factory=dict)
    """A query refused for that reason."""
    wrong: list[str] = field(default_factory=list)


@pytest.mark.parametrize("seed", seeds(SEED, SCHEMAS + MORE_SCHEMAS, SCHEMAS))
def test_shapes(seed, source, commander):
    judge(run(seed, source, commander))


def test_few_shapes_are_refused():
    """Runs after the other tests; a failure lists the reasons."""
    refused, made = REFUSED.total(), MADE.total()
    print(f"{refused} refused of {refused + made}: {REFUSED.most_common()}")
    assert refused <= REFUSED_MAX * (refused + made), REFUSED.most_common()


def judge(outcome: Outcome) -> None:
    """Count refused queries; fail for wrong results."""
    REFUSED.update(outcome.refused)
    MADE["made"] += outcome.made
    assert not outcome.wrong, "\n\n".join(outcome.wrong)


def run(seed: int, source, commander, only: set[int] | None = None) -> Outcome:
    """Run one schema: its views (``only`` those numbers), then its transactions."""
    shapes, outcome = Shapes(seed), Outcome()
    setup = shapes.ddl()
    for table in shapes.tables:
        if shapes.rng.random() < 0.85:
            setup.append(shapes.insert(table, 12))
    for statement in setup:
        source.execute(statement)
    create_marker(source, commander)
    source.execute("SET statement_timeout = '5s'")
    views: dict[str, str] = {}
    shown: list[tuple[str, list[str]]] = []
    for number in range(QUERIES):
        if only is None or number in only:
            query, kinds = shapes.shape(number, shown)
            name = f"v{number}"
            if create(source, commander, name, query, outcome):
                views[name] = query
                shown.append((name, kinds))
    outcome.made = len(views)
    made = list(views)
    follow(source, shapes, views, f"seed {seed}", setup, outcome)
    for name in reversed(made):  # later ones may read earlier ones
        commander.execute(f"CALL headrace.drop_view('{name}')")
    return outcome


def follow(source, shapes, views, where, setup, outcome) -> None:
    """Compare ``views`` now and after each of some transactions."""
    done = [*setup]
    check(source, views, f"{where}, population", done, outcome)
    for number in range(TRANSACTIONS):
        statements = shapes.transaction()
        with source.transaction():
            for statement in statements:
                source.execute(statement)
            marker = bump(source)
        done.append("; ".join(["BEGIN", *statements, "COMMIT"]))
        wait_until_covered(source, marker, views, done, outcome)
        check(source, views, f"{where}, transaction {number}", done, outcome)


def create(source, commander, name, query, outcome) -> bool:
    """Create the view, or count why not."""
    try:
        result = source.execute(query).pgresult
        if result.ntuples > ROWS_MAX:
            return False
    except psycopg.errors.QueryCanceled:
        return False
    try:
        create_view(commander, name, query)
    except psycopg.errors.FeatureNotSupported as error:
        reason = re.sub(r"[a-z]*x\d+\w*|\(.*\)|\d+", "…", str(error).splitlines()[0])
        outcome.refused[reason] += 1
        outcome.examples.setdefault(reason, query)
    except psycopg.Error as error:
        outcome.wrong.append(f"{name}: {query}\ncreate_view: {error}")
    else:
        return True
    return False


def check(source, views, where, done, outcome) -> None:
    """Compare every view; one that is wrong is reported and left out from now on."""
    for name, query in list(views.items()):
        try:
            want = multiset(source, query)
        except psycopg.errors.QueryCanceled:
            del views[name]
            continue
        got = multiset(source, f"SELECT * FROM {name}")
        if want != got:
            del views[name]
            history = "\n".join(done)
            outcome.wrong.append(f"{where}\n{name}: {query}\n{difference(want, got)}\n{history}")


def wait_until_covered(source, marker, views, done, outcome) -> None:
    """Wait until views cover ``marker``; report stopped views and leave them out."""
    shown = "SELECT n FROM marker_view"
    wait_until(
        lambda: source.execute(shown).fetchone() >= (marker,),
        f"views cover marker {marker}",
        every_s=0.003,
    )
    for name, status, message in source.execute(
        "SELECT view_name, status, headrace.view_message(id) FROM headrace.views WHERE status <> 'running'"
    ).fetchall():
        query = views.pop(name.split(".")[-1], None)
        if query is not None:
            history = "\n".join(done)
            outcome.wrong.append(f"{name}: {query}\n{status}: {message}\n{history}")
