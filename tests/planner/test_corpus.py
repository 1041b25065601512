"""Every third-party query is planned or refused with a named construct; nothing else.

The corpus is no part of the repository: the test runs where it is found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.planner import PlanRequest, plan

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(os.environ.get("HEADRACE_CONFORMANCE", ROOT.parent / "shared/conformance"))
FILES = sorted((CORPUS / "corpus").glob("*.jsonl"))
SOURCES = {"pg_ivm", "tpch", "nexmark", "chbench"}

# Queries that are planned, by file: as many as today on Postgres 16, and never fewer.
LEAST = {
    "pg_ivm": 80, "tpch": 43, "nexmark": 38, "chbench": 22, "postgres": 707,
    "sqlite": 160, "tpcds": 78,
}  # fmt: skip
needs_corpus = pytest.mark.skipif(not CORPUS.is_dir(), reason="the conformance corpus is not here")


@needs_corpus
def test_every_file_of_the_corpus_has_a_floor():
    assert {path.stem for path in FILES} == LEAST.keys()
    assert all(LEAST.values())


@needs_corpus
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[] if p.stem in SOURCES else pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_corpus(path, database):
    with psycopg.connect(database, autocommit=True) as conn:
        planned = sum(outcome(conn, case, request) for case, request in requests(conn, path))
    assert planned >= LEAST[path.stem]


def requests(conn: psycopg.Connection, path: Path) -> Iterator[tuple[dict, PlanRequest]]:
    """Create the tables of each group of the file, without rows, and yield its queries."""
    for line in path.read_text().splitlines():
        group = json.loads(line)
        schema = "g_" + group["id"]
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        search_path = f"{schema}, public"
        conn.execute("SELECT set_config('search_path', %s, false)", (search_path,))
        for statement in group["setup"]:
            if not statement.upper().startswith("INSERT"):
                conn.execute(statement)
        full_identity(conn)
        for case in group["cases"]:
            yield case, PlanRequest(case["query"], settings={"search_path": search_path})


def outcome(conn, case, request) -> bool:
    refused = None
    try:
        plan(conn, request)
    except UnsupportedError as error:
        refused = error
    assert refused is None or "not supported" in refused.message, case["id"]
    return refused is None


def full_identity(conn) -> None:
    rows = conn.execute(
        "SELECT c.relname FROM pg_class c WHERE relkind = 'r'"
        " AND relnamespace = current_schema()::regnamespace AND NOT EXISTS"
        " (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)"
    ).fetchall()
    for (name,) in rows:
        conn.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(name)))
