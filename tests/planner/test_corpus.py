"""Every third-party query is planned or refused with a named construct; nothing else.

The corpus is no part of the repository: the test runs where it is found.
"""

from __future__ import annotations

import json
import os
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

# Queries that a first version must plan, by file: it may only grow.
LEAST = {
    "pg_ivm": 26, "tpch": 18, "nexmark": 27, "chbench": 10, "postgres": 355,
    "sqlite": 125, "tpcds": 6,
}  # fmt: skip


@pytest.mark.skipif(not FILES, reason="the conformance corpus is not here")
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[] if p.stem in SOURCES else pytest.mark.slow) for p in FILES],
    ids=lambda p: p.stem,
)
def test_corpus(path, database):
    planned = 0
    with psycopg.connect(database, autocommit=True) as conn:
        for line in path.read_text().splitlines():
            group = json.loads(line)
            schema = sql.Identifier("g_" + group["id"])
            conn.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
            conn.execute(sql.SQL("SET search_path = {}, public").format(schema))
            for statement in group["setup"]:
                if not statement.upper().startswith("INSERT"):
                    conn.execute(statement)
            full_identity(conn)
            for case in group["cases"]:
                planned += outcome(conn, case, "g_" + group["id"])
    assert planned >= LEAST.get(path.stem, 1)


def outcome(conn, case, schema) -> bool:
    request = PlanRequest(case["query"], settings={"search_path": f"{schema}, public"})
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
