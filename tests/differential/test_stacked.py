"""Chains of random views: each level reads the views below, with ``first_rows`` = ``views``.

The expected rows are those of the whole query in Postgres, with the queries of all views below as
WITH queries. ``HEADRACE_STACKED_SEED`` changes the first seed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from headrace.embedded.engine import EmbeddedEngine
from tests import spread
from tests.amounts import seeds
from tests.compared import check, commit, difference, multiset, status_of
from tests.differential.generate import Generator, Table
from tests.waiting import create_marker, wait_until

SEED = int(os.environ.get("HEADRACE_STACKED_SEED", "1"))
SEEDS = 24
LEVELS = 4
VIEWS = 3
"""Views of a level."""
STEPS = 12

KINDS = {
    "int4": "int", "int2": "small", "int8": "big", "text": "text", "varchar": "vchar", "bpchar": "char",
    "numeric": "num", "bool": "bool", "date": "date", "timestamp": "stamp", "timestamptz": "stamptz",
    "uuid": "uuid", "bytea": "bytea", "jsonb": "json", "time": "time", "timetz": "timetz",
    "interval": "span", "inet": "inet", "bit": "bits", "name": "name", "money": "money",
    "int4range": "range", "_text": "words", "_int4": "ints",
}  # fmt: skip
"""Kinds of columns by type; without floats, whose last digits a query leaves open."""


class Chain(Generator):
    """Queries over tables and views, and the whole queries that they stand for."""

    def __init__(self, seed: int, source: psycopg.Connection) -> None:
        super().__init__(seed)
        self.base = self.tables
        self.source = source
        self.queries: dict[str, str] = {}
        self.below: dict[str, set[str]] = {}
        """By view: the views that it reads."""

    def transaction(self) -> list[str]:
        tables, self.tables = self.tables, self.base
        made = super().transaction()
        self.tables = tables
        return made

    def whole(self, name: str) -> str:
        """Return the query of a view over tables only."""
        needed = self.reads(name)
        parts = ", ".join(f"{n} AS ({self.queries[n]})" for n in needed[:-1])
        last = f"SELECT * FROM ({self.queries[name]}) whole"
        return f"WITH {parts} {last}" if parts else last

    def reads(self, name: str) -> list[str]:
        """Return a view and all views below it, each after those that it reads."""
        needed: list[str] = []
        left = [name] if name in self.queries else []
        while left:
            view = left.pop()
            needed = [view, *(n for n in needed if n != view)]
            left += sorted(self.below[view])
        return needed

    @property
    def wholes(self) -> dict[str, str]:
        """The whole query of each view."""
        return {name: self.whole(name) for name in self.queries}

    def level(self, tables: list[Table]) -> Iterator[tuple[str, str]]:
        """Yield names and queries over ``tables`` that Postgres can run."""
        self.tables = tables
        made = 0
        while made < VIEWS:
            # Kills count by name, and an engine may serve several tests.
            name = f"s{self._seed}v{len(self.queries)}"
            try:
                query = self.query()
                self.source.execute(f"SELECT * FROM ({query}) x LIMIT 0")
                self.source.execute(query)
            except (IndexError, psycopg.errors.DataError, psycopg.errors.ProgrammingError):
                continue  # a view may lack the column that the query needs
            names = set(re.findall(r"\w+", query))
            self.below[name] = {
                t.name for t in tables if t.name in self.queries and t.name in names
            }
            self.queries[name] = query
            made += 1
            yield name, query

    def table_of(self, name: str) -> Table | None:
        """Return a view as a table of the next level; None if it has no usable column."""
        rows = self.source.execute(
            "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
            " WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum",
            (name,),
        ).fetchall()
        columns = {column: KINDS[kind] for column, kind in rows if kind in KINDS}
        return Table(name, columns, "full") if columns else None


def create(commander, name: str, query: str, **options: object) -> None:
    given = json.dumps({"first_rows": "views"} | options)
    commander.execute("CALL headrace.create_view(%s, %s, %s)", (name, query, given))


def check_stacked(source) -> None:
    """Check that some plan is stacked on others."""
    found = source.execute("SELECT FROM headrace.views WHERE plan ? 'filled'")
    assert found.rowcount or spread.WANTED, "no view is stacked"


def build(chain: Chain, commander, source) -> None:
    """Create the levels, with changes between."""
    for statement in chain.ddl():
        source.execute(statement)
    for table in chain.base:
        source.execute(chain.insert(table, 15))
    create_marker(source, commander)
    tables = chain.base
    for _ in range(LEVELS):
        names = []
        for name, query in chain.level(tables):
            create(commander, name, query)
            names.append(name)
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                commit(source, chain.transaction())
        found = [t for t in map(chain.table_of, names) if t is not None]
        # A view of this level and of the one below, and sometimes a table.
        kept = chain.rng.sample(tables, 1) if chain.rng.random() < 0.6 else []
        tables = [*found, *kept] or chain.base


def verify(conn: psycopg.Connection, chain: Chain) -> None:
    """Verify each view; one that is being filled anew is waited for."""

    def verified(name: str) -> bool:
        try:
            found = conn.execute("SELECT * FROM headrace.verify_view(%s)", (name,)).fetchall()
        except psycopg.errors.FeatureNotSupported:
            return True  # it calls a function that shows an order, for example
        except psycopg.errors.ObjectNotInPrerequisiteState:
            return False
        assert found == [], name
        return True

    for name in chain.queries:
        wait_until(lambda n=name: verified(n), f"{name} is verified", 120)


@pytest.mark.parametrize("seed", seeds(SEED, SEEDS, 2))
def test_chains_equal_their_queries(seed, source, commander):
    chain = Chain(seed, source)
    build(chain, commander, source)
    check_stacked(source)
    for number in range(STEPS):
        statements = chain.transaction()
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            commit(source, statements)
        check(source, chain.wholes, f"seed {seed}, transaction {number}: {statements}")
    verify(commander, chain)
    # In the opposite order of their creation.
    for name in reversed(list(chain.queries)):
        commander.execute("CALL headrace.drop_view(%s)", (name,))
        del chain.queries[name]
        with contextlib.suppress(psycopg.errors.UniqueViolation):
            commit(source, chain.transaction())
        check(source, chain.wholes, f"seed {seed}, without {name}")


class History:
    """Random acts on the views of a chain, between random transactions."""

    def __init__(self, seed: int, engine: EmbeddedEngine, source: psycopg.Connection) -> None:
        self.rng = random.Random(seed)
        self.engine = engine
        self.source = source
        self.chain = Chain(seed, source)
        with self.connected() as conn:
            build(self.chain, conn, source)

    def connected(self) -> psycopg.Connection:
        return psycopg.connect(self.engine.dsn, autocommit=True, prepare_threshold=None)

    def call(self, verb: str, *values: str) -> None:
        """Make a call, again while another job uses the view."""
        marks = ", ".join(["%s"] * len(values))

        def called() -> bool:
            try:
                conn.execute(f"CALL headrace.{verb}({marks})", values)
            except psycopg.errors.ObjectInUse:
                return False
            return True

        with self.connected() as conn:
            wait_until(called, f"{verb} {values}", 60)

    def ids(self) -> dict[str, int]:
        """Return the IDs of the running views."""
        rows = self.source.execute(
            "SELECT view_name, id FROM headrace.views WHERE status = 'running'"
        ).fetchall()
        return dict(rows)

    def renewed(self, had: dict[str, int]) -> bool:
        """Return whether these views run again, filled anew."""
        now = self.ids()
        return had.keys() <= now.keys() and not had.items() & now.items()

    def change(self) -> None:
        with contextlib.suppress(psycopg.errors.UniqueViolation), self.source.transaction():
            for statement in self.chain.transaction():
                self.source.execute(statement)

    def wait(self, but: str | None = None) -> None:
        """Wait until all views run, or a kill would be taken for one by their population."""
        for name in self.chain.queries:
            if name != but:
                runs = partial(self.runs, name)
                wait_until(runs, f"{name} runs", 120)

    def runs(self, name: str) -> bool:
        return status_of(self.source, name)[0] == "running"

    def kill(self, name: str) -> None:
        """Kill the engine; ``name``: a view that may be paused."""
        self.wait(but=name)
        self.engine.kill9()
        self.change()
        self.engine.restart()

    def pause(self, name: str) -> None:
        """Pause a view; the others go on, also after a kill."""
        self.wait()
        self.call("pause_view", name)
        self.change()
        self.compare(f"{name} is paused", but=name)
        if self.rng.random() < 0.5:
            self.kill(name)
        self.call("resume_view", name)

    def resync(self, name: str) -> None:
        for _ in range(self.rng.choice((1, 1, 2))):
            self.call("resync_view", name)
            self.change()

    def alter(self, name: str) -> None:
        first = self.source.execute(f"SELECT * FROM {name} LIMIT 0").description
        assert first is not None
        query = f"SELECT * FROM ({self.chain.queries[name]}) a WHERE {first[0].name} IS NOT NULL"
        self.wait()
        above = {n: i for n, i in self.ids().items() if name in self.chain.reads(n)}
        self.call("alter_view", name, query)
        self.chain.queries[name] = query
        # A kill while they are filled anew would count as one by their population.
        wait_until(lambda: self.renewed(above), f"the views above {name} are filled anew", 120)

    def compare(self, where: str, but: str | None = None) -> None:
        """Wait until all views equal their queries; they may be filled anew before."""
        for name, whole in self.chain.wholes.items():
            if name == but:
                continue
            want = multiset(self.source, whole)
            rows = f"SELECT * FROM {name}"
            try:
                wait_until(lambda r=rows, w=want: multiset(self.source, r) == w, "it is equal", 90)
            except AssertionError:
                said = difference(want, multiset(self.source, rows))
                state = status_of(self.source, name)
                text = f"{where}\n{name} {state}: {self.chain.queries[name]}\n{said}"
                raise AssertionError(text) from None


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(SEED, SEEDS, 0))
def test_chains_while_the_views_below_change(seed, engine, source):
    history = History(seed, engine, source)
    check_stacked(source)
    acts = (
        history.pause,
        history.pause,
        history.resync,
        history.resync,
        history.alter,
        history.kill,
    )
    for number in range(STEPS):
        act, name = history.rng.choice(acts), history.rng.choice(list(history.chain.queries))
        history.change()
        act(name)
        history.change()
        history.compare(f"seed {seed}, step {number}: {act.__name__} {name}")
    with history.connected() as conn:
        verify(conn, history.chain)
        for name in reversed(list(history.chain.queries)):
            conn.execute("CALL headrace.drop_view(%s)", (name,))
            history.change()
