"""The public interface is unchanged: functions, settings, HTTP paths and metrics.

``surface.txt`` was written at the commit before issue 30, by this test with ``REWRITE=1``.
Deliberate differences are listed here and in the changelog.
"""

from __future__ import annotations

import ast
import dataclasses
import os
from pathlib import Path

import psycopg

from headrace.config import Settings
from headrace.server import metrics
from headrace.sql import install

HERE = Path(__file__).parent
BEFORE = HERE / "surface.txt"
APP = HERE.parents[1] / "headrace" / "console" / "app.py"
ROUTINES = """
SELECT prokind::text || ' ' || proname || '(' || pg_get_function_arguments(oid) || ')'
  FROM pg_proc WHERE pronamespace = 'headrace'::regnamespace"""
GONE = {
    "setting admin_database",
    "setting lane_ms",
    "sql f await_command(command bigint, INOUT seen text, OUT done boolean)",
}
"""``clients()``, ``end_client()``, ``settings()`` and ``reload()`` replaced the admin database;
``lane_ms`` is accepted as another name of ``slow_batch_ms``; ``check_command`` was for procedures."""
ALTERED = {
    *("list_views", "view_states", "verify", "verify_view", "submit", "view_stats"),
    *("show_view_stats", "batches", "workers", "clients", "sources"),
}
"""Functions with another column, ``cursor``, ``assertion`` or ``view``, a column of another type,
``timestamptz``, or another argument, ``in_postgres`` or ``queued``."""
NEW = {
    *("clients", "client_stats", "settings", "end_client", "reload"),
    *("show_clients", "show_client_stats", "show_settings"),
    *("slow_batch_ms", "view_cursor", "slot_failover", "decode_from"),
    *("spark_options", "spark_parallelism", "recompute_backlogs"),
    *(
        "ask_engine",
        "pose_question",
        "send_arguments",
        "find_view",
    ),  # called by the functions that ask the engine
    *("help", "calls", "wait_here", "refused_commit", "check_command", "raise_error"),
    *("view_diff", "net_changes", "who_changed", "await_txid"),
    *("why", "why_not", "show_why", "show_why_not"),
    *("create_assertion", "drop_assertion", "check_assertion", "assertions", "webhooks"),
    "assertion_rows",  # called by them
    *("webhook_hosts", "webhook_timeout_ms", "webhook_tries_max"),
    *("assertion_violated", "webhook_deliveries"),
    *("/api/log", "/api/sql"),  # of the console
    *("what_if", "what_if_rows"),
    *("what_if_facts", "what_if_hold", "carry_out"),  # called by what_if
}


def surface(conn: psycopg.Connection) -> set[str]:
    """Return a line for each thing that users can name."""
    install.install(conn)
    lines = {f"sql {row[0]}" for row in conn.execute(ROUTINES).fetchall()}
    lines |= {f"setting {field.name}" for field in dataclasses.fields(Settings)}
    lines |= {f"metric {m.name} {' '.join(m.labels)}".strip() for m in metrics.TABLE}
    for node in ast.walk(ast.parse(APP.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Route":
            lines.add(f"http {ast.literal_eval(node.args[0])}")
    return lines


def test_what_users_call_differs_only_as_documented(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        now = surface(conn)
    if os.environ.get("REWRITE"):
        BEFORE.write_text("\n".join(sorted(now)) + "\n")
    before = set(BEFORE.read_text().splitlines())
    assert len(before) > 200
    assert {line for line in before - now if name(line) not in ALTERED} == GONE
    assert {name(line) for line in now - before} == NEW | ALTERED


def name(line: str) -> str:
    """Return the name of the thing that a line describes."""
    words = line.split("(")[0].split()
    return words[2] if words[0] == "sql" else words[1]
