"""A view stops between its creation and the moment in which the worker knows it."""

from __future__ import annotations

import threading

import psycopg
import pytest

from headrace.process import faults
from tests.compared import differs
from tests.faults.helpers import arm
from tests.integration.test_resync import wait
from tests.waiting import PATIENCE_S, wait_until

TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name varchar(10));
INSERT INTO items SELECT i, 'n' || i FROM generate_series(1, 20) i;
"""
QUERY = "SELECT id, name FROM items"
WIDEN = "ALTER TABLE items ALTER COLUMN name TYPE varchar(20)"


@pytest.fixture
def traps(tmp_path):
    folder = tmp_path / "traps"
    folder.mkdir()
    return folder


@pytest.fixture
def engine(database, start_engine, traps):
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(TABLES)
    return start_engine(database, **{faults.ENV_DIR: str(traps)})


@pytest.fixture
def source(engine):
    with psycopg.connect(engine.source, autocommit=True) as conn:
        yield conn


def call_while_it_changes(engine, source, traps, text: str) -> tuple[list[str], list[Exception]]:
    """Widen a column of the table once a call has published its view; return notices and errors."""
    arm(traps, faults.PUBLISHED, "hang:1:1000")
    notices: list[str] = []
    errors: list[Exception] = []

    def call() -> None:
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.add_notice_handler(lambda diag: notices.append(diag.message_primary))
            try:
                conn.execute(text)
            except psycopg.Error as error:
                errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    wait_until((traps / f"{faults.PUBLISHED}{faults.SPRUNG}").exists, "it is published")
    source.execute(WIDEN)
    source.execute("INSERT INTO items VALUES (21, 'beyond ten letters')")
    caller.join(PATIENCE_S)
    assert not caller.is_alive()
    return notices, errors


@pytest.mark.parametrize("verb", ["create_view", "resync_view"])
def test_the_call_waits_until_it_is_filled_again(engine, source, traps, verb):
    call = f"CALL headrace.create_view('v', '{QUERY}')"
    if verb == "resync_view":
        with psycopg.connect(engine.dsn, autocommit=True) as conn:
            conn.execute(call)
        call = "CALL headrace.resync_view('v')"
    notices, errors = call_while_it_changes(engine, source, traps, call)
    assert errors == []
    [told] = [notice for notice in notices if "was filled again" in notice]
    assert told.startswith('view "public"."v" has stopped meanwhile, and was filled again: ')
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        wait(conn, "v")
    assert differs(source, "v", QUERY) == []


def test_the_call_fails_if_it_stays_stopped(engine, source, traps):
    call = f"""CALL headrace.create_view('v', '{QUERY}', '{{"on_change": "stop"}}')"""
    _, [error] = call_while_it_changes(engine, source, traps, call)
    assert error.sqlstate == "55000"
    assert error.diag.message_primary == 'view "public"."v" has stopped'
    with psycopg.connect(engine.dsn, autocommit=True) as conn:
        conn.execute("CALL headrace.resync_view('v')")
        wait(conn, "v")
    assert differs(source, "v", QUERY) == []
