"""A view without a waiting caller is created again, as requested, after its builder died."""

from __future__ import annotations

import os
import signal

import psycopg
import pytest

from tests.waiting import wait_until

pytestmark = pytest.mark.shared_engine

BUILDER = "headrace.views.builder"


def test_its_tables_are_those_of_the_search_path_then(engine):
    with (
        psycopg.connect(engine.dsn, autocommit=True) as conn,
        psycopg.connect(engine.source) as writer,
    ):
        conn.execute("CREATE SCHEMA app")
        for schema, value in (("public", 1), ("app", 2)):
            conn.execute(f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
            conn.execute(f"INSERT INTO {schema}.t VALUES ({value})")
        # The snapshot waits for an open transaction.
        writer.execute("CREATE TABLE open_one (x int)")
        conn.execute("SET search_path = app")
        conn.execute(
            "CALL headrace.create_view('public.v', 'SELECT id FROM t', '{\"block\": false}')"
        )
        os.kill(engine.child(BUILDER), signal.SIGKILL)
        writer.rollback()
        status = "SELECT status FROM headrace.views WHERE view_name = 'v'"
        wait_until(
            lambda: conn.execute(status).fetchone() == ("running",),
            lambda: conn.execute(status).fetchone(),
        )
        conn.execute("INSERT INTO app.t VALUES (3)")
        conn.execute("CALL headrace.wait_for('public.v')")
        rows = conn.execute("SELECT id FROM public.v ORDER BY id").fetchall()
        assert rows == [(2,), (3,)]
        conn.execute("CALL headrace.drop_view('public.v')")
        conn.execute("DROP SCHEMA app CASCADE")
