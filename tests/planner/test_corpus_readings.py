"""The conformance queries as sqlglot reads them, compared with Postgres' own analysis.

Three readings are compared. The front composes the query from sqlglot's tree, and must get
Postgres' tree. Postgres must bind the SQL that sqlglot generates from its tree to the same tree.
The origins of columns must be those that sqlglot finds. A difference does not change a plan: the
query is then planned from Postgres' tree. The tests list how many queries differ.
"""

from __future__ import annotations

import logging
import re

import psycopg
import pytest

from headrace.errors import HeadraceError, UserError
from headrace.planner import PlanRequest, plan, readings
from headrace.planner.analyse import session
from headrace.planner.front.front import compose
from headrace.planner.front.names import read
from headrace.reading.reader import TextReader
from headrace.reading.trees import Unsaid, parsed, plain
from tests.planner import glot
from tests.planner.test_corpus import FILES, SOURCES, needs_corpus, requests

# Queries that are planned from sqlglot's tree, by file, of those that Postgres analyses.
COMPOSED = {
    "chbench": (22, 22), "nexmark": (38, 38), "pg_ivm": (81, 81), "postgres": (676, 711),
    "sqlite": (154, 160), "tpcds": (78, 78), "tpch": (43, 43),
}  # fmt: skip
SHARE = 0.96
"""Share of all of them, at least: a figure of docs/ARCHITECTURE.md."""

# Queries that both read alike, and whose lineage is the same, by file: it may only grow.
LEAST = {
    "chbench": (17, 22), "nexmark": (31, 38), "pg_ivm": (81, 71), "postgres": (665, 375),
    "sqlite": (106, 91), "tpcds": (72, 65), "tpch": (35, 42),
}  # fmt: skip

# Where sqlglot has another lineage, and why Headrace's is right.
OTHERWISE = re.compile(
    r"\b(using|natural)\b"  # of an inner join Postgres takes the left side's, sqlglot both
    r"|\blateral\b"  # it takes the subquery's columns for those of the other side
    r"|\b(except|intersect)\b"  # values are the left side's
    r"|\b\w+ \w+ ?\((a|x)\b"  # t1 (a, b, c): it does not rename
    r"|\bgrouping\b"  # the grouping set of a row is no column's value
    r"|\bgenerate_series\b|\bto_json\b|\)\)?\["  # functions in FROM, whole rows, slices
    r"|\bcast ?\( ?null\b",  # a strict function of NULL reads no column
    re.IGNORECASE,
)
TABLES = """
SELECT c.relname, a.attname, format_type(a.atttypid, NULL) FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
 ORDER BY c.oid, a.attnum"""


@pytest.fixture(scope="module")
def reader():
    reader = TextReader(lambda: None)
    yield reader
    reader.close()


@needs_corpus
def test_every_file_of_the_corpus_has_floors():
    assert {path.stem for path in FILES} == LEAST.keys() == COMPOSED.keys()
    assert all(all(floors) for floors in LEAST.values())


def test_the_share_of_queries_that_are_planned_from_sqlglots_tree():
    composed, every = (sum(counts) for counts in zip(*COMPOSED.values(), strict=True))
    assert composed / every >= SHARE


@needs_corpus
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[] if p.stem in SOURCES else pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_the_front(path, database):
    """Print the reason for each query that is not composed."""
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    composed = every = 0
    with psycopg.connect(database, autocommit=True) as conn:
        for case, request in requests(conn, path):
            try:
                found = front(conn, request)
            except HeadraceError:
                continue  # Postgres refuses the query
            every += 1
            composed += found is None
            if found is not None:
                print(case["id"], found)
    print(f"{path.stem}: {composed} of {every}")
    assert (composed, every) >= COMPOSED[path.stem]


def front(conn, request: PlanRequest) -> str | None:
    """Return why the query is not planned from sqlglot's tree; None: it is."""
    analysed = readings.bound(conn, request).tree
    try:
        nodes = plain(parsed(request.query, "postgres"), request.query)
    except Unsaid as refused:
        return refused.message
    with session.reading(conn):
        names = read(conn, analysed)
    found = compose(nodes, analysed, names)
    return None if found.tree is not None else found.differs


@needs_corpus
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_readings(path, database, reader):
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    read = traced = 0
    tables: dict[str, dict[str, dict[str, str]]] = {}
    with psycopg.connect(database, autocommit=True) as conn:
        for case, request in requests(conn, path):
            schema = request.settings["search_path"]
            if schema not in tables:
                tables[schema] = tables_of(conn)
            read += reads_alike(conn, reader, request)
            traced += traces_alike(conn, request, tables[schema], case["id"])
    assert read >= LEAST[path.stem][0]
    assert traced >= LEAST[path.stem][1]


def tables_of(conn) -> dict[str, dict[str, str]]:
    """Return the columns of the tables of the current schema, with their types."""
    out: dict[str, dict[str, str]] = {}
    for table, column, kind in conn.execute(TABLES):
        out.setdefault(table, {})[column] = kind
    return out


def reads_alike(conn, reader, request: PlanRequest) -> bool:
    try:
        readings.check(conn, request)
        read = reader.read(request.query)
    except UserError:
        return False
    return readings.alike(conn, request, read.text)


def traces_alike(conn, request: PlanRequest, tables, case: str) -> bool:
    try:
        planned = plan(conn, request)
    except HeadraceError:
        return False
    names = [name for name, _ in planned.lineage]
    if planned.views or len(set(names)) < len(names):
        return False  # it knows no views, and finds columns by name only
    theirs = glot.origins(request.query, names, tables)
    ours = [{(o.table, o.name) for o in mine if o.name} for _, mine in planned.lineage]
    assert theirs in (None, ours) or OTHERWISE.search(request.query), (case, ours, theirs)
    return theirs == ours
