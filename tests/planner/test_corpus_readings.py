"""The conformance queries as sqlglot reads them, beside what Postgres has bound.

Two readings are compared, and neither is ours: a tree of sqlglot that is written down again must be
bound by Postgres to the same tree; and the lineage that sqlglot finds must be that of our plan.
Where they differ the query is planned as ever, for nothing of sqlglot's is planned; here it is said
in how many.
"""

from __future__ import annotations

import json
from collections import Counter

import psycopg
import pytest
from psycopg import sql

from headrace.errors import HeadraceError, SyntaxUserError, UserError
from headrace.planner import PlanRequest, plan, readings
from headrace.reading.reader import Reader
from tests.planner.test_corpus import FILES, SOURCES, full_identity


@pytest.fixture(scope="module")
def reader():
    reader = Reader()
    yield reader
    reader.close()


@pytest.mark.skipif(not FILES, reason="the conformance corpus is not here")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, marks=[] if p.stem in ("tpch", "pg_ivm") else pytest.mark.slow)
        for p in FILES
    ],
    ids=lambda p: p.stem,
)
def test_readings(path, database, reader):
    found: Counter[str] = Counter()
    with psycopg.connect(database, autocommit=True) as conn:
        for line in path.read_text().splitlines():
            group = json.loads(line)
            name = "g_" + group["id"]
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
            path_of = f"{name}, public"
            conn.execute("SELECT set_config('search_path', %s, false)", (path_of,))
            for statement in group["setup"]:
                if not statement.upper().startswith("INSERT"):
                    conn.execute(statement)
            full_identity(conn)
            for case in group["cases"]:
                request = PlanRequest(case["query"], settings={"search_path": path_of})
                found += compared(conn, reader, request, case["id"])
    print(path.stem, dict(found))


def compared(conn, reader, request: PlanRequest, case: str) -> Counter[str]:
    found: Counter[str] = Counter(all=1)
    try:
        mine = readings.bound(conn, request)
    except HeadraceError:
        return found + Counter(refused=1)
    try:
        read = reader.read(request.query)
    except UserError as error:
        print("UNREAD", case, error.message, error.position)
        return found + Counter(unread=1)
    differs = readings.same(conn, request, mine, read.text)
    if differs:
        print(
            "DIFFERS",
            case,
            differs,
            "|",
            " ".join(request.query.split())[:150],
            "|",
            " ".join(read.text.split())[:150],
        )
        found["differ"] += 1
    return found
