"""A session at psql: create, read, change, read again, interrupt, drop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import psycopg
import pytest

from tests.compared import differs
from tests.waiting import PATIENCE_S, bump, wait_for, wait_until

pytestmark = pytest.mark.shared_engine

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10,2));
INSERT INTO orders SELECT i, i % 100, (i % 1000) / 10.0 FROM generate_series(1, 1000) i;
"""
MARKER = True

PSQL = shutil.which("psql")


QUERY = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"


def test_view_follows_commits(commander, source):
    commander.execute(f"CALL headrace.create_view('v', $${QUERY}$$)")
    assert differs(source, "v", QUERY) == []
    for statement in (
        "INSERT INTO orders VALUES (5000, 7, 12.34)",
        "UPDATE orders SET amount = amount + 1 WHERE customer = 3",
        "DELETE FROM orders WHERE customer = 9",
        "UPDATE orders SET id = id + 100000 WHERE id < 20",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 1, 1)",
    ):
        source.execute(statement)
        wait_for(source, bump(source))
        assert differs(source, "v", QUERY) == []


def test_result_table_has_exactly_the_columns_of_the_query(commander, source):
    commander.execute(f"CALL headrace.create_view('v', $${QUERY}$$)")
    sql = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    source.execute(f"CREATE VIEW plain AS {QUERY}")
    assert source.execute(sql, ("v",)).fetchall() == source.execute(sql, ("plain",)).fetchall()


def test_extended_protocol_and_named_arguments(commander, source):
    commander.execute("CALL headrace.create_view(query => %s, name => %s)", (QUERY, "v"))
    assert differs(source, "v", QUERY) == []
    commander.execute("CALL headrace.drop_view(%s)", ("v",))
    assert source.execute("SELECT to_regclass('v')").fetchone() == (None,)
    commander.execute("CALL headrace.drop_view('v', true)")


def test_list_and_explain(commander):
    commander.execute(f"CALL headrace.create_view('v', $${QUERY}$$)")
    rows = commander.execute("SELECT name, status, query FROM headrace.list_views()").fetchall()
    assert any(r[0].endswith("v") and r[1] == "running" for r in rows)
    text = "\n".join(
        str(r[0]) for r in commander.execute("SELECT * FROM headrace.explain_view('v')")
    )
    assert "educe" in text or "ggregate" in text


def test_direct_connection_can_call_too(engine, source, commander):
    source.execute(f"CALL headrace.create_view('direct', $${QUERY}$$)")
    assert differs(source, "direct", QUERY) == []
    with pytest.raises(psycopg.errors.UndefinedColumn):
        source.execute("CALL headrace.create_view('bad', 'SELECT nope FROM orders')")
    source.execute("CALL headrace.drop_view('direct')")


def test_index_and_grants_survive_changes(commander, source):
    commander.execute(f"CALL headrace.create_view('v', $${QUERY}$$)")
    commander.execute("CALL headrace.create_index('v', '(customer)')")
    indexes = source.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'v'").fetchall()
    assert any("(customer)" in i[0] for i in indexes)
    source.execute("GRANT SELECT ON v TO PUBLIC")
    source.execute("INSERT INTO orders VALUES (7000, 1, 1)")
    wait_for(source, bump(source))
    assert source.execute("SELECT has_table_privilege('public', 'v', 'select')").fetchone() == (
        True,
    )
    assert differs(source, "v", QUERY) == []


@pytest.mark.slow  # tests/population/test_spark.py is quicker: its tests share one session
def test_spark_population_with_progress(commander, source):
    source.execute(
        "INSERT INTO orders SELECT i, i % 1000, (i % 777) / 7.0 FROM generate_series(10001, 60000) i"
    )
    notices = []
    commander.add_notice_handler(lambda d: notices.append(d.message_primary))
    commander.execute(
        f"CALL headrace.create_view('v', $${QUERY}$$, '{{\"population\": \"spark\"}}')"
    )
    assert differs(source, "v", QUERY) == []
    assert any("%" in (n or "") for n in notices), notices
    source.execute("INSERT INTO orders VALUES (999999, 1, 1)")
    wait_for(source, bump(source))
    assert differs(source, "v", QUERY) == []


@pytest.mark.skipif(PSQL is None, reason="no psql")
def test_psql_interrupt_leaves_nothing(engine, commander, source):
    call = f"CALL headrace.create_view('v', $${QUERY}$$)"
    status = "SELECT status FROM headrace.views WHERE view_name = 'v'"
    with psycopg.connect(engine.source) as writer:
        # The snapshot waits for an open transaction.
        writer.execute("CREATE TABLE open_one (x int)")
        process = subprocess.Popen(
            [str(PSQL), engine.dsn, "-X", "-c", call],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"}, start_new_session=True,
        )  # fmt: skip
        wait_until(lambda: source.execute(status).fetchone() == ("populating",), "it waits")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_S)
        writer.rollback()
    assert "canceling statement due to user request" in error
    assert source.execute("SELECT to_regclass('v')").fetchone() == (None,)
    assert source.execute(
        "SELECT count(*) FROM headrace.views WHERE view_name = 'v'"
    ).fetchone() == (0,)
    slots = (
        "SELECT count(*) FROM pg_replication_slots"
        " WHERE temporary AND database = current_database()"
    )
    wait_until(lambda: source.execute(slots).fetchone() == (0,), "its slot is gone")
    commander.execute(f"CALL headrace.create_view('v', $${QUERY}$$)")
    wait_for(source, bump(source))
    assert differs(source, "v", QUERY) == []
