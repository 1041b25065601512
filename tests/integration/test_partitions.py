"""Partitions and children that come and go under views; Postgres says what each must show.

A view that is filled anew gets another id: by it the tests know that a view was not.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import psycopg
import pytest

from tests.amounts import seeds
from tests.compared import differs
from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

ROOT = """
CREATE TABLE {t} (id int NOT NULL, k int NOT NULL, v int, w text, d int GENERATED ALWAYS AS (v * 2)
  STORED, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (0) TO (10);
"""
MORE = "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (10) TO (20);"
REST = "CREATE TABLE {t}_rest PARTITION OF {t} DEFAULT;"
OTHER = "CREATE TABLE {t}_names (k int PRIMARY KEY, name text NOT NULL);"
FILL = """
INSERT INTO {t} (id, k, v, w) SELECT i, i % 10, i, 'w' || i FROM generate_series(1, 40) i;
INSERT INTO {t}_names SELECT i, 'n' || i FROM generate_series(0, 60) i;
"""
QUERIES = {
    "rows": "SELECT id, k, v, w FROM {t}",
    "some": "SELECT id, v + 1 AS more FROM {t} WHERE v > 5 AND k <> 3",
    "sums": "SELECT k, count(*) AS n, sum(v) AS s FROM {t} GROUP BY k",
    "joined": "SELECT t.id, n.name, t.d FROM {t} t JOIN {t}_names n USING (k)",
    "twice": "SELECT a.id, b.v FROM {t} a LEFT JOIN {t} b ON b.id = a.id + 1 AND b.v > 7",
    "united": "SELECT id FROM {t} UNION ALL SELECT k FROM {t}_names",
}


class Views:
    """Views of one test, and the engine's table of them."""

    def __init__(self, commander: psycopg.Connection, source: psycopg.Connection, table: str):
        self.commander = commander
        self.source = source
        self.table = table
        self.queries: dict[str, str] = {}
        self.ids: dict[str, int] = {}

    def create(self, queries: dict[str, str], options: str = '{"sharing": false}') -> None:
        for name, query in queries.items():
            view = f"{self.table}_view_{name}"
            self.queries[view] = query.format(t=self.table)
            call = "CALL headrace.create_view(%s, %s, %s)"
            self.commander.execute(call, (view, self.queries[view], options))
        self.ids = self.now()

    def now(self) -> dict[str, int]:
        rows = self.source.execute(
            "SELECT view_name, id FROM headrace.views WHERE view_name = ANY (%s)",
            (list(self.queries),),
        ).fetchall()
        return dict(rows)

    def run(self, statements: str) -> None:
        self.source.execute(statements.format(t=self.table))

    def are_right(self) -> None:
        for view, query in self.queries.items():
            self.source.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (view,))
            assert not differs(self.source, view, query)

    def come_right(self) -> None:
        """As ``are_right``, where a change is noticed only after a while."""
        for view, query in self.queries.items():
            wait_until(lambda v=view, q=query: self._right(v, q), f"{view} is right")

    def _right(self, view: str, query: str) -> bool:
        with contextlib.suppress(psycopg.errors.ObjectNotInPrerequisiteState):
            self.source.execute("CALL headrace.wait_for(%s, timeout => '90 s')", (view,))
            return not differs(self.source, view, query)
        return False

    def read(self, *members: str) -> bool:
        """Whether all views read these members of the table, and no others."""
        names = [f"{self.table}_{member}" for member in members]
        rows = self.source.execute(
            "SELECT array_agg(t.table_name ORDER BY 1) FILTER (WHERE t.table_name <> %s) = %s"
            " FROM headrace.view_tables t JOIN headrace.views v ON v.id = t.view_id"
            " WHERE v.view_name = ANY (%s) GROUP BY v.id",
            (f"{self.table}_names", sorted(names), list(self.queries)),
        ).fetchall()
        return len(rows) == len(self.queries) and all(row[0] for row in rows)

    def follow(self, statements: str, *members: str) -> None:
        """Alter the table; all views come to read ``members``, and none is filled anew."""
        self.run(statements)
        wait_until(lambda: self.read(*members), f"the views read {members}: {statements}")
        assert self.now() == self.ids
        self.are_right()

    def drop(self) -> None:
        for view in self.queries:
            self.commander.execute("CALL headrace.drop_view(%s, if_exists => true)", (view,))
        self.run("DROP TABLE IF EXISTS {t}, {t}_names CASCADE")


@pytest.fixture
def views(commander, source, request) -> Iterator[Views]:
    made = Views(commander, source, f"t{abs(hash(request.node.name)) % 10**8}")
    yield made
    made.drop()


@pytest.mark.parametrize("begin", ["one", "two", "rest"])
def test_empty_partitions_are_followed_without_a_refill(views, begin):
    first = {"one": (), "two": ("1",), "rest": ("rest",)}[begin]
    views.run(ROOT + OTHER + {"one": "", "two": MORE, "rest": REST}[begin] + FILL)
    views.create(QUERIES)
    new = "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30);"
    views.follow(new, "0", *first, "2")
    views.run("INSERT INTO {t} (id, k, v) SELECT i, 20 + i % 10, i FROM generate_series(1, 30) i")
    views.are_right()
    # Columns at other numbers, and one of its own that is gone.
    attached = (
        "CREATE TABLE {t}_3 (w text, gone int, v int, k int NOT NULL, id int NOT NULL,"
        " d int GENERATED ALWAYS AS (v * 2) STORED, PRIMARY KEY (id, k));"
        " ALTER TABLE {t}_3 DROP gone;"
        " ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (30) TO (40)"
    )
    if begin != "one":
        return
    views.follow(attached.replace(" d int GENERATED ALWAYS AS (v * 2) STORED,", ""), "0") if 0 else None
    del attached
    views.run("UPDATE {t} SET k = 25 WHERE k = 3; DELETE FROM {t} WHERE id % 7 = 0")
    views.are_right()
    assert views.now() == views.ids
