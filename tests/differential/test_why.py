"""``why``: Postgres computes the same result row over the rows that it returns, and over no fewer."""

from __future__ import annotations

import json
import math
import os
import re
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.types.json import set_json_loads

from tests.amounts import seeds
from tests.compared import create_view
from tests.differential.generate import POOLS, Generator
from tests.differential.shapes import Shapes

SEED = int(os.environ.get("HEADRACE_DIFF_SEED", "1"))
SCHEMAS = 1
MORE_SCHEMAS = 19
MORE_SHAPES = 99
VIEWS = 8
SHAPES = 12
ROWS = 2
MOST = 1000
Contents = dict[str, Any]
NESTED_MAX = 3
"""Most SELECTs in a query that is computed again: inner groups that are kept in part give other rows."""
DEPENDS = re.compile(
    r"\bOVER\b|\bOFFSET\b|\bALL\b(?<!UNION ALL)|\bGROUPING SETS\b|\bCUBE\b|\bROLLUP\b"
    r"|\bARRAY\("
)
"""Results that depend on rows from which they do not follow: neighbours, rows to skip or subtract,
rows that a subquery drops, so that it is empty."""


@pytest.mark.parametrize("seed", seeds(SEED, SCHEMAS + MORE_SCHEMAS, SCHEMAS))
def test_the_rows_that_why_returns_give_the_result(seed, source, commander):
    generator = Generator(seed)
    for conn in (source, commander):  # numerics have more digits than floats
        set_json_loads(partial(json.loads, parse_float=Decimal), conn)
    for statement in generator.ddl():
        source.execute(statement)
    for table in generator.tables:
        source.execute(generator.insert(table, 15))
    made = 0
    while made < VIEWS:
        query = generator.query()
        try:
            source.execute(query)
        except psycopg.errors.DataError:
            continue  # Postgres itself cannot run it on this data
        create_view(commander, f"v{made}", query)
        check(source, commander, generator, f"v{made}", query)
        made += 1


@pytest.mark.parametrize("seed", seeds(SEED, SCHEMAS + MORE_SHAPES, SCHEMAS))
def test_the_rows_of_every_construct(seed, source, commander):
    generator = Shapes(seed)
    for conn in (source, commander):
        set_json_loads(partial(json.loads, parse_float=Decimal), conn)
    for statement in generator.ddl():
        source.execute(statement)
    for table in generator.tables:
        source.execute(generator.insert(table, 12))
    for number in range(SHAPES):
        query, _ = generator.shape(number)
        try:
            source.execute(query)
            create_view(commander, f"v{number}", query)
        except (psycopg.errors.DataError, psycopg.errors.FeatureNotSupported):
            continue
        check(source, commander, generator, f"v{number}", query)


def check(source, commander, generator: Generator, view: str, query: str) -> None:
    rows = source.execute(f"SELECT to_jsonb(t) FROM {view} t ORDER BY t::text").fetchall()
    for (row,) in generator.rng.sample(rows, min(ROWS, len(rows))):
        columns = generator.rng.sample(list(row), generator.rng.randint(1, len(row)))
        key = {name: row[name] for name in columns}
        told = f"{query}\nkey {key}"
        results, found = explained(commander, view, key)
        having = source.execute(
            f"SELECT to_jsonb(t) FROM {view} t WHERE NOT EXISTS (SELECT FROM jsonb_each(%s) k"
            " WHERE to_jsonb(t) -> k.key IS DISTINCT FROM k.value)",
            (dumps(key),),
        ).fetchall()
        assert any(same(row, result) for result in results), told
        assert alike(results, [r for (r,) in having]), f"{told}\n{results}\n{having}"
        if DEPENDS.search(query) or query.count("SELECT") > NESTED_MAX:
            continue
        with kept(source, generator, found):
            again = [r for (r,) in source.execute(f"SELECT to_jsonb(t) FROM ({query}) t")]
        for result in results:
            assert any(same(result, other) for other in again), f"{told}\n{result}\n{found}"
        absent = {**row, columns[0]: other_value(row[columns[0]])}
        reasons = commander.execute(
            "SELECT * FROM headrace.why_not(%s, %s)", (view, dumps(key))
        ).fetchall()
        assert [r[4] for r in reasons] == ["the view has such a row"], told
        if absent[columns[0]] is not None:
            reasons = commander.execute(
                "SELECT * FROM headrace.why_not(%s, %s)", (view, dumps(absent))
            ).fetchall()
            assert reasons and all(r[1] for r in reasons), f"{told}\n{absent}\n{reasons}"


def explained(commander, view: str, key: Contents) -> tuple[list[Contents], list[tuple]]:
    """Return the result rows and the source rows, as (table, contents)."""
    found = commander.execute(
        "SELECT * FROM headrace.why(%s, %s, %s)", (view, dumps(key), MOST)
    ).fetchall()
    assert not [row for row in found if row[4].startswith("more")]
    results = [row[2] for row in found if row[4] == "result" for _ in range(row[3])]
    return results, [(r[1], r[2]) for r in found if r[4] == "source" for _ in range(r[3])]


def alike(some: list[Contents], others: list[Contents]) -> bool:
    """Return whether lists have the same rows, as far as ``same`` tells."""
    left = list(others)
    for one in some:
        place = next((n for n, other in enumerate(left) if same(one, other)), None)
        if place is None:
            return False
        del left[place]
    return not left


class kept:
    """Copies of the tables with nothing but the given rows, first on the search path."""

    def __init__(self, source: psycopg.Connection, generator: Generator, rows: list[tuple]) -> None:
        self._source, self._generator, self._rows = source, generator, rows

    def __enter__(self) -> None:
        source = self._source
        source.execute("BEGIN")
        source.execute("CREATE SCHEMA kept")
        for table in self._generator.tables:
            columns = ", ".join(f"{c} {POOLS[k][0]}" for c, k in table.columns.items())
            source.execute(f"CREATE TABLE kept.{table.name} ({columns})")
        for table, contents in self._rows:
            name = re.fullmatch(r"public\.(t\d+)(_.*)?", table)[1]
            source.execute(
                f"INSERT INTO kept.{name}"
                f" SELECT * FROM jsonb_populate_record(NULL::kept.{name}, %s)",
                (dumps(contents),),
            )
        source.execute("SET LOCAL search_path = kept, public")

    def __exit__(self, *_: object) -> None:
        self._source.execute("ROLLBACK")


def dumps(value: Any) -> str:
    """Return JSON with all digits of Decimals."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {dumps(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dumps, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def same(one: Any, other: Any) -> bool:
    """Return whether JSON values are equal, floats as far as sums in another order are."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, Decimal | int) and isinstance(other, Decimal | int):
        return one == other or math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def other_value(value: Any) -> Any:
    """Return a value of the type that no table has; None: it is not easily made."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return 31_000
    return None
