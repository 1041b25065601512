"""Every call that changes nothing, for every kind of view, on the port and directly.

The calls are taken from the code: the verbs, and the functions of schema ``headrace``.  A new one
fails here until a list says how it is called, or that other tests call it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from headrace.planner import graph
from headrace.planner.readings import AST
from headrace.sql.verbs import VERBS, Verb
from headrace.views.explain import ANALYZE
from tests.integration.test_lag import populating
from tests.integration.test_sources import THERE, at
from tests.waiting import wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text);
CREATE TABLE sold (id int PRIMARY KEY, item int, n int);
CREATE TABLE other (id int PRIMARY KEY);
CREATE TABLE orders (id int PRIMARY KEY, g int, x numeric, note text);
CREATE TABLE timed (id int PRIMARY KEY, at timestamptz);
INSERT INTO items SELECT i, 'n' || i FROM generate_series(1, 20) i;
INSERT INTO sold SELECT i, i % 20 + 1, i % 9 + 1 FROM generate_series(1, 60) i;
INSERT INTO orders SELECT i, i % 7, i, 'n' FROM generate_series(1, 30) i;
INSERT INTO timed SELECT i, now() + i * interval '1 min' FROM generate_series(-9, 9) i;
"""
SUMS = "SELECT i.name, sum(o.n) AS s FROM items i JOIN sold o ON o.item = i.id GROUP BY i.name"
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("SELECT o.item, o.n FROM sold o WHERE o.n > 2", {}),
    "over": ("SELECT item, count(*) AS c FROM plain GROUP BY item", {}),
    "joined": (SUMS, {}),
    "shared": (SUMS.replace("sum(", "max("), {}),
    "fed": ("SELECT s, count(*) AS c FROM joined GROUP BY s", {"from": "p"}),
    "stacked": ("SELECT s FROM joined WHERE s > 3", {"first_rows": "views"}),
    "placed": ("SELECT n, count(*) AS c FROM sold GROUP BY n", {"placement": "w1"}),
    "cut": (SUMS.replace("sum(", "min("), {"placement": {"join": "w1"}}),
    "temporal": ("SELECT id, at FROM timed WHERE at > now()", {}),
    "united": ("SELECT shard, count(*) AS c FROM all_orders GROUP BY shard", {}),
    "history": ("SELECT id, name FROM items", {"history": "1 h"}),
    "paused": ("SELECT id FROM items", {}),
    "stopped": ("SELECT id, 9 / n AS q FROM sold", {}),
}
"""Query and options by name; a view that is being populated is added."""
NAME = {"name", "name_or_query", "view"}
GIVEN: dict[str, object] = {"query": "SELECT id FROM items", "key": '{"id": 1}'}
"""Arguments by parameter, other than the view's name."""
ELSEWHERE = {
    *("create_view", "check_view", "drop_view", "create_index", "drop_index", "pause_view"),
    *("resume_view", "alter_view", "rename_view", "set_history", "set_latency", "set_owner"),
    *("create_connection_point", "drop_connection_point", "resync_view", "set_placement"),
    *("add_worker", "create_worker_token", "remove_worker", "add_link", "drop_link"),
    *("add_source", "drop_source", "create_logical_table", "fail_batch", "end_client", "reload"),
    *("create_assertion", "drop_assertion"),
    *("what_if", "what_if_plan", "what_if_hold", "what_if_rows"),
}
"""Verbs that change something: each has its own tests."""
CALLED = {"drain_worker", "wait_for"}
FUNCTIONS = {
    "await_txid": "({view}::regclass, 0)",
    "await_history": "({view}::regclass, NULL, clock_timestamp())",
    "rows_as_of": "(NULL::{table}, NULL, NULL, clock_timestamp())",
    "assertions": "()",
    "at_work": "()",
    "batch_s": "()",
    "connection_points": "()",
    "engine_running": "()",
    "history_lost": "({view}::regclass, '1', 1)",
    "history_of": "({view}::regclass)",
    "lag_history": "({view})",
    "lineage": "({view})",
    "list_views": "()",
    "status": "()",
    "net_changes": "({view}::regclass, 1, NULL, NULL, NULL)",
    "view_as_of": "(NULL::{table})",
    "view_diff": "({view}::regclass, 1)",
    "who_changed": """({view}::regclass, '{{"x": 1}}')""",
    "view_changes": "({view}::regclass)",
    "view_message": "((SELECT id FROM headrace.view_states() WHERE name = 'public.' || {view}))",
    "view_states": "()",
    "view_txid": "({view}::regclass)",
    "webhooks": "()",
    "worker_position": "()",
    "worker_running": "()",
}
INTERNAL = {
    *("assertion_rows", "ask_engine", "check_command", "raise_error", "captured_settings"),
    *("command_result", "find_view", "pose_question", "send_arguments"),
    *("calls", "help", "refused_commit", "wait_here"),
    *("history_times", "join_worker"),
    *("refuse_rows", "stamp_command", "submit", "table_mark"),
    *("feed_of", "feed_read"),  # of a feed, not of a view
    *("has_room_for_feed", "hmac_sha256", "withdraw_tables"),
    *("what_if_facts", "what_if_hold", "what_if_rows"),
}
"""Functions that procedures, triggers and workers call."""
# Refused because of the kind or status of the view: 0A000, 22023, 42xxx, 55xxx.
REFUSED = ("0A", "22", "42", "55")


pytestmark = [
    pytest.mark.shared_engine,
    pytest.mark.engine_with(HEADRACE_POPULATION_LOCK_WAIT_MS="600000"),
]


@pytest.fixture
def views(engine, source, commander, databases) -> Iterator[tuple[str, ...]]:
    """Create a view of each kind, and yield their names."""
    name = databases.take()
    dsn = psycopg.conninfo.make_conninfo(databases.server, dbname=name)
    commander.execute("CALL headrace.add_worker('w1')")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(THERE)
        commander.execute("CALL headrace.add_source('eu', %s)", (at(other),))
        commander.execute("CALL headrace.create_logical_table('all_orders', 'orders', 'shard')")
        for view, (query, options) in KINDS.items():
            commander.execute(
                "CALL headrace.create_view(%s, %s, options => %s)",
                (view, query, json.dumps(options)),
            )
            if view == "joined":
                commander.execute("CALL headrace.create_connection_point('p', 'joined')")
        commander.execute("CALL headrace.pause_view('paused')")
        source.execute("UPDATE sold SET n = 0 WHERE id = 1")
        status = "SELECT status FROM headrace.view_states() WHERE name = 'public.stopped'"
        wait_until(lambda: source.execute(status).fetchone() == ("error",), "a view has stopped")
        yield tuple(KINDS)
    databases.give_back(name)


def attempt(conn: psycopg.Connection, statement: str, values: tuple = ()) -> list[tuple] | None:
    """Return the rows, or None if the call was refused for a reason; fail on any other error."""
    try:
        return conn.execute(statement, values).fetchall()
    except psycopg.Error as error:
        if not str(error.sqlstate).startswith(REFUSED):
            pytest.fail(f"{statement} {values}: {error.sqlstate} {error}")
        return None


def arguments(verb: Verb, view: str) -> tuple[object, ...]:
    return tuple(view if p.name in NAME else GIVEN[p.name] for p in verb.parameters if p.required)


def test_every_verb_and_function_is_in_a_list(engine, source):
    reading = {verb.name for verb in VERBS.values() if verb.selected}
    assert set(VERBS) == reading | CALLED | ELSEWHERE
    found = source.execute(
        "SELECT DISTINCT proname FROM pg_proc WHERE prokind = 'f'"
        " AND pronamespace = 'headrace'::regnamespace"
    ).fetchall()
    assert {name for (name,) in found} == reading | set(FUNCTIONS) | INTERNAL


def ask(source, commander, view: str) -> None:
    """Ask everything of one view."""
    for verb in (verb for verb in VERBS.values() if verb.selected):
        if verb.name in ("verify_view", "why", "why_not") and view == "populating":
            continue  # their snapshot would wait for the open transaction
        given = arguments(verb, view)
        marks = ", ".join(["%s"] * len(given))
        for conn in (source, commander):
            attempt(conn, f"SELECT * FROM headrace.{verb.name}({marks})", given)
            attempt(conn, f"CALL headrace.{verb.called}({marks})", given)
    for name, words in FUNCTIONS.items():
        for conn in (source, commander):
            call = words.format(view=f"'{view}'", table=view)
            attempt(conn, f"SELECT * FROM headrace.{name}{call}")


def explain(source, commander, view: str) -> None:
    """Explain every stage in every format."""
    stages = {
        stage
        for (stage,) in source.execute(
            "SELECT DISTINCT e.key FROM headrace.views, jsonb_each(explain) e"
            " WHERE jsonb_typeof(e.value) = 'string' AND e.key NOT IN ('tidy', 'written', 'first_rows')"
        )
    } | {ANALYZE, AST}
    for stage in sorted(stages):
        for how in graph.FORMATS:
            found = attempt(
                commander, "SELECT * FROM headrace.explain_view(%s, %s, %s)", (view, stage, how)
            )
            assert found or how not in ("text", "json"), (view, stage, how)


def check_nodes(commander, view: str) -> None:
    """Check that the numbers belong to nodes of the plan, and each node comes once."""
    [(plan,)] = commander.execute(
        "SELECT * FROM headrace.explain_view(%s, 'physical', 'json')", (view,)
    ).fetchall()
    shown = {node["id"] for node in json.loads(plan)["nodes"]}
    rows = commander.execute("SELECT * FROM headrace.view_stats(%s)", (view,)).fetchall()
    nodes = [row[0] for row in rows]
    assert set(nodes) <= shown, view
    assert len(nodes) == len(set(nodes)), view
    over_rows = view in ("fed", "stacked")
    assert not over_rows or set(nodes) == shown, "the feed is counted as well"


def tree(commander, text: str) -> list[str]:
    rows = commander.execute("SELECT * FROM headrace.explain_view(%s, 'ast')", (text,))
    return [line for (line,) in rows]


def test_everything_answers_beside_a_fed_view(engine, source, commander):
    """A fast variant of the next test."""
    for view in ("joined", "fed", "stacked"):
        query, options = KINDS[view]
        commander.execute(
            "CALL headrace.create_view(%s, %s, options => %s)", (view, query, json.dumps(options))
        )
        if view == "joined":
            commander.execute("CALL headrace.create_connection_point('p', 'joined')")
    for view in ("joined", "fed", "stacked"):
        check_nodes(commander, view)
        assert tree(commander, view) == tree(commander, KINDS[view][0])
        assert tree(commander, view)[-1] == "Postgres reads it alike"
        assert attempt(commander, "SELECT * FROM headrace.explain_view(%s, 'analyze')", (view,))
    assert attempt(commander, "SELECT * FROM headrace.rebalance()") is not None
    assert [line for line in engine.log.splitlines() if "by a bug" in line] == []


@pytest.mark.slow
def test_everything_answers_for_every_kind_of_view(engine, source, commander, views):
    for view, (query, _) in KINDS.items():
        ask(source, commander, view)
        explain(source, commander, view)
        check_nodes(commander, view)
        # The query as it was written; its names are resolved as they were then.
        assert tree(commander, view) == tree(commander, query), view
        assert tree(commander, view)[-1] == "Postgres reads it alike", view
    with populating(engine, source):
        ask(source, commander, "populating")
    assert attempt(commander, "SELECT * FROM headrace.rebalance()") is not None
    commander.execute("CALL headrace.drain_worker('w1')")
    left = source.execute(
        "SELECT count(*) FROM headrace.views WHERE options -> 'placement' = '\"w1\"'"
    ).fetchone()
    assert left == (0,)
    commander.execute("SET search_path = pg_catalog")
    source.execute("ALTER TABLE items RENAME TO goods")
    assert "  Column i.name = public.goods.name" in tree(commander, "public.joined")
    assert [line for line in engine.log.splitlines() if "by a bug" in line] == []
